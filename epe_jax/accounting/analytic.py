"""An ε that follows from the mechanism alone, with what it assumes."""

from typing import Literal, NamedTuple, TypeAlias

from jaxtyping import Float
import numpy as np

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
      numbers; `epe_jax.report.words` has the words.
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


class Ring(NamedTuple):
  """What hides a client in the sums of integers that a server sees modulo 2^b.

  Attributes:
    std: of the noise in a sum, in steps of the grid.
    l2: largest L2 norm of a message, in steps.
    dim: coordinates of a message.
    shares: messages of a round, each with a discrete Gaussian; 0 for Skellam noise.
    wrapped: coordinates of all rounds that wrapped around, which hides no less.
  """

  std: float
  l2: float
  dim: int
  shares: int
  wrapped: int = 0

  @classmethod
  def from_array(cls, numbers: Float[np.ndarray, ' fields']) -> 'Ring':
    """Reads a ring from the array that a file holds."""
    std, l2, *counts = numbers.tolist()
    return cls(std, l2, *map(int, counts))
