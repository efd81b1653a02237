"""The page of a report that everybody reads, of 250 words at most.

A sentence, a row for each of a few attackers, one figure, what the numbers do not say,
and what they belong to. Of warnings it has the serious ones. A number of canaries is
never said to be one of people.
"""

from collections.abc import Callable, Mapping, Sequence
import math

from epe_jax.audit import attackers
from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.audit.attackers import EXTERNAL
from epe_jax.audit.effective_dimensions import warn_of_low_dimension
from epe_jax.audit.results import SIGNIFICANCE, Audit
from epe_jax.experiment.client_rounds import Participations
from epe_jax.experiment.run_result import DELTA_EXPONENT, RunResult
from epe_jax.report import (
  audit_notes,
  cells,
  clients,
  leaks,
  page,
  sentences,
  tables,
  words,
)
from epe_jax.report.leaks import EVERY_ROUND, WORST_CASE, Leak
from epe_jax.report.provenance import Provenance

_NOT_MEASURED = '–'
_ABOUT_DELTA = 'With probability δ more may leak; a smaller δ means a larger ε.'
_OF_SCORES = (
  'These ε are of those that were scored: canaries, or members drawn at random. '
  'Nobody else was measured.',
  _ABOUT_DELTA,
  'Stronger attacks may exist.',
  'Whether scores are of one system, and independent, is assumed.',
)
_ONE_POPULATION = (
  'Are both groups drawn from one population? Where members are newer, or of another '
  'source, they differ without any leak: a score that has not seen the model shows it '
  '(--baseline).'
)


def make_blocks(
  result: RunResult,
  found: Sequence[Leak],
  provenance: Provenance,
  *,
  figure: str = '',
  warnings: Sequence[str] = (),
) -> list[str]:
  """Makes the first page of a run."""
  alarms = [
    page.make_bold(f'Warning: {text}')
    for text in (*warnings, *list_alarms(result, found))
  ]
  version = result.versions.get('epe_jax', '?')
  ending = [
    page.make_paragraph(_describe_settings(result)),
    page.make_paragraph(f'{provenance}, epe_jax {version}.'),
  ]
  if not result.is_audited:
    return [
      page.make_bold(sentences.NOT_AUDITED),
      *alarms,
      page.make_paragraph(_describe_limit_of_client(result)),
      figure,
      page.make_list([_warn_of_noise(result)]),
      *ending,
    ]
  return [
    page.make_bold(state_headline(result.audit, found)),
    *alarms,
    tables.format_plain_markdown(make_leak_table(found)),
    page.make_paragraph(_explain_rows(found)),
    figure,
    page.make_list(list_caveats(result, found)),
    page.make_paragraph(_list_not_measured(found)),
    *ending,
  ]


def make_audit_blocks(
  audit: Audit, *, design: str = '', figure: str = ''
) -> list[str]:
  """Makes the first page of an audit without a run: of scores, or of a record."""
  attack = audit.attacks[0]
  coins = ', each by a coin of its own' if design == 'coin_flip' else ''
  about = [
    f'{attack.num_observed:,} canaries took part, {attack.num_unobserved:,} did '
    f'not{coins}.'
  ]
  # Where it has not been asked, or answered, already.
  facts = {fact.key for fact in (*attack.notes, *attack.contradictions)}
  asks = attack.threat_model == EXTERNAL and not facts & audit_notes.OF_GROUPS
  if any(x.view.startswith('published_models') for x in audit.attacks):
    about.append('Attackers see published models, and no round between them.')
  return [
    *make_summary_blocks(audit),
    page.make_paragraph(' '.join([*about, *_explain_bounds(audit)])),
    figure,
    page.make_list((*_OF_SCORES, *(_ONE_POPULATION,) * asks)),
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
    tables.format_plain_markdown(_make_audit_table(found)),
    *(page.make_paragraph(f'Note: {text}.') for text in notes),
  ]


def _find_leaks(audit: Audit) -> list[Leak]:
  return [
    leaks.find_leak(words.spell_name(attack.threat_model), attack)
    for attack in audit.attacks
  ]


