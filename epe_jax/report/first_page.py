"""The page of a report that everybody reads, of 260 words at most besides its table.

A sentence, a row for each of a few attackers, one figure, what follows for a client,
what the numbers do not say, and what they belong to. Of warnings it has the serious
ones. A number of canaries is never said to be one of people.
"""

from collections.abc import Callable, Sequence
import math
from typing import Any

from epe_jax.audit import attackers, audit_json
from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.audit.attackers import EXTERNAL
from epe_jax.audit.effective_dimensions import warn_of_low_dimension
from epe_jax.audit.results import SIGNIFICANCE, Audit
from epe_jax.epsilon.types import Assumption
from epe_jax.experiment.client_rounds import Participations
from epe_jax.experiment.run_result import DELTA_EXPONENT, RunResult
from epe_jax.report import (
  audit_notes,
  cells,
  checks,
  clients,
  leaks,
  page,
  sentences,
  tables,
  words,
)
from epe_jax.report.leaks import Leak
from epe_jax.report.provenance import Provenance

_NOT_MEASURED = '–'
_ABOUT_DELTA = 'A smaller δ gives a larger ε.'
_ABOUT_ABOVE = (
  'An estimate just above its limit is sampling error unless a warning appears.'
)
_OF_SCORES = (
  'These ε are of those that were scored: canaries, or members drawn at random. '
  'Nobody else was measured.',
  'Whether scores are of one system, and independent, is assumed.',
)
_ONE_POPULATION = (
  'Are both groups drawn from one population? Where members are newer, or of another '
  'source, they differ without any leak: a score that has not seen the model shows it '
  '(--baseline).'
)
_LIMITS = 'What this audit does not show'
# Of a lower bound -> its words.
_ASSUMED = {
  Assumption.INDEPENDENT: 'independent canaries',
  Assumption.COINS: 'independent coins for canaries',
  Assumption.COSINE_NULL: 'a known distribution of held-out scores',
}
# What an attacker has besides what its name says.
_KNOWS = {
  attackers.OWN.key: (
    'The every-round attacker also knows when the canary took part.'
  ),
  attackers.RESIDUAL.key: 'The worst case knows all other updates as well.',
  attackers.DECORRELATED.key: (
    'The worst case knows all other updates as well, and combines rounds.'
  ),
}


def make_blocks(
  result: RunResult,
  found: Sequence[Leak],
  provenance: Provenance,
  *,
  figure: str = '',
) -> list[str]:
  """Makes the first page of a run."""
  alarms = [
    page.make_bold(f'Warning: {text}') for text in list_alarms(result, found)
  ]
  version = result.versions.get('epe_jax', '?')
  ending = [
    page.make_titled(*_describe_release(result)),
    page.make_paragraph(_describe_settings(result)),
    page.make_paragraph(f'{provenance}, epe_jax {version}.'),
  ]
  if not result.is_audited:
    return [
      page.make_bold(sentences.NOT_AUDITED),
      *alarms,
      page.make_paragraph(_describe_limit_of_client(result)),
      figure,
      *ending,
    ]
  return [
    page.make_bold(state_headline(result.audit, found)),
    *alarms,
    tables.format_plain_markdown(make_leak_table(found)),
    page.make_paragraph(' '.join(_explain_rows(found))),
    figure,
    page.make_titled('For a client', describe_client(result, found)),
    page.make_titled(_LIMITS),
    page.make_list(list_limits(result, found)),
    *ending,
  ]


def make_audit_blocks(
  audit: Audit, *, design: str = '', figure: str = ''
) -> list[str]:
  """Makes the first page of an audit without a run: of scores, or of a record."""
  attack = audit.attacks[0]
  coins = ', each by a coin of its own' if design == 'coin_flip' else ''
  about = [
    f'{attack.num_observed:,} canaries took part, {attack.num_unobserved:,} were held '
    f'out{coins}.'
  ]
  # Where it has not been asked, or answered, already.
  facts = {fact.key for fact in (*attack.notes, *attack.contradictions)}
  is_external = attack.threat_model == EXTERNAL
  asks = is_external and not facts & audit_notes.OF_GROUPS
  if any(x.view.startswith('published_models') for x in audit.attacks):
    about.append('Attackers see published models, and no round between them.')
  found = _find_leaks(audit)
  limits = [
    *_limit_numbers(audit, found),
    _ABOUT_DELTA,
    *(_OF_SCORES if is_external else _OF_SCORES[:1]),
    *(_ONE_POPULATION,) * asks,
  ]
  return [
    *make_summary_blocks(audit),
    page.make_paragraph(' '.join([*_explain_rows(found), *about])),
    figure,
    page.make_titled(_LIMITS),
    page.make_list(limits),
  ]


