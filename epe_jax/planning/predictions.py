"""What an audit will tell, before anything is trained.

Scores of audits are drawn from the Gaussian model of `planned_scores`, and given to
the estimators that an audit of the run would use, so that a plan has their bias and
their scatter. Nothing here is a guarantee: a plan says what to expect if the run is
as it assumes.
"""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import functools
from typing import Any, NamedTuple

from jaxtyping import Float
import numpy as np

from epe_jax import accounting
from epe_jax.audit import attack_scores, clients, estimators
from epe_jax.audit.threat_models import CHANGE, FINAL, MAXIMUM, OWN, RESIDUAL
from epe_jax.epsilon import maximum, mixture, noise_floor
from epe_jax.epsilon.types import Estimate, Floor
from epe_jax.planning import planned_costs, planned_scores
from epe_jax.planning.planned_costs import Costs
from epe_jax.planning.planned_scores import PlannedRun
from epe_jax.text import cells

# Scores that are held at once, and in all of the simulated audits of an attacker.
_BLOCK, _ALL = 2_000_000, 20_000_000
_MIN_AUDITS, _MAX_AUDITS, _QUICK_AUDITS = 40, 400, 40
# An estimate that is not twice what is reported where nothing leaks says little.
_WEAK = 0.5
_MAX_CANARIES, _LAST_STEP = 100_000, 1.25


class Quantiles(NamedTuple):
  """5, 50 and 95 % points over audits of runs that are alike."""

  q05: float
  q50: float
  q95: float


class Prediction(NamedTuple):
  """What to expect of the audit of one attacker.

  Attributes:
    key: of the attacker, as `audit.ThreatModel.key`.
    name: likewise.
    estimate: ε by the estimator that an audit shows first.
    bound: ε by the bound that an audit shows first, at 95 % confidence.
    floor: what the estimator reports where nothing leaks.
    estimator: its name.
    bound_name: the name of the bound.
    analytic: the ε that the mechanism allows the attacker, or is expected to.
    assumes: of the run, in words.
    min_canaries: canaries that have to take part for an estimate of twice the floor;
      0 if those of the plan are enough, None if no number up to 100,000 or d is.
  """

  key: str
  name: str
  estimate: Quantiles
  bound: Quantiles
  floor: Floor
  estimator: str
  bound_name: str
  analytic: float
  assumes: tuple[str, ...]
  min_canaries: int | None


class Plan(NamedTuple):
  """What to expect of the audit of a run.

  Attributes:
    run: that was planned.
    predictions: of each attacker, from who knows least to who knows most.
    costs: memory and time of the audit.
    assumes: what all predictions assume, in words.
    warnings: where the plan is weak, each with a cure.
    simulations: audits that were drawn for each attacker.
  """

  run: PlannedRun
  predictions: tuple[Prediction, ...]
  costs: Costs
  assumes: tuple[str, ...]
  warnings: tuple[str, ...]
  simulations: int

  def find(self, key: str) -> Prediction | None:
    """The prediction for the attacker of a key; None if there is none."""
    return next((p for p in self.predictions if p.key == key), None)

  def to_json(self) -> dict[str, Any]:
    """Everything that the plan says, for a file."""
    predictions = [
      p._asdict()
      | {
        'estimate': p.estimate._asdict(),
        'bound': p.bound._asdict(),
        'floor': p.floor._asdict(),
      }
      for p in self.predictions
    ]
    return self._asdict() | {
      'run': dataclasses.asdict(self.run),
      'predictions': predictions,
      'costs': self.costs._asdict(),
    }

  def __str__(self) -> str:
    # Only now: it needs the plan.
    from epe_jax.planning import planning_table

    return planning_table.format_plan(self)


class _Attacker(NamedTuple):
  """How the audit of an attacker is drawn and estimated."""

  key: str
  name: str
  draw: planned_scores.DrawAudits
  estimator: estimators.Estimator
  assumes: tuple[str, ...]


