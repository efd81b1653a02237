"""What each attacker could tell: every estimate of a run, from its scores."""

from collections.abc import Callable, Mapping, Sequence
import functools
from typing import Any, NamedTuple

from jaxtyping import Float
import numpy as np

from epe_jax import readings, results
from epe_jax.epsilon import (
  bayes,
  diagnostics,
  floor,
  gaussian,
  lower_bound,
  one_run,
  parametric,
  strategies,
  threshold,
  tradeoff,
)
from epe_jax.epsilon.types import Estimate, Scores

Estimator = Callable[..., Estimate]

KNOWN_START = 'final model, initial model known'
_BAND = lower_bound.lower_bound
_SHAPELESS: tuple[Estimator, ...] = (
  functools.partial(threshold.max_threshold, rates='empirical'),
  threshold.eps_lo,
  _BAND,
)
"""Estimators that do not take scores for Gaussian."""

_GAUSSIAN: tuple[Estimator, ...] = (
  # Calibrated first where a single cosine is read.
  functools.partial(gaussian.two_gaussian, std='null'),
  functools.partial(gaussian.two_gaussian, std='fitted'),
  threshold.max_threshold,
  threshold.eps_lo,
  _BAND,
  parametric.gaussian_lower_bound,
)


_ONE_POINT: tuple[Estimator, ...] = (_GAUSSIAN[0], *_SHAPELESS)
"""Estimators that ask for no spread of the canaries that took part."""

_COINS: tuple[Estimator, ...] = (one_run.one_run, one_run.one_run_gdp)
"""Estimators that ask for canaries included by fair coins."""


def _bound(multiplicity: strategies.Multiplicity) -> Estimator:
  return functools.partial(_BAND, multiplicity=multiplicity)


MORE: tuple[Estimator, ...] = (
  functools.partial(threshold.max_threshold, rates='empirical'),
  _bound(strategies.Uncorrected()),
  _bound(strategies.Bonferroni()),
  _bound(strategies.Split(seed=0)),
  _bound(strategies.MultiSplit(seed=0)),
  functools.partial(
    bayes.epsilon_credible, multiplicity=strategies.Split(seed=0)
  ),
  tradeoff.gdp,
  functools.partial(bayes.gdp_credible, multiplicity=strategies.Split(seed=0)),
)
"""What scripts/estimate.py shows besides the estimates of a report."""


class Reading(NamedTuple):
  """The scores of all canaries for one attacker.

  Attributes:
    threat_model: what the attacker sees and knows.
    statistic: what the attacker reads.
    scores: observed and unobserved.
    estimators: those that make sense here, the one to believe first.
    null: how to simulate scores of canaries that hide nothing, as arguments of
      `floor.noise_floor`; None if there is no way.
    calibrated: taking part moves the score and leaves its spread alone, so that
      the first estimator may be taken literally.
  """

  threat_model: str
  statistic: str
  scores: Scores
  estimators: Sequence[Estimator]
  null: Mapping[str, Any] | None
  calibrated: bool


def of_run(
  recorded: results.Recorded,
  *,
  delta: float | None = None,
  more: Sequence[Estimator] = (),
) -> list[dict[str, Any]]:
  """Every estimate of every reading of a run, as result.json lists them.

  Args:
    recorded: what attackers saw.
    delta: in (0, 1); None for the run's own.
    more: estimators to add to those of each reading.

  Returns:
    Rows with threat_model, statistic, method, epsilon, delta, confidence,
    floor (its mean) and floor_quantiles (5, 50 and 95 %).
  """
  delta = recorded.delta if delta is None else delta
  return [
    row
    for reading in ladder(recorded)
    for row in of_reading(reading, delta=delta, more=more)
  ]


