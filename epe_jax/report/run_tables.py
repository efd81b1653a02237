"""The tables of an audit: settings, attackers, risks of a person, every estimate."""

from collections.abc import Sequence
import math

from epe_jax.audit.effective_dimensions import EffectiveDimensions
from epe_jax.audit.results import AttackResult, Audit
from epe_jax.audit.upper_bounds import Excess
from epe_jax.epsilon.types import Estimate
from epe_jax.experiment.client_rounds import Participations
from epe_jax.experiment.run_result import RunResult
from epe_jax.report import cells, clients, facts, sentences, tables, words
from epe_jax.report.clients import AttackRisks

_RISKS = {
  'in or out': 'accuracy',
  'found': 'tpr',
  'named': 'posterior',
  'secret': 'reconstruction',
}
# Title of a table of estimates -> their kind, and whether they assume no shape.
_KINDS = {
  'Point estimates: no guarantee': ('point_estimate', None),
  'Lower bounds, no shape assumed': ('confidence_bound', True),
  'Lower bounds if scores or mechanism have the assumed shape': (
    'confidence_bound',
    False,
  ),
  'Credible bounds: beliefs, no lower bounds': ('credible_bound', None),
}
_EXCESSES: dict[Excess, tuple[str, str]] = {
  'violation': (
    '‡',
    'a lower bound above the analytic ε: 1 in 20 is too high by chance, and more where '
    'what it assumes is not so. It is evidence against the run only where a warning '
    'says so.',
  ),
  'extrapolates': (
    '*',
    'a point estimate above the analytic ε by more than its error: random scatter, or '
    'read from tails of a law where no canary was.',
  ),
  'more_than_expected': (
    '°',
    'above what a server that adds up aggregates would leave, which is not a limit.',
  ),
}


def make_settings_table(result: RunResult) -> tables.Table:
  """The facts about a run that its first page does not have."""
  versions = [f'{name} {value}' for name, value in result.versions.items()]
  rows = [
    ('data', result.data),
    *_list_canaries(result),
    *(
      (
        f'analytic ε of {analytic.who}',
        f'{cells.format_number(analytic.epsilon)}: '
        f'{words.describe_analytic(analytic.assumes)}',
      )
      for analytic in facts.list_analytic_epsilons(result)
    ),
    (
      'amplification by sampling',
      'none counted'
      if result.amplification is None
      else words.describe_amplification(result.amplification),
    ),
    ('test loss', f'{result.loss:.4g}'),
    *_list_time(result),
    ('versions', ', '.join(versions)),
    (
      'arithmetic',
      'not checked'
      if result.arithmetic is None
      else 'agreed with float64 before the first round',
    ),
  ]
  return tables.Table('', ('run', result.task), rows)


def format_summary_table(
  audit: Audit,
  *,
  participations: Participations | None = None,
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
  participations: Participations | None = None,
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
    words.spell_name(attack.threat_model),
    *row[:4],
    bound,
    analytic,
  ]


def format_client(attack: AttackResult, participations: Participations) -> str:
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


def make_risk_table(
  attacks: Sequence[AttackResult], participations: Participations
) -> tables.Table | None:
  """A line for each attacker whose estimate is calibrated; None if none is."""
  body = [
    [
      words.spell_name(attack.threat_model),
      *(_format_risk(found, name, attack) for name in _RISKS.values()),
    ]
    for attack in attacks
    if (found := clients.compute_attack_risks(attack, participations))
    is not None
  ]
  return tables.Table('', ['attacker', *_RISKS], body) if body else None


def make_estimate_tables(attacks: Sequence[AttackResult]) -> list[tables.Table]:
  """All estimates, a table for each kind, which says what they are worth.

  Args:
    attacks: of one audit. Their names are left out if there is only one.
  """
  made = []
  for title, (kind, is_shape_free) in _KINDS.items():
    chosen = [
      (attack, estimate)
      for attack in attacks
      for estimate in attack.estimates
      if estimate.kind == kind
      and is_shape_free in (None, estimate.is_shape_free)
    ]
    if chosen:
      made.append(_make_estimate_table(title, chosen, len(attacks) > 1))
  return made


def _make_estimate_table(
  title: str, chosen: Sequence[tuple[AttackResult, Estimate]], has_names: bool
) -> tables.Table:
  names = ['attacker'] if has_names else []
  body, excesses = [], {}
  for attack, estimate in chosen:
    row = cells.format_cells(estimate)
    if excess := attack.describe_excess(estimate):
      sign, about = _EXCESSES[excess]
      excesses[sign] = about
      row = row._replace(epsilon=f'{row.epsilon} {sign}')
    name = [words.spell_name(attack.threat_model)] if has_names else []
    body.append([*name, cells.describe_method(estimate), *row])
  head = [*names, 'method', *cells.HEAD]
  # Drop empty columns.
  kept = [
    i
    for i in range(len(head))
    if any(line[i] not in ('-', 'point estimate') for line in body)
  ]
  notes = [f'{sign} {about}' for sign, about in excesses.items()]
  return tables.Table(
    title,
    [head[i] for i in kept],
    [[line[i] for i in kept] for line in body],
    notes,
  )


def _list_canaries(result: RunResult) -> list[tuple[str, str]]:
  rows = []
  if facts.is_coin_flip(result):
    rounds = sentences.count_rounds_of_canary(
      facts.count_participations(result)
    )
    rows.append(('rounds of a canary', f'{rounds}, each with probability 1/2'))
  if dimension := result.effective_dimension:
    described = _describe_effective_dimension(dimension)
    rows.append(('effective dimension of what was seen', described))
  return rows


def _list_time(result: RunResult) -> list[tuple[str, str]]:
  # A run with fresh noise does not say, for it depends on who took part.
  if result.seconds is None:
    return []
  assert result.seconds_per_round is not None, 'times come together'
  assert result.waited_share is not None, 'times come together'
  time = (
    f'{result.seconds:,.1f} s, {result.seconds_per_round:.3g} s a round; '
    f'waited for data {100 * result.waited_share:.2g} % of it'
  )
  return [('time', time)]


def _describe_effective_dimension(dimension: EffectiveDimensions) -> str:
  needed = dimension.threshold
  return (
    f'{dimension.min_round:,.0f} or more in a round, '
    f'{dimension.median_round:,.0f} in the median; '
    f'final model {dimension.final_model:,.0f}, its change '
    f'{dimension.change:,.0f}; {dimension.family} canaries need '
    f'{"any" if needed is None else f"{needed:,.0f}"}'
  )


def _format_risk(risks: AttackRisks, name: str, attack: AttackResult) -> str:
  def format_share(of) -> str:
    return cells.format_share(float(getattr(of, name)))

  parts = []
  if risks.estimate is not None:
    parts.append(format_share(risks.estimate))
  if risks.interval is not None:
    low, high = map(format_share, risks.interval)
    parts[-1] += f' ({low} to {high})'
  if risks.expected is not None:
    low, high = map(format_share, risks.expected)
    parts.append(f'expected {low}' + (f' to {high}' if low != high else ''))
  if risks.limit is not None:
    # Of more rounds than canaries' only a bound is known.
    is_expected = (
      risks.estimate is not None
      and attack.analytic is not None
      and attack.analytic.kind == 'expectation'
    )
    word = 'expected' if is_expected else 'at most'
    parts.append(f'{word} {format_share(risks.limit)}')
  return '; '.join(parts) or '-'