def make_summary_blocks(audit: Audit) -> list[str]:
  """The headline, serious warnings, and a row for each attacker."""
  found = _find_leaks(audit)
  notes = audit_notes.list_notes(audit) if len(found) == 1 else ()
  return [
    page.make_bold(state_headline(audit, found)),
    *(
      page.make_bold(f'Warning: {text}.')
      for text in audit_notes.list_serious_warnings(audit)
    ),
    tables.format_plain_markdown(make_leak_table(found)),
    *(page.make_paragraph(f'Note: {text}.') for text in notes),
  ]


def state_headline_of(audit: Audit) -> str:
  """The headline of an audit without a run."""
  return state_headline(audit, _find_leaks(audit))


def describe_in_json(audit: Audit) -> dict[str, Any]:
  """What `audit_json.to_json` gives, with names of attackers, labels and notes."""
  values, found = audit_json.to_json(audit), audit.headline
  for attack, row in zip(audit.attacks, values['attacks']):
    row['name'] = words.spell_name(attack.threat_model)
    row['statistic'] = words.spell_statistic(attack.threat_model)
    for estimate, one in zip(attack.estimates, row['estimates']):
      one['label'] = cells.describe_method(estimate)
  if found is not None:
    row = values['headline']
    row['text'] = state_headline_of(audit)
    row['label'] = cells.describe_method(found.bound)
    if found.point is not None:
      row['point_estimate']['label'] = cells.describe_method(found.point)
  return values | {
    'warnings': audit_notes.list_warnings(audit),
    'notes': audit_notes.list_notes(audit),
  }


def _find_leaks(audit: Audit) -> list[Leak]:
  """The rows of an audit: those of a run, as far as they were measured."""
  if all(attack.threat_model == EXTERNAL for attack in audit.attacks):
    return [
      leaks.find_leak(words.spell_name(attack.threat_model), attack)
      for attack in audit.attacks
    ]
  strongest = audit.by_strength[-1].analytic
  limit = math.nan
  if strongest is not None and strongest.kind == 'bound':
    limit = strongest.epsilon
  found = leaks.choose_leaks(audit, limit)
  return [leak for leak in found if leak.attack is not None]


def state_headline(audit: Audit, found: Sequence[Leak]) -> str:
  """The pre-declared bound and the leak by the model, in one sentence."""
  if not audit.attacks:
    return 'No attacker has scores, so that nothing was estimated.'
  delta = cells.format_delta(audit.attacks[0].first.delta)
  parts = []
  if audit.headline is not None:
    attack, bound, _ = audit.headline
    level = f'{100 * (bound.confidence or 0):.4g} % confidence'
    if not bound.is_shape_free:
      level += ', if scores have the assumed shape'
    name = words.spell_name(attack.threat_model)
    where = f' ({name})' if len(audit.attacks) > 1 else ''
    if attack.threat_model == attackers.OWN:
      where = ' from every round'
    elif attack.threat_model in (attackers.RESIDUAL, attackers.DECORRELATED):
      where = ' for the worst-case attacker'
    parts.append(f'at least {cells.format_epsilon(bound)}{where} ({level})')
  # The last of them has the first model too.
  *_, of_model = None, *(x for x in found if _is_by(x, *leaks.OF_MODEL))
  if of_model is not None and of_model.about is not None:
    said = f'about {cells.format_epsilon(of_model.about)}'
    if of_model.about.is_within_floor:
      said = 'nothing beyond chance'
    is_alone = _is_by(of_model, attackers.FINAL)
    view = 'last model only' if is_alone else 'first and last model'
    parts.append(f'{said} from the {view}')
  elif len(found) == 1 and found[0].about is not None:
    parts.append(f'about {_show_about(found[0])}')
  if not parts:
    return f'Nothing can be said of ε at δ = {delta}: see the warnings.'
  return f'Canaries show ε of {" and ".join(parts)}, at δ = {delta}.'


