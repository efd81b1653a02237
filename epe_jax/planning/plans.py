"""A plan: what to expect of the audit of a run, and the words for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import dataclasses
from typing import Any, NamedTuple

from epe_jax import accounting
from epe_jax.audit import clients
from epe_jax.audit.threat_models import CHANGE, FINAL, shifted_scores
from epe_jax.epsilon.types import Floor
from epe_jax.planning.planned_costs import Costs
from epe_jax.planning.planned_run import PlannedRun
from epe_jax.planning.planned_scores import Reason
from epe_jax.text import cells, checks, tables

MAX_CANARIES = 100_000
"""The largest number of canaries that a plan advises."""

_ASSUMES = (
  'clipped client updates have the clip norm, and a cosine of client_agreement '
  'with each other',
  'clients do not respond to the canaries in the model',
  'cosines with canaries of the family follow their null law (the effective '
  'dimension of what the attacker sees is large enough)',
  'the server is SGD, so that a final model is a weighted sum of rounds',
)
_REASONS: Mapping[Reason, str] = {
  'no_noise': 'without noise ε is ∞',
  'no_unobserved': (
    'only unobserved canaries tell its null law, and there are fewer than two'
  ),
  'no_initial_norm': 'the norm of the initial model is not given, see initial_norm',
  'nothing_to_score': 'nothing that it scores is simulated',
  'not_calibrated': 'it has no calibrated estimate',
  'too_large': 'the run has too many rounds and canaries to simulate them all',
}
_UNITS = ((1e12, 'TB'), (1e9, 'GB'), (1e6, 'MB'), (1e3, 'kB'))


class Quantiles(NamedTuple):
  """5, 50 and 95 % points over audits of equal runs."""

  q05: float
  q50: float
  q95: float


class Prediction(NamedTuple):
  """What to expect of the audit of one attacker.

  Attributes:
    key: of the attacker, `audit.ThreatModel.key`.
    name: of the attacker.
    estimate: ε by the estimator that an audit shows first.
    bound: ε by the bound that an audit shows first, at 95 % confidence.
    floor: what the estimator reports when nothing leaks.
    estimator: the method of the estimates.
    bound_name: the method of the bounds.
    analytic: the ε that the mechanism allows the attacker, or is expected to; nan
      where it is not known.
    min_canaries: observed canaries that it takes for an estimate of twice the
      floor; 0 if those of the plan are enough, None if no number up to
      `MAX_CANARIES` or d is.
    is_crowded: canaries make up so much of what the attacker sees that the null
      law is fitted.
  """

  key: str
  name: str
  estimate: Quantiles
  bound: Quantiles
  floor: Floor
  estimator: str
  bound_name: str
  analytic: float
  min_canaries: int | None
  is_crowded: bool = False


class NotPlanned(NamedTuple):
  """An attacker without a prediction.

  Attributes:
    key: of the attacker, as in `Prediction`.
    name: of the attacker.
    reason: why there is none.
  """

  key: str
  name: str
  reason: Reason


class Plan(NamedTuple):
  """What to expect of the audit of a run; its text is a table.

  Attributes:
    run: the planned run.
    predictions: of each attacker, in the order in which they were given.
    not_planned: the attackers without a prediction.
    costs: memory and time of the audit.
    simulations: number of audits simulated for each attacker.
  """

  run: PlannedRun
  predictions: tuple[Prediction, ...]
  not_planned: tuple[NotPlanned, ...]
  costs: Costs
  simulations: int

  def find(self, key: str) -> Prediction | None:
    """The prediction for the attacker of a key; None if there is none."""
    return next((p for p in self.predictions if p.key == key), None)

  @property
  def warnings(self) -> tuple[str, ...]:
    """Weaknesses of the plan, each with a cure."""
    return tuple(_list_warnings(self))

  def to_json(self) -> dict[str, Any]:
    """Everything that the plan says, for a file."""
    predictions = [
      p._asdict()
      | {x: getattr(p, x)._asdict() for x in ('estimate', 'bound', 'floor')}
      for p in self.predictions
    ]
    return self._asdict() | {
      'run': dataclasses.asdict(self.run),
      'predictions': predictions,
      'not_planned': [one._asdict() for one in self.not_planned],
      'costs': self.costs._asdict(),
      'assumes': _ASSUMES,
      'warnings': self.warnings,
    }

  def __str__(self) -> str:
    return format_plan(self)


def format_plan(plan: Plan, *, markdown: bool = False) -> str:
  """Predictions for each attacker, costs, and weaknesses of the plan.

  Args:
    plan: of a run.
    markdown: Markdown and not text for a terminal.

  Returns:
    Text without a final newline.
  """
  table = _make_table(plan)
  if markdown:
    text = tables.format_markdown(table)
    warnings = [f'- {warning}' for warning in plan.warnings]
  else:
    text = tables.format_text(tables.fold_table(table))
    warnings = [tables.fill_paragraph(x, bullet='- ') for x in plan.warnings]
  return '\n'.join([text, '', *warnings]) if warnings else text


def _make_table(plan: Plan) -> tables.Table:
  """One line for each attacker; the notes state the assumptions."""
  run, number = plan.run, cells.format_number
  head = 'attacker', 'floor 5-95 %', 'ε', '5-95 %', 'bound, 95 %', 'analytic ε'
  body = [
    [
      p.name,
      f'{number(p.floor.q05)} to {number(p.floor.q95)}',
      number(p.estimate.q50),
      f'{number(p.estimate.q05)} to {number(p.estimate.q95)}',
      number(p.bound.q50),
      number(p.analytic),
    ]
    for p in plan.predictions
  ]
  title = (
    f'd = {run.dim:,}, {run.rounds:,} rounds of {run.clients_per_round:g} clients, '
    f'noise {run.noise_multiplier:g}, δ = {cells.format_delta(run.delta)}, '
    f'{run.num_observed:,} + {run.num_unobserved:,} canaries of {run.family}, '
    f'{run.repetitions} x each'
  )
  return tables.Table(title, head, body, list(_list_notes(plan)))


def _list_notes(plan: Plan) -> Iterator[str]:
  costs = plan.costs
  memory = ', '.join(
    f'{format_bytes(x)} for {name}' for name, x in costs.memory.items() if x
  )
  for one in plan.not_planned:
    yield f'{one.name}: not planned: {_REASONS[one.reason]}.'
  yield (
    f'ε and the bound are medians of {plan.simulations} simulated audits; ranges are '
    'from 5 to 95 %. The floor is what the estimator of ε reports when nothing '
    'leaks. A plan is a prediction, not a guarantee.'
  )
  yield f'Assumed: {"; ".join(_ASSUMES)}.'
  yield (
    f'The audit needs {format_bytes(sum(costs.memory.values()))} of memory at its '
    f'peak ({memory}) and {format_bytes(costs.disk)} on disk.'
  )
  yield (
    f'Its projections take {costs.passes:,.0f} passes over the model in total, '
    f'about {format_seconds(costs.seconds)}; up to {costs.rounds_together:,} rounds '
    f'are scored together. Based on: {costs.basis}.'
  )


def _list_warnings(plan: Plan) -> Iterator[str]:
  run = plan.run
  if note := _compare_with_clients(plan):
    yield note
  for p in plan.predictions:
    if p.min_canaries == 0:
      continue
    expected = (
      f'{p.name}: with {run.num_observed:,} canaries in and '
      f'{run.num_unobserved:,} out, the estimate is about ε = '
      f'{p.estimate.q50:.2g} and the floor reaches {p.floor.q95:.2g}'
    )
    if p.min_canaries:
      ratio = run.num_unobserved / run.num_observed
      yield (
        f'{expected}: use at least {p.min_canaries:,} in and '
        f'{-int(-p.min_canaries * ratio // 1):,} out.'
      )
    else:
      yield (
        f'{expected}, and no number of canaries up to {MAX_CANARIES:,}, or d, makes '
        'it twice that floor: expect nothing of this attacker.'
      )
  for p in plan.predictions:
    if p.bound.q50 <= 0 and p.min_canaries == 0:
      yield (
        f'{p.name}: the lower bound will most likely be 0, although the estimate '
        'is above its floor; use more canaries.'
      )
  for p in plan.predictions:
    if p.is_crowded:
      yield (
        f'{p.name}: {checks.describe_check(shifted_scores.note_crowding(run.design))}. Use fewer '
        'canaries, or more rounds.'
      )
  if run.num_unobserved == 0 and run.design == 'fixed':
    yield (
      'without canaries that take no part, the null law cannot be tested and the '
      'maximum over rounds cannot be estimated: use as many as take part.'
    )


def _compare_with_clients(plan: Plan) -> str | None:
  """What follows for a client that takes part more or less often than canaries."""
  run = plan.run
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
  model = plan.find(CHANGE.key) or plan.find(FINAL.key)
  if model is not None and run.noise_multiplier:
    expected = clients.scale_epsilon(
      model.analytic, run.delta, clients.Participations(m, n, limit)
    )
    low, high = map(cells.format_number, expected)
    text += (
      f', and of the {model.name} ε ≈ {low} is to be expected if its updates are '
      f'orthogonal, ε ≈ {high} if they agree'
    )
  return f'{text}. Plan with repetitions={n} to measure it.'


def format_bytes(size: float) -> str:
  """A number of bytes with three digits.

  >>> format_bytes(82_091_000), format_bytes(12)
  ('82.1 MB', '12 B')
  """
  for unit, name in _UNITS:
    if size >= unit:
      return f'{size / unit:.3g} {name}'
  return f'{size:.0f} B'


def format_seconds(seconds: float) -> str:
  """A time with two digits, in the unit that people say.

  >>> format_seconds(0.5), format_seconds(300), format_seconds(86_400)
  ('0.5 s', '5 min', '24 h')
  """
  if seconds < 120:
    return f'{seconds:.2g} s'
  return (
    f'{seconds / 60:.2g} min' if seconds < 7200 else f'{seconds / 3600:.2g} h'
  )
