"""Trade-off curves of noisy mechanisms, as families ordered by their noise.

A mechanism with trade-off curve f lets no attacker with false positive rate α
have a false negative rate below f(α). More noise lifts the curve, so that rates
seen in an audit bound the noise from above and ε from below (`tradeoff`). All
curves are those of the add-or-remove relation: symmetric in the two rates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Float
import numpy as np
from scipy import optimize, special

from epe_jax.epsilon import gaussian
from epe_jax.epsilon.types import Real, check_delta, scalar_or_array


class Family(NamedTuple):
  """Mechanisms that differ in how much Gaussian noise they add.

  Attributes:
    name: of the family, for the name of the estimator.
    fnr: (noise multiplier, log FPR) -> the smallest FNR, or less: a curve that
      is too low makes an audit weaker and not wrong.
    epsilon: (noise multiplier, δ) -> ε of all that is to be reported, such as
      all steps of a run when the scores come from single steps.
  """

  name: str
  fnr: Callable[[float, Float[np.ndarray, '*m']], Float[np.ndarray, '*m']]
  epsilon: Callable[[float, float], float]


def gaussian_family(*, steps: int = 1) -> Family:
  """Gaussian mechanism of sensitivity 1: FNR >= Φ(Φ⁻¹(1 - FPR) - 1/z).

  Args:
    steps: releases T over which ε is reported; scores are of one. T releases
      are one with noise z/√T, exactly.

  Returns:
    The family; ε is exact and may be in the thousands.

  Source: Dong, Roth and Su, "Gaussian differential privacy" (2019).

  >>> round(gaussian_family().epsilon(0.0496, 341_000**-1.1), 2)
  298.98
  """
  check_steps(steps)

  def fnr(noise_multiplier, log_fpr):
    return special.ndtr(-special.ndtri_exp(log_fpr) - 1 / noise_multiplier)

  def epsilon(noise_multiplier, delta):
    return float(epsilon_gdp(np.sqrt(steps) / noise_multiplier, delta))

  return Family('gdp', fnr, epsilon)


class Lines(NamedTuple):
  """A curve below the trade-off curve: the largest of some guarantees.

  Each (ε, δ) guarantee says FNR >= 1 - δ - e^ε FPR and the same with the rates
  exchanged, equation (4) of Nasr et al.

  Attributes:
    epsilon: ε >= 0.
    delta: δ of each ε.
  """

  epsilon: Float[np.ndarray, 'n']
  delta: Float[np.ndarray, 'n']

  def fnr(self, log_fpr: Float[np.ndarray, '*m']) -> Float[np.ndarray, '*m']:
    """Smallest FNR at each log FPR."""
    best = np.zeros(np.shape(log_fpr))
    fpr = np.exp(log_fpr)
    for epsilon, delta in zip(self.epsilon, self.delta):
      steep = 1 - delta - np.exp(np.minimum(epsilon + log_fpr, 0.0))
      flat = np.exp(-epsilon) * (1 - delta - fpr)
      best = np.maximum(best, np.maximum(steep, flat))
    return best


def epsilon_gdp(mu: Real, delta: float) -> float | Float[np.ndarray, '...']:
  """ε of μ-GDP at δ, exact, without a cap; inf for μ = inf, 0 for μ <= 0.

  >>> round(epsilon_gdp(1.0, 1e-5), 4)
  4.3772
  """
  check_delta(delta)
  mu = np.asarray(mu, dtype=np.float64)
  epsilon = np.where(mu > 0, np.inf, 0.0)
  some = np.isfinite(mu) & (mu > 0)
  epsilon[some] = gaussian.epsilon_two_gaussians(0, 1, mu[some], 1, delta)
  return scalar_or_array(epsilon)


def mu_of_epsilon(epsilon: float, delta: float) -> float:
  """μ of the Gaussian mechanism that has this ε at δ; 0 for ε = 0.

  >>> round(mu_of_epsilon(4.3772, 1e-5), 4)
  1.0
  """
  check_delta(delta)
  if not 0 < epsilon < np.inf:
    return epsilon
  # At ε = 0 the largest difference of probabilities, 2 Φ(μ/2) - 1, is δ.
  low = 2 * float(special.ndtri((1 + delta) / 2))
  high = low + 1 + 2 * np.sqrt(epsilon)

  # δ of ε and μ is a formula; ε of δ and μ would be solved for in each step.
  def excess(mu):
    log_delta = gaussian.log_delta_one_direction(epsilon, mu, 1, 0, 1)
    return max(float(log_delta), -1e4) - np.log(delta)

  while excess(high) < 0:
    high *= 2
  return float(optimize.brentq(excess, low, high, xtol=1e-12))  # pyright: ignore


def check_steps(steps: int) -> None:
  """Raises a ValueError unless steps >= 1."""
  if steps < 1:
    raise ValueError(f'steps={steps} must be at least 1.')