def make_leak_table(found: Sequence[Leak]) -> tables.Table:
  """A row for each attacker: ε of a canary, and of a client where it is another."""
  columns: dict[str, Callable[[Leak], str]] = {
    'attacker has': lambda leak: leak.name,
    cells.LOWER_BOUND: _show_bound,
    cells.ESTIMATE: _show_estimate,
    cells.LIMIT: lambda leak: _show_limit(leak.at_most),
  }
  if all(math.isnan(leak.at_most) for leak in found):
    del columns[cells.LIMIT]
  if _clients_differ(found):
    columns['client, estimate'] = _show_client
    columns['client, limit'] = lambda leak: _show_limit(leak.client_at_most)
  return tables.select_columns(found, columns)


def _clients_differ(found: Sequence[Leak]) -> bool:
  """Whether numbers of clients are others than those of canaries."""
  return any(
    leak.client_at_most != leak.at_most
    or (
      leak.client_about is not None
      and {*leak.client_about} != {leak.about and float(leak.about.epsilon)}
    )
    for leak in found
    if not math.isnan(leak.client_at_most)
  )


def list_alarms(result: RunResult, found: Sequence[Leak]) -> list[str]:
  """What a reader has to know before all numbers, a sentence each."""
  low = warn_of_low_dimension(result.effective_dimension)
  serious = audit_notes.list_serious_warnings(result.audit, _list_shown(found))
  return [
    *(sentences.describe_claim(result) if _is_rejected(result) else []),
    *(f'{text}.' for text in serious),
    *sentences.contradict_expectation(result.audit),
    *([low] if low else []),
  ]


def _is_rejected(result: RunResult) -> bool:
  return result.claim is not None and result.claim.rejected_after is not None


def list_other_notes(result: RunResult, found: Sequence[Leak]) -> list[str]:
  """Warnings and notes that are not on the first page, for the appendix."""
  others = audit_notes.list_other_warnings(result.audit, _list_shown(found))
  return [
    *([] if _is_rejected(result) else sentences.describe_claim(result)),
    *(f'Warning: {text}.' for text in others),
    *(f'Note: {text}.' for text in audit_notes.list_notes(result.audit)),
  ]


def describe_client(result: RunResult, found: Sequence[Leak]) -> str:
  """What follows for a client, in a sentence, and how well attackers guess."""
  participations = leaks.count_participations(result)
  return ' '.join(
    [
      'A canary sends an update of the full clip norm in '
      f'{sentences.count_rounds_of_canary(participations)}; '
      f'{_explain_client(found[0], participations)}.',
      *_explain_correlation(result),
      _describe_guesses(found, participations),
    ]
  )


def _explain_client(leak: Leak, participations: Participations) -> str:
  """Where the ε of a client comes from, which no canary measures."""
  n = participations.clients
  part = f'clients take part in up to {cells.format_rounds(n)}'
  if participations.is_sampled:
    part = 'clients take part in rounds drawn in secret'
  if leak.attack is None or leak.client_about is None:
    return f'{part}, and have no estimate'
  if not clients.is_measured(leak.attack):
    return f'{part}, and their estimate is predicted, not measured'
  if n == 1 and not participations.differ:
    return 'clients take part as often and are assumed to leak no more'
  return f'{part}; their estimate ranges from orthogonal to aligned updates'


def _explain_correlation(result: RunResult) -> list[str]:
  """How the rounds of canaries compare with those of clients, in correlated noise."""
  moved = [
    fact.values['clip_norms']
    for assumes in (result.analytic_assumes, result.clients_analytic_assumes)
    for fact in assumes or ()
    if fact.key == 'sensitivity'
  ]
  if len(moved) != 2:
    return []
  canary, client = moved
  return [
    'Noise is correlated over rounds: those of a canary move all releases together by '
    f'{canary:.3g} clip norms, those of a client by up to {client:.3g}.'
  ]


