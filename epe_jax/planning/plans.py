"""A plan: what to expect of the audit of a run and what it costs, in words."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from epe_jax import accounting, typed_json
from epe_jax.audit import attack_scores, audit_step
from epe_jax.audit.attackers import CHANGE, FINAL
from epe_jax.audit.record import respond_at_end
from epe_jax.canaries import registry
from epe_jax.epsilon.types import Floor
from epe_jax.experiment import client_rounds
from epe_jax.fact import Fact, Facts
from epe_jax.planning.planned_run import PlannedRun
from epe_jax.planning.planned_scores import Reason
from epe_jax.report import cells, clients, page, tables
from epe_jax.report import plans as words
from epe_jax.report.words import NAMES

MAX_CANARIES = 100_000
"""The largest number of canaries that a plan advises."""

ASSUMES = (
  'updates_have_clip_norm',
  'clients_do_not_respond',
  'null_law',
  'server_is_sgd',
  'noise_is_independent',
)
"""What every plan assumes, keys."""

# Bytes of programs and of what they need whatever d is; vectors of d numbers next
# to the buffer, and copies of the buffer at its peak: fitted to d = 55,210 and
# 4,050,748. Folds of hadamard2 hold more of them.
_PROGRAMS, _VECTORS, _COPIES_OF_BUFFER = 24e6, 3.5, 3
_FOLDED = 5.5
# For rounds that are not scored yet: `audit.memory` of every config.
_BUFFER = 2e9
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
  estimate: Quantiles
  bound: Quantiles
  floor: Floor
  estimator: str
  bound_name: str
  analytic: float
  min_canaries: int | None
  is_crowded: bool = False


class NotPlanned(NamedTuple):
  """An attacker without a prediction, and why there is none."""

  key: str
  reason: Reason


class Costs(NamedTuple):
  """What an audit costs on top of the training.

  Attributes:
    memory: key of what is held -> peak bytes.
    disk: bytes of the record.
    rounds_together: rounds whose vectors are scored at once.
  """

  memory: dict[str, float]
  disk: float
  rounds_together: int


def count_costs(run: PlannedRun) -> Costs:
  """Counts what the observers, buffers and the record of an audit take.

  Args:
    run: the run to audit, with the cosines of all rounds.

  >>> run = PlannedRun(
  ...   dim=4_050_748, rounds=61, clients_per_round=10, noise_multiplier=1.0,
  ...   delta=1e-5, family='hadamard')
  >>> round(sum(count_costs(run).memory.values()) / 1e6)
  82
  """
  views, k, d, rounds = 2, run.num_canaries, run.dim, run.rounds
  together = 1
  if registry.find_family(run.family).one_by_one:
    together = audit_step.choose_buffer(
      _BUFFER, rounds=rounds, views=views, dim=d
    )
  buffer = views * together * 4 * d if together > 1 else 0
  vectors = _VECTORS + _FOLDED * (run.family == 'hadamard2')
  held = {
    'programs': _PROGRAMS,
    'model_vectors': float(vectors * 4 * d),
    'buffered_rounds': float(_COPIES_OF_BUFFER * buffer),
    'cosines': float(views * 4 * (rounds + together - 1) * k),
    'participation': float(2 * rounds * k),
  }
  disk = float((views * 4 + 2) * rounds * k + 12 * k)
  return Costs(held, disk, together)


class Plan(NamedTuple):
  """What to expect of the audit of a run; its text is a table.

  Attributes:
    run: the planned run.
    predictions: of each attacker, in the order in which they were given.
    not_planned: the attackers without a prediction.
    costs: memory and disk of the audit.
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
  def warnings(self) -> Facts:
    """Weaknesses of the plan; attackers are named by their keys."""
    return tuple(_list_warnings(self))

  def to_json(self) -> dict[str, Any]:
    """Everything that the plan says, for a file: keys and numbers."""
    more = {'assumes': ASSUMES, 'warnings': self.warnings}
    return typed_json.to_plain(self) | typed_json.to_plain(more)

  def __str__(self) -> str:
    return tables.render_text(format_plan(self))


def format_plan(plan: Plan) -> str:
  """Predictions for each attacker, costs and weaknesses, in Markdown."""
  table = tables.format_plain_markdown(_make_table(plan))
  warnings = page.make_list(describe_warnings(plan))
  return f'{table}\n\n{warnings}' if warnings else table