def ladder(recorded: results.Recorded) -> list[Reading]:
  """The readings of a run, from the attacker who knows least upwards.

  The null law of a cosine is exact for the final model, and for own rounds if
  each canary took part once and the trace is of rounds. Elsewhere it is that of
  the unobserved canaries, and without two the reading is left out. So is the
  likelihood over rounds where a canary's own cosine is not known beforehand,
  and the final model or the residual where it is not shown. The floor of the
  maximum takes rounds as independent. A canary whose coin said no is read in
  the seats it would have had, and where there were no coins, in the rounds of
  another.
  """
  once = np.count_nonzero(recorded.seats, axis=0).max() == 1
  own = functools.partial(
    readings.own_round, participation=readings.lent(recorded.seats)
  )
  dim, rounds = recorded.dim, len(recorded.trace)
  models = recorded.sees == 'models'
  own_dim = dim if once and not models else None
  shown = 'published models' if models else 'all iterates'
  all_known = f'{shown}, other updates known'
  found = [
    (shown, 'maximum over rounds', readings.maximum(recorded.trace), None),
    (shown, 'own round', own(recorded.trace), own_dim),
  ]
  if (residual := recorded.residual) is not None:
    if recorded.rounds is not None:
      residual = readings.others_removed(
        residual, recorded.participation, recorded.rounds
      )
    found.append(
      (all_known, 'own round, others removed', own(residual), own_dim)
    )
  if recorded.expected is not None:
    ratio = readings.mixture(recorded.trace, recorded.expected, dim=dim)
    found.insert(1, (shown, 'likelihood over rounds', ratio, None))
  if len(recorded.change):
    look = 'cosine with the change of the model'
    found.insert(0, (KNOWN_START, look, recorded.change, dim))
  if len(recorded.final):
    look = 'cosine with the final model'
    found.insert(0, ('final model', look, recorded.final, dim))
  ladder = []
  for threat_model, statistic, values, known_dim in found:
    if known_dim is None and np.count_nonzero(~recorded.observed) < 2:
      continue
    scores = split(recorded, values, known_dim)
    estimators, calibrated = _shaped(scores), True
    null: dict[str, Any] | None = {'dim': known_dim}
    if statistic == 'likelihood over rounds':
      estimators, null, calibrated = _SHAPELESS, None, False
    elif statistic == 'maximum over rounds':
      null, calibrated = {'dim': dim, 'rounds': rounds}, rounds == 1
    ladder.append(
      Reading(threat_model, statistic, scores, estimators, null, calibrated)
    )
  return ladder


def split(
  recorded: results.Recorded, values: Float[np.ndarray, ' k'], dim: int | None
) -> Scores:
  """Values of all canaries as scores: of those that took part, and others."""
  observed = recorded.observed
  return Scores(values[observed], values[~observed], dim, recorded.design)


def _shaped(scores: Scores) -> Sequence[Estimator]:
  """Estimators that take scores for Gaussian, if those that took part differ.

  They do not where nothing else is in what is looked at: without noise, by one
  who removes the other updates, of a canary that was alone in its round.
  """
  # By more than float32 rounds.
  differ = np.ptp(scores.observed) > 1e-5 * np.max(np.abs(scores.observed))
  return _GAUSSIAN if differ else _ONE_POINT


def resampled(scores: Scores) -> bool:
  """Whether there are enough scores for a bootstrap.

  A null law that is fitted needs a dozen, or a resample may have no spread.
  """
  return scores.dim is not None or scores.unobserved.size >= 12


def warnings(found: Sequence[Reading]) -> list[str]:
  """In plain words, which readings are no Gaussians although taken for them."""
  said = []
  for reading in found:
    if reading.estimators is _GAUSSIAN:
      reason = diagnostics.warning(reading.scores)
      said += [f'{reading.statistic}: {reason}'] if reason else []
  return said


def foreign(scores: Scores) -> Reading:
  """Scores of any other system, as the one reading there is of them."""
  null = {'dim': scores.dim}
  return Reading('scores', 'as given', scores, _shaped(scores), null, False)


def of_scores(
  scores: Scores, *, delta: float, more: Sequence[Estimator] = MORE
) -> list[dict[str, Any]]:
  """Every estimate of scores from any system, as rows like those of a run."""
  return of_reading(foreign(scores), delta=delta, more=more)


def of_reading(
  reading: Reading, *, delta: float, more: Sequence[Estimator] = ()
) -> list[dict[str, Any]]:
  """The estimates of one reading; point estimates beside their floor.

  Where canaries flipped coins, the bounds from one run are among them.
  """
  rows = []
  coins = _COINS if reading.scores.design == 'coin_flip' else ()
  for estimator in (*reading.estimators, *coins, *more):
    estimate = estimator(reading.scores, delta=delta)
    null = None
    if reading.null is not None and estimate.confidence is None:
      null = floor.noise_floor(
        np.random.default_rng(0),
        estimator,
        delta=delta,
        num_observed=reading.scores.observed.size,
        num_unobserved=reading.scores.unobserved.size,
        **reading.null,
      )
    rows.append(
      {
        'threat_model': reading.threat_model,
        'statistic': reading.statistic,
        'method': estimate.method,
        'epsilon': float(estimate.epsilon),
        'delta': delta,
        'confidence': estimate.confidence,
        'floor': null and null.mean,
        'floor_quantiles': null
        and {'5': null.q05, '50': null.q50, '95': null.q95},
      }
    )
  unique = {row['method']: row for row in reversed(rows)}
  return [row for row in rows if unique[row['method']] is row]
