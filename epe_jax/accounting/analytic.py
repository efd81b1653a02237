"""An upper bound on ε, with what it assumes."""

from typing import NamedTuple


class Analytic(NamedTuple):
  """An upper bound on ε that follows from the mechanism alone.

  Attributes:
    epsilon: the bound, >= 0; inf without noise.
    assumes: the attacker and the participation that it holds for, in words.
  """

  epsilon: float
  assumes: str
