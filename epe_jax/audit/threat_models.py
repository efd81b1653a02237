"""What each attacker reads of a run: scores, and the estimators they allow.

Attackers form an order, from one who knows least to the one that the analytic
bound assumes. Which estimators a reading allows follows from what is known of its
scores: their null law, by how much taking part shifts each, and whether tests
contradict that.
"""

from collections.abc import Hashable, Sequence
import functools
import math
from typing import NamedTuple

from jaxtyping import Float, Int
import numpy as np
from scipy import stats

from epe_jax.audit import statistics
from epe_jax.audit.record import Record
from epe_jax.epsilon import (
  bayes,
  cosine_null,
  diagnostics,
  gaussian,
  location_mixture,
  lower_bound,
  maximum,
  noise_floor,
  one_run,
  parametric,
  shift_tests,
  shifted_cosine,
  strategies,
  threshold,
  tradeoff,
)
from epe_jax.epsilon.types import Scores

Estimator = noise_floor.Estimator

FINAL = 'cosine with the final model'
CHANGE = 'cosine with the change of the model'
MAXIMUM = 'maximum over rounds'
LIKELIHOOD = 'likelihood over rounds'
OWN = 'own round'
REMOVED = 'own round, others removed'

KNOWN_START = 'final model, initial model known'

_COSINE, _IN_NOISE = 'cosine, in units of 1/√d', 'in units of the noise'

_SWAPPED_BELOW = 1e-3
# Shifts that differ by less than this are taken to be alike.
_ALIKE = 0.05

_MIXTURE: Estimator = location_mixture.location_mixture
_EXPOSED: Estimator = location_mixture.most_exposed
_FITTED: Estimator = functools.partial(gaussian.two_gaussian, std='fitted')
_NULL_STD: Estimator = functools.partial(gaussian.two_gaussian, std='null')
_COUNTED: Estimator = functools.partial(
  threshold.max_threshold, rates='empirical'
)


def _counted_bound(multiplicity: strategies.Multiplicity) -> Estimator:
  return functools.partial(lower_bound.lower_bound, multiplicity=multiplicity)


_BAND = _counted_bound(strategies.Band())
_FEW = _counted_bound(strategies.Bonferroni())
_COINS: tuple[Estimator, ...] = (one_run.one_run, one_run.one_run_gdp)

SHIFT_AWARE: tuple[Estimator, ...] = (_MIXTURE, _EXPOSED)
"""Estimators that look at how much each canary is shifted."""

MORE_POINTS: tuple[Estimator, ...] = (
  _COUNTED,
  _counted_bound(strategies.Uncorrected()),
)
"""Point estimates that scripts/estimate.py shows besides those of a report."""

MORE_BOUNDS: tuple[Estimator, ...] = (
  _FEW,
  _counted_bound(strategies.Split(seed=0)),
  _counted_bound(strategies.MultiSplit(seed=0)),
  tradeoff.gdp,
  functools.partial(
    bayes.epsilon_credible, multiplicity=strategies.Split(seed=0)
  ),
  functools.partial(bayes.gdp_credible, multiplicity=strategies.Split(seed=0)),
)
"""Bounds that scripts/estimate.py shows besides those of a report."""


class Reading(NamedTuple):
  """The scores of all canaries for one attacker.

  Attributes:
    threat_model: what the attacker sees and knows.
    statistic: what the attacker reads.
    scores: observed and unobserved.
    unit: what scores times scale are measured in.
    scale: makes scores easy to read.
    points: point estimators that make sense here, the one to believe first.
    bounds: lower bounds, the headline one first.
    draw: makes audits with such scores in which nothing leaks; None if there is
      no way to.
    law: of these audits; readings with equal laws share their floors.
    calibrated: the first point estimator estimates the ε of this attacker, and
      no test says otherwise.
    is_expected: shifts of the scores are those that norms tell to expect, and
      not just in proportion to them.
    doubts: in plain words, what tests found against the estimates.
  """

  threat_model: str
  statistic: str
  scores: Scores
  unit: str
  scale: float
  points: Sequence[Estimator]
  bounds: Sequence[Estimator]
  draw: noise_floor.Draw | None
  law: Hashable
  calibrated: bool
  is_expected: bool
  doubts: tuple[str, ...]


class _Statistic(NamedTuple):
  """Values of all canaries, and what is known of them.

  Attributes:
    threat_model: as in `Reading`.
    name: of the statistic.
    values: [k].
    dim: as in `Scores`, the null law.
    scale: makes values easy to read.
    shift: [k] by how much taking part shifts a canary; None if not known.
    is_expected: as in `Reading`.
    groups: [k] canaries that are in one vector have one number; None where no
      two are.
  """

  threat_model: str
  name: str
  values: Float[np.ndarray, ' k']
  dim: float | None
  scale: float
  shift: Float[np.ndarray, ' k'] | None
  is_expected: bool = False
  groups: Int[np.ndarray, ' k'] | None = None


