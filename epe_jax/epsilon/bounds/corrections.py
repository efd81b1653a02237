"""The choice among many thresholds, and how a lower bound is corrected for it.

A limit that fails at a given threshold with probability 5 % fails at some
threshold much more often. `count_errors` is the one place that turns a correction
into thresholds and the level at which each is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import math
from typing import Any, NamedTuple

from jaxtyping import Float
import numpy as np

from epe_jax.epsilon import arguments
from epe_jax.epsilon.points import threshold
from epe_jax.epsilon.points.threshold import ErrorCounts
from epe_jax.epsilon.types import Scores, Sides


@dataclasses.dataclass(frozen=True)
class Uncorrected:
  """The best realisable threshold, without a correction: not a bound."""


@dataclasses.dataclass(frozen=True)
class Band:
  """The best threshold, with a correction for all of them at once.

  It loses least if nothing is known about the best threshold. If the null law is
  known, the FNR has limits that hold at every threshold (`band.upper_limit`);
  otherwise a single test of both rates decides (`rank_test`).
  """


@dataclasses.dataclass(frozen=True)
class Bonferroni:
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


@dataclasses.dataclass(frozen=True)
class Explicit:
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


@dataclasses.dataclass(frozen=True)
class Split:
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


Multiplicity = Uncorrected | Band | Bonferroni | Explicit | Split


def check_multiplicity(
  multiplicity: Any, allowed: Sequence[type[Multiplicity]]
) -> None:
  """Raises a ValueError unless this is an instance of an allowed class."""
  if isinstance(multiplicity, tuple(allowed)):
    return
  names = ', '.join(f'{kind.__name__}()' for kind in allowed)
  raise ValueError(
    f'multiplicity={multiplicity!r}; give an instance of one of {names}.'
  )


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


def count_errors(
  scores: Scores,
  multiplicity: Multiplicity,
  significance: float,
  *,
  find_best: Callable[[Scores, float], Float[np.ndarray, '*batch 1']],
  sides: Sides = 'in',
) -> Counted:
  """Counts errors at the thresholds of a correction, at the level of each.

  Args:
    scores: scores of canaries, any leading axes.
    multiplicity: the correction; for Band() and Uncorrected() all realisable
      thresholds are counted, at the whole significance.
    significance: chance that any of the limits fails, in (0, 1).
    find_best: (scores, significance) -> the threshold that a Split() chooses.
    sides: which guesses count, for the ranks of Bonferroni().

  Raises:
    ValueError: there are too few scores to split.
  """
  match multiplicity:
    case Explicit(thresholds):
      values = np.asarray(thresholds, dtype=np.float64)
      each = np.broadcast_to(values, (*scores.observed.shape[:-1], values.size))
      return count_at(scores, each, significance / values.size)
    case Bonferroni(num):
      errors = threshold.count_at_fixed_ranks(scores, num, sides=sides)
      share = significance / errors.threshold.shape[-1]
      return Counted(scores, errors, share)
    case Split():
      choose, held_out = partition(scores, multiplicity)
      return count_at(held_out, find_best(choose, significance), significance)
    case Band() | Uncorrected():
      return count_realisable(scores, significance)
  raise AssertionError(f'{multiplicity!r} was checked, but has no thresholds')


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
