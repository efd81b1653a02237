"""What each attacker could tell: every estimate of a run, from its scores."""

from collections.abc import Hashable, Mapping, Sequence
from concurrent import futures
import dataclasses
import functools
from typing import NamedTuple

from jaxtyping import Float
import numpy as np

from epe_jax.accounting import Analytic
from epe_jax.audit import failed_checks, upper_bounds
from epe_jax.audit.failed_checks import Check, Checks
from epe_jax.audit.record import Record
from epe_jax.audit.sequential import SequentialBounds
from epe_jax.audit.threat_models import (
  EXTERNAL,
  THREAT_MODELS,
  AttackScores,
  ThreatModel,
  score_all,
  sort_by_strength,
)
from epe_jax.audit.threat_models.external import score_external
from epe_jax.epsilon import bootstrap, mixture, noise_floor, registry, shift_fit
from epe_jax.epsilon.types import Assumption, Estimate, Scores

SIGNIFICANCE = 0.05
"""Chance that a lower bound exceeds the true ε."""

FPR = (0.01, 0.001)
"""False positive rates at which true positive rates are reported."""

# False positive rates among which the most accurate threshold is sought.
_THRESHOLDS = np.geomspace(1e-12, 0.5, 2000)

_Floors = dict[Hashable, Float[np.ndarray, ' simulations']]


class Rates(NamedTuple):
  """How good an attack itself is, by the fitted mixture of Gaussians.

  Attributes:
    accuracy: share of right guesses about those who took part with probability
      1/2, at the best threshold.
    tpr: true positive rates at the false positive rates `FPR`.
  """

  accuracy: float
  tpr: tuple[float, ...]


class Agreement(NamedTuple):
  """Whether scores are shifted by what the norms of rounds tell to expect.

  Attributes:
    epsilon: that is to be expected.
    standard_errors: by which the shift differs, signed.
    p_value: of so large a difference.
  """

  epsilon: float
  standard_errors: float
  p_value: float


@dataclasses.dataclass(frozen=True)
class Attack:
  """What was found about one attacker.

  Attributes:
    threat_model: the attacker.
    sees: what is seen and known of the run at hand, in words.
    num_observed: canaries that took part.
    num_unobserved: canaries that did not.
    is_calibrated: the first estimate estimates the ε of this attacker, and no
      test says otherwise.
    failed_checks: what speaks against the estimates.
    rates: of the attack; None where by how much canaries are shifted is unknown.
    agreement: with the norms of rounds; None where they tell nothing.
    estimates: point estimates, the one to believe first, then lower bounds, the
      pre-declared one first.
    analytic: the ε that the mechanism allows this attacker; None where that is
      not known.
    notes: what to know of the estimates and bounds.
    contradictions: what was measured that contradicts the claim of the run, and not
      the estimates.
    joint_bound: the pre-declared bound at a level at which all tests of the audit
      hold together; computed where the bound itself is above `analytic`.
    bootstrap_interval: 90 %, of the first estimate over resampled canaries; computed
      where runs are compared by it and the estimator has no interval of its own.
    unit: of scores times scale.
    scale: makes scores easy to read.
    scores: of the canaries, for curves and figures; None where they were not kept.
  """

  threat_model: ThreatModel
  sees: str
  num_observed: int
  num_unobserved: int
  is_calibrated: bool
  failed_checks: Checks
  rates: Rates | None
  agreement: Agreement | None
  estimates: tuple[Estimate, ...]
  analytic: Analytic | None = None
  notes: Checks = ()
  contradictions: Checks = ()
  joint_bound: Estimate | None = None
  bootstrap_interval: tuple[float, float] | None = None
  unit: str = 'score'
  scale: float = 1.0
  scores: Scores | None = dataclasses.field(
    default=None, repr=False, compare=False
  )

  @property
  def is_violated(self) -> bool:
    """Whether more is found than is allowed, whatever else has been tested."""
    bound = self.joint_bound
    return bound is not None and self.describe_excess(bound) == 'violation'

  @property
  def first(self) -> Estimate:
    """The estimate to believe first."""
    return self.estimates[0]

  @property
  def first_with_interval(self) -> Estimate:
    """The first estimate with a 90 % interval, if there is one.

    Its method ends in '_rejected' where it is not calibrated.
    """
    first = dataclasses.replace(
      self.first, interval=self.first.interval or self.bootstrap_interval
    )
    return first if self.is_calibrated else _mark_rejected(first)

  def describe_excess(self, estimate: Estimate) -> upper_bounds.Excess | None:
    """As `upper_bounds.describe_excess`, of one of the estimates."""
    interval, error = self.first.interval, 0.0
    if interval is not None:
      error = (interval[1] - interval[0]) / 2
    return upper_bounds.describe_excess(estimate, self.analytic, error=error)

  @property
  def bounds(self) -> tuple[Estimate, ...]:
    """Confidence bounds, the pre-declared one first."""
    return tuple(e for e in self.estimates if e.kind == 'confidence bound')

  def find(self, method: str) -> Estimate | None:
    """The estimate by a method; None if there is none."""
    return next((e for e in self.estimates if e.method == method), None)


