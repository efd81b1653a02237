"""How much had leaked by round t, as tables."""

from collections.abc import Sequence

from epe_jax.audit import threat_models
from epe_jax.audit.over_rounds import RoundEstimate
from epe_jax.report import narrative, tables

_TITLES = (
  (False, 'Point estimates, with 90 % intervals: no guarantee'),
  (True, 'Lower bounds, 95 % at each round'),
)


def format_over_rounds(
  leaked: Sequence[RoundEstimate], *, markdown: bool = False
) -> str:
  """ε after each round, a column for each attacker: estimates, then bounds.

  Args:
    leaked: as `over_rounds.evaluate_by_round` gives it.
    markdown: tables in Markdown instead of text.

  Returns:
    Text without a final newline.
  """
  delta = leaked[0].estimate.delta
  parts = [f'δ = {narrative.format_delta(delta)}']
  for is_bound, title in _TITLES:
    some = [
      one for one in leaked if (one.estimate.confidence is not None) == is_bound
    ]
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


def _cells(leaked: Sequence[RoundEstimate]) -> list[list[str]]:
  """Heading and lines: round, canaries, and the ε of each attacker."""
  attackers = [
    threat_model
    for threat_model in threat_models.THREAT_MODELS
    if any(one.threat_model == threat_model for one in leaked)
  ]
  lines = [['round', 'took part', *(one.name for one in attackers)]]
  for t in sorted({one.round for one in leaked}):
    mine = {one.threat_model: one for one in leaked if one.round == t}
    count = next(iter(mine.values())).num_observed
    cells = (_cell(mine.get(threat_model)) for threat_model in attackers)
    lines.append([f'{t:,}', f'{count:,}', *cells])
  return lines


def _cell(one: RoundEstimate | None) -> str:
  if one is None:
    return '-'
  epsilon = narrative.format_number(float(one.estimate.epsilon))
  between = narrative.format_interval(one.estimate.interval)
  return epsilon if between is None else f'{epsilon} ({between})'


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
  widths = [max(map(len, column)) for column in zip(*lines)]
  return [
    '  '.join(cell.rjust(width) for cell, width in zip(line, widths))
    for line in lines
  ]
