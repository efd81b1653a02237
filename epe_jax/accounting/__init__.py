"""The analytic ε of mechanisms, each with what it assumes."""

from epe_jax.accounting.analytic import Analytic
from epe_jax.accounting.gaussian import epsilon_of_poisson, epsilon_of_releases
from epe_jax.accounting.random_allocation import epsilon_of_allocation

__all__ = [
  'Analytic',
  'epsilon_of_allocation',
  'epsilon_of_poisson',
  'epsilon_of_releases',
]