def _describe_guesses(
  found: Sequence[Leak], participations: Participations
) -> str:
  """How often attackers are right about who took part, by the model and at worst."""
  shares = {
    leak.name: share
    for leak in (found[0], found[-1])
    if (share := _show_guesses(leak, participations))
  }
  if not shares:
    return 'How well attackers guess who took part was not estimated.'
  wheres = [
    'in the worst case' if name == found[-1].name else f'with the {name}'
    for name in shares
  ]
  first, *others = shares.values()
  also = ''.join(
    f', and in {share} {where}' for share, where in zip(others, wheres[1:])
  )
  return (
    f'{wheres[0].capitalize()}, this attack guesses right in {first} of cases whether '
    f'such a client took part{also}; chance is 50 %.'
  )


def _show_guesses(leak: Leak, participations: Participations) -> str:
  """The share of right guesses about a client; '' if it is not known."""
  if leak.attack is None:
    return ''
  found = clients.compute_attack_risks(leak.attack, participations)
  if found is None:
    return ''
  if found.estimate is not None:
    return cells.format_estimated_share(float(found.estimate.accuracy))
  if found.expected is not None:
    low, high = (
      cells.format_estimated_share(float(x.accuracy)) for x in found.expected
    )
    return low if low == high else f'{low} to {high.removeprefix("about ")}'
  assert found.limit is not None, 'something is known'
  most = float(found.limit.accuracy)
  return f'up to {"100 %" if most >= 0.9995 else cells.format_share(most)}'


def list_limits(result: RunResult, found: Sequence[Leak]) -> list[str]:
  """What the numbers of a run do not say."""
  is_limitless = leaks.find_analytic_epsilon(result) == math.inf
  is_same = len({leak.at_most for leak in found}) == 1
  whose = (
    "the strongest attacker's"
    if is_same
    else "its attacker's or a stronger one's"
  )
  limit = f'The limit in each row is {whose}, if clipping and noise are as configured.'
  if is_limitless:
    limit = 'Without noise there is no limit.'
  return [
    *_limit_numbers(result.audit, found),
    f'{limit} {_ABOUT_DELTA}',
    _list_not_measured(found),
  ]


def _limit_numbers(audit: Audit, found: Sequence[Leak]) -> list[str]:
  """What bounds and estimates are worth."""
  bounds = [leak.at_least for leak in found if leak.at_least is not None]
  assumed = ' and '.join(
    text
    for key, text in _ASSUMED.items()
    if any(key in bound.assumes for bound in bounds)
  )
  level = f'with {100 - 100 * SIGNIFICANCE:g} % confidence'
  worth = f'Each lower bound holds {level}'
  ending = (
    'Which bound the headline quotes was fixed in advance; pick no other.'
  )
  if audit.is_simultaneous:
    worth, ending = f'All lower bounds hold together {level}', ''
  elif sum(len(attack.bounds) for attack in audit.attacks) < 2:
    ending = 'It was fixed before any score was seen.'
  text = f'{worth}{assumed and f", assuming {assumed}"}. {ending}'.rstrip()
  about = 'Estimates guarantee nothing: stronger attacks may exist.'
  above = [x for x in found if x.about and float(x.about.epsilon) > x.at_most]
  # Where the interval of the table does not decide, another one does.
  others = [
    f'With all tests counted, the interval of the {leak.name} begins at '
    f'{cells.format_number(lowest)}: chance explains this.'
    for leak in above
    if leak.about
    and leak.about.interval
    and leak.about.interval[0] > leak.at_most
    and (lowest := audit_notes.find_lowest(audit, leak.about)) <= leak.at_most
  ]
  if above:
    about += f' {" ".join(others) or _ABOUT_ABOVE}'
  return [text, about]


def _list_shown(found: Sequence[Leak]) -> list[ThreatModel]:
  """The attackers of the first page."""
  return [leak.attack.threat_model for leak in found if leak.attack is not None]


