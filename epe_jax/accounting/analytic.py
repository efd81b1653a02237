"""An ε that follows from the mechanism alone, with what it assumes."""

from typing import Literal, NamedTuple


class Analytic(NamedTuple):
  """An ε that follows from the mechanism alone.

  Attributes:
    epsilon: >= 0; inf without noise.
    assumes: the attacker and the participation that it holds for, in words.
    kind: 'bound' if no attacker of that kind can exceed it; 'expectation' if it
      also takes clients not to respond to what the model learns.
  """

  epsilon: float
  assumes: str
  kind: Literal['bound', 'expectation'] = 'bound'
