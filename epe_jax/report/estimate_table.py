"""Estimates as rows: method, ε, μ, interval, floor and kind."""

from collections.abc import Sequence

from epe_jax.audit.estimates import Attack
from epe_jax.epsilon.types import Estimate
from epe_jax.text import cells, methods, tables


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
  return tables.Table('', head, body)


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
        limit = cells.format_analytic(attack.analytic)
        lines.append(f'    {excess}: above the analytic ε {limit}')
  return lines


def _flag_excess(attack: Attack, estimate: Estimate) -> cells.Cells:
  """The cells of an estimate, which says if it is above what the mechanism allows."""
  row = cells.format_cells(estimate)
  excess = attack.describe_excess(estimate)
  return row._replace(kind=f'{row.kind}; {excess}') if excess else row


def _format_line(method: str, row: cells.Cells) -> str:
  # Of fixed widths, so that the columns of all attackers are aligned.
  return (
    f'{method:<33}{row.epsilon:>8}{row.mu:>7}  {row.interval:<15} {row.floor:<15} '
    f'{row.kind}'
  ).rstrip()
