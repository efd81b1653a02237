"""A plan as text, for a terminal or a page."""

import dataclasses

from epe_jax.audit import threat_models
from epe_jax.planning import predictions
from epe_jax.planning.planned_scores import PlannedRun
from epe_jax.text import cells, tables

_PAGE = """\
# Plan an audit

Written by `python scripts/plan.py --out=docs/planning.md`.

`epe-jax plan` predicts what an audit will measure and cost before you train anything. Use
it to choose the number of canaries, their family, and how often each takes part. From the
sizes of the run it simulates the scores of a few hundred audits, with a Gaussian model of
what the run releases. It passes them to the estimators that an audit uses. This takes
seconds and does not need JAX.

```sh
epe-jax plan --dim=1206590 --rounds=500 --clients_per_round=101 \\
  --noise_multiplier=0.7 --server_momentum=0.9 --delta=1e-4 \\
  --observed=50 --unobserved=50 --client_participations=15
```

In Python, `planning.plan(planning.PlannedRun(dim=..., ...))` returns the numbers. With 50
canaries:

{}

With as many as it advises, {:,}:

{}

## How accurate it is

- The medians of the estimates are within 5 % of those of 100 simulated runs, which use
  explicit vectors and include everything that canaries share. The medians of the bounds
  are too, or agree within the error of the simulation
  (`tests/planning/test_planned_medians.py`).
- The range of the maximum over rounds is too narrow where clients agree: up to a quarter
  of simulated runs were above the 95 % point.
- A plan cannot know what clients do. `client_agreement` is the similarity of their
  updates. The larger it is, the better they hide a canary from an attacker who does not
  remove them, and the fewer independent rounds there are for a maximum. Clipped updates
  are assumed to have the full clip norm.
- The clip norm matters only together with `initial_norm`, the norm of the initial model,
  for an attacker who does not know that model: cosines have no scale. An adaptive clip
  norm is assumed to be constant.
- A plan is of canaries. Where clients take part in more rounds, a warning says what follows
  for a client ([participation](participation.md#canaries-canariesschedule)).
- Canaries are assumed to follow the schedule `once_per_period`. Canaries that are sampled
  as clients are, or that replace clients, take part in other numbers of rounds.
- The likelihood over rounds has no calibrated estimate, so there is no plan for it.

The bound is the headline of an audit of that design. For other bounds,
[power](power.md) has the number of canaries that each needs to certify a given ε for the
strongest attacker.
"""

_UNITS = ((1e12, 'TB'), (1e9, 'GB'), (1e6, 'MB'), (1e3, 'kB'))


def format_plan(plan: predictions.Plan, *, markdown: bool = False) -> str:
  """Predictions for each attacker, costs, and weaknesses of the plan.

  Args:
    plan: of a run.
    markdown: Markdown and not text for a terminal.

  Returns:
    Text without a final newline.
  """
  table = make_table(plan)
  if markdown:
    text = tables.format_markdown(table)
    warnings = [f'- {warning}' for warning in plan.warnings]
  else:
    text = tables.format_text(tables.fold_table(table))
    warnings = [
      tables.fill_paragraph(warning, bullet='- ') for warning in plan.warnings
    ]
  return '\n'.join([text, '', *warnings]) if warnings else text


def make_table(plan: predictions.Plan) -> tables.Table:
  """One line for each attacker; the notes state the assumptions."""
  run = plan.run
  head = (
    'attacker',
    'floor 5-95 %',
    'ε',
    '5-95 %',
    'bound, 95 %',
    'analytic ε',
  )
  number = cells.format_number
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
  return tables.Table(title, head, body, _list_notes(plan))


def _list_notes(plan: predictions.Plan) -> list[str]:
  costs = plan.costs
  memory = ', '.join(
    f'{format_bytes(x)} for {name}' for name, x in costs.memory.items() if x
  )
  assumed = [*plan.assumes]
  for prediction in plan.predictions:
    assumed += [f'{prediction.name}: {x}' for x in prediction.assumes]
  absent = []
  if plan.find(threat_models.RESIDUAL.key) is None:
    absent.append(
      f'{threat_models.RESIDUAL.name}: no line, since without noise ε is ∞.'
    )
  return [
    *absent,
    f'ε and the bound are medians of {plan.simulations} simulated audits; ranges are '
    'from 5 to 95 %. The floor is what the estimator of ε reports when nothing '
    'leaks. A plan is a prediction, not a guarantee.',
    f'Assumed: {"; ".join(assumed)}.',
    f'The audit needs {format_bytes(sum(costs.memory.values()))} of memory at its '
    f'peak ({memory}) and {format_bytes(costs.disk)} on disk.',
    f'Its projections take {costs.passes:,.0f} passes over the model in total, '
    f'about {format_seconds(costs.seconds)}; up to {costs.rounds_together:,} rounds '
    f'are scored together. Based on: {costs.basis}.',
  ]


def format_page() -> str:
  """docs/planning.md: what a plan is, and examples of it."""
  run = PlannedRun(
    dim=1_206_590,
    rounds=500,
    clients_per_round=101,
    noise_multiplier=0.7,
    delta=1e-4,
    server_momentum=0.9,
    client_participations=15,
    num_observed=50,
    num_unobserved=50,
  )
  weak = predictions.plan(run)
  num = max(one.min_canaries or 0 for one in weak.predictions)
  strong = predictions.plan(
    dataclasses.replace(run, num_observed=num, num_unobserved=num)
  )
  weak_text, strong_text = (
    format_plan(plan, markdown=True) for plan in (weak, strong)
  )
  return _PAGE.format(weak_text, num, strong_text)


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