def read_all(record: Record) -> list[Reading]:
  """The readings of a run, from the attacker who knows least upwards.

  The null law is exact for cosines with the final model; with the aggregate of
  the own round, if each canary took part once; and of inner products with the
  noise that is left when all others are removed. Elsewhere, and where
  the unobserved canaries refute it, it is that of the unobserved canaries;
  without two the reading is left out. So is the likelihood over rounds where a
  canary's own cosine is not known beforehand, and the final model where it is not
  shown. A canary whose coin said no is read in the rounds it would have had, and
  where there were no coins, in the rounds of another.
  """
  found = [
    statistic
    for statistic in _statistics(record)
    if statistic.dim is not None or np.count_nonzero(~record.observed) >= 2
  ]
  return [_reading(record, statistic) for statistic in found]


def read_external(scores: Scores) -> Reading:
  """Scores of any other system, as the one reading there is of them.

  Nothing is known of how taking part moves them, so nothing is calibrated. Bounds
  that take scores for Gaussian are among the others and say so. When nothing
  leaks, labels are dealt at random: floors hold for any law of the scores.
  """
  scores, doubts = _believed(scores)
  spread = scores_differ(scores)
  draw, law = _null_law(scores), _law(scores)
  if scores.unobserved.size:
    draw, law = noise_floor.draw_permutations(scores), ('permuted', id(scores))
  reason = diagnostics.warn_if_not_gaussian(scores)
  return Reading(
    threat_model='scores',
    statistic='as given',
    scores=scores,
    unit='score',
    scale=1.0,
    points=_points(_NULL_STD, spread),
    bounds=(
      *_counted_bounds(scores),
      *((parametric.gaussian_lower_bound,) if spread else ()),
    ),
    draw=draw,
    law=law,
    calibrated=False,
    is_expected=False,
    doubts=(*doubts, *([reason.removesuffix('.')] if reason else ())),
  )


def split_scores(
  record: Record,
  values: Float[np.ndarray, ' k'],
  dim: float | None,
  shift: Float[np.ndarray, ' k'] | None = None,
  groups: Int[np.ndarray, ' k'] | None = None,
) -> Scores:
  """Values of all canaries as scores: of those that took part, and others.

  Args:
    record: of a run.
    values: of all canaries.
    dim: as in `Scores`.
    shift: by how much taking part shifts each canary, if that is known.
    groups: canaries that are in one vector have one number.
  """
  observed = record.observed
  overlap, shift = 0.0, None if shift is None else shift[observed]
  if shift is not None and groups is not None and dim is not None:
    of_group = np.bincount(groups[observed], shift**2)
    others = np.sum(of_group**2) - np.sum(shift**4)
    overlap = float(others / (dim * np.sum(shift**2)))
  return Scores(
    values[observed], values[~observed], dim, record.design, shift, overlap
  )


def read_shifted(
  threat_model: str,
  statistic: str,
  scores: Scores,
  *,
  scale: float,
  is_expected: bool,
) -> Reading:
  """A reading of scores that taking part shifts by known multiples.

  Args:
    threat_model: what the attacker sees and knows.
    statistic: what the attacker reads.
    scores: with their shift; without, nothing is known of it, and so nothing is
      calibrated and no bound takes the scores to be of some shape.
    scale: as in `Reading`.
    is_expected: likewise.
  """
  scores, doubts = _believed(scores)
  shift, points = scores.shift, _points(_NULL_STD, scores_differ(scores))
  bounds = _counted_bounds(scores)
  if shift is not None:
    doubts += _against_mixture(scores)
    alike = np.ptp(shift) <= _ALIKE * np.max(shift)
    points = (_MIXTURE, *(() if alike else (_EXPOSED,)), *points[1:])
    if not doubts:
      bounds += (location_mixture.location_mixture_bound,)
  return Reading(
    threat_model=threat_model,
    statistic=statistic,
    scores=scores,
    unit=_COSINE if scale != 1 else _IN_NOISE,
    scale=scale,
    points=points,
    bounds=bounds,
    draw=_null_law(scores),
    law=_law(scores),
    calibrated=shift is not None and not doubts,
    is_expected=is_expected,
    doubts=doubts,
  )


