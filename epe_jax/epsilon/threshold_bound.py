"""Lower bounds of ε that keep their word, from thresholds on the score.

A bound is made of three choices:

- thresholds, at each of which the canaries scoring at least t are guessed "in";
- an interval, which turns counts of false positives and false negatives into
  upper limits of their rates (`intervals`);
- a way to pay for having looked at many thresholds, the classes of
  `strategies`.

Whatever is chosen, canaries of an audit must score independently.
"""

from __future__ import annotations

import functools
from typing import Literal, NamedTuple, get_args

import numpy as np

from epe_jax.epsilon import (
  band,
  cosine_null,
  diagnostics,
  intervals,
  rank_test,
  strategies,
  threshold,
)
from epe_jax.epsilon.strategies import (
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
  check_delta,
  check_significance,
  make_bound,
)

Interval = Literal['clopper_pearson', 'jeffreys', 'katz']


_BAND = Band()
# Of these many thresholds that are tried, the best is as good as of a million.
_CANDIDATES = 2000


def lower_bound(
  scores: Scores,
  *,
  delta: float,
  significance: float = 0.05,
  interval: Interval = 'clopper_pearson',
  multiplicity: Multiplicity = _BAND,
  one_sided: bool = True,
) -> Estimate:
  """Lower bound of ε that exceeds the truth with probability <= significance.

  At a threshold with upper limits a of the FPR and b of the FNR, ε is at least

    log (1 - δ - b)/a,  and, two-sided, also  log (1 - δ - a)/b.

  The two limits fail with probability significance/2 each, whichever direction
  is used. If `scores.dim` is given, a is exactly the survival function of the
  cosine and b has the whole significance; unobserved scores are not needed. The
  Katz interval has one limit for the ratio, and one for each direction. Band()
  without `scores.dim` has no such limits: it tests both rates at once, and ε in
  both directions (`rank_test`).

  Only thresholds equal to a score count, and tied scores fall on one side.

  Where canaries leak unequally, as those of different rounds do, it is a bound
  of the ε of the most exposed one: no other could make the rates as good.

  Args:
    scores: scores of canaries, any leading axes.
    delta: δ, in (0, 1).
    significance: chance that the bound exceeds the true ε, in (0, 1).
    interval: how limits are made from counts. Only 'clopper_pearson' keeps its
      word at every rate; 'jeffreys' and 'katz' are approximations.
    multiplicity: how the choice of the threshold is paid for.
    one_sided: only the first of the two directions. The second helps if the
      unobserved scores have a lower tail that no observed score reaches.

  Returns:
    The bound, >= 0. Its confidence is 1 - significance, or None if `interval`
    or `multiplicity` gives no guarantee, or if the unobserved scores reject
    `scores.dim` (`diagnostics.is_null_rejected`).

  Raises:
    ValueError: for settings out of range, another multiplicity than those of
      `strategies`, 'katz' with a band, and a split of fewer than two canaries of
      a kind.

  Source: Jagielski et al. (2020); equation (1) of Andrew et al. (ICLR 2024).

  >>> scores = Scores(np.linspace(2, 4, 1000), np.linspace(-1, 1, 1000))
  >>> bound = lower_bound(scores, delta=1e-5)
  >>> round(bound.epsilon, 1), bound.confidence
  (6.5, 0.95)
  """
  check_delta(delta)
  check_significance(significance)
  strategies.check_multiplicity(multiplicity, get_args(Multiplicity))
  _check_interval(interval, multiplicity, scores)
  rule = _Rule(interval, delta, one_sided)
  match multiplicity:
    case Uncorrected():
      epsilon, _ = _best(rule, scores, significance)
    case Band() if scores.dim is None:
      epsilon = rank_test.epsilon_bound(
        scores, delta=delta, significance=significance, one_sided=one_sided
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
        for split in strategies.draw_splits(multiplicity)
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


def counted_assumptions(scores: Scores) -> tuple[Assumption, ...]:
  """What limits from counts of canaries assume."""
  if scores.dim is None:
    return (Assumption.INDEPENDENT,)
  return Assumption.INDEPENDENT, Assumption.COSINE_NULL


class _Rule(NamedTuple):
  """How counts at a threshold become an ε."""

  interval: str
  delta: float
  one_sided: bool


_UPPER = {
  'clopper_pearson': intervals.clopper_pearson_upper,
  'jeffreys': intervals.jeffreys_upper,
  'band': band.upper_limit,
}


def _at(rule, scores, thresholds, misses, alarms, significance):
  """ε at each threshold [*batch, m], from counts of the same shape."""
  num, num_null = scores.observed.shape[-1], scores.unobserved.shape[-1]
  if rule.interval == 'katz':
    return _katz(rule, misses, num, alarms, num_null, significance)
  upper = _UPPER[rule.interval]
  if scores.dim is None:
    significance = significance / 2
    log_fpr = np.log(upper(alarms, num_null, significance))
  else:
    log_fpr = np.asarray(cosine_null.null_law(scores.dim).logsf(thresholds))
  log_fnr = np.log(upper(misses, num, significance))
  return threshold.epsilon_at(
    log_fpr, log_fnr, rule.delta, one_sided=rule.one_sided
  )


def _katz(rule, misses, num, alarms, num_null, significance):
  share = significance if rule.one_sided else significance / 2
  limit = functools.partial(
    intervals.katz_log_lower, significance=share, delta=rule.delta
  )
  epsilon = limit(num - misses, num, alarms, num_null)
  if not rule.one_sided:
    backward = limit(num_null - alarms, num_null, misses, num)
    epsilon = np.maximum(epsilon, backward)
  return np.maximum(epsilon, 0.0)


def _best(rule, scores, significance, most=None):
  """The largest ε over realisable thresholds, and the threshold of it."""
  thresholds, misses = threshold.find_realisable(scores.observed)
  if most is not None and most < thresholds.shape[-1]:
    kept = threshold.space_ranks(thresholds.shape[-1], most, False) - 1
    thresholds, misses = thresholds[..., kept], misses[..., kept]
  alarms = _alarms(scores, thresholds)
  epsilon = _at(rule, scores, thresholds, misses, alarms, significance)
  best = np.argmax(epsilon, axis=-1, keepdims=True)
  return (
    np.take_along_axis(epsilon, best, axis=-1)[..., 0],
    np.take_along_axis(thresholds, best, axis=-1),
  )


def _alarms(scores, thresholds):
  if scores.dim is not None:
    return None
  return threshold.count_at_least(scores.unobserved, thresholds)


def _at_ranks(rule, scores, significance, num):
  """Bonferroni: thresholds at ranks fixed before any score was seen."""
  counts = threshold.count_at_fixed_ranks(scores, num, one_sided=rule.one_sided)
  share = significance / counts.threshold.shape[-1]
  return np.max(_at(rule, scores, *counts, share), axis=-1)


def _misses(scores, thresholds):
  num = scores.observed.shape[-1]
  return num - threshold.count_at_least(scores.observed, thresholds)


def _at_given(rule, scores, significance, thresholds):
  """ε at thresholds that do not depend on the scores, corrected for number."""
  given = np.asarray(thresholds, dtype=np.float64)
  each = np.broadcast_to(given, (*scores.observed.shape[:-1], len(given)))
  misses, alarms = _misses(scores, each), _alarms(scores, each)
  share = significance / len(given)
  return np.max(_at(rule, scores, each, misses, alarms, share), axis=-1)


def _held_out(rule, scores, significance, split):
  """ε of some canaries at the threshold that is best for the others."""
  choose, held_out = strategies.partition(scores, split)
  _, best = _best(rule, choose, significance, _CANDIDATES)
  counts = _misses(held_out, best), _alarms(held_out, best)
  return _at(rule, held_out, best, *counts, significance)[..., 0]


def _check_interval(interval, multiplicity, scores):
  if interval not in (*_UPPER, 'katz') or interval == 'band':
    raise ValueError(
      f"interval={interval!r} is none of 'clopper_pearson', 'jeffreys', 'katz'."
    )
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
