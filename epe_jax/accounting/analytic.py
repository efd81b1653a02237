"""An ε that follows from the mechanism alone, with what it assumes."""

from typing import Literal, NamedTuple, TypeAlias

from epe_jax.fact import Facts


class Mixture(NamedTuple):
  """Null N(0, 1) versus Σ_j w_j N(shift_j, 1).

  Attributes:
    shifts: >= 0.
    weights: > 0 of each, in any unit.
  """

  shifts: tuple[float, ...]
  weights: tuple[float, ...]


class Allocation(NamedTuple):
  """N(0, z² I) against one random round in each period, as `random_allocation`.

  Attributes:
    noise_multiplier: z, no less than `random_allocation.SMALLEST_NOISE`.
    rounds: t >= 1 of each period.
    periods: R >= 1.
  """

  noise_multiplier: float
  rounds: int
  periods: int


Law: TypeAlias = Mixture | Allocation
"""The pair of laws that an attacker distinguishes."""


class Analytic(NamedTuple):
  """An ε that follows from the mechanism alone.

  Attributes:
    epsilon: >= 0; inf without noise.
    assumes: the participation and the attacker that it holds for, as keys with
      numbers; `epe_jax.report.assumptions` has the words.
    kind: 'bound' if no attacker of that kind can exceed it; 'expectation' if it
      also takes clients not to respond to what the model learns.
    is_gaussian: the trade-off between errors is that of the Gaussian mechanism with
      this ε, so that ε at one δ says all.
    law: of a mechanism that is not Gaussian, where it is known: it has the whole
      trade-off.
  """

  epsilon: float
  assumes: Facts
  kind: Literal['bound', 'expectation'] = 'bound'
  is_gaussian: bool = False
  law: Law | None = None
