"""From scores to ε: every estimate of every attacker of a run.

Attackers score all canaries and say which estimators suit their scores (`attackers`).
Here the estimators run, simulated audits without a leak tell what they report by chance,
checks look for contradictions (`failed_checks`), and bounds are compared with the ε that
the mechanism allows (`upper_bounds`).
"""

from collections.abc import Hashable, Sequence
from concurrent import futures
import dataclasses
import functools
import warnings

from jaxtyping import Float
import numpy as np

from epe_jax.accounting import Analytic
from epe_jax.audit import failed_checks
from epe_jax.audit.attack_scores import AttackScores, ThreatModel
from epe_jax.audit.attackers import (
  EXTERNAL,
  THREAT_MODELS,
  score_all,
  score_external,
)
from epe_jax.audit.record import Record
from epe_jax.audit.results import (
  FPRS,
  SIGNIFICANCE,
  Agreement,
  AttackResult,
  Audit,
  Rates,
  list_bounds,
)
from epe_jax.epsilon import bootstrap, known_shifts, noise_floor, registry
from epe_jax.epsilon.registry import Estimator
from epe_jax.epsilon.types import Estimate, Scores, mark_rejected
from epe_jax.fact import Fact, Facts

# False positive rates among which the most accurate threshold is sought.
_THRESHOLDS = np.geomspace(1e-12, 0.5, 2000)


def evaluate(
  record: Record,
  *,
  delta: float | None = None,
  threat_models: Sequence[ThreatModel] = THREAT_MODELS,
  more: bool = False,
  simultaneous: bool = False,
  floors: bool = True,
) -> Audit:
  """Computes every estimate of every attacker of a run.

  Args:
    delta: in (0, 1); None for the run's own.
    threat_models: the attackers, in the order of the report; those who see what an
      observer of yours scored go among them, and are warned of if they score nothing.
    more: also superseded estimators.
    simultaneous: lower bounds hold all together at 95 %, not each by itself.
    floors: also what estimators report when nothing leaks, which takes most of
      the time.

  Raises:
    ValueError: no canary took part, or no attacker scores any.
  """
  if not np.any(record.observed):
    raise ValueError(
      f'none of the {record.observed.size} canaries took part in any round; audit '
      'more canaries or more rounds.'
    )
  delta = record.delta if delta is None else delta
  all_scores = score_all(record, threat_models)
  own = {x.key for x in threat_models if x not in THREAT_MODELS}
  if silent := sorted(own - {x.threat_model.key for x in all_scores}):
    warnings.warn(
      f'the attackers {silent} score nothing of a record with cosines named '
      f'{sorted(record.cosines)}; a key has to be the name under which an observer '
      'scores what the attacker sees.',
      stacklevel=2,
    )
  if not (all_scores or own):
    raise ValueError(
      'no attacker can score this record: sums over several rounds of a canary have the '
      'law of unobserved canaries, and there are fewer than two. Give more of these, or '
      'observe the final model or the updates of others.'
    )
  audit = _estimate_all(all_scores, delta, more, simultaneous, floors)
  missed = _note_missed_rounds(record) + _note_wrapped(record)
  attacks = (
    _compare_with_limit(
      dataclasses.replace(attack, notes=(*attack.notes, *missed)),
      one,
      attack.threat_model.analytic_epsilon(record, delta),
      audit,
    )
    for attack, one in zip(audit.attacks, all_scores)
  )
  return audit._replace(attacks=tuple(attacks))


def _note_missed_rounds(record: Record) -> Facts:
  """How many participations took place, if canaries missed some or differ."""
  counts = np.count_nonzero(record.included, axis=0)[record.observed]
  fewest, most = int(counts.min()), int(counts.max())
  values = {'num': int(counts.sum()), 'planned': record.planned}
  if record.planned is None or (
    values['num'] == record.planned and fewest == most
  ):
    return ()
  return (Fact('rounds_missed', values | {'fewest': fewest, 'most': most}),)


