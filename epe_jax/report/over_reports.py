"""ε after each round, and over several runs of one config, as tables.

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
from epe_jax.several_runs.run_effects import Effect, OverRuns
from epe_jax.watch.by_round import RoundEstimate
from epe_jax.watch.sequential import SequentialBounds

_COLUMNS = (
  'μ is by how much taking part shifts a canary on average, in standard deviations '
  'of the null,\n± its standard error; ε is that of a Gaussian mechanism with this '
  'μ. All but the lower bound are\npoint estimates: no guarantee. The bound takes shifts '
  'of runs to be Gaussian.'
)
_HEAD = ('', 'took part', 'μ', '90 % interval', 'ε', '90 % interval')
_TITLES = (
  (False, 'Point estimates, with 90 % intervals: no guarantee'),
  (True, 'Lower bounds, 95 % at each round'),
)


def format_over_rounds(
  estimates: Sequence[RoundEstimate],
  sequential: SequentialBounds | None = None,
  *,
  markdown: bool = False,
) -> str:
  """ε after each round, a column for each attacker: estimates, then bounds."""
  delta = estimates[0].estimate.delta
  made = []
  for is_bound, title in _TITLES:
    if rows := select_estimates(estimates, is_bound=is_bound):
      made.append(_make_table(title, rows))
  if sequential is not None:
    shown = sorted({row.round for row in estimates})
    title = (
      f'Lower bounds, {100 - 100 * sequential.significance:g} % at all rounds at '
      f'once: {words.spell_name(sequential.threat_model)}'
    )
    made.append(_make_sequential_table(title, sequential, shown))
  form = tables.format_plain_markdown if markdown else tables.format_text
  return '\n\n'.join([f'δ = {cells.format_delta(delta)}', *map(form, made)])


def format_simultaneous(
  bounds: Sequence[RoundEstimate], *, markdown: bool = False
) -> str:
  """Bounds that hold together: a line for each round and attacker."""
  by_line: dict[tuple[int, str], list[RoundEstimate]] = {}
  for row in bounds:
    by_line.setdefault(
      (row.round, words.spell_name(row.threat_model)), []
    ).append(row)
  deltas = [row.estimate.delta for row in next(iter(by_line.values()))]
  together = max(row.estimate.confidence or 0 for row in bounds)
  table = tables.Table(
    f'Lower bounds of ε, {100 * together:g} % all together',
    ['round', 'attacker', *(f'δ = {cells.format_delta(d)}' for d in deltas)],
    [
      [f'{t:,}', name, *(cells.format_epsilon(row.estimate) for row in rows)]
      for (t, name), rows in by_line.items()
    ],
    [
      f'That any of these {len(bounds):,} bounds is above the true ε has a '
      f'probability of at most {100 * (1 - together):.2g} %.'
    ],
  )
  form = tables.format_plain_markdown if markdown else tables.format_text
  return form(table)


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
  names = [words.spell_name(attacker) for attacker in models]
  return tables.Table(title, ['round', 'took part', *names], body)


def _make_sequential_table(
  title: str, bounds: SequentialBounds, shown: Sequence[int]
) -> tables.Table:
  """A line for each round that is shown: μ, ε, and the evidence against a claim."""
  claimed = bounds.log_evidence is not None
  head = ['round', 'ended', 'μ, if f Gaussian', 'ε, if f Gaussian', 'ε']
  if claimed:
    head.append(
      f'evidence against ε = {cells.format_number(bounds.claim or 0)}'
    )
  body = []
  for t in shown:
    i = int(np.searchsorted(bounds.rounds, t, side='right')) - 1
    if i < 0:
      continue
    line = [f'{t:,}', f'{bounds.num_canaries[i]:,}']
    line += [
      cells.format_number(float(x[i]))
      for x in (bounds.mu, bounds.epsilon_gdp, bounds.epsilon)
    ]
    if bounds.log_evidence is not None:
      line.append(cells.format_evidence(float(bounds.log_evidence[i])))
    body.append(line)
  return tables.Table(title, head, body)


def _format_cell(row: RoundEstimate | None) -> str:
  if row is None:
    return '-'
  epsilon = cells.format_epsilon(row.estimate)
  interval = cells.format_interval(row.estimate.interval)
  return epsilon if interval is None else f'{epsilon} ({interval})'


def format_over_runs(
  rows: Sequence[OverRuns], *, markdown: bool = False
) -> str:
  """A table for each attack statistic, and what its columns are."""
  form = tables.format_plain_markdown if markdown else tables.format_text
  return '\n\n'.join(
    [*(form(_make_effect_table(row)) for row in rows), _COLUMNS]
  )


def _make_effect_table(row: OverRuns) -> tables.Table:
  body = [
    [
      run.run,
      f'{run.num_observed:,}',
      f'{cells.format_number(run.mu)} ± '
      f'{cells.format_number(run.standard_error)}',
      '-',
      cells.format_number(run.epsilon),
      '-',
    ]
    for run in row.runs
  ]
  effects = {'mean of runs': row.mean, 'a new run': row.new_run}
  body += [
    [name, '', *_format_effect(effect)] for name, effect in effects.items()
  ]
  view = words.describe_view(row.view)
  confidence = 100 * (row.bound.confidence or 0)
  body.append(
    [
      f'lower bound of the mean, {confidence:g} %',
      '',
      '-',
      '-',
      cells.format_epsilon(row.bound),
      '-',
    ]
  )
  return tables.Table(
    f'{view[0].upper()}{view[1:]}: {words.spell_statistic(row.threat_model)}, '
    f'{len(row.runs)} runs, δ = {cells.format_delta(row.delta)}',
    _HEAD,
    body,
    [
      f'Between runs μ has a standard deviation τ of '
      f'{cells.format_number(row.tau)} '
      f'({cells.format_interval(row.tau_interval)} at 90 %), and ε one of '
      f'{cells.format_number(row.spread.std)}, the empirical privacy variance '
      f'without the scatter of canaries; I² = {100 * row.i_squared:.0f} % of the '
      'scatter of the estimates is not from canaries '
      f'({cells.format_p_value(row.p_value)} if all runs had the same μ).',
      *(
        f'{run}: {checks.describe_check(check)}'
        for run, failed in row.failed_checks.items()
        for check in failed
      ),
    ],
  )


def _format_effect(effect: Effect) -> list[str]:
  return [
    cells.format_number(effect.mu),
    cells.format_interval(effect.mu_interval) or '-',
    cells.format_number(effect.epsilon),
    cells.format_interval(effect.interval) or '-',
  ]