def _make_table(plan: Plan) -> tables.Table:
  """One line for each attacker; the notes state the assumptions."""
  run, number = plan.run, cells.format_number
  head = (
    'attacker has',
    cells.LOWER_BOUND,
    'estimate [5-95 %]',
    cells.LIMIT,
    'floor 5-95 %',
  )
  body = [
    [
      NAMES[p.key],
      number(p.bound.q50),
      f'{number(p.estimate.q50)} [{number(p.estimate.q05)}, {number(p.estimate.q95)}]',
      number(p.analytic),
      f'{number(p.floor.q05)} to {number(p.floor.q95)}',
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
    f'{format_bytes(x)} for {words.MEMORY[key]}'
    for key, x in costs.memory.items()
    if x
  )
  for one in plan.not_planned:
    name = NAMES.get(one.key) or cells.spell_key(one.key)
    yield f'{name}: not planned: {words.REASONS[one.reason]}.'
  yield (
    f'Bounds and estimates are medians of {plan.simulations} simulated audits; ranges '
    'are from 5 to 95 %. The floor is what the estimator reports when nothing leaks. A '
    'plan is a prediction, not a guarantee.'
  )
  yield f'Assumed: {"; ".join(words.ASSUMPTIONS[x] for x in ASSUMES)}.'
  yield (
    f'The audit needs {format_bytes(sum(costs.memory.values()))} of memory at its '
    f'peak ({memory}) and {format_bytes(costs.disk)} on disk.'
  )
  yield (
    f'Up to {costs.rounds_together:,} rounds are scored together. Based on: '
    f'{words.BASIS}.'
  )


def _list_warnings(plan: Plan) -> Iterator[Fact]:
  run = plan.run
  yield from _compare_with_clients(plan)
  for p in plan.predictions:
    if p.min_canaries == 0:
      continue
    weak = {
      'attacker': p.key,
      'observed': run.num_observed,
      'unobserved': run.num_unobserved,
      'epsilon': p.estimate.q50,
      'floor': p.floor.q95,
    }
    if p.min_canaries:
      ratio = run.num_unobserved / run.num_observed
      needed = {
        'needed_observed': p.min_canaries,
        'needed_unobserved': -int(-p.min_canaries * ratio // 1),
      }
      yield Fact('few_canaries', weak | needed)
    else:
      yield Fact('out_of_reach', weak | {'max_canaries': MAX_CANARIES})
  for p in plan.predictions:
    if p.bound.q50 <= 0 and p.min_canaries == 0:
      yield Fact('bound_is_zero', {'attacker': p.key})
  for p in plan.predictions:
    if p.is_crowded:
      crowded = attack_scores.note_crowding(run.design)
      yield Fact('too_many_canaries', {'attacker': p.key, **crowded.values})
  if run.num_unobserved == 0 and run.design == 'fixed':
    yield Fact('no_unobserved')


def _compare_with_clients(plan: Plan) -> Iterator[Fact]:
  """What follows for a client that takes part more or less often than canaries."""
  run = plan.run
  n, m = run.client_participations, run.repetitions
  rounds = {'repetitions': m, 'rounds': run.rounds}
  if n is None:
    if m != run.rounds:
      yield Fact('clients_not_given', rounds)
    return
  if n == m:
    return
  limit = accounting.epsilon_of_releases(
    run.noise_multiplier, delta=run.delta, participations=n
  ).epsilon
  allowed = rounds | {'clients': n, 'epsilon': limit}
  model = plan.find(CHANGE.key) or plan.find(FINAL.key)
  if model is None or not run.noise_multiplier:
    yield Fact('clients_differ', allowed)
    return
  response = respond_at_end(run.rounds, momentum=run.server_momentum)
  of_rounds = response / (run.noise_multiplier * np.linalg.norm(response))
  periods = np.array_split(np.arange(run.rounds), n)
  laws = client_rounds.find_shifts(
    of_rounds, [[(x, 1 / len(x)) for x in periods]]
  )
  expected = clients.compute_epsilons(laws, run.delta, limit)
  of_model = {'model': model.key, **expected._asdict()}
  yield Fact('clients_differ_in_model', allowed | of_model)


def describe_warnings(plan: Plan) -> list[str]:
  """The warnings of a plan, a sentence each."""
  described = []
  for key, values in plan.warnings:
    named = {
      field: NAMES[str(x)] if field in ('attacker', 'model') else x
      for field, x in values.items()
    }
    described.append(words.describe_warning(Fact(key, named)))
  return described


def format_bytes(size: float) -> str:
  """A number of bytes with three digits.

  >>> format_bytes(82_091_000), format_bytes(12)
  ('82.1 MB', '12 B')
  """
  for unit, name in _UNITS:
    if size >= unit:
      return f'{size / unit:.3g} {name}'
  return f'{size:.0f} B'
