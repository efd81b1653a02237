"""Estimates as rows: method, ε, μ, interval, floor and kind."""

from collections.abc import Sequence

from epe_jax.audit import upper_bounds
from epe_jax.audit.evaluation import Attack
from epe_jax.epsilon.types import Estimate
from epe_jax.text import cells, methods, tables

_MEANINGS: dict[upper_bounds.Excess, str] = {
  'violation': (
    'A lower bound above the analytic ε: 1 in 20 is too high by chance, and more '
    'where what a bound assumes is not so. The more bounds there are, the likelier is '
    'one that is too high. A warning says so where a bound is above it at a level that '
    'counts all tests, and only then is it evidence against the run.'
  ),
  'extrapolates': (
    'A point estimate above the analytic ε, by more than its error: random scatter, or '
    'an ε read from tails of a law where no canary was. A note says where scatter does '
    'not suffice.'
  ),
  'more than expected': (
    'Above the expected ε: more than a server that adds up aggregates would leave if '
    'clients did not respond to what it has learnt. That is no limit.'
  ),
}


def make_table(attacks: Sequence[Attack]) -> tables.Table:
  """One table of all estimates; each row names its attacker."""
  head = ('attacker sees', 'statistic', 'method', *cells.HEAD)
  body = [
    (
      attack.sees,
      attack.threat_model.statistic,
      methods.describe_method(estimate),
      *_flag_excess(attack, estimate),
    )
    for attack in attacks
    for estimate in attack.estimates
  ]
  return tables.Table('', head, body, explain_excess(attacks))


def format_groups(attacks: Sequence[Attack]) -> list[str]:
  """Lines of estimates, under a heading for each attacker, with its doubts."""
  lines = []
  for attack in attacks:
    heading = f'{attack.sees}: {attack.threat_model.statistic}'
    if attack.analytic is not None:
      heading += f' (analytic ε {cells.format_analytic(attack.analytic)})'
    lines += ['', heading[0].upper() + heading[1:]]
    lines += [
      tables.fill_paragraph(f'{doubt}.', bullet='  Doubt: ')
      for doubt in attack.doubts
    ]
    lines.append(_format_line('', cells.Cells(*cells.HEAD)))
    for estimate in attack.estimates:
      row = cells.format_cells(estimate)
      lines.append(_format_line(f'  {methods.describe_method(estimate)}', row))
      if excess := attack.describe_excess(estimate):
        limit = cells.format_analytic(
          upper_bounds.find_limit(estimate, attack.analytic)
        )
        lines.append(f'    {_name_excess(excess)} {limit}')
  notes = [tables.fill_paragraph(text) for text in explain_excess(attacks)]
  return [*lines, '', *notes] if notes else lines


def explain_excess(attacks: Sequence[Attack]) -> list[str]:
  """What it means that estimates are above the analytic ε; a sentence for each kind."""
  excesses = {
    attack.describe_excess(estimate)
    for attack in attacks
    for estimate in attack.estimates
  }
  return [text for excess, text in _MEANINGS.items() if excess in excesses]


def _flag_excess(attack: Attack, estimate: Estimate) -> cells.Cells:
  """The cells of an estimate, which says if it is above what the mechanism allows."""
  row = cells.format_cells(estimate)
  excess = attack.describe_excess(estimate)
  if excess is None:
    return row
  return row._replace(kind=f'{row.kind}; {_name_excess(excess)}')


def _name_excess(excess: upper_bounds.Excess) -> str:
  return (
    'above the expected ε'
    if excess == 'more than expected'
    else 'above the analytic ε'
  )


def _format_line(method: str, row: cells.Cells) -> str:
  # Of fixed widths, so that the columns of all attackers are aligned.
  return (
    f'{method:<33}{row.epsilon:>8}{row.mu:>7}  {row.interval:<15} {row.floor:<15} '
    f'{row.kind}'
  ).rstrip()