class RoundEstimate(NamedTuple):
  """What an attacker could tell after some rounds.

  Attributes:
    round: t, in [1, T].
    threat_model: the attacker.
    estimate: a point estimate with an interval, or a lower bound.
    num_observed: canaries that had taken part by then.
    num_unobserved: canaries that never did.
  """

  round: int
  threat_model: ThreatModel
  estimate: Estimate
  num_observed: int
  num_unobserved: int


class Audit(NamedTuple):
  """What an audit found.

  Attributes:
    attacks: of each attacker, in the order in which they were given.
    is_simultaneous: lower bounds hold all together, not each by itself.
    by_round: ε after some rounds; None unless `by_round.add_rounds` added it.
    sequential: bounds that hold after all rounds at once; None likewise, or if no
      attacker's scores have a known law.
  """

  attacks: tuple[Attack, ...]
  is_simultaneous: bool = False
  by_round: tuple[RoundEstimate, ...] | None = None
  sequential: SequentialBounds | None = None

  @property
  def by_strength(self) -> tuple[Attack, ...]:
    """From the weakest attacker to the strongest, as `sort_by_strength` ranks them."""
    order = sort_by_strength(attack.threat_model for attack in self.attacks)
    return tuple(
      sorted(self.attacks, key=lambda a: order.index(a.threat_model))
    )

  @property
  def headline(self) -> tuple[Attack, Estimate] | None:
    """The one bound that was chosen before any score was seen.

    It is the first bound of the strongest attacker, by who that is and by how
    canaries were included.
    """
    if not self.attacks or not self.by_strength[-1].bounds:
      return None
    strongest = self.by_strength[-1]
    return strongest, strongest.bounds[0]

  @property
  def significance_of_one(self) -> float:
    """The level of each test by which an audit may speak against its run.

    Of each attacker these are its pre-declared bound, the interval of its first
    estimate and its agreement with norms. Together they speak against a right run
    with a chance of `SIGNIFICANCE` at most.
    """
    num = sum(
      bool(attack.bounds)
      + (attack.first.interval is not None)
      + (attack.agreement is not None)
      for attack in self.attacks
    )
    return SIGNIFICANCE / max(num, 1)

  def find(self, threat_model: ThreatModel) -> Attack | None:
    """What was found about an attacker; None if there are no scores for it."""
    return next(
      (a for a in self.attacks if a.threat_model == threat_model), None
    )

  def find_first(self, threat_model: ThreatModel) -> Estimate | None:
    """The `first_with_interval` of an attacker; None as in `find`."""
    attack = self.find(threat_model)
    return attack and attack.first_with_interval


def evaluate(
  record: Record,
  *,
  delta: float | None = None,
  threat_models: Sequence[ThreatModel] = THREAT_MODELS,
  more: bool = False,
  simultaneous: bool = False,
  floors: bool = True,
) -> Audit:
  """Every estimate of every attacker of a run.

  Args:
    record: what attackers saw.
    delta: in (0, 1); None for the run's own.
    threat_models: the attackers, in the order of the report; those who see what an
      observer of yours scored go among them.
    more: also the estimators of which a report has better ones.
    simultaneous: lower bounds hold all together at 95 %, not each by itself.
    floors: also what estimators report when nothing leaks, which takes most of
      the time.

  Raises:
    ValueError: no canary took part.
  """
  if not np.any(record.observed):
    raise ValueError(
      f'None of the {record.observed.size} canaries took part in any round, so '
      'that nothing can be estimated. Audit more canaries, more rounds, or other '
      'coins of participation.'
    )
  delta = record.delta if delta is None else delta
  all_scores = score_all(record, threat_models)
  audit = _evaluate(all_scores, delta, more, simultaneous, floors)
  attacks = (
    _compare_with_limit(
      attack, one, attack.threat_model.limit(record, delta), audit
    )
    for attack, one in zip(audit.attacks, all_scores)
  )
  return audit._replace(attacks=tuple(attacks))


