"""What an audit will measure, before anything is trained.

Scores of audits are drawn from the Gaussian model of `planned_scores` and given to
the estimators that an audit of the run chooses, so that a plan has their bias and
uncertainty. It is not a guarantee: it says what to expect if the run is as it assumes.
"""

from collections.abc import Sequence
import dataclasses
import functools

from jaxtyping import Float
import numpy as np

from epe_jax.audit.attack_scores import AttackScores, ThreatModel
from epe_jax.audit.attackers import MAXIMUM, OF_INDEPENDENT_NOISE
from epe_jax.epsilon import noise_floor
from epe_jax.epsilon.types import Estimate, Scores
from epe_jax.planning import planned_run, planned_scores
from epe_jax.planning.geometry import Geometry
from epe_jax.planning.planned_run import PlannedRun
from epe_jax.planning.planned_scores import Simulation
from epe_jax.planning.plans import (
  MAX_CANARIES,
  NotPlanned,
  Plan,
  Prediction,
  Quantiles,
  count_costs,
)

_MIN_AUDITS, _MAX_AUDITS, _QUICK_AUDITS = 40, 400, 40
# An audit that no test rejects, as chance may, is sought among so many.
_TRIES = 4
# An estimate that is not twice what is reported when nothing leaks says little.
_WEAK = 0.5
_LAST_STEP = 1.25
# Laws of maxima that are fitted to all audits, in place of one to each.
_LAWS = 10


def plan(
  run: PlannedRun,
  *,
  threat_models: Sequence[ThreatModel] = OF_INDEPENDENT_NOISE,
) -> Plan:
  """Predicts what an audit of a run will measure, and what it costs.

  Args:
    run: what will be trained and audited.
    threat_models: the attackers, as `audit.evaluate` takes them.

  Returns:
    Quantiles over audits of such runs, for each attacker whose estimates are
    calibrated, and why there are none for the others. Medians are known to about 1/20
    of the distance from the 5 to the 95 % point.

  >>> run = PlannedRun(
  ...   dim=10**5, rounds=20, clients_per_round=40, noise_multiplier=1.0,
  ...   delta=1e-3, num_observed=200, num_unobserved=200, client_agreement=0.0)
  >>> plan(run).find('own_round').floor.q50 < 0.2
  True
  """
  if run.client_agreement is None:
    alike, unlike = (
      plan(
        dataclasses.replace(run, client_agreement=agreement),
        threat_models=threat_models,
      )
      for agreement in (planned_run.MAX_AGREEMENT, 0.0)
    )
    spanned = tuple(_span(x, alike.find(x.key)) for x in unlike.predictions)
    return unlike._replace(run=run, predictions=spanned)
  geometry = Geometry(run)
  audits = int(
    np.clip(
      noise_floor.MAX_SCORES // run.num_canaries, _MIN_AUDITS, _MAX_AUDITS
    )
  )
  record = geometry.make_record({})
  predictions, not_planned = [], []
  for threat_model in threat_models:
    simulation = planned_scores.simulate(geometry, threat_model)
    if not isinstance(simulation, Simulation):
      not_planned.append(NotPlanned(threat_model.key, simulation))
      continue
    analytic = threat_model.analytic_epsilon(record, run.delta)
    prediction = _predict(run, simulation, threat_model, audits)
    if analytic is not None:
      prediction = prediction._replace(analytic=float(analytic.epsilon))
    predictions.append(prediction)
  costs = count_costs(run)
  return Plan(run, tuple(predictions), tuple(not_planned), costs, audits)


def _span(one: Prediction, other: Prediction | None) -> Prediction:
  """A prediction whose ranges have those of another one in them."""
  if other is None:
    return one
  spans = {
    field: (x := getattr(one, field))._replace(
      q05=min(x.q05, getattr(other, field).q05),
      q95=max(x.q95, getattr(other, field).q95),
    )
    for field in ('estimate', 'bound')
  }
  return one._replace(**spans)