def plan(run: PlannedRun, *, seed: int = 0) -> Plan:
  """Predicts what an audit of a run will find, and what it costs.

  Args:
    run: what will be trained and audited.
    seed: of the simulated scores, >= 0.

  Returns:
    Quantiles over audits of such runs, of each attacker whose estimates are
    calibrated: the final model, the maximum over rounds, the own round, and, if there
    is noise, the own round without the updates of others. Medians are known to about
    1/20 of the distance from the 5 to the 95 % point.

  >>> run = PlannedRun(
  ...   dim=10**5, rounds=100, clients_per_round=40, noise_multiplier=1.0,
  ...   delta=1e-3, num_observed=200, num_unobserved=200)
  >>> plan(run).find('own_round').floor.q50 < 0.2
  True
  """
  geometry = planned_scores.Geometry(run)
  size = run.num_canaries
  simulations = int(np.clip(_ALL // size, _MIN_AUDITS, _MAX_AUDITS))
  analytic = _list_analytic(geometry)
  predictions = tuple(
    _predict(run, attacker, analytic[attacker.key], simulations, seed)
    for attacker in _list_attackers(geometry)
  )
  return Plan(
    run=run,
    predictions=predictions,
    costs=planned_costs.count_costs(run),
    assumes=_ASSUMES,
    warnings=tuple(_list_warnings(geometry, predictions)),
    simulations=simulations,
  )


_ASSUMES = (
  'clipped client updates have the clip norm, and a cosine of client_agreement '
  'with each other',
  'clients do not respond to the canaries in the model',
  'cosines with canaries of the family follow their null law (the effective '
  'dimension of what the attacker sees is large enough)',
)


def _list_attackers(geometry: planned_scores.Geometry) -> list[_Attacker]:
  """The attackers whose estimates are calibrated, who knows least first."""
  run = geometry.run
  final = CHANGE if run.initial_norm is None else FINAL
  attackers = [
    _Attacker(
      final.key,
      final.name,
      planned_scores.final_model(geometry),
      estimators.MIXTURE,
      ('the server is SGD, so that the model is a weighted sum of rounds',),
    ),
    _Attacker(
      MAXIMUM.key,
      MAXIMUM.name,
      planned_scores.maximum(geometry),
      functools.partial(
        maximum.maximum_over_rounds,
        own=planned_scores.expect_own_shifts(geometry),
        rounds=run.rounds,
      ),
      (),
    ),
    _Attacker(
      OWN.key,
      OWN.name,
      planned_scores.own_round(geometry),
      estimators.MIXTURE,
      (),
    ),
  ]
  if run.noise_multiplier:
    attackers.append(
      _Attacker(
        RESIDUAL.key,
        RESIDUAL.name,
        planned_scores.residual(geometry),
        estimators.MIXTURE,
        ('the attacker removes the updates of all others',),
      )
    )
  # Without unobserved canaries the law of a maximum is not known.
  if run.num_canaries == run.num_inside:
    attackers = [a for a in attackers if a.key != MAXIMUM.key]
  return attackers


def _list_analytic(geometry: planned_scores.Geometry) -> dict[str, float]:
  """The ε that each attacker is allowed, as `upper_bounds` has it, by its key."""
  run = geometry.run
  known = accounting.epsilon_of_releases(
    run.noise_multiplier, delta=run.delta, participations=run.repetitions
  ).epsilon
  allocated = accounting.epsilon_of_allocation(
    run.noise_multiplier,
    delta=run.delta,
    rounds=run.rounds // run.repetitions,
    periods=run.repetitions,
  ).epsilon
  unknown = final = min(known, allocated)
  noise = run.noise_multiplier * np.linalg.norm(geometry.weights)
  if noise:
    final = float(mixture.epsilon_mixture(geometry.kept / noise, run.delta))
  return {
    FINAL.key: final,
    CHANGE.key: final,
    MAXIMUM.key: unknown,
    OWN.key: known,
    RESIDUAL.key: known,
  }


def _predict(
  run: PlannedRun,
  attacker: _Attacker,
  analytic: float,
  simulations: int,
  seed: int,
) -> Prediction:
  """Simulates the audits of one attacker, with a leak and without."""
  rng = np.random.default_rng([seed, 0])
  values: dict[str, list[Float[np.ndarray, ' audits']]] = {'e': [], 'b': []}
  names = {}
  block = max(1, _BLOCK // (run.num_canaries * run.repetitions))
  for start in range(0, simulations, block):
    scores = attacker.draw(rng, min(block, simulations - start))
    bound = estimators.choose_bounds(scores)[0]
    for which, estimator in (('e', attacker.estimator), ('b', bound)):
      estimate: Estimate = estimator(scores, delta=run.delta)
      values[which].append(np.atleast_1d(estimate.epsilon))
      names[which] = estimate.method
  estimates, bounds = (np.concatenate(values[which]) for which in 'eb')
  floor = noise_floor.summarize(
    _simulate_floor(run, attacker, rng, simulations)
  )
  prediction = Prediction(
    key=attacker.key,
    name=attacker.name,
    estimate=_summarize(estimates),
    bound=_summarize(bounds),
    floor=floor,
    estimator=names['e'],
    bound_name=names['b'],
    analytic=analytic,
    assumes=attacker.assumes,
    min_canaries=0,
  )
  if _is_strong(prediction):
    return prediction
  return prediction._replace(min_canaries=_find_min_canaries(run, attacker.key))


def _simulate_floor(
  run: PlannedRun,
  attacker: _Attacker,
  rng: np.random.Generator,
  simulations: int,
) -> Float[np.ndarray, ' simulations']:
  """What the estimator reports of audits in which nothing leaks."""
  like = attacker.draw(rng, 1)
  tau = 1.0
  if attacker.key == MAXIMUM.key:
    tau = float(maximum.independent_rounds(like.unobserved)[0])
    tau = min(max(tau, 1.0), float(run.rounds))
  draw = noise_floor.draw_from_null(
    like.observed.shape[-1],
    like.unobserved.shape[-1],
    dim=like.dim,
    rounds=tau,
    shift=like.shift,
  )
  (values,) = noise_floor.simulate(
    rng, [attacker.estimator], draw, delta=run.delta, simulations=simulations
  )
  return values


def _is_strong(prediction: Prediction) -> bool:
  return prediction.floor.q95 <= _WEAK * prediction.estimate.q50


def _find_min_canaries(run: PlannedRun, key: str) -> int | None:
  """Canaries that make an estimate twice its floor, to a fifth of their number."""
  ratio = run.num_unobserved / run.num_observed
  most = min(_MAX_CANARIES, int(run.dim / (1 + ratio)))
  num, step = run.num_observed, 2.0
  while int(num * step) <= most:
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
  attackers = _list_attackers(planned_scores.Geometry(larger))
  attacker = next(a for a in attackers if a.key == key)
  rng = np.random.default_rng(1)
  scores = attacker.draw(rng, _QUICK_AUDITS)
  estimates = attacker.estimator(scores, delta=run.delta).epsilon
  floor = _simulate_floor(larger, attacker, rng, 4 * _QUICK_AUDITS)
  return bool(np.quantile(floor, 0.95) <= _WEAK * np.median(estimates))


def _summarize(values: Float[np.ndarray, ' n']) -> Quantiles:
  return Quantiles(*map(float, np.quantile(values, (0.05, 0.5, 0.95))))


def _list_warnings(
  geometry: planned_scores.Geometry, predictions: tuple[Prediction, ...]
) -> Iterator[str]:
  """Weaknesses of the plan, and how to fix them."""
  run = geometry.run
  if note := _compare_with_clients(run, predictions):
    yield note
  for p in predictions:
    if _is_strong(p):
      continue
    found = (
      f'{p.name}: with {run.num_observed:,} canaries in and '
      f'{run.num_unobserved:,} out, the estimate is about ε = '
      f'{p.estimate.q50:.2g} and the floor reaches {p.floor.q95:.2g}'
    )
    if p.min_canaries:
      ratio = run.num_unobserved / run.num_observed
      out = int(np.ceil(p.min_canaries * ratio))
      yield f'{found}: use at least {p.min_canaries:,} in and {out:,} out.'
    else:
      yield (
        f'{found}, and no number of canaries up to {_MAX_CANARIES:,}, or d, makes it '
        'twice that floor: expect nothing of this attacker.'
      )
  for p in predictions:
    if p.bound.q50 <= 0 and _is_strong(p):
      yield (
        f'{p.name}: the lower bound will most likely be 0, although the estimate '
        'is above its floor; use more canaries.'
      )
  for attacker in planned_scores.list_crowded(geometry):
    yield (
      f'{attacker.name}: {attack_scores.explain_crowding(run.design)}. Use fewer '
      'canaries, or more rounds.'
    )
  if run.num_unobserved == 0 and run.design == 'fixed':
    yield (
      'without canaries that take no part, the null law cannot be tested and the '
      'maximum over rounds cannot be estimated: use as many as take part.'
    )


def _compare_with_clients(
  run: PlannedRun, predictions: tuple[Prediction, ...]
) -> str | None:
  """What follows for a client who takes part more or less often than canaries."""
  n, m = run.client_participations, run.repetitions
  of_canary = f'canaries take part in {m} of {run.rounds:,} rounds'
  if n is None:
    if m == run.rounds:
      return None
    return (
      f'{of_canary}, and the plan is of as many: set client_participations to learn '
      'what follows for a client who takes part more often.'
    )
  if n == m:
    return None
  limit = accounting.epsilon_of_releases(
    run.noise_multiplier, delta=run.delta, participations=n
  ).epsilon
  text = (
    f'{of_canary}, clients in up to {n}: a client is allowed '
    f'ε = {cells.format_number(limit)}'
  )
  model = predictions[0]
  if run.noise_multiplier:
    expected = clients.scale_epsilon(
      model.analytic, run.delta, clients.Participations(m, n, limit)
    )
    low, high = map(cells.format_number, expected)
    text += (
      f', and of the {model.name} ε ≈ {low} is to be expected if its updates are '
      f'orthogonal, ε ≈ {high} if they agree'
    )
  return f'{text}. Plan with repetitions={n} to measure it.'
