"""A mechanism of a framework as released, with what it claims."""

from collections.abc import Callable
from typing import NamedTuple

from epe_jax.conformance import Claim, Mechanism

SHAPES = ((40, 60), (60,), (25, 60))
"""Of the updates that are sent: three tensors of some thousand numbers."""


class Subject(NamedTuple):
  """A mechanism to be checked.

  Attributes:
    name: of the mechanism, as its users know it.
    package: that it comes from, as pip has it.
    make: a fresh one for a claim.
    claim: what it claims.
    note: what has to be known to read the result, one sentence.
  """

  name: str
  package: str
  make: Callable[[Claim], Mechanism]
  claim: Claim
  note: str = ''
