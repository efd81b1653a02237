"""A plan as text, for a terminal or a page."""

from epe_jax.audit import planning
from epe_jax.audit.planned_scores import PlannedRun
from epe_jax.text import cells, tables

_PAGE = """\
# Choosing before running

Written by `python scripts/plan.py --out=docs/planning.md`.

How many canaries, which family, how often each takes part: a plan says what an audit of
a run will find before anything is trained. From the sizes of the run it draws the scores
of a few hundred audits, as a Gaussian model of what the run releases has them, and gives
them to the estimators that an audit uses. It takes seconds, and needs no JAX.

```sh
python scripts/plan.py --dim=1206590 --rounds=500 --clients_per_round=101 \\
  --noise_multiplier=0.7 --server_momentum=0.9 --delta=1e-4 \\
  --observed=50 --unobserved=50
```

or `audit.plan(audit.PlannedRun(dim=..., ...))`, which returns the numbers. With 50
canaries:

{}

With 5,000:

{}

## How far to trust it

- Medians of the estimates lie within 5 % of those of 100 simulated runs, of explicit
  vectors with all that canaries share; those of bounds do too, or within the error of
  the simulation (`tests/audit/test_planned_medians.py`).
- What a plan cannot know is what clients do. `client_agreement` says how much their
  updates have in common: the more, the more they hide a canary from whoever does not
  remove them, and the fewer independent rounds there are for a maximum. Clipped
  updates are taken to be as long as the clip norm.
- The clip norm counts only beside `initial_norm`, the norm of the initial model, for an
  attacker who does not know that: cosines have no scale. An adaptive clip norm is taken
  to be constant.
- Rounds of canaries are those of `once_per_period`; canaries that are sampled as clients
  are, or replace some, have other numbers of rounds.
- The likelihood over rounds has no calibrated estimate, and so no plan.

The bound is the one that an audit of that design shows first. How many canaries another
bound needs to certify some ε of the best attack is on the page on [power](power.md).
"""

_UNITS = ((1e12, 'TB'), (1e9, 'GB'), (1e6, 'MB'), (1e3, 'kB'))


def format_plan(plan: planning.Plan, *, markdown: bool = False) -> str:
  """What to expect of each attacker, what it costs, and where the plan is weak.

  Args:
    plan: of a run.
    markdown: Markdown and not text for a terminal.

  Returns:
    Text without a final newline.
  """
  table = make_table(plan)
  text = (tables.format_markdown if markdown else tables.format_text)(table)
  warnings = [f'- {warning}' for warning in plan.warnings]
  return '\n'.join([text, '', *warnings]) if warnings else text


def make_table(plan: planning.Plan) -> tables.Table:
  """One line for each attacker, with what was assumed below."""
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


def _list_notes(plan: planning.Plan) -> list[str]:
  costs = plan.costs
  memory = ', '.join(
    f'{format_bytes(x)} for {name}' for name, x in costs.memory.items() if x
  )
  assumed = [*plan.assumes]
  for prediction in plan.predictions:
    assumed += [f'{prediction.name}: {x}' for x in prediction.assumes]
  return [
    f'ε, its spread and the bound: median, 5 and 95 % of {plan.simulations} audits, '
    'simulated as below. The floor is what the estimator of ε reports where nothing '
    'leaks. A plan is no audit, and guarantees nothing.',
    f'Assumed: {"; ".join(assumed)}.',
    f'The audit takes {format_bytes(sum(costs.memory.values()))} of memory at its '
    f'peak ({memory}) and {format_bytes(costs.disk)} on the disk.',
    f'Its projections take {costs.passes:,.0f} passes over the model in all, '
    f'about {format_seconds(costs.seconds)}; up to {costs.rounds_together:,} rounds '
    f'are scored together. Based on: {costs.basis}.',
  ]


def format_page() -> str:
  """docs/planning.md: what a plan is, and examples of it."""
  weak, strong = (
    planning.plan(
      PlannedRun(
        dim=1_206_590,
        rounds=500,
        clients_per_round=101,
        noise_multiplier=0.7,
        delta=1e-4,
        server_momentum=0.9,
        num_observed=num,
        num_unobserved=num,
      )
    )
    for num in (50, 5000)
  )
  both = [format_plan(plan, markdown=True) for plan in (weak, strong)]
  return _PAGE.format(*both)


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