def _compare_with_limit(
  attack: Attack,
  attack_scores: AttackScores,
  analytic: Analytic | None,
  audit: Audit,
) -> Attack:
  """The attack with what it is allowed, and whether that stands all tests."""
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


def evaluate_scores(
  scores: Scores,
  *,
  delta: float,
  more: bool = True,
  simultaneous: bool = False,
) -> Audit:
  """Every estimate of scores from any system, as `evaluate` gives them."""
  attack_scores = score_external(scores)
  return _evaluate([attack_scores], delta, more, simultaneous, floors=True)


def estimate_with_interval(
  attack_scores: AttackScores,
  *,
  delta: float,
  confidence: float = 0.9,
  resamples: int = 1000,
) -> Estimate:
  """The first point estimate of an attacker, with an interval of its scatter.

  Args:
    attack_scores: of one attacker.
    delta: in (0, 1).
    confidence: of the interval: that of the estimator itself, or else over
      resampled canaries.
    resamples: of the bootstrap, where it takes one.

  Returns:
    The estimate; its method ends in '_rejected' where it is not
    calibrated. Without an interval where there are too few scores.
  """
  estimator = attack_scores.points[0]
  if registry.takes_confidence(estimator):
    estimator = functools.partial(estimator, confidence=confidence)
  elif failed_checks.scores_differ(attack_scores.scores) and _can_resample(
    attack_scores.scores
  ):
    estimator = functools.partial(
      bootstrap.bootstrap_interval,
      np.random.default_rng(0),
      estimator,
      confidence=confidence,
      resamples=resamples,
    )
  estimate = estimator(attack_scores.scores, delta=delta)
  return estimate if attack_scores.is_calibrated else _mark_rejected(estimate)


def _mark_rejected(estimate: Estimate) -> Estimate:
  return dataclasses.replace(estimate, method=f'{estimate.method}_rejected')


def _can_resample(scores: Scores) -> bool:
  """A null law that is fitted needs a dozen, or a resample may have no spread."""
  return scores.has_known_null or scores.unobserved.size >= 12


def _evaluate(
  all_scores: Sequence[AttackScores],
  delta: float,
  more: bool,
  simultaneous: bool,
  floors: bool,
) -> Audit:
  bounds = [_choose_bounds(attack_scores, more) for attack_scores in all_scores]
  significance = SIGNIFICANCE
  if simultaneous:
    significance /= sum(map(len, bounds))
  all_points = [
    _choose_points(attack_scores, more) for attack_scores in all_scores
  ]
  known_floors: _Floors = {}
  if floors:
    known_floors = _simulate_floors(all_scores, all_points, delta)
  attacks = []
  for attack_scores, points, of_attacker in zip(all_scores, all_points, bounds):
    results = [
      _add_floor(
        _to_float(e(attack_scores.scores, delta=delta)),
        known_floors.get(_floor_key(attack_scores, e)),
      )
      for e in points
    ]
    results += [
      _to_float(
        bound(attack_scores.scores, delta=delta, significance=significance)
      )
      for bound in of_attacker
    ]
    attacks.append(_summarize_attack(attack_scores, results, delta))
  return Audit(tuple(attacks), simultaneous)


def _choose_points(
  attack_scores: AttackScores, more: bool
) -> list[registry.Estimator]:
  points = list(attack_scores.points)
  if more:
    extra = registry.list_extra(is_point=True)
    points += [e for e in extra if e not in points]
  return points


def _choose_bounds(
  attack_scores: AttackScores, more: bool
) -> list[registry.Estimator]:
  bounds = list(attack_scores.bounds)
  if more:
    extra = registry.list_extra(is_point=False)
    bounds += [b for b in extra if b not in bounds]
  return bounds


def _simulate_floors(
  all_scores: Sequence[AttackScores],
  all_points: Sequence[Sequence[registry.Estimator]],
  delta: float,
) -> _Floors:
  """What estimators report when nothing leaks; made once for equal laws.

  Side by side, as drawing audits and estimating from them is work of NumPy, which
  lets other threads run. Each has a generator of its own.
  """
  jobs: list[tuple[noise_floor.Draw, dict[Hashable, registry.Estimator]]] = []
  keys = set()
  for attack_scores, points in zip(all_scores, all_points):
    if attack_scores.draw is None:
      continue
    missing = {
      key: estimator
      for estimator in points
      if (key := _floor_key(attack_scores, estimator)) not in keys
    }
    keys |= missing.keys()
    if missing:
      jobs.append((attack_scores.draw, missing))

  def simulate(
    draw: noise_floor.Draw, missing: Mapping[Hashable, registry.Estimator]
  ) -> _Floors:
    simulated = noise_floor.simulate(
      np.random.default_rng(0), list(missing.values()), draw, delta=delta
    )
    return dict(zip(missing, simulated))

  with futures.ThreadPoolExecutor(thread_name_prefix='floors') as pool:
    return dict(
      item
      for floors in pool.map(simulate, *zip(*jobs))
      for item in floors.items()
    )


