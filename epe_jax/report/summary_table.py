"""One line for each attacker: what a terminal shows of an audit first."""

import math

from epe_jax.audit.results import AttackResult, Audit
from epe_jax.experiment import client_rounds
from epe_jax.report import attacker_names, cells, clients, tables


def format_summary_table(
  audit: Audit,
  *,
  participations: client_rounds.Participations | None = None,
) -> str:
  """`make_summary_table` as text, without a final newline."""
  table = make_summary_table(
    audit,
    participations=participations,
  )
  return tables.format_text(tables.fold_table(table))


def make_summary_table(
  audit: Audit,
  *,
  participations: client_rounds.Participations | None = None,
) -> tables.Table:
  """One line for each attacker: ε, μ, floor, the first bound and the analytic ε.

  An estimate that is not calibrated is left out, and the line says so. Where clients
  take part in other numbers of rounds than canaries, what follows for one is in the
  last column, and μ has no place.

  Args:
    participations: of canaries and clients; None where clients are not known.
  """
  bound = 'bounds, 95 % together' if audit.is_simultaneous else 'bound, 95 %'
  head = ['attacker', *cells.HEAD[:4], bound, 'analytic ε']
  body = [_summarize(attack) for attack in audit.attacks]
  if participations is not None and participations.differ:
    for row, attack in zip((head, *body), (None, *audit.attacks)):
      del row[2]
      row.append(
        'a client' if attack is None else format_client(attack, participations)
      )
  return tables.Table('', head, body)


def _summarize(attack: AttackResult) -> list[str]:
  row = cells.format_cells(attack.first)
  if not attack.is_calibrated:
    row = cells.EstimateCells('-', '-', 'uncalibrated', '-', '')
  analytic, bound = cells.format_analytic(attack.analytic), '-'
  # That of canaries of most rounds limits all others, whose own are smaller.
  are_unequal = any(
    note.key == 'rounds_missed' and note.values['fewest'] != note.values['most']
    for note in attack.notes
  )
  if attack.analytic and attack.analytic.kind == 'bound' and are_unequal:
    analytic = f'≤ {analytic}'
  if attack.bounds:
    bound = cells.format_epsilon(attack.bounds[0])
  return [
    attacker_names.spell_name(attack.threat_model),
    *row[:4],
    bound,
    analytic,
  ]


def format_client(
  attack: AttackResult, participations: client_rounds.Participations
) -> str:
  """ε of a client by an attacker, as a cell: expected, or at most.
  Returns:
    Such as '2.1 to 33', or '≤ 310.6', or '∞'.
  """
  expected = clients.expect_client(attack, participations)
  if expected is None:
    limit = cells.format_number(participations.analytic_epsilon)
    return (
      limit if math.isinf(participations.analytic_epsilon) else f'≤ {limit}'
    )
  return cells.format_range(*expected)
