"""ε after each round, and over several runs of one config, as tables in Markdown.

Estimates of runs scatter because canaries are few and because runs differ. Random
effects separate the two.

References:
  Hu, Zhou, Zhang and others, "Empirical privacy variance" (2025), who also compare
  runs of one (ε, δ) and other settings.
"""

from collections.abc import Sequence

import numpy as np

from epe_jax.audit import attackers
from epe_jax.report import cells, checks, tables, words
from epe_jax.several_runs.run_effects import OverRuns
from epe_jax.watch.by_round import RoundEstimate
from epe_jax.watch.sequential import SequentialBounds

_COLUMNS = (
  'μ is by how much taking part shifts a canary on average, in standard deviations '
  'of scores held out, ± its standard error; ε is that of a Gaussian mechanism with '
  'this μ. All but the lower bound are estimates: no guarantee. The bound takes shifts '
  'of runs to be Gaussian.'
)
_OTHER_TEST = 'They are by one test of all thresholds, and not the lower bounds of a first page.'
_TITLES = (
  (False, 'Estimates, with 90 % intervals: no guarantee'),
  (True, 'Lower bounds, 95 % at each round'),
)


def format_over_rounds(
  estimates: Sequence[RoundEstimate],
  sequential: SequentialBounds | None = None,
) -> str:
  """ε after each round, a column for each attacker: estimates, then bounds."""
  made = [
    _make_table(title, rows)
    for is_bound, title in _TITLES
    if (rows := select_estimates(estimates, is_bound=is_bound))
  ]
  if sequential is not None:
    shown = sorted({row.round for row in estimates})
    made.append(_make_sequential_table(sequential, shown))
  delta = cells.format_delta(estimates[0].estimate.delta)
  return '\n\n'.join([f'δ = {delta}', *map(tables.format_plain_markdown, made)])


def format_simultaneous(bounds: Sequence[RoundEstimate]) -> str:
  """Bounds that hold together: a line for each round and attacker."""
  by_line: dict[tuple[str, str], list[RoundEstimate]] = {}
  for row in bounds:
    name = words.spell_name(row.threat_model)
    by_line.setdefault((f'{row.round:,}', name), []).append(row)
  deltas = [row.estimate.delta for row in next(iter(by_line.values()))]
  together = max(row.estimate.confidence or 0 for row in bounds)
  return tables.format_plain_markdown(
    tables.Table(
      f'Lower bounds of ε, {100 * together:g} % all together',
      [
        'round',
        'attacker has',
        *(f'δ = {cells.format_delta(d)}' for d in deltas),
      ],
      [
        [*line, *(cells.format_epsilon(row.estimate) for row in rows)]
        for line, rows in by_line.items()
      ],
      [
        f'That any of these {len(bounds):,} bounds is above the true ε has a '
        f'probability of at most {100 * (1 - together):.2g} %.'
      ],
    )
  )


def select_estimates(
  estimates: Sequence[RoundEstimate], *, is_bound: bool
) -> list[RoundEstimate]:
  """The lower bounds among the estimates, or all but these."""
  return [
    row
    for row in estimates
    if (row.estimate.confidence is not None) == is_bound
  ]


def _make_table(title: str, estimates: Sequence[RoundEstimate]) -> tables.Table:
  """A line for each round: the canaries by then, and the ε of each attacker."""
  models = attackers.sort_by_strength(row.threat_model for row in estimates)
  body = []
  for t in sorted({row.round for row in estimates}):
    of_round = {row.threat_model: row for row in estimates if row.round == t}
    num_observed = next(iter(of_round.values())).num_observed
    epsilons = (_format_cell(of_round.get(attacker)) for attacker in models)
    body.append([f'{t:,}', f'{num_observed:,}', *epsilons])
  names = map(words.spell_name, models)
  is_bound = any(row.estimate.confidence is not None for row in estimates)
  notes = [_OTHER_TEST] * is_bound
  return tables.Table(title, ['round', 'took part', *names], body, notes)


def _make_sequential_table(
  bounds: SequentialBounds, shown: Sequence[int]
) -> tables.Table:
  """A line for each round that is shown: μ, ε, and the evidence against a claim."""
  columns = {
    'ended': [f'{num:,}' for num in bounds.num_canaries],
    'μ, if f Gaussian': map(cells.format_number, bounds.mu),
    'ε, if f Gaussian': map(cells.format_number, bounds.epsilon_gdp),
    'ε': map(cells.format_number, bounds.epsilon),
  }
  if bounds.log_evidence is not None:
    claim = cells.format_number(bounds.claim or 0)
    columns[f'evidence against ε = {claim}'] = map(
      cells.format_evidence, bounds.log_evidence
    )
  lines = [*zip(*columns.values())]
  at = np.searchsorted(bounds.rounds, shown, side='right') - 1
  return tables.Table(
    f'Lower bounds, {100 - 100 * bounds.significance:g} % at all rounds at once: '
    f'{words.spell_name(bounds.threat_model)}',
    ['round', *columns],
    [[f'{t:,}', *lines[i]] for t, i in zip(shown, at) if i >= 0],
  )


def _format_cell(row: RoundEstimate | None) -> str:
  if row is None:
    return '-'
  epsilon = cells.format_epsilon(row.estimate)
  interval = cells.format_interval(row.estimate.interval)
  return epsilon if interval is None else f'{epsilon} ({interval})'


def format_over_runs(rows: Sequence[OverRuns]) -> str:
  """A table for each attack statistic, and what its columns are."""
  made = map(tables.format_plain_markdown, map(_make_effect_table, rows))
  return '\n\n'.join([*made, _COLUMNS])


def _make_effect_table(row: OverRuns) -> tables.Table:
  number, effects = cells.format_number, row.effects
  confidence = 100 * (row.bound.confidence or 0)
  body = [
    *(
      [
        run.run,
        f'{run.num_observed:,}',
        f'{number(run.mu)} ± {number(run.standard_error)}',
        '-',
        number(run.epsilon),
        '-',
      ]
      for run in row.runs
    ),
    *(
      [
        name,
        '',
        number(effects.mu),
        cells.format_interval(of_mu) or '-',
        number(float(estimate.epsilon)),
        cells.format_interval(estimate.interval) or '-',
      ]
      for name, of_mu, estimate in (
        ('mean of runs', effects.interval, row.mean),
        ('a new run', effects.prediction, row.new_run),
      )
    ),
    [
      f'lower bound of the mean, {confidence:g} %',
      *('', '-', '-'),
      cells.format_epsilon(row.bound),
      '-',
    ],
  ]
  name = words.spell_name(row.threat_model)
  return tables.Table(
    f'{name[0].upper()}{name[1:]}: {len(row.runs)} runs, δ = {cells.format_delta(row.delta)}',
    ('', 'took part', 'μ', '90 % interval', 'ε', '90 % interval'),
    body,
    [
      f'Between runs μ has a standard deviation τ of {number(effects.tau)} '
      f'({cells.format_interval(effects.tau_interval)} at 90 %), and ε one of '
      f'{number(row.spread.std)}, the empirical privacy variance without the scatter '
      f'of canaries; I² = {100 * effects.i_squared:.0f} % of the scatter of the estimates '
      f'is not from canaries ({cells.format_p_value(effects.p_value)} if all runs had the '
      'same μ).',
      *(
        f'{run}: {checks.describe_check(check)}'
        for run, failed in row.failed_checks.items()
        for check in failed
      ),
    ],
  )