def _floor_key(
  attack_scores: AttackScores, estimator: registry.Estimator
) -> Hashable:
  shift = attack_scores.scores.shift
  if shift is not None and registry.uses_shift(estimator):
    return attack_scores.law, estimator, shift.tobytes()
  return attack_scores.law, estimator


def _to_float(estimate: Estimate) -> Estimate:
  """The estimate with a Python float, as files keep it."""
  return dataclasses.replace(estimate, epsilon=float(estimate.epsilon))


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


def _summarize_attack(
  attack_scores: AttackScores, results: Sequence[Estimate], delta: float
) -> Attack:
  is_external = attack_scores.threat_model == EXTERNAL
  # What is not calibrated claims nothing that a bound could contradict; of scores from
  # elsewhere that is not known, and their estimate is shown.
  contradiction, notes = (), attack_scores.notes
  if attack_scores.is_calibrated or is_external:
    contradiction = _find_contradiction(results, len(attack_scores.bounds))
  if is_external:
    notes += _note_separation(attack_scores.scores, results[0])
  scores = attack_scores.scores
  bootstrapped = None
  if attack_scores.threat_model.is_shift and results[0].interval is None:
    bootstrapped = estimate_with_interval(attack_scores, delta=delta).interval
  return Attack(
    threat_model=attack_scores.threat_model,
    sees=attack_scores.sees,
    num_observed=scores.observed.size,
    num_unobserved=scores.unobserved.size,
    is_calibrated=attack_scores.is_calibrated and not contradiction,
    failed_checks=(*attack_scores.failed_checks, *contradiction),
    rates=None if scores.shift is None else _compute_rates(scores),
    agreement=_test_agreement(scores, delta)
    if attack_scores.is_expected
    else None,
    estimates=tuple(results),
    notes=notes,
    contradictions=attack_scores.contradictions,
    bootstrap_interval=bootstrapped,
    unit=attack_scores.unit,
    scale=attack_scores.scale,
    scores=scores,
  )


def _note_separation(scores: Scores, first: Estimate) -> Checks:
  """What scores show if no threshold ever errs, and that a fit extrapolates."""
  if not scores.unobserved.size:
    return ()
  if not np.min(scores.observed) > np.max(scores.unobserved):
    return ()
  num = max(scores.observed.size, scores.unobserved.size)
  if Assumption.GAUSSIAN_SCORES not in first.assumes:
    return (Check('separated', {'num': num}),)
  if not first.epsilon > np.log(num):
    return ()
  epsilon = float(first.epsilon)
  return (Check('extrapolates', {'num': num, 'epsilon': epsilon}),)


def _find_contradiction(results: Sequence[Estimate], num_bounds: int) -> Checks:
  """Fails if one of the first bounds of the same scores is above the first estimate.

  Other bounds are computed only on request, and a check fails or does not.
  """
  first = results[0]
  bounds = [e for e in results if e.kind == 'confidence bound']
  highest = max(bounds[:num_bounds], key=lambda e: e.epsilon)
  assert highest.confidence is not None, 'bounds have one'
  if first.epsilon >= highest.epsilon:
    return ()
  values = {
    'epsilon': float(first.epsilon),
    'bound': float(highest.epsilon),
    'confidence': highest.confidence,
    'method': highest.method,
    'assumes': ' '.join(assumption.name for assumption in highest.assumes),
  }
  return (Check('below_bound', values),)


def _compute_rates(scores: Scores) -> Rates:
  """How good the attack itself is, by the fitted mixture of Gaussians."""
  tpr = mixture.compute_rates(scores, np.array(FPR))
  at_thresholds = mixture.compute_rates(scores, _THRESHOLDS)
  accuracy = float(np.max(1 - _THRESHOLDS + at_thresholds) / 2)
  return Rates(accuracy, tuple(map(float, tpr)))


def _test_agreement(scores: Scores, delta: float) -> Agreement:
  """Whether scores are shifted by what norms tell to expect."""
  assert scores.shift is not None
  expected = float(mixture.epsilon_mixture(scores.shift, delta))
  return Agreement(expected, *shift_fit.compare_with_expected(scores))