def state_headline(audit: Audit, found: Sequence[Leak]) -> str:
  """The pre-declared bound and the leak by the final model, in one sentence."""
  if not audit.attacks:
    return 'No attacker has scores, so that nothing was estimated.'
  delta = cells.format_delta(audit.attacks[0].first.delta)
  parts = []
  if audit.headline is not None:
    bound = audit.headline.bound
    level = f'{100 * (bound.confidence or 0):.4g} % confidence'
    if not bound.is_shape_free:
      level += ', if scores have the assumed shape'
    name = leaks.name_headline(audit, found)
    where = {
      WORST_CASE: ' in the worst case',
      EVERY_ROUND: ' from every round',
    }.get(name, f' ({name})' if len(audit.attacks) > 1 else '')
    parts.append(f'at least {cells.format_epsilon(bound)}{where} ({level})')
  # The last of them has the initial model too.
  *_, of_model = None, *(x for x in found if _is_by(x, *leaks.OF_MODEL))
  if of_model is not None and of_model.about is not None:
    is_alone = _is_by(of_model, attackers.FINAL)
    view = 'final model alone' if is_alone else 'initial and final model'
    said = f'about {cells.format_epsilon(of_model.about)}'
    if of_model.about.is_within_floor:
      said = 'nothing beyond chance'
    parts.append(f'{said} from the {view}')
  elif len(found) == 1 and found[0].about is not None:
    parts.append(f'about {_show_about(found[0])}')
  if not parts:
    return f'Nothing can be said of ε at δ = {delta}: see the warnings.'
  return f'Canaries show ε of {" and ".join(parts)}, at δ = {delta}.'


def make_leak_table(found: Sequence[Leak]) -> tables.Table:
  """A row for each attacker: ε of a canary and of a client."""
  return tables.select_columns(
    found,
    {
      'attacker sees': lambda leak: leak.name,
      **{f'canary, {head}': form for head, form in _OF_CANARY.items()},
      'client, about': _show_client,
      'client, at most': lambda leak: _show_limit(leak.client_at_most),
    },
  )


def _make_audit_table(found: Sequence[Leak]) -> tables.Table:
  """A row for each attacker: ε of a canary, with interval and floor."""
  columns: dict[str, Callable[[Leak], str]] = {
    'ε': lambda leak: leak.name,
    'at least': _OF_CANARY['at least'],
    'about': _OF_CANARY['about'],
    '90 % interval': lambda leak: _show(
      leak.about and cells.format_interval(leak.about.interval)
    ),
    'floor': lambda leak: _show(leak.about and cells.format_floor(leak.about)),
    'at most': _OF_CANARY['at most'],
  }
  if all(math.isnan(leak.at_most) for leak in found):
    del columns['at most']
  return tables.select_columns(found, columns)


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


def list_caveats(result: RunResult, found: Sequence[Leak]) -> list[str]:
  """What the numbers of a run do not say."""
  participations = leaks.count_participations(result)
  of_canary = sentences.count_rounds_of_canary(participations)
  is_limitless = leaks.find_analytic_epsilon(result) == math.inf
  limit = '; without noise there is no limit' if is_limitless else ''
  return [
    _warn_of_noise(result),
    f'A canary is an artificial client of {of_canary} with the largest update allowed. '
    f'{_explain_client(found[0], participations)}',
    *_explain_correlation(result),
    _ABOUT_DELTA,
    f'Stronger attacks may exist{limit}.',
  ]


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


def _explain_client(leak: Leak, participations: Participations) -> str:
  """Where the ε of a client comes from, which no canary measures."""
  n = participations.clients
  client = f'A client takes part in up to {cells.format_rounds(n)}'
  if participations.is_sampled:
    client = 'A client takes part in rounds drawn in secret'
  if leak.attack is None or leak.client_about is None:
    return f'{client}; "about" was not estimated for clients.'
  if not clients.is_measured(leak.attack):
    return f'{client}; its "about" is predicted by analysis, not measured.'
  if n == 1 and not participations.differ:
    return f'{client}; its "about" is a canary\'s, so for the largest update.'
  return (
    f'{client}; its "about": by canaries, in its rounds, from orthogonal to '
    'aligned updates.'
  )


