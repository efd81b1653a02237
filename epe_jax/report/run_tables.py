"""The tables of an audit: settings, attackers, what they can do, every estimate."""

from collections.abc import Callable, Sequence

from epe_jax.audit.effective_dimensions import EffectiveDimensions
from epe_jax.audit.results import AttackResult, Audit
from epe_jax.epsilon.types import Estimate
from epe_jax.experiment.client_rounds import Participations
from epe_jax.experiment.run_result import RunResult
from epe_jax.report import cells, clients, leaks, sentences, tables, words
from epe_jax.report.clients import AttackRisks

_RISKS = {
  'right guesses': 'accuracy',
  'members found': 'tpr',
  'right accusations': 'posterior',
  'secrets guessed': 'reconstruction',
}
# Title of a table of estimates -> which ones it has.
_KINDS: dict[str, Callable[[Estimate], bool]] = {
  'Estimates: no guarantee': lambda x: x.kind == 'point_estimate',
  'Lower bounds for any distribution of scores': lambda x: (
    x.kind == 'confidence_bound' and x.is_shape_free
  ),
  'Lower bounds that assume a distribution of scores or a mechanism': lambda x: (
    x.kind == 'confidence_bound' and not x.is_shape_free
  ),
  'Credible bounds: beliefs, no lower bounds': lambda x: (
    x.kind == 'credible_bound'
  ),
}
_EXCESSES: dict[str, tuple[str, str]] = {
  'violation': (
    '‡',
    'a lower bound above the limit: 1 in 20 is too high by chance, and more where what '
    'it assumes is not so. It is evidence against the run only where a warning says so.',
  ),
  'extrapolates': (
    '*',
    'this estimate exceeds the limit by more than its error: by chance, or because it '
    'extrapolates into tails of a distribution where no canary scored.',
  ),
  'more_than_expected': (
    '°',
    'above what is expected if the server only adds up aggregates, which is no limit.',
  ),
}


def make_settings_table(result: RunResult) -> tables.Table:
  """The facts about a run that its first page does not have."""
  rows = {'data': result.data}
  if leaks.is_coin_flip(result):
    rounds = sentences.count_rounds_of_canary(
      leaks.count_participations(result)
    )
    rows['rounds of a canary'] = f'{rounds} or none, by one fair coin'
  if dimension := result.effective_dimension:
    described = _describe_effective_dimension(dimension)
    rows['effective dimension of what was seen'] = described
  for who, (epsilon, assumes) in leaks.list_analytic_epsilons(result).items():
    rows[f'limit of {who}'] = (
      f'{cells.format_number(epsilon)}: {words.describe_analytic(assumes)}'
    )
  rows['amplification by sampling'] = (
    'none counted'
    if result.amplification is None
    else words.describe_amplification(result.amplification)
  )
  rows['test loss'] = f'{result.loss:.4g}'
  # A run with fresh noise does not say, for it depends on who took part.
  if result.seconds is not None:
    assert result.waited_share is not None, 'times come together'
    rows['time'] = (
      f'{result.seconds:,.1f} s, {result.seconds_per_round:.3g} s a round; '
      f'waited for data {100 * result.waited_share:.2g} % of it'
    )
  versions = (f'{name} {value}' for name, value in result.versions.items())
  rows['versions'] = ', '.join(versions)
  rows['arithmetic'] = (
    'not checked'
    if result.arithmetic is None
    else 'agreed with float64 before the first round'
  )
  return tables.Table('', ('run', result.task), [*rows.items()])


def make_summary_table(
  audit: Audit, *, participations: Participations | None = None
) -> tables.Table:
  """One line for each attacker: the first bound, estimate, limit, floor and μ.

  An estimate that is not calibrated is left out, and the line says so. Where clients
  take part in other numbers of rounds than canaries, what follows for one is in the
  last column, and μ has no place.

  Args:
    participations: of canaries and clients; None where clients are not known.
  """
  bound = (
    'lower bound (95 % together)'
    if audit.is_simultaneous
    else cells.LOWER_BOUND
  )
  columns: dict[str, Callable[[AttackResult], str]] = {
    'attacker has': lambda attack: words.spell_name(attack.threat_model),
    bound: lambda attack: (
      cells.format_epsilon(attack.bounds[0]) if attack.bounds else '-'
    ),
    cells.ESTIMATE: lambda attack: (
      cells.format_with_interval(attack.first)
      if attack.is_calibrated
      else 'uncalibrated'
    ),
    cells.LIMIT: _format_analytic,
    'floor 5-95 %': _show_calibrated('floor 5-95 %'),
    'μ': _show_calibrated('μ'),
  }
  if participations is not None and participations.differ:
    del columns['μ']
    columns['client'] = lambda attack: format_client(attack, participations)
  return tables.select_columns(audit.attacks, columns)


