"""ε over several runs of one config, as tables.

Estimates scatter because canaries are few and because runs differ. Random effects
separate the two.

References:
  Hu, Zhou, Zhang and others, "Empirical privacy variance" (2025), who also compare
  runs of one (ε, δ) and other settings.
"""

from collections.abc import Sequence

from epe_jax.report import attacker_names, cells, checks, tables
from epe_jax.several_runs.run_effects import Effect, OverRuns

_COLUMNS = (
  'μ is by how much taking part shifts a canary on average, in standard deviations '
  'of the null,\n± its standard error; ε is that of a Gaussian mechanism with this '
  'μ. All but the lower bound are\npoint estimates: no guarantee. The bound takes shifts '
  'of runs to be Gaussian.'
)
_HEAD = ('', 'took part', 'μ', '90 % interval', 'ε', '90 % interval')


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
  view = attacker_names.describe_view(row.view)
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
    f'{view[0].upper()}{view[1:]}: {attacker_names.spell_statistic(row.threat_model)}, '
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