def _explain_rows(found: Sequence[Leak]) -> list[str]:
  """Who the attackers are, and what the signs in cells mean."""
  keys = [x.attack.threat_model.key for x in found if x.attack is not None]
  is_of_run = any(not math.isnan(leak.client_at_most) for leak in found)
  is_complete = all(
    leak.about and leak.at_least and (leak.client_about or not is_of_run)
    for leak in found
  )
  signs = {
    '(chance): no more than is found where nothing leaks.': any(
      leak.about and leak.about.is_within_floor for leak in found
    ),
    f'{_NOT_MEASURED}: not estimated.': not is_complete,
  }
  return [
    *(text for key, text in _KNOWS.items() if key in keys),
    *(
      'With every round come the models, which show more.'
      for leak in found[1:]
      if _is_by(leak, *leaks.OF_MODEL)
    ),
    *(text for text, is_shown in signs.items() if is_shown),
  ]


def _describe_release(result: RunResult) -> tuple[str, str]:
  """What of a run must not be released."""
  model = 'Do not release this model'
  if not result.noise_multiplier > 0:
    return model, 'no noise was added, so that nobody is protected.'
  if result.is_simulation:
    return model, 'its noise follows from the seed, which this report shows.'
  return 'Do not release the folder private', (
    'its files would undo the noise. That this is random enough was not checked.'
  )


def _list_not_measured(found: Sequence[Leak]) -> str:
  missing = [f'the {leak.name}; ' for leak in found if leak.attack is None]
  return (
    f'Not measured: {"".join(missing)}real clients and their clipping; tuning, logs, '
    'other releases.'
  )


def _describe_limit_of_client(result: RunResult) -> str:
  run = leaks.count_participations(result)
  client = f'a client of up to {cells.format_rounds(run.clients)}'
  if run.is_amplified:
    client = 'a client whose rounds are drawn in secret'
  return (
    f'By analysis ε of {client} is {_show_limit(run.analytic_epsilon)} at most, at '
    f'δ = {cells.format_delta(result.delta)}.'
  )


def _describe_settings(result: RunResult) -> str:
  canaries = 'no canaries'
  if result.is_audited:
    canaries = f'{result.num_observed:,} canaries took part, {result.num_unobserved:,} held out'
  kind = result.config['noise']['correlation']
  ring = result.config['secure_aggregation']
  law = '' if kind == 'independent' else f' ({kind})'
  if bits := ring['bits']:
    law = f' ({ring["noise"].replace("_", " ")}, in sums modulo 2^{bits})'
  of_delta = ''
  if result.config['audit'].get('delta', result.delta) is None:
    num_clients = result.delta ** (1 / DELTA_EXPONENT)
    of_delta = f', δ = {num_clients:,.0f} clients^{DELTA_EXPONENT}'
  return (
    f'{result.rounds:,} rounds, d = {result.dim:,}, noise multiplier '
    f'{result.noise_multiplier:g}{law}{of_delta}, {canaries}, accuracy '
    f'{cells.format_percent(result.accuracy)} (majority class: '
    f'{cells.format_percent(result.baseline_accuracy)}).'
  )


def _is_by(leak: Leak, *models: ThreatModel) -> bool:
  """Whether something was found by one of these attackers."""
  return leak.attack is not None and leak.attack.threat_model in models


def _show_bound(leak: Leak) -> str:
  if leak.attack is None or leak.at_least is None:
    return _NOT_MEASURED
  return checks.format_first_bound(leak.attack)


def _show_about(leak: Leak) -> str:
  if leak.about is None:
    return _NOT_MEASURED
  chance = ' (chance)' if leak.about.is_within_floor else ''
  return f'{cells.format_epsilon(leak.about)}{chance}'


def _show_estimate(leak: Leak) -> str:
  if leak.about is None:
    return _NOT_MEASURED
  chance = ' (chance)' if leak.about.is_within_floor else ''
  return f'{cells.format_with_interval(leak.about)}{chance}'


def _show_limit(epsilon: float) -> str:
  return _NOT_MEASURED if math.isnan(epsilon) else cells.format_number(epsilon)


def _show_client(leak: Leak) -> str:
  if leak.attack is None or leak.client_about is None:
    return _NOT_MEASURED
  return cells.format_range(*leak.client_about)
