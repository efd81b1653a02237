"""What each attacker could tell: every estimate of a run, from its scores."""

from collections.abc import Hashable, Sequence
import dataclasses
import functools
from typing import Any, NamedTuple

from jaxtyping import Float
import numpy as np

from epe_jax.audit import threat_models
from epe_jax.audit.record import Record
from epe_jax.epsilon import (
  bootstrap,
  location_mixture,
  noise_floor,
  shift_tests,
)
from epe_jax.epsilon.types import Estimate, Scores

SIGNIFICANCE = 0.05
"""Chance that a lower bound exceeds the true ε."""

_FPR = (0.01, 0.001)
# False positive rates among which the most accurate threshold is sought.
_THRESHOLDS = np.geomspace(1e-12, 0.5, 2000)

Row = dict[str, Any]
_Floors = dict[Hashable, Float[np.ndarray, ' simulations']]


class Audit(NamedTuple):
  """What an audit found, as result.json keeps it.

  Attributes:
    estimates: rows with threat_model, statistic, method, epsilon, delta,
      confidence, kind, assumes, interval, floor (its mean), floor_quantiles
      (5, 50 and 95 %) and p_value (that nothing leaks).
    readings: a row for each attacker with threat_model, statistic,
      num_observed, num_unobserved, calibrated, doubts, rates (of the attack
      itself) and agreement (with what norms tell to expect).
    headline: the row of the one bound that was chosen before looking, by who the
      strongest attacker is and by how canaries were included.
    is_simultaneous: lower bounds hold all together, not each by itself.
  """

  estimates: list[Row]
  readings: list[Row]
  headline: Row | None
  is_simultaneous: bool = False


def evaluate(
  record: Record,
  *,
  delta: float | None = None,
  more: bool = False,
  simultaneous: bool = False,
  floors: bool = True,
) -> Audit:
  """Every estimate of every attacker of a run.

  Args:
    record: what attackers saw.
    delta: in (0, 1); None for the run's own.
    more: also the estimators of which a report has better ones.
    simultaneous: lower bounds hold all together at 95 %, not each by itself.
    floors: also what estimators report when nothing leaks, which takes most of
      the time.
  """
  delta = record.delta if delta is None else delta
  found = threat_models.read_all(record)
  return _evaluate(found, delta, more, simultaneous, floors)


def evaluate_scores(
  scores: Scores,
  *,
  delta: float,
  more: bool = True,
  simultaneous: bool = False,
) -> Audit:
  """Every estimate of scores from any system, as `evaluate` gives them."""
  reading = threat_models.read_external(scores)
  return _evaluate([reading], delta, more, simultaneous, floors=True)


def estimate_with_interval(
  reading: threat_models.Reading,
  *,
  delta: float,
  confidence: float = 0.9,
  resamples: int = 1000,
) -> Estimate:
  """The first point estimate of a reading, with an interval of its scatter.

  Args:
    reading: of one attacker.
    delta: in (0, 1).
    confidence: of the interval: that of the estimator itself, or else over
      resampled canaries.
    resamples: of the bootstrap, where it takes one.

  Returns:
    The estimate; its method ends in '_rejected' where the reading is not
    calibrated. Without an interval where there are too few scores.
  """
  estimator = reading.points[0]
  if estimator in threat_models.SHIFT_AWARE:
    estimator = functools.partial(estimator, confidence=confidence)
  elif threat_models.scores_differ(reading.scores) and _can_resample(
    reading.scores
  ):
    estimator = functools.partial(
      bootstrap.bootstrap_interval,
      np.random.default_rng(0),
      estimator,
      confidence=confidence,
      resamples=resamples,
    )
  estimate = estimator(reading.scores, delta=delta)
  if reading.calibrated:
    return estimate
  return dataclasses.replace(estimate, method=f'{estimate.method}_rejected')


def _can_resample(scores: Scores) -> bool:
  """A null law that is fitted needs a dozen, or a resample may have no spread."""
  return scores.dim is not None or scores.unobserved.size >= 12


def _evaluate(
  found: Sequence[threat_models.Reading],
  delta: float,
  more: bool,
  simultaneous: bool,
  floors: bool,
) -> Audit:
  bounds = [_bounds(reading, more) for reading in found]
  significance = SIGNIFICANCE
  if simultaneous:
    significance /= sum(map(len, bounds))
  rows: list[list[Row]] = []
  known: _Floors = {}
  for reading, of_reading in zip(found, bounds):
    points = list(reading.points)
    if more:
      points += [e for e in threat_models.MORE_POINTS if e not in points]
    estimates = [estimator(reading.scores, delta=delta) for estimator in points]
    nulls: Sequence[Any] = [None] * len(points)
    if floors:
      nulls = _floors_of(reading, points, delta, known)
    rows.append(
      [_row(reading, *pair) for pair in zip(estimates, nulls)]
      + [
        _row(
          reading,
          bound(reading.scores, delta=delta, significance=significance),
          None,
        )
        for bound in of_reading
      ]
    )
  described = [
    _described(reading, of_reading, delta)
    for reading, of_reading in zip(found, rows)
  ]
  return Audit(
    estimates=[row for of_reading in rows for row in of_reading],
    readings=described,
    headline=_headline(rows),
    is_simultaneous=simultaneous,
  )