def _note_wrapped(record: Record) -> Facts:
  """How many coordinates wrapped around the ring of secure aggregation, if any did."""
  ring = record.ring
  if ring is None or not ring.wrapped:
    return ()
  values = {'num': ring.wrapped, 'of': ring.dim * record.num_rounds}
  return (Fact('coordinates_wrapped', values),)


def evaluate_scores(
  scores: Scores,
  *,
  delta: float,
  more: bool = True,
  simultaneous: bool = False,
) -> Audit:
  """Computes every estimate of scores of any system, as `evaluate` does."""
  attack_scores = score_external(scores)
  return _estimate_all([attack_scores], delta, more, simultaneous, floors=True)


def _estimate_all(
  all_scores: Sequence[AttackScores],
  delta: float,
  more: bool,
  simultaneous: bool,
  floors: bool,
) -> Audit:
  def add(extra: Sequence[Estimator], chosen: Sequence[Estimator]):
    return [*chosen, *(x for x in extra if more and x not in chosen)]

  points = [
    add(registry.list_extra('point_estimate'), x.points) for x in all_scores
  ]
  bounds = [
    add(registry.list_extra('confidence_bound'), x.bounds) for x in all_scores
  ]
  significance = SIGNIFICANCE
  if simultaneous:
    significance /= sum(map(len, bounds))
  nulls = _simulate_floors(all_scores, points, delta) if floors else {}
  attacks = []
  for attack_scores, of_point, of_bound in zip(all_scores, points, bounds):
    estimates = [
      _add_floor(
        estimator(attack_scores.scores, delta=delta),
        nulls.get(_name_floor(attack_scores, estimator)),
      )
      for estimator in of_point
    ]
    estimates += [
      bound(attack_scores.scores, delta=delta, significance=significance)
      for bound in of_bound
    ]
    estimates = [_to_float(estimate) for estimate in estimates]
    attacks.append(_summarize_attack(attack_scores, estimates, delta))
  return Audit(tuple(attacks), simultaneous)


def _simulate_floors(
  all_scores: Sequence[AttackScores],
  points: Sequence[Sequence[Estimator]],
  delta: float,
) -> dict[Hashable, Float[np.ndarray, ' simulations']]:
  """ε of simulated audits in which nothing leaks, once for attackers of equal laws.

  In threads, because NumPy lets other threads run. Each has a generator of its own.
  """
  names, jobs = set(), []
  for attack_scores, estimators in zip(all_scores, points):
    missing = {
      name: estimator
      for estimator in estimators
      if (name := _name_floor(attack_scores, estimator)) not in names
    }
    if attack_scores.draw is not None and missing:
      names |= missing.keys()
      jobs.append((attack_scores.draw, missing))

  def simulate(job):
    draw, missing = job
    simulated = noise_floor.simulate(
      np.random.default_rng(0), list(missing.values()), draw, delta=delta
    )
    return zip(missing, simulated)

  with futures.ThreadPoolExecutor(thread_name_prefix='floors') as pool:
    return dict(item for floors in pool.map(simulate, jobs) for item in floors)


def _name_floor(attack_scores: AttackScores, estimator: Estimator) -> Hashable:
  shift = attack_scores.scores.shift
  if shift is None or not registry.uses_shift(estimator):
    return attack_scores.law, estimator
  return attack_scores.law, estimator, shift.tobytes()


def _add_floor(
  estimate: Estimate, null: Float[np.ndarray, ' simulations'] | None
) -> Estimate:
  if null is None:
    return estimate
  return dataclasses.replace(
    estimate,
    floor=noise_floor.summarize(null),
    p_value=noise_floor.p_value(float(estimate.epsilon), null),
  )


def _to_float(estimate: Estimate) -> Estimate:
  """The estimate with a Python float, as files keep it."""
  return dataclasses.replace(estimate, epsilon=float(estimate.epsilon))


