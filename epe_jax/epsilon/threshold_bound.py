"""Valid lower bounds of ε from thresholds on the score.

A bound consists of three choices:

- thresholds, at each of which the canaries scoring at least t are guessed "in";
- an interval, which turns counts of false positives and false negatives into
  upper limits of their rates (`intervals`);
- a correction for the choice among many thresholds, one of the classes of
  `strategies`.

The canaries of an audit must score independently in any case.
"""

from __future__ import annotations

import functools
from typing import Literal, NamedTuple, get_args

from jaxtyping import Float
import numpy as np

from epe_jax.epsilon import (
  arguments,
  band,
  corrections,
  cosine_null,
  diagnostics,
  intervals,
  rank_bound,
  threshold,
)
from epe_jax.epsilon.corrections import (
  Band,
  Bonferroni,
  Explicit,
  Multiplicity,
  MultiSplit,
  Split,
  Uncorrected,
)
from epe_jax.epsilon.types import (
  Assumption,
  Estimate,
  Scores,
  Sides,
  check_delta,
  check_sides,
  check_significance,
  make_bound,
)

Interval = Literal['clopper_pearson', 'jeffreys', 'katz']


_BAND = Band()
# The best of so many thresholds is practically as good as that of a million.
_CANDIDATES = 2000


def lower_bound(
  scores: Scores,
  *,
  delta: float,
  significance: float = 0.05,
  interval: Interval = 'clopper_pearson',
  multiplicity: Multiplicity = _BAND,
  sides: Sides = 'in',
) -> Estimate:
  """Lower bound of ε that exceeds the truth with probability <= significance.

  At a threshold with upper limits a of the FPR and b of the FNR, ε is at least

    log (1 - δ - b)/a,  and if sides='both' also  log (1 - δ - a)/b.

  Each of the two limits fails with probability significance/2, for either choice
  of sides. If `scores.dim` is given, a is exactly the survival function of the
  cosine and b has the whole significance; unobserved scores are not needed. The
  Katz interval has one limit for the ratio, on each side. Band() without
  `scores.dim` uses no such limits, but tests both rates at once (`rank_test`).

  Only thresholds equal to a score are tried, and tied scores are guessed alike.

  If canaries leak unequally, as those of different rounds do, the bound is one of
  the ε of the most exposed canary, without which the rates could not be as good.

  Args:
    scores: scores of canaries, any leading axes.
    delta: δ, in (0, 1).
    significance: chance that the bound exceeds the true ε, in (0, 1).
    interval: how limits are computed from counts. Only 'clopper_pearson' is valid
      at every rate; 'jeffreys' and 'katz' are approximations.
    multiplicity: the correction for the choice of the threshold.
    sides: which guesses count. Those of 'both' help if the unobserved scores have
      a lower tail that no observed score reaches.

  Returns:
    The bound, >= 0. Its confidence is 1 - significance; it is a point estimate if
    `interval` or `multiplicity` gives no guarantee, or if the unobserved scores
    reject `scores.dim` (`diagnostics.is_null_rejected`).

  Raises:
    ValueError: a setting is out of range, multiplicity is no instance of a class
      of `strategies`, another interval than 'clopper_pearson' is combined with
      Band(), 'katz' with `scores.dim`, or a group is too small to split.

  Source: Jagielski et al. (2020); equation (1) of Andrew et al. (ICLR 2024).

  >>> scores = Scores(np.linspace(2, 4, 1000), np.linspace(-1, 1, 1000))
  >>> bound = lower_bound(scores, delta=1e-5)
  >>> round(bound.epsilon, 1), bound.confidence
  (6.5, 0.95)
  """
  check_delta(delta)
  check_significance(significance)
  check_sides(sides)
  corrections.check_multiplicity(multiplicity, get_args(Multiplicity))
  _check_interval(interval, multiplicity, scores)
  rule = _Rule(interval, delta, sides)
  match multiplicity:
    case Uncorrected():
      epsilon, _ = _best(rule, scores, significance)
    case Band() if scores.dim is None:
      epsilon = rank_bound.epsilon_bound(
        scores, delta=delta, significance=significance, sides=sides
      )
    case Band():
      epsilon, _ = _best(rule._replace(interval='band'), scores, significance)
    case Bonferroni(num):
      epsilon = _at_ranks(rule, scores, significance, num)
    case Explicit(thresholds):
      epsilon = _at_given(rule, scores, significance, thresholds)
    case Split():
      epsilon = _held_out(rule, scores, significance, multiplicity)
    case MultiSplit():
      bounds = [
        _held_out(rule, scores, significance / 2, split)
        for split in corrections.draw_splits(multiplicity)
      ]
      epsilon = np.median(bounds, axis=0)
  valid = interval == 'clopper_pearson' and multiplicity != Uncorrected()
  method = f'{interval}_{type(multiplicity).__name__.lower()}'
  if multiplicity == Band() and scores.dim is None:
    method = 'rank_test'
  return make_bound(
    epsilon,
    delta,
    method,
    significance=significance,
    assumes=counted_assumptions(scores),
    kind='confidence bound' if valid else 'point estimate',
    rejected=diagnostics.name_rejected_null(scores),
  )