def _show_calibrated(head: str) -> Callable[[AttackResult], str]:
  return lambda attack: (
    cells.COLUMNS[head](attack.first) if attack.is_calibrated else '-'
  )


def _format_analytic(attack: AttackResult) -> str:
  analytic = cells.format_analytic(attack.analytic)
  # That of canaries of most rounds limits all others, whose own are smaller.
  are_unequal = any(
    note.key == 'rounds_missed' and note.values['fewest'] != note.values['most']
    for note in attack.notes
  )
  is_bound = attack.analytic is not None and attack.analytic.kind == 'bound'
  return f'≤ {analytic}' if is_bound and are_unequal else analytic


def format_client(attack: AttackResult, participations: Participations) -> str:
  """ε of a client by an attacker, as a cell: expected, or at most.

  Returns:
    Such as '2.1 to 33', or '≤ 310.6', or '∞'.
  """
  expected = clients.expect_client(attack, participations)
  if expected is not None:
    return cells.format_range(*expected)
  limit = cells.format_number(participations.analytic_epsilon)
  return limit if limit == '∞' else f'≤ {limit}'


def make_risk_table(
  attacks: Sequence[AttackResult], participations: Participations
) -> tables.Table | None:
  """A line for each attacker whose estimate is calibrated; None if none is."""
  found = [
    (attack, risks)
    for attack in attacks
    if (risks := clients.compute_attack_risks(attack, participations))
    is not None
  ]
  columns: dict[str, Callable[[tuple[AttackResult, AttackRisks]], str]] = {
    'attacker has': lambda row: words.spell_name(row[0].threat_model),
    **{head: _show_risk(name) for head, name in _RISKS.items()},
  }
  return tables.select_columns(found, columns) if found else None


def make_estimate_tables(attacks: Sequence[AttackResult]) -> list[tables.Table]:
  """All estimates, a table for each kind, which says what they are worth.

  Args:
    attacks: of one audit. Their names are left out if there is only one.
  """
  made = []
  for title, is_of_kind in _KINDS.items():
    chosen = [
      (attack, estimate)
      for attack in attacks
      for estimate in attack.estimates
      if is_of_kind(estimate)
    ]
    if chosen:
      made.append(_make_estimate_table(title, chosen, len(attacks) > 1))
  return made


def _make_estimate_table(
  title: str, chosen: Sequence[tuple[AttackResult, Estimate]], has_names: bool
) -> tables.Table:
  excesses = [attack.describe_excess(estimate) for attack, estimate in chosen]
  signs = dict(_EXCESSES[excess] for excess in excesses if excess)
  body = [
    [
      words.spell_name(attack.threat_model),
      cells.describe_method(estimate),
      *(form(estimate) for form in cells.COLUMNS.values()),
    ]
    for attack, estimate in chosen
  ]
  for line, excess in zip(body, excesses):
    line[2] += f' {_EXCESSES[excess][0]}' if excess else ''
  head = ['attacker has', 'method', *cells.COLUMNS]
  # Drop empty columns.
  kept = [
    i
    for i in range(0 if has_names else 1, len(head))
    if any(line[i] not in ('-', 'estimate') for line in body)
  ]
  return tables.Table(
    title,
    [head[i] for i in kept],
    [[line[i] for i in kept] for line in body],
    [f'{sign} {about}' for sign, about in signs.items()],
  )


def _describe_effective_dimension(dimension: EffectiveDimensions) -> str:
  needed = dimension.threshold
  return (
    f'{dimension.min_round:,.0f} or more in a round, '
    f'{dimension.median_round:,.0f} in the median; '
    f'last model {dimension.final_model:,.0f}, its change '
    f'{dimension.change:,.0f}; {dimension.family} canaries need '
    f'{"any" if needed is None else f"{needed:,.0f}"}'
  )


def _show_risk(
  name: str,
) -> Callable[[tuple[AttackResult, AttackRisks]], str]:
  """A risk as a cell: estimated with its interval, expected, and allowed."""

  def share(risks: clients.Risks) -> str:
    return cells.format_share(float(getattr(risks, name)))

  def show(row: tuple[AttackResult, AttackRisks]) -> str:
    attack, risks = row
    parts = []
    if risks.estimate is not None:
      parts.append(share(risks.estimate))
    if risks.interval is not None:
      low, high = map(share, risks.interval)
      parts[-1] += f' ({low} to {high})'
    if risks.expected is not None:
      low, high = map(share, risks.expected)
      parts.append(f'expected {low}' + (f' to {high}' if low != high else ''))
    if risks.limit is not None:
      # Of more rounds than canaries' only a bound is known.
      is_expected = (
        risks.estimate is not None
        and attack.analytic is not None
        and attack.analytic.kind == 'expectation'
      )
      word = 'expected' if is_expected else 'at most'
      parts.append(f'{word} {share(risks.limit)}')
    return '; '.join(parts) or '-'

  return show