def _list_shown(found: Sequence[Leak]) -> list[ThreatModel]:
  """The attackers of the first page."""
  return [leak.attack.threat_model for leak in found if leak.attack is not None]


def _explain_rows(found: Sequence[Leak]) -> str:
  """Who the attackers are, and what the columns are worth."""
  parts = []
  if any(_is_by(leak, attackers.CHANGE) for leak in found):
    parts.append('Final model: knows the initial model too.')
  for leak in found:
    if leak.name == EVERY_ROUND:
      shown = ', and when the canary took part'
      if _is_by(leak, *leaks.OF_MODEL):
        shown = '; the final model, which is one of these, shows more'
      parts.append(f'Every round: knows each release{shown}.')
    elif leak.name == WORST_CASE:
      parts.append('Worst case: also knows all other updates.')
  bounds = [leak.at_least for leak in found if leak.at_least is not None]
  listed = words.list_assumptions(
    dict.fromkeys(key for bound in bounds for key in bound.assumes)
  )
  assumed = ', if ' + ' and '.join(listed) if listed else ''
  parts.append(
    f'At least: {100 - 100 * SIGNIFICANCE:g} % lower bound, each by itself{assumed}. '
    'About: no guarantee. At most: by analysis, if clipping and noise are as stated.'
  )
  return ' '.join([*parts, *_explain_signs(found)])


def _explain_bounds(audit: Audit) -> list[str]:
  worth = 'each by itself; the largest of several is not a bound'
  if audit.is_simultaneous:
    worth = 'all together'
  elif sum(len(attack.bounds) for attack in audit.attacks) < 2:
    worth = 'fixed before any score was seen'
  return [
    f'At least: lower bound, 95 %, {worth}. About: no guarantee.',
    *_explain_signs(_find_leaks(audit)),
  ]


def _explain_signs(found: Sequence[Leak]) -> list[str]:
  abouts = [(leak.about, leak) for leak in found if leak.about is not None]
  is_of_run = any(not math.isnan(leak.client_at_most) for leak in found)
  is_complete = len(abouts) == len(found) and all(
    leak.at_least and (leak.client_about or not is_of_run) for leak in found
  )
  signs = {
    '"About" above it: chance, or a warning says so.': any(
      float(about.epsilon) > leak.at_most for about, leak in abouts
    ),
    '(chance): no more than is found where nothing leaks.': any(
      about.is_within_floor for about, _ in abouts
    ),
    f'{_NOT_MEASURED}: not estimated.': not is_complete,
  }
  return [text for text, is_shown in signs.items() if is_shown]


def _warn_of_noise(result: RunResult) -> str:
  """What the noise of a run is worth."""
  if not result.noise_multiplier > 0:
    return 'No noise was added, so that nobody is protected.'
  if result.is_simulation:
    return (
      'Do not publish this model: its seed reveals the noise '
      f'({cells.spell_key(result.noise)}).'
    )
  return 'Noise was drawn fresh; that it is random enough was not checked.'


def _list_not_measured(found: Sequence[Leak]) -> str:
  missing = [f'the {leak.name}; ' for leak in found if leak.attack is None]
  return (
    f'Not measured: {"".join(missing)}clients and their clipping; tuning, logs, other '
    'releases.'
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
    canaries = (
      f'{result.num_observed:,} canaries in, {result.num_unobserved:,} out'
    )
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


def _show(text: str | None) -> str:
  return text or _NOT_MEASURED


def _show_about(leak: Leak) -> str:
  if leak.about is None:
    return _NOT_MEASURED
  chance = ' (chance)' if leak.about.is_within_floor else ''
  return f'{cells.format_epsilon(leak.about)}{chance}'


def _show_limit(epsilon: float) -> str:
  return _NOT_MEASURED if math.isnan(epsilon) else cells.format_number(epsilon)


def _show_client(leak: Leak) -> str:
  if leak.attack is None or leak.client_about is None:
    return _NOT_MEASURED
  return cells.format_range(*leak.client_about)


_OF_CANARY: Mapping[str, Callable[[Leak], str]] = {
  'at least': lambda leak: _show(
    leak.at_least and cells.format_epsilon(leak.at_least)
  ),
  'about': _show_about,
  'at most': lambda leak: _show_limit(leak.at_most),
}
