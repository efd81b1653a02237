"""The tables of a run: its settings, the risks of a person, and every estimate."""

from collections.abc import Sequence

from epe_jax.audit import clients, upper_bounds
from epe_jax.audit.attack_results import Attack
from epe_jax.audit.clients import AttackRisks, Participations
from epe_jax.audit.effective_dimensions import EffectiveDimensions
from epe_jax.epsilon.types import Estimate
from epe_jax.experiment.run_result import RunResult
from epe_jax.report import facts, sentences
from epe_jax.text import cells, checks, methods, tables

_RISKS = {
  'in or out': 'accuracy',
  'found': 'tpr',
  'named': 'posterior',
  'secret': 'reconstruction',
}


def make_settings_table(result: RunResult) -> tables.Table:
  """The name and the value of every fact about a run."""
  noise = f'{result.noise_multiplier:g} times the clip norm'
  versions = [f'{name} {value}' for name, value in result.versions.items()]
  rows = [
    ('data', result.data),
    ('rounds', f'{result.rounds:,}'),
    ('rounds of a client, at most', f'{result.clients_participations:,}'),
    ('parameters d', f'{result.dim:,}'),
    *_list_canaries(result),
    ('noise', f'{noise}, {result.noise}'),
    ('δ', cells.format_delta(result.delta)),
    *(
      (
        f'analytic ε of {analytic.who}',
        f'{cells.format_number(analytic.epsilon)}: {analytic.assumes}',
      )
      for analytic in facts.list_analytic_epsilons(result)
    ),
    ('amplification by sampling', result.amplification or 'none counted'),
    ('test accuracy', cells.format_percent(result.accuracy)),
    (
      'accuracy of the majority class',
      cells.format_percent(result.baseline_accuracy),
    ),
    ('test loss', f'{result.loss:.4g}'),
    *_list_time(result),
    ('versions', ', '.join(versions)),
  ]
  return tables.Table('', ('run', result.task), rows)


def make_risk_table(
  attacks: Sequence[Attack], participations: Participations
) -> tables.Table | None:
  """A line for each attacker whose estimate is calibrated; None if none is.

  Args:
    attacks: what was found about each attacker.
    participations: of canaries and clients.
  """
  body = [
    [
      attack.threat_model.name,
      *(_format_risk(found, name, attack) for name in _RISKS.values()),
    ]
    for attack in attacks
    if (found := clients.compute_attack_risks(attack, participations))
    is not None
  ]
  return tables.Table('', ['attacker', *_RISKS], body) if body else None


def make_estimate_table(attacks: Sequence[Attack]) -> tables.Table:
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
  return tables.Table('', head, body, sentences.explain_excess(attacks))


def format_groups(attacks: Sequence[Attack]) -> list[str]:
  """Lines of estimates, under a heading for each attacker, with its doubts."""
  lines = []
  for attack in attacks:
    heading = f'{attack.sees}: {attack.threat_model.statistic}'
    if attack.analytic is not None:
      heading += f' (analytic ε {cells.format_analytic(attack.analytic)})'
    lines += ['', heading[0].upper() + heading[1:]]
    lines += [
      tables.fill_paragraph(
        f'{checks.describe_check(check)}.', bullet='  Doubt: '
      )
      for check in attack.failed_checks
    ]
    lines.append(_format_line('', cells.EstimateCells(*cells.HEAD)))
    for estimate in attack.estimates:
      row = cells.format_cells(estimate)
      lines.append(_format_line(f'  {methods.describe_method(estimate)}', row))
      if excess := attack.describe_excess(estimate):
        limit = cells.format_analytic(
          upper_bounds.find_limit(estimate, attack.analytic)
        )
        lines.append(f'    {sentences.name_excess(excess)} {limit}')
  notes = [
    tables.fill_paragraph(text) for text in sentences.explain_excess(attacks)
  ]
  return [*lines, '', *notes] if notes else lines


def _list_canaries(result: RunResult) -> list[tuple[str, str]]:
  if not result.is_audited:
    return [('canaries', sentences.NO_CANARIES)]
  coins = sentences.describe_coins(result)
  rounds = sentences.count_rounds_of_canary(facts.count_participations(result))
  rows = [
    ('canaries that took part', f'{result.num_observed:,}, in {rounds}{coins}'),
    ('canaries that did not', f'{result.num_unobserved:,}'),
  ]
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


def _format_risk(risks: AttackRisks, name: str, attack: Attack) -> str:
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


def _flag_excess(attack: Attack, estimate: Estimate) -> cells.EstimateCells:
  """The cells of an estimate, which says if it is above what the mechanism allows."""
  row = cells.format_cells(estimate)
  excess = attack.describe_excess(estimate)
  if excess is None:
    return row
  return row._replace(kind=f'{row.kind}; {sentences.name_excess(excess)}')


def _format_line(method: str, row: cells.EstimateCells) -> str:
  # Of fixed widths, so that the columns of all attackers are aligned.
  return (
    f'{method:<33}{row.epsilon:>8}{row.mu:>7}  {row.interval:<15} {row.floor:<15} '
    f'{row.kind}'
  ).rstrip()
