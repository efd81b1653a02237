"""The choice among many thresholds, and how a lower bound is corrected for it.

A limit that fails at a given threshold with probability 5 % fails at some
threshold much more often. A `Correction` says at which thresholds errors are counted,
and at which level each is tested.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
import dataclasses
import math
from typing import Any, ClassVar, NamedTuple, TypeAlias

from jaxtyping import Float
import numpy as np

from epe_jax.epsilon import arguments, threshold
from epe_jax.epsilon.threshold import ErrorCounts
from epe_jax.epsilon.types import Scores, Sides


class Counted(NamedTuple):
  """Errors at some thresholds, and the level of a test at each of them.

  Attributes:
    scores: that are counted.
    errors: counts at m thresholds, [*batch, m].
    significance: chance that the limits at one threshold fail.
  """

  scores: Scores
  errors: ErrorCounts
  significance: float


FindBest: TypeAlias = Callable[[Scores, float], Float[np.ndarray, '*batch 1']]
"""(scores, significance) -> the threshold at which a leak seems strongest."""


class Correction(abc.ABC):
  """A correction for the choice among many thresholds."""

  is_valid: ClassVar[bool] = True
  """Whether what is corrected so is a bound."""

  @abc.abstractmethod
  def count_errors(
    self, scores: Scores, significance: float, find_best: FindBest, sides: Sides
  ) -> Counted:
    """Counts errors at the thresholds, at the level of each.

    Args:
      scores: scores of canaries, any leading axes.
      significance: chance that any of the limits fails, in (0, 1).
      find_best: chooses the threshold of a split.
      sides: which guesses count, for ranks of `Bonferroni`.

    Raises:
      ValueError: there are too few scores to split.
    """


@dataclasses.dataclass(frozen=True)
class Band(Correction):
  """The best threshold, with a correction for all of them at once.

  It loses least if nothing is known about the best threshold. If the null law is
  known, the FNR has limits that hold at every threshold (`band.upper_limit`);
  otherwise a single test of both rates decides (`rank_test`).
  """

  def count_errors(self, scores, significance, find_best, sides):
    """All realisable thresholds, at the whole significance."""
    return count_realisable(scores, significance)


@dataclasses.dataclass(frozen=True)
class Bonferroni(Correction):
  """The best of a few thresholds, each at its share of the significance.

  The thresholds are the scores at fixed ranks among the unobserved canaries (if
  the null law is known: among the observed ones), geometrically spaced. Ranks
  are fixed before any score is seen, so the FPR at one is a beta variable, and
  given the unobserved scores the false negatives are binomial: both limits are
  exact. Quantiles of the pooled scores would depend on both counts at once.

  To divide by the number of all realisable thresholds, as many do, is wasteful:
  neighbouring thresholds separate nearly the same scores, and 1000 of them need
  the correction of 30 independent ones. To divide by the number on the convex
  hull of the ROC curve is not valid, since that number depends on the scores.

  Attributes:
    num_thresholds: number of thresholds, >= 1. Equal ranks are merged.

  Raises:
    ValueError: num_thresholds is out of range.
  """

  num_thresholds: int = 10

  def __post_init__(self):
    arguments.check_integer('num_thresholds', self.num_thresholds, 1)

  def count_errors(self, scores, significance, find_best, sides):
    """Thresholds at fixed ranks, which share the significance."""
    errors = threshold.count_at_fixed_ranks(
      scores, self.num_thresholds, sides=sides
    )
    return Counted(scores, errors, significance / errors.threshold.shape[-1])


@dataclasses.dataclass(frozen=True)
class Explicit(Correction):
  """The best of given thresholds, each at its share of the significance.

  Attributes:
    thresholds: chosen without looking at these scores; at least one, finite.

  Raises:
    ValueError: thresholds are not one or more finite numbers.
  """

  thresholds: tuple[float, ...]

  def __post_init__(self):
    values = self.thresholds
    if isinstance(values, str) or np.ndim(values) != 1 or not len(values):
      raise ValueError(
        f'thresholds={values!r} must be one or more numbers, as (0.5, 1.0).'
      )
    if not all(
      isinstance(x, int | float | np.number) and np.isfinite(x) for x in values
    ):
      raise ValueError(f'thresholds={values!r} must be finite numbers.')

  def count_errors(self, scores, significance, find_best, sides):
    """Given thresholds, which share the significance."""
    values = np.asarray(self.thresholds, dtype=np.float64)
    each = np.broadcast_to(values, (*scores.observed.shape[:-1], values.size))
    return count_at(scores, each, significance / values.size)


@dataclasses.dataclass(frozen=True)
class Split(Correction):
  """A threshold chosen by some canaries, for a bound from the others.

  Attributes:
    seed: of the random split, >= 0. A bound is not valid if several seeds are
      tried and the best is kept.
    fraction: share of the canaries of each group that choose the threshold, in
      (0, 1).

  Raises:
    ValueError: an attribute is out of range.
  """

  seed: int
  fraction: float = 0.5

  def __post_init__(self):
    arguments.check_integer('seed', self.seed, 0, math.inf)
    arguments.check_number('fraction', self.fraction, '(0, 1)')

  def count_errors(self, scores, significance, find_best, sides):
    """One threshold for scores that did not choose it."""
    choose, held_out = partition(scores, self)
    return count_at(held_out, find_best(choose, significance), significance)


def check_multiplicity(multiplicity: Any, *allowed: type[Correction]) -> None:
  """Raises a ValueError unless this is an instance of an allowed class, or of any."""
  if not isinstance(multiplicity, allowed or Correction):
    names = ', '.join(
      f'{kind.__name__}()'
      for kind in allowed or (Band, Bonferroni, Explicit, Split)
    )
    raise ValueError(
      f'multiplicity={multiplicity!r}; give an instance of one of {names}.'
    )


def count_at(
  scores: Scores, thresholds: Float[np.ndarray, '*batch m'], significance: float
) -> Counted:
  """Counts errors at thresholds that were chosen without these scores."""
  false_negatives = scores.observed.shape[-1] - threshold.count_at_least(
    scores.observed, thresholds
  )
  false_positives = None
  if not scores.has_known_null:
    false_positives = threshold.count_at_least(scores.unobserved, thresholds)
  errors = ErrorCounts(thresholds, false_negatives, false_positives)
  return Counted(scores, errors, significance)


def count_realisable(
  scores: Scores, significance: float, max_thresholds: int | None = None
) -> Counted:
  """Counts errors at all observed scores, or at some of their ranks."""
  thresholds, _ = threshold.find_realisable(scores.observed)
  num = thresholds.shape[-1]
  if max_thresholds is not None and max_thresholds < num:
    ranks = threshold.space_ranks(num, max_thresholds, 'both')
    thresholds = thresholds[..., ranks - 1]
  return count_at(scores, thresholds, significance)


def partition(scores: Scores, split: Split) -> tuple[Scores, Scores]:
  """Splits scores into those that choose a threshold and those that are counted.

  Args:
    scores: scores of canaries, any leading axes, which are split alike.
    split: of the canaries.

  Raises:
    ValueError: a part would be empty.
  """
  rng = np.random.default_rng(split.seed)
  parts: dict[str, tuple[Any, Any]] = {'shift': (None, None)}
  for name in ('observed', 'unobserved'):
    values = getattr(scores, name)
    size = values.shape[-1]
    first = int(size * split.fraction)
    if size and not 0 < first < size:
      raise ValueError(
        f'fraction={split.fraction} of {size} {name} scores leaves one part '
        'empty; use more canaries or multiplicity=Band().'
      )
    order = rng.permutation(size)
    parts[name] = values[..., order[:first]], values[..., order[first:]]
    if name == 'observed' and scores.shift is not None:
      parts['shift'] = scores.shift[order[:first]], scores.shift[order[first:]]
  choose, count = (
    dataclasses.replace(scores, **{name: parts[name][i] for name in parts})
    for i in (0, 1)
  )
  return choose, count