def _summarize_attack(
  attack_scores: AttackScores, estimates: Sequence[Estimate], delta: float
) -> AttackResult:
  scores, model = attack_scores.scores, attack_scores.threat_model
  is_external = model == EXTERNAL
  # What is not calibrated claims nothing that a bound could contradict. Of external
  # scores that is not known, and their estimate is shown.
  contradiction, notes = (), attack_scores.notes
  if attack_scores.is_calibrated or is_external:
    contradiction = failed_checks.check_bounds(
      estimates[0], list_bounds(estimates)[: len(attack_scores.bounds)]
    )
  if is_external:
    notes += failed_checks.note_separation(scores, estimates[0])
  bootstrapped = None
  if (is_external or model.is_shift) and estimates[0].interval is None:
    bootstrapped = estimate_with_interval(attack_scores, delta=delta).interval
  return AttackResult(
    threat_model=model,
    view=attack_scores.view,
    num_observed=scores.observed.size,
    num_unobserved=scores.unobserved.size,
    is_calibrated=attack_scores.is_calibrated and not contradiction,
    failed_checks=(*attack_scores.failed_checks, *contradiction),
    rates=None if scores.shift is None else _compute_rates(scores),
    agreement=_test_agreement(scores, delta)
    if attack_scores.is_expected
    else None,
    estimates=tuple(estimates),
    notes=notes,
    contradictions=attack_scores.contradictions,
    bootstrap_interval=bootstrapped,
    unit=attack_scores.unit,
    scale=attack_scores.scale,
    scores=scores,
  )


def _compute_rates(scores: Scores) -> Rates:
  """How good the attack itself is, by the fitted mixture of Gaussians."""
  tpr = known_shifts.compute_rates(scores, np.array(FPRS))
  at_thresholds = known_shifts.compute_rates(scores, _THRESHOLDS)
  accuracy = float(np.max(1 - _THRESHOLDS + at_thresholds) / 2)
  return Rates(accuracy, tuple(map(float, tpr)))


def _test_agreement(scores: Scores, delta: float) -> Agreement:
  """Whether scores are shifted by what norms predict."""
  assert scores.shift is not None
  expected = float(known_shifts.epsilon_mixture(scores.shift, delta))
  return Agreement(expected, *known_shifts.compare_with_expected(scores))


def _compare_with_limit(
  attack: AttackResult,
  attack_scores: AttackScores,
  analytic: Analytic | None,
  audit: Audit,
) -> AttackResult:
  """The attack with the ε that it is allowed, and whether that stands all tests."""
  attack = dataclasses.replace(attack, analytic=analytic)
  if (
    not attack.bounds or attack.describe_excess(attack.bounds[0]) != 'violation'
  ):
    return attack
  joint = attack_scores.bounds[0](
    attack_scores.scores,
    delta=attack.first.delta,
    significance=audit.significance_of_one,
  )
  return dataclasses.replace(attack, joint_bound=_to_float(joint))


def estimate_with_interval(
  attack_scores: AttackScores,
  *,
  delta: float,
  confidence: float = 0.9,
  resamples: int = 1000,
) -> Estimate:
  """The first point estimate of an attacker, with an interval of its scatter.

  Args:
    confidence: of the interval: that of the estimator itself, or else over
      resampled canaries.
    resamples: of the bootstrap, where it takes one.

  Returns:
    The estimate, marked as rejected where it is not calibrated. Without an interval
    where there are too few scores.
  """
  scores, estimator = attack_scores.scores, attack_scores.points[0]
  if registry.has_interval(estimator):
    estimator = functools.partial(estimator, confidence=confidence)
  elif failed_checks.scores_differ(scores) and _can_resample(scores):
    estimator = functools.partial(
      bootstrap.bootstrap_interval,
      np.random.default_rng(0),
      estimator,
      confidence=confidence,
      resamples=resamples,
    )
  estimate = estimator(scores, delta=delta)
  return estimate if attack_scores.is_calibrated else mark_rejected(estimate)


def _can_resample(scores: Scores) -> bool:
  """A null law that is fitted needs a dozen, or a resample may have no spread."""
  return scores.has_known_null or scores.unobserved.size >= 12
