"""How much ε varies between runs that differ in the seed alone.

Estimates scatter because canaries are few and because runs differ. Random effects
tell the two apart.

Reference: Hu, Zhou, Zhang and others, "Empirical privacy variance" (2025), who also
compare runs of one (ε, δ) and other settings.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from epe_jax.epsilon import over_runs
from epe_jax.epsilon.over_runs import ShiftEstimate
from epe_jax.text import cells, tables


class Runs(NamedTuple):
  """Runs that are compared.

  Attributes:
    label: what they have in common.
    delta: of their ε.
    shifts: attacker, in words -> the shift of each run.
  """

  label: str
  delta: float
  shifts: Mapping[str, Sequence[ShiftEstimate]]


def collect_runs(
  label: str, delta: float, shifts: Sequence[Mapping[str, ShiftEstimate]]
) -> Runs:
  """Runs as a group, from attacker -> shift of each run."""
  names = dict.fromkeys(name for of_run in shifts for name in of_run)
  return Runs(
    label,
    delta,
    {name: [x[name] for x in shifts if name in x] for name in names},
  )


def make_table(groups: Sequence[Runs]) -> tables.Table | None:
  """A line for each group and attacker; None if no group has two runs."""
  body = [
    [group.label, name, *_list_cells(shifts, group.delta)]
    for group in groups
    for name, shifts in group.shifts.items()
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


def group_replicates(
  runs: Sequence[tuple[Mapping[str, Any], float, Mapping[str, ShiftEstimate]]],
) -> list[Runs]:
  """Runs that differ in the seed alone, as groups.

  Args:
    runs: what a point of a grid sets, δ, and attacker -> shift of each.

  Returns:
    A group for each setting of the other fields that two runs or more have.
  """
  members: dict[tuple[str, float], list[Mapping[str, ShiftEstimate]]] = {}
  for settings, delta, shifts in runs:
    others = {k: v for k, v in settings.items() if k != 'seed'}
    members.setdefault((label_settings(others), delta), []).append(shifts)
  return [
    collect_runs(label, delta, shifts)
    for (label, delta), shifts in members.items()
    if len(shifts) > 1
  ]


def label_settings(settings: Mapping[str, Any]) -> str:
  """What runs have in common.

  >>> label_settings({'rounds': 5, 'model.width': 8}), label_settings({})
  ('rounds = 5, model.width = 8', 'all seeds')
  """
  return ', '.join(f'{k} = {v}' for k, v in settings.items()) or 'all seeds'