def _predict(
  run: PlannedRun,
  simulation: Simulation,
  threat_model: ThreatModel,
  audits: int,
) -> Prediction:
  """Simulates the audits of one attacker, with a leak and without."""
  rng = np.random.default_rng([0, 0])
  estimates, bounds, attack = [], [], None
  block = max(
    1, noise_floor.SCORES_AT_ONCE // (run.num_canaries * run.repetitions)
  )
  for start in range(0, audits, block):
    scores = simulation.draw(rng, min(block, audits - start))
    attack = attack or _describe(simulation, scores)
    estimator = attack.points[0]
    if threat_model == MAXIMUM:
      estimator = functools.partial(estimator, laws=_LAWS)
    scores = _take_groups(attack.scores, scores)
    estimates.append(estimator(scores, delta=run.delta))
    bounds.append(attack.bounds[0](scores, delta=run.delta))
  assert attack is not None, 'there is an audit'
  floor = noise_floor.summarize(_simulate_floor(run, attack, rng, audits))
  prediction = Prediction(
    key=threat_model.key,
    estimate=_summarize(estimates),
    bound=_summarize(bounds),
    floor=floor,
    estimator=estimates[0].method,
    bound_name=bounds[0].method,
    analytic=np.nan,
    min_canaries=0,
    is_crowded=any(note.key == 'crowded' for note in attack.notes),
  )
  if floor.q95 <= _WEAK * prediction.estimate.q50:
    return prediction
  return prediction._replace(min_canaries=_find_min_canaries(run, threat_model))


def _describe(simulation: Simulation, scores: Scores) -> AttackScores:
  """An audit of several: the first that no test rejects, as chance may."""
  attacks = (
    simulation.describe(
      dataclasses.replace(scores, observed=observed, unobserved=unobserved)
    )
    for observed, unobserved in zip(
      scores.observed[:_TRIES], scores.unobserved[:_TRIES]
    )
  )
  first = next(attacks)
  if not first.failed_checks:
    return first
  return next((x for x in attacks if not x.failed_checks), first)


def _take_groups(scores: Scores, others: Scores) -> Scores:
  """The observed and unobserved scores of other audits."""
  return dataclasses.replace(
    scores, observed=others.observed, unobserved=others.unobserved
  )


def _simulate_floor(
  run: PlannedRun, attack: AttackScores, rng: np.random.Generator, audits: int
) -> Float[np.ndarray, ' audits']:
  """What the estimator reports of audits in which nothing leaks."""
  assert attack.draw is not None, 'a simulated attacker has a floor'
  (values,) = noise_floor.simulate(
    rng, [attack.points[0]], attack.draw, delta=run.delta, simulations=audits
  )
  return values


def _find_min_canaries(
  run: PlannedRun, threat_model: ThreatModel
) -> int | None:
  """Canaries for an estimate of twice its floor, to a fifth of their number."""
  ratio = run.num_unobserved / run.num_observed
  largest = min(MAX_CANARIES, int(run.dim / (1 + ratio)))
  num, step = run.num_observed, 2.0
  # Few canaries times a small step are as many.
  while (more := max(num + 1, int(num * step))) <= largest:
    if not _suffices(run, threat_model, more, ratio):
      num = more
    elif step < _LAST_STEP:
      return more
    else:
      step **= 0.5
  return None


def _suffices(
  run: PlannedRun, threat_model: ThreatModel, num: int, ratio: float
) -> bool:
  larger = dataclasses.replace(
    run, num_observed=num, num_unobserved=int(np.ceil(num * ratio))
  )
  simulation = planned_scores.simulate(Geometry(larger), threat_model)
  if not isinstance(simulation, Simulation):
    return False
  rng = np.random.default_rng(1)
  scores = simulation.draw(rng, _QUICK_AUDITS)
  attack = _describe(simulation, scores)
  scores = _take_groups(attack.scores, scores)
  estimates = attack.points[0](scores, delta=run.delta).epsilon
  floor = _simulate_floor(larger, attack, rng, 4 * _QUICK_AUDITS)
  return bool(np.quantile(floor, 0.95) <= _WEAK * np.median(estimates))


def _summarize(estimates: Sequence[Estimate]) -> Quantiles:
  """Quantiles of ε over audits, each estimate of several of them."""
  values = np.concatenate([np.atleast_1d(x.epsilon) for x in estimates])
  return Quantiles(*map(float, np.quantile(values, (0.05, 0.5, 0.95))))
