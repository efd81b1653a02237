"""What an audit will measure, before anything is trained.

Scores of audits are drawn from the Gaussian model of `planned_scores` and given to
the estimators that an audit of the run would choose, so that a plan has their bias
and their scatter. Nothing here is a guarantee: a plan says what to expect if the run
is as it assumes.
"""

from __future__ import annotations

import dataclasses

from jaxtyping import Float
import numpy as np

from epe_jax.epsilon import registry
from epe_jax.epsilon.null_laws import noise_floor
from epe_jax.planning import planned_costs, planned_scores
from epe_jax.planning.planned_run import PlannedRun
from epe_jax.planning.planned_scores import Geometry, PlannedAttacker
from epe_jax.planning.plans import MAX_CANARIES, Plan, Prediction, Quantiles

_MIN_AUDITS, _MAX_AUDITS, _QUICK_AUDITS = 40, 400, 40
# An estimate that is not twice what is reported when nothing leaks says little.
_WEAK = 0.5
_LAST_STEP = 1.25


def plan(run: PlannedRun, *, seed: int = 0) -> Plan:
  """Predicts what an audit of a run will measure, and what it costs.

  Args:
    run: what will be trained and audited.
    seed: of the simulated scores, >= 0.

  Returns:
    Quantiles over audits of such runs, for each attacker whose estimates are
    calibrated: the final model, the maximum over rounds, the own round, and, if there
    is noise, the own round without the updates of others. Medians are known to about
    1/20 of the distance from the 5 to the 95 % point.

  >>> run = PlannedRun(
  ...   dim=10**5, rounds=100, clients_per_round=40, noise_multiplier=1.0,
  ...   delta=1e-3, num_observed=200, num_unobserved=200)
  >>> plan(run).find('own_round').floor.q50 < 0.2
  True
  """
  geometry = Geometry(run)
  audits = int(
    np.clip(
      noise_floor.MAX_SCORES // run.num_canaries, _MIN_AUDITS, _MAX_AUDITS
    )
  )
  record = geometry.make_record()
  predictions = []
  for attacker in planned_scores.list_attackers(geometry):
    limit = attacker.threat_model.limit(record, run.delta)
    analytic = np.nan if limit is None else float(limit.epsilon)
    predictions.append(_predict(run, attacker, analytic, audits, seed))
  costs = planned_costs.count_costs(run)
  return Plan(run, tuple(predictions), costs, audits)


def _predict(
  run: PlannedRun,
  attacker: PlannedAttacker,
  analytic: float,
  audits: int,
  seed: int,
) -> Prediction:
  """Simulates the audits of one attacker, with a leak and without."""
  rng = np.random.default_rng([seed, 0])
  found = []
  block = max(
    1, noise_floor.SCORES_AT_ONCE // (run.num_canaries * run.repetitions)
  )
  for start in range(0, audits, block):
    scores = attacker.draw(rng, min(block, audits - start))
    bound = registry.choose_bounds(registry.describe(scores))[0]
    found.append(
      [e(scores, delta=run.delta) for e in (attacker.estimator, bound)]
    )
  estimate, bound = (
    np.concatenate([np.atleast_1d(x.epsilon) for x in one])
    for one in zip(*found)
  )
  floor = noise_floor.summarize(_simulate_floor(run, attacker, rng, audits))
  prediction = Prediction(
    key=attacker.key,
    estimate=_summarize(estimate),
    bound=_summarize(bound),
    floor=floor,
    estimator=found[0][0].method,
    bound_name=found[0][1].method,
    analytic=analytic,
    min_canaries=0,
    is_crowded=attacker.is_crowded,
  )
  if floor.q95 <= _WEAK * prediction.estimate.q50:
    return prediction
  return prediction._replace(min_canaries=_find_min_canaries(run, attacker.key))


def _simulate_floor(
  run: PlannedRun,
  attacker: PlannedAttacker,
  rng: np.random.Generator,
  audits: int,
) -> Float[np.ndarray, ' audits']:
  """What the estimator reports of audits in which nothing leaks."""
  draw = attacker.draw_null(attacker.draw(rng, 1), run.rounds)
  (values,) = noise_floor.simulate(
    rng, [attacker.estimator], draw, delta=run.delta, simulations=audits
  )
  return values


def _find_min_canaries(run: PlannedRun, key: str) -> int | None:
  """Canaries for an estimate of twice its floor, to a fifth of their number."""
  ratio = run.num_unobserved / run.num_observed
  largest = min(MAX_CANARIES, int(run.dim / (1 + ratio)))
  num, step = run.num_observed, 2.0
  while int(num * step) <= largest:
    if not _suffices(run, key, int(num * step), ratio):
      num = int(num * step)
    elif step < _LAST_STEP:
      return int(num * step)
    else:
      step **= 0.5
  return None


def _suffices(run: PlannedRun, key: str, num: int, ratio: float) -> bool:
  larger = dataclasses.replace(
    run, num_observed=num, num_unobserved=int(np.ceil(num * ratio))
  )
  attackers = planned_scores.list_attackers(Geometry(larger))
  attacker = next(a for a in attackers if a.key == key)
  rng = np.random.default_rng(1)
  scores = attacker.draw(rng, _QUICK_AUDITS)
  estimates = attacker.estimator(scores, delta=run.delta).epsilon
  floor = _simulate_floor(larger, attacker, rng, 4 * _QUICK_AUDITS)
  return bool(np.quantile(floor, 0.95) <= _WEAK * np.median(estimates))


def _summarize(values: Float[np.ndarray, ' n']) -> Quantiles:
  return Quantiles(*map(float, np.quantile(values, (0.05, 0.5, 0.95))))
