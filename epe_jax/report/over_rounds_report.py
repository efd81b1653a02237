"""ε after each round, as tables."""

from collections.abc import Sequence

import numpy as np

from epe_jax.audit import attackers
from epe_jax.report import attacker_names, cells, tables
from epe_jax.watch.by_round import RoundEstimate
from epe_jax.watch.sequential import SequentialBounds

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
      f'once: {attacker_names.spell_name(sequential.threat_model)}'
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
      (row.round, attacker_names.spell_name(row.threat_model)), []
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
  names = [attacker_names.spell_name(attacker) for attacker in models]
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
