"""An ε that follows from the mechanism alone, with what it assumes."""

from typing import Literal, NamedTuple

import numpy as np


class Analytic(NamedTuple):
  """An ε that follows from the mechanism alone.

  Attributes:
    epsilon: >= 0; inf without noise.
    assumes: the attacker and the participation that it holds for, in words.
    kind: 'bound' if no attacker of that kind can exceed it; 'expectation' if it
      also takes clients not to respond to what the model learns.
    is_gaussian: the trade-off between errors is that of the Gaussian mechanism with
      this ε, so that ε at one δ says all.
    guarantees: pairs (ε, δ) that hold too, of a mechanism that is not Gaussian.
  """

  epsilon: float
  assumes: str
  kind: Literal['bound', 'expectation'] = 'bound'
  is_gaussian: bool = False
  guarantees: tuple[tuple[float, float], ...] = ()


DELTAS = tuple(float(delta) for delta in np.geomspace(1e-9, 0.9, 40))
"""At which guarantees are stated."""
