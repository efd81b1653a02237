"""Simulated audits of one mechanism: the scores that bounds are tried on."""

from collections.abc import Sequence
from typing import NamedTuple

from epe_jax.epsilon.types import Scores


class Audits(NamedTuple):
  """Audits of one mechanism.

  Attributes:
    title: what they have in common with others.
    law: of the scores, in words; empty for that of a Gaussian mechanism.
    epsilon: the true ε at `delta`.
    delta: in (0, 1).
    fixed: audits of chosen numbers of canaries, [audits, n]; in units of the
      standard deviation that scores of unobserved canaries have, if `dim` is given.
    by_coins: audits whose canaries fair coins included.
    dim: as in `Scores`, of `fixed`.
    shifted: audits with what is known of the shift of each canary, if it is.
    epsilon_of_scores: the ε of the law of one canary's scores, if it is known and
      less than `epsilon`.
    has_gaussian_scores: of one spread.
    has_gaussian_curve: of the trade-off between errors, whatever the scores.
    is_coupled: whether the mechanism errs with all canaries together.
  """

  title: str
  law: str
  epsilon: float
  delta: float
  fixed: Scores
  by_coins: Sequence[Scores]
  dim: float | None = None
  shifted: Sequence[Scores] = ()
  epsilon_of_scores: float | None = None
  has_gaussian_scores: bool = False
  has_gaussian_curve: bool = False
  is_coupled: bool = False


def describe(num: int, delta: float, audits: int) -> str:
  """The title of audits with as many unobserved canaries as observed ones."""
  return f'{num:,} + {num:,} canaries, δ = {delta:g}, {audits:,} audits of each'
