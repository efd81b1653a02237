"""How much μ and ε vary between runs of one config, as tables.

Estimates scatter because canaries are few and because runs differ. Random effects
separate the two.

References:
  Hu, Zhou, Zhang and others, "Empirical privacy variance" (2025), who also compare
  runs of one (ε, δ) and other settings.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from epe_jax.audit.run_effects import Effect, OverRuns
from epe_jax.epsilon.null_laws import diagnostics
from epe_jax.epsilon.scatter import over_runs
from epe_jax.epsilon.scatter.over_runs import ShiftEstimate
from epe_jax.report.comparison import LabelledRun
from epe_jax.text import attackers, cells, checks, tables

_COLUMNS = (
  'μ is by how much taking part shifts a canary on average, in standard deviations '
  'of the null,\n± its standard error; ε is that of a Gaussian mechanism with this '
  'μ. All but the lower bound are\npoint estimates: no guarantee. The bound takes shifts '
  'of runs to be Gaussian.'
)
_HEAD = ('', 'took part', 'μ', '90 % interval', 'ε', '90 % interval')


def make_variation_table(
  replicates: Sequence[LabelledRun],
) -> tables.Table | None:
  """A line for each config and attacker; None if no config has two seeds.

  Args:
    replicates: with the shifts of every seed.
  """
  body = [
    [
      _label_settings(run.settings),
      attacker.name,
      *_list_cells(shifts, run.delta),
    ]
    for run in replicates
    for attacker, shifts in run.shifts.items()
    if len(shifts) > 1
  ]
  if not body:
    return None
  return tables.Table(
    'How much ε varies between runs',
    [
      'runs',
      'attacker',
      'number',
      'μ',
      'τ',
      '90 % interval',
      'I²',
      'p',
      'ε',
      'std of ε',
      '5-95 % of runs',
    ],
    body,
    [
      'μ is by how much taking part shifts a canary, in standard deviations of the '
      'null: its mean over runs, and its standard deviation τ between them, without '
      'the scatter of canaries. I² is the share of the scatter of estimates that is '
      'not from canaries; p is its p-value if all runs leaked the same.',
      'ε is that of the Gaussian mechanism with the mean μ, and its spread over runs '
      'is that of μ: the empirical privacy variance. Point estimates: no guarantee.',
      'Std and range show how far ε varies between runs beyond the error of each '
      "run's own estimate, so they are narrower than the estimates themselves "
      'scatter. With τ = 0 (-) errors alone explain all of the scatter; the interval '
      'of τ says what else is possible.',
      'The runs of a line differ in the seed alone.',
    ],
  )


def group_replicates(runs: Sequence[LabelledRun]) -> list[LabelledRun]:
  """Joins runs of a sweep that differ in the seed alone.

  Args:
    runs: the points of a sweep.

  Returns:
    For each δ and setting of the other fields that two runs or more have, the first
    of these runs with the shifts of all.
  """
  groups: dict[tuple[str, float], list[LabelledRun]] = {}
  for run in runs:
    others = {k: v for k, v in run.settings.items() if k != 'seed'}
    group = groups.setdefault((_label_settings(others), run.delta), [])
    group.append(run._replace(settings=others))
  return [
    group[0]._replace(
      shifts={
        attacker: [
          shift for run in group for shift in run.shifts.get(attacker, ())
        ]
        for attacker in dict.fromkeys(x for run in group for x in run.shifts)
      }
    )
    for group in groups.values()
    if len(group) > 1
  ]


def format_over_runs(
  rows: Sequence[OverRuns], *, markdown: bool = False
) -> str:
  """A table for each attack statistic, and what its columns are.

  Args:
    rows: what `run_effects.evaluate_runs` returns.
    markdown: whether tables are in Markdown instead of text.

  Returns:
    Text without a final newline.
  """
  form = tables.format_markdown if markdown else tables.format_text
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
  effects = {
    'mean of runs': row.mean,
    'a new run': row.new_run,
    'pooled, cluster bootstrap': row.pooled,
  }
  body += [
    [name, '', *_format_effect(effect)]
    for name, effect in effects.items()
    if effect is not None
  ]
  sees = attackers.describe_sees(row.sees)
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
    f'{sees[0].upper()}{sees[1:]}: {row.threat_model.statistic}, '
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
      f'({diagnostics.format_p_value(row.p_value)} if all runs had the same μ).',
      *(
        f'{run}: {checks.describe_check(check)}'
        for run, failed in row.failed_checks.items()
        for check in failed
      ),
    ],
  )


def _format_effect(effect: Effect) -> list[str]:
  return [
    '-' if effect.mu is None else cells.format_number(effect.mu),
    cells.format_interval(effect.mu_interval) or '-',
    cells.format_number(effect.epsilon),
    cells.format_interval(effect.interval) or '-',
  ]


def _list_cells(shifts: Sequence[ShiftEstimate], delta: float) -> list[str]:
  mu, variance = np.array(shifts, np.float64).T
  effects = over_runs.random_effects(mu, variance)
  spread = over_runs.compute_epsilon_spread(
    effects.mu, effects.tau, delta=delta
  )
  epsilon = over_runs.epsilon_of_mean(effects, delta=delta).epsilon
  return [
    f'{len(shifts)}',
    cells.format_number(effects.mu),
    cells.format_number(effects.tau),
    cells.format_interval(effects.tau_interval) or '-',
    f'{100 * effects.i_squared:.0f} %',
    f'{effects.p_value:.2g}',
    cells.format_number(float(epsilon)),
    cells.format_number(spread.std) if effects.tau > 0 else '-',
    (effects.tau > 0 and cells.format_interval((spread.low, spread.high)))
    or '-',
  ]


def _label_settings(settings: Mapping[str, Any]) -> str:
  return ', '.join(f'{k} = {v}' for k, v in settings.items()) or 'all seeds'
