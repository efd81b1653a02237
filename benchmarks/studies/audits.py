"""Simulated audits of one mechanism, on which bounds are tried."""

from collections.abc import Sequence
from typing import NamedTuple

from epe_jax.epsilon.types import (
  NullLaw,
  Scores,
  Unknown,
)


class Audits(NamedTuple):
  """Audits of one mechanism.

  Attributes:
    title: of the table that they are in.
    law: of the scores, in words; empty for that of a Gaussian mechanism.
    epsilon: the true ε at `delta`.
    delta: in (0, 1).
    fixed: audits of chosen numbers of canaries, [audits, n]; in units of the
      standard deviation that scores of unobserved canaries have, if `null` is known.
    by_coins: audits with independent Bernoulli(1/2) inclusion of canaries.
    null: as in `Scores`, of `fixed`.
    shifted: audits with the known shift of each canary, if there is one.
    epsilon_of_scores: the ε of the law of one canary's scores, if it is known and
      less than `epsilon`.
    has_gaussian_scores: whether scores are Gaussian with one standard deviation.
    has_gaussian_curve: whether the trade-off curve is Gaussian.
    is_coupled: whether the errors on all canaries are coupled.
  """

  title: str
  law: str
  epsilon: float
  delta: float
  fixed: Scores
  by_coins: Sequence[Scores]
  null: NullLaw = Unknown()
  shifted: Sequence[Scores] = ()
  epsilon_of_scores: float | None = None
  has_gaussian_scores: bool = False
  has_gaussian_curve: bool = False
  is_coupled: bool = False


def describe(num: int, delta: float, audits: int) -> str:
  """The title of audits with as many unobserved canaries as observed ones."""
  return f'{num:,} + {num:,} canaries, δ = {delta:g}, {audits:,} audits of each'