def choose_threshold(
  scores: Scores, *, delta: float, significance: float, sides: Sides = 'in'
) -> Float[np.ndarray, '*batch 1']:
  """The observed score at which Clopper-Pearson limits give the largest ε.

  Args:
    scores: scores of canaries, any leading axes.
    delta: δ, in (0, 1).
    significance: chance that one of the two limits at a threshold fails, in
      (0, 1).
    sides: which guesses count.
  """
  rule = _Rule('clopper_pearson', delta, sides)
  return _best(rule, scores, significance)[1]


def counted_assumptions(scores: Scores) -> tuple[Assumption, ...]:
  """What limits from counts of canaries assume.

  Args:
    scores: whose null law is known or not.
  """
  if scores.dim is None:
    return (Assumption.INDEPENDENT,)
  return Assumption.INDEPENDENT, Assumption.COSINE_NULL


class _Rule(NamedTuple):
  """How counts at a threshold become an ε."""

  interval: str
  delta: float
  sides: Sides


_UPPER = {
  'clopper_pearson': intervals.clopper_pearson_upper,
  'jeffreys': intervals.jeffreys_upper,
  'band': band.upper_limit,
}


def _at(
  rule, scores, thresholds, false_negatives, false_positives, significance
):
  """ε at each threshold [*batch, m], from counts of the same shape."""
  num, num_null = scores.observed.shape[-1], scores.unobserved.shape[-1]
  if rule.interval == 'katz':
    return _katz(
      rule, false_negatives, num, false_positives, num_null, significance
    )
  upper = _UPPER[rule.interval]
  if scores.dim is None:
    significance = significance / 2
    log_fpr = np.log(upper(false_positives, num_null, significance))
  else:
    log_fpr = np.asarray(cosine_null.null_law(scores.dim).logsf(thresholds))
  log_fnr = np.log(upper(false_negatives, num, significance))
  return threshold.epsilon_at(log_fpr, log_fnr, rule.delta, sides=rule.sides)


def _katz(rule, false_negatives, num, false_positives, num_null, significance):
  share = significance if rule.sides == 'in' else significance / 2
  limit = functools.partial(
    intervals.katz_log_lower, significance=share, delta=rule.delta
  )
  epsilon = limit(num - false_negatives, num, false_positives, num_null)
  if rule.sides == 'both':
    of_guesses_out = limit(
      num_null - false_positives, num_null, false_negatives, num
    )
    epsilon = np.maximum(epsilon, of_guesses_out)
  return np.maximum(epsilon, 0.0)


def _best(rule, scores, significance, max_thresholds=None):
  """The largest ε over realisable thresholds, and the threshold of it."""
  thresholds, false_negatives = threshold.find_realisable(scores.observed)
  num = thresholds.shape[-1]
  if max_thresholds is not None and max_thresholds < num:
    index = threshold.space_ranks(num, max_thresholds, 'both') - 1
    thresholds, false_negatives = (
      thresholds[..., index],
      false_negatives[..., index],
    )
  false_positives = _count_false_positives(scores, thresholds)
  epsilon = _at(
    rule, scores, thresholds, false_negatives, false_positives, significance
  )
  best = np.argmax(epsilon, axis=-1, keepdims=True)
  return (
    np.take_along_axis(epsilon, best, axis=-1)[..., 0],
    np.take_along_axis(thresholds, best, axis=-1),
  )


def _count_false_positives(scores, thresholds):
  if scores.dim is not None:
    return None
  return threshold.count_at_least(scores.unobserved, thresholds)


def _at_ranks(rule, scores, significance, num):
  """Bonferroni: ε at ranks that are fixed before any score is seen."""
  counts = threshold.count_at_fixed_ranks(scores, num, sides=rule.sides)
  share = significance / counts.threshold.shape[-1]
  return np.max(_at(rule, scores, *counts, share), axis=-1)


def _count_false_negatives(scores, thresholds):
  num = scores.observed.shape[-1]
  return num - threshold.count_at_least(scores.observed, thresholds)


def _at_given(rule, scores, significance, thresholds):
  """ε at thresholds that do not depend on the scores, with their correction."""
  given = np.asarray(thresholds, dtype=np.float64)
  each = np.broadcast_to(given, (*scores.observed.shape[:-1], len(given)))
  false_negatives, false_positives = (
    _count_false_negatives(scores, each),
    _count_false_positives(scores, each),
  )
  share = significance / len(given)
  return np.max(
    _at(rule, scores, each, false_negatives, false_positives, share), axis=-1
  )


def _held_out(rule, scores, significance, split):
  """ε from some canaries at the threshold that is best for the others."""
  choose, held_out = corrections.partition(scores, split)
  _, best = _best(rule, choose, significance, _CANDIDATES)
  counts = (
    _count_false_negatives(held_out, best),
    _count_false_positives(held_out, best),
  )
  return _at(rule, held_out, best, *counts, significance)[..., 0]


def _check_interval(interval, multiplicity, scores):
  arguments.check_choice('interval', interval, get_args(Interval))
  if interval != 'clopper_pearson' and multiplicity == Band():
    raise ValueError(
      f'interval={interval!r} has no band over all thresholds. Use '
      "interval='clopper_pearson' or another multiplicity."
    )
  if interval == 'katz' and scores.dim is not None:
    raise ValueError(
      "interval='katz' is for a ratio of two counted rates, but dim="
      f"{scores.dim} makes the FPR exact. Use interval='clopper_pearson'."
    )