def _statistics(record: Record) -> list[_Statistic]:
  dim, seats = record.dim, statistics.assign_held_out(record.assigned)
  root = float(np.sqrt(dim))
  models = record.sees == 'models'
  shown = 'published models' if models else 'all iterates'
  weight = record.weight if record.weight.size else None
  one, by_round = np.zeros(seats.shape[1], int), seats.argmax(axis=0)
  found = []
  if len(record.final):
    final = record.final
    found.append(
      _Statistic('final model', FINAL, final, dim, root, weight, groups=one)
    )
  if len(record.change):
    change = record.change
    found.append(
      _Statistic(KNOWN_START, CHANGE, change, dim, root, weight, groups=one)
    )
  # In units of the std of one cosine, whose maximum has a law of its own.
  largest = root * statistics.max_over_rounds(record.trace)
  found.append(_Statistic(shown, MAXIMUM, largest, None, 1.0, None))
  shift = None
  if record.expected is not None:
    ratio = statistics.score_mixture(record.trace, record.expected, dim=dim)
    found.append(_Statistic(shown, LIKELIHOOD, ratio, None, 1.0, None))
    expected = np.broadcast_to(record.expected[:, None], seats.shape)
    shift = root * statistics.score_own_round(expected, seats)
  if models:
    # A row of weights for each difference of models, which are what to expect.
    shift = root * np.sqrt(np.sum(np.square(seats, dtype=np.float64), axis=0))
  own = statistics.score_own_round(record.trace, seats)
  once = bool(np.count_nonzero(record.assigned, axis=0).max() == 1)
  # Of several rounds norms do not tell how their aggregates lie.
  exact = once and not models
  found.append(
    _Statistic(
      shown, OWN, own, dim if exact else None, root, shift, exact, by_round
    )
  )
  if record.residual is not None:
    found.append(_others_removed(record, record.residual, shown))
  return found


def _others_removed(
  record: Record, residual: Float[np.ndarray, 'T k'], shown: str
) -> _Statistic:
  """The Gaussian mechanism itself: inner products in units of known noise."""
  seats, root = (
    statistics.assign_held_out(record.assigned),
    float(np.sqrt(record.dim)),
  )
  who = f'{shown}, other updates known'
  if record.rounds is None:
    values = statistics.score_own_round(residual, seats)
    return _Statistic(who, REMOVED, values, None, root, None)
  if not np.any(record.rounds.noise_std):
    # Nothing is left but the canary, a cosine of 1.
    values = record.observed.astype(np.float64)
    return _Statistic(who, REMOVED, values, record.dim, root, None)
  values = statistics.score_residual(
    residual, record.included, seats, record.rounds
  )
  shift = statistics.expected_residual(seats, record.rounds)
  return _Statistic(who, REMOVED, values, math.inf, 1.0, shift, True)


def _reading(record: Record, statistic: _Statistic) -> Reading:
  name, threat_model = statistic.name, statistic.threat_model
  scores = split_scores(
    record,
    statistic.values,
    statistic.dim,
    statistic.shift,
    statistic.groups,
  )
  if name == MAXIMUM:
    return _maximum(record, threat_model, scores)
  if name == LIKELIHOOD:
    return Reading(
      threat_model=threat_model,
      statistic=name,
      scores=scores,
      unit='log likelihood ratio',
      scale=1.0,
      points=(_COUNTED, threshold.eps_lo),
      bounds=_counted_bounds(scores),
      draw=None,
      law=None,
      calibrated=False,
      is_expected=False,
      doubts=_swapped(scores),
    )
  if name == REMOVED and scores.dim == record.dim:
    return _without_noise(threat_model, scores, statistic.scale)
  return read_shifted(
    threat_model,
    name,
    scores,
    scale=statistic.scale,
    is_expected=statistic.is_expected and statistic.shift is not None,
  )


def _without_noise(threat_model: str, scores: Scores, scale: float) -> Reading:
  """Whoever removes all others is left with the canary itself, or nothing."""
  return Reading(
    threat_model=threat_model,
    statistic=REMOVED,
    scores=scores,
    unit=_COSINE,
    scale=scale,
    points=(shifted_cosine.shifted_cosine,),
    bounds=_counted_bounds(scores),
    draw=None,
    law=None,
    calibrated=True,
    is_expected=False,
    doubts=(),
  )