def _bounds(
  reading: threat_models.Reading, more: bool
) -> list[threat_models.Estimator]:
  bounds = list(reading.bounds)
  if more:
    bounds += [b for b in threat_models.MORE_BOUNDS if b not in bounds]
  return bounds


def _headline(rows: Sequence[Sequence[Row]]) -> Row | None:
  """The first bound of the strongest attacker."""
  if not rows:
    return None
  bounds = [row for row in rows[-1] if row['kind'] == 'confidence bound']
  return bounds[0] if bounds else None


def _floors_of(
  reading: threat_models.Reading,
  estimators: Sequence[threat_models.Estimator],
  delta: float,
  known: _Floors,
) -> list[Float[np.ndarray, ' simulations'] | None]:
  """What each estimator reports when nothing leaks; made once for equal laws."""
  if reading.draw is None:
    return [None] * len(estimators)
  keys = [_key(reading, estimator) for estimator in estimators]
  missing = {k: e for k, e in zip(keys, estimators) if k not in known}
  made = noise_floor.simulate(
    np.random.default_rng(0), list(missing.values()), reading.draw, delta=delta
  )
  known.update(zip(missing, made))
  return [known[key] for key in keys]


def _key(
  reading: threat_models.Reading, estimator: threat_models.Estimator
) -> Hashable:
  shift = reading.scores.shift
  if shift is not None and estimator in threat_models.SHIFT_AWARE:
    return reading.law, estimator, shift.tobytes()
  return reading.law, estimator


def _row(
  reading: threat_models.Reading,
  estimate: Estimate,
  null: Float[np.ndarray, ' simulations'] | None,
) -> Row:
  epsilon = float(estimate.epsilon)
  summary = None if null is None else noise_floor.summarize(null)
  return {
    'threat_model': reading.threat_model,
    'statistic': reading.statistic,
    'method': estimate.method,
    'epsilon': epsilon,
    'delta': estimate.delta,
    'confidence': estimate.confidence,
    'kind': estimate.kind,
    'assumes': [str(assumption) for assumption in estimate.assumes],
    'is_shape_free': estimate.is_shape_free,
    'interval': estimate.interval and list(estimate.interval),
    'floor': summary and summary.mean,
    'floor_quantiles': summary
    and {'5': summary.q05, '50': summary.q50, '95': summary.q95},
    'p_value': None if null is None else noise_floor.p_value(epsilon, null),
  }


def _described(
  reading: threat_models.Reading, rows: Sequence[Row], delta: float
) -> Row:
  """What is to be known of a reading besides its estimates."""
  # What is not calibrated claims nothing that a bound could contradict.
  contradiction = _contradiction(rows) if reading.calibrated else []
  scores = reading.scores
  knows_shift = scores.shift is not None
  return {
    'threat_model': reading.threat_model,
    'statistic': reading.statistic,
    'num_observed': scores.observed.size,
    'num_unobserved': scores.unobserved.size,
    'calibrated': reading.calibrated and not contradiction,
    'doubts': [*reading.doubts, *contradiction],
    'rates': _rates(scores) if knows_shift else None,
    'agreement': _agreement(scores, delta) if reading.is_expected else None,
  }


def _contradiction(rows: Sequence[Row]) -> list[str]:
  """A doubt if a bound of the same scores is above the first estimate."""
  first = rows[0]
  highest = max(
    (r for r in rows if r['kind'] == 'confidence bound'),
    key=lambda row: row['epsilon'],
  )
  if first['epsilon'] >= highest['epsilon']:
    return []
  reasons = 'the estimate is wrong, or the bound is one of the few that exceed the true ε'
  if not highest['is_shape_free']:
    reasons += ', or it is not so that ' + ' and '.join(highest['assumes'])
  return [
    f'the first point estimate, {first["epsilon"]:.3g}, is below a lower bound '
    f'of the same scores, {highest["epsilon"]:.3g} at '
    f'{100 * highest["confidence"]:g} %: {reasons}'
  ]


def _rates(scores: Scores) -> Row:
  """How good the attack itself is, by the fitted mixture of Gaussians."""
  tpr = location_mixture.rates(scores, np.array(_FPR))
  every = location_mixture.rates(scores, _THRESHOLDS)
  return {
    'accuracy': float(np.max(1 - _THRESHOLDS + every) / 2),
    'tpr': {f'{fpr:g}': float(rate) for fpr, rate in zip(_FPR, tpr)},
  }


def _agreement(scores: Scores, delta: float) -> Row:
  """Whether scores are shifted by what norms tell to expect."""
  assert scores.shift is not None
  errors, p_value = shift_tests.agreement(scores)
  return {
    'epsilon': location_mixture.mixture_epsilon(scores.shift, delta),
    'standard_errors': errors,
    'p_value': p_value,
  }
