"""How much had leaked by round t, as tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from epe_jax.report import narrative, tables

_TITLES = (
  (False, 'Point estimates, with 90 % intervals: no guarantee'),
  (True, 'Lower bounds, 95 % at each round'),
)


def format_over_rounds(
  rows: Sequence[Mapping[str, Any]], *, markdown: bool = False
) -> str:
  """ε after each round, a column for each attacker: estimates, then bounds.

  Args:
    rows: as `over_rounds.evaluate_by_round` gives them.
    markdown: tables in Markdown instead of text.

  Returns:
    Text without a final newline.
  """
  parts = [f'δ = {narrative.format_delta(rows[0]["delta"])}']
  for is_bound, title in _TITLES:
    some = [row for row in rows if (row['confidence'] is not None) == is_bound]
    if not some:
      continue
    head, *body = _cells(some)
    if markdown:
      table = tables.format_markdown(tables.Table('', head, body))
      parts.append(f'## {title}\n\n{table}')
    else:
      lines = [title, '=' * len(title), *_aligned([head, *body])]
      parts.append('\n'.join(lines))
  return '\n\n'.join(parts)


def _cells(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
  """Heading and lines: round, canaries, and the ε of each attacker."""
  names = [n for n in narrative.NAMES if any(r['statistic'] == n for r in rows)]
  lines = [['round', 'took part', *(narrative.NAMES[n] for n in names)]]
  for t in sorted({row['round'] for row in rows}):
    found = {row['statistic']: row for row in rows if row['round'] == t}
    count = next(iter(found.values()))['num_observed']
    lines.append(
      [f'{t:,}', f'{count:,}', *(_cell(found.get(name)) for name in names)]
    )
  return lines


def _cell(row: Mapping[str, Any] | None) -> str:
  if row is None:
    return '-'
  epsilon = narrative.format_number(row['epsilon'])
  if row['interval'] is None:
    return epsilon
  low, high = (narrative.format_number(x) for x in row['interval'])
  return f'{epsilon} ({low} to {high})'


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
  widths = [max(map(len, column)) for column in zip(*lines)]
  return [
    '  '.join(cell.rjust(width) for cell, width in zip(line, widths))
    for line in lines
  ]