def _maximum(record: Record, threat_model: str, scores: Scores) -> Reading:
  """The paper's statistic, whose null law is a power of that of one cosine."""
  fitted = (_FITTED,) if scores_differ(scores) else (_COUNTED,)
  points: tuple[Estimator, ...] = (*fitted, threshold.eps_lo)
  doubts, tau = _swapped(scores), float(len(record.trace))
  if record.expected is not None:
    own = np.sqrt(record.dim) * record.expected[:, None] * record.assigned
    own = -np.sort(-own[:, record.observed], axis=0)
    most = np.count_nonzero(record.assigned, axis=0).max()
    estimator = functools.partial(
      maximum.maximum_over_rounds, own=own[:most].T, rounds=len(own)
    )
    points = (estimator, *points)
    tau = float(maximum.independent_rounds(scores.unobserved))
    tau = min(max(tau, 1.0), float(len(own)))
    p = maximum.p_value(scores.unobserved)
    if p < shift_tests.REJECTED_BELOW:
      doubts += (
        'maxima of canaries that took no part do not follow the law of the '
        f'largest of independent cosines (p = {p:.2g}), so that no estimate from '
        'them is calibrated',
      )
  return Reading(
    threat_model=threat_model,
    statistic=MAXIMUM,
    scores=scores,
    unit=_COSINE,
    scale=1.0,
    points=points,
    bounds=_counted_bounds(scores),
    draw=noise_floor.draw_from_null(
      scores.observed.size, scores.unobserved.size, rounds=tau
    ),
    law=('maximum', scores.observed.size, scores.unobserved.size, tau),
    calibrated=record.expected is not None and not doubts,
    is_expected=False,
    doubts=doubts,
  )


def _counted_bounds(scores: Scores) -> tuple[Estimator, ...]:
  """Bounds from counts alone, chosen by design before any score is seen.

  The first is the tightest for its design in most cases of docs/coverage.md.
  """
  if scores.design == 'coin_flip':
    return *_COINS, _BAND
  return (_BAND,) if scores.dim is None else (_FEW, _BAND)


def _points(first: Estimator, spread: bool) -> tuple[Estimator, ...]:
  """Point estimators; those that fit a spread only where there is one."""
  if spread:
    return first, _FITTED, threshold.max_threshold, threshold.eps_lo
  return first, _COUNTED, threshold.eps_lo


def scores_differ(scores: Scores) -> bool:
  """Whether observed scores differ by more than float32 rounds.

  They do not where nothing else is in what is seen: without noise, for one who
  removes the other updates.
  """
  largest = np.max(np.abs(scores.observed))
  return bool(np.ptp(scores.observed) > 1e-5 * largest)


def _null_law(scores: Scores) -> noise_floor.Draw:
  return noise_floor.draw_from_null(
    scores.observed.size,
    scores.unobserved.size,
    dim=scores.dim,
    shift=scores.shift,
  )


def _law(scores: Scores) -> Hashable:
  return 'cosine', scores.observed.size, scores.unobserved.size, scores.dim


def _believed(scores: Scores) -> tuple[Scores, tuple[str, ...]]:
  """Scores without a null law that the unobserved ones refute, and doubts."""
  doubts = _swapped(scores)
  if not diagnostics.null_is_rejected(scores):
    return scores, doubts
  reason = (
    'scores of canaries that took no part do not follow the law of random '
    f'directions, d = {scores.dim}, so their own law is taken instead'
  )
  return Scores(
    scores.observed, scores.unobserved, None, scores.design, scores.shift
  ), (*doubts, reason)


def _swapped(scores: Scores) -> tuple[str, ...]:
  """A doubt if canaries that took part score lower than those that did not."""
  if scores.unobserved.size:
    p = stats.mannwhitneyu(
      scores.observed,
      scores.unobserved,
      alternative='less',
      method='asymptotic',
    ).pvalue
  else:
    assert scores.dim is not None, 'scores have unobserved ones, or a dim'
    std = cosine_null.law(scores.dim).std / np.sqrt(scores.observed.size)
    p = stats.norm.cdf(scores.observed.mean() / std)
  if p >= _SWAPPED_BELOW:
    return ()
  return (
    f'canaries that took part score lower than others (p = {p:.1g}): a high '
    'score has to say "took part", so the groups may be swapped or the sign be '
    'wrong',
  )


def _against_mixture(scores: Scores) -> tuple[str, ...]:
  tests = shift_tests.p_values(scores)
  least, doubts = shift_tests.REJECTED_BELOW, ()
  if tests.spread < least:
    doubts += (
      'scores of canaries that took part scatter otherwise than those of others '
      f'(p = {tests.spread:.2g}), so that no estimate that takes them to be '
      'shifted alone is calibrated',
    )
  if tests.shape < least:
    doubts += (
      'scores of canaries that took part are not Gaussian around their shifts '
      f'(p = {tests.shape:.2g}), so that no estimate that takes them to be is '
      'calibrated',
    )
  return doubts
