"""What a reader has to know next to the numbers of an audit: warnings, and plain notes.

Texts, JSON, pages and comparisons all take them from here: sentences without a full
stop, each once, after the names of the attackers that it is about.
"""

from collections.abc import Callable, Container, Iterator
import dataclasses
from typing import Literal

from scipy import special

from epe_jax.audit import upper_bounds
from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.audit.attackers import EXTERNAL
from epe_jax.audit.results import SIGNIFICANCE, AttackResult, Audit
from epe_jax.epsilon.types import Estimate
from epe_jax.experiment.client_rounds import Participations
from epe_jax.fact import Fact
from epe_jax.report import cells, checks, words

# With fewer canaries a perfect attack shows no more than ε of about 2.5.
_FEW = 50
_LEVEL = f'{100 - 100 * SIGNIFICANCE:g} %'
_CLAIM_IS_WRONG = 'the run does not match its claim'

OF_GROUPS = {'populations_differ', 'populations_alike', 'groups_differ'}
"""What may be known of the groups whose scores are compared."""

Level = Literal['serious', 'other', 'note']


def list_warnings(audit: Audit) -> list[str]:
  """What speaks against the numbers of an audit, the serious first."""
  return [*list_serious_warnings(audit), *list_other_warnings(audit)]


def list_serious_warnings(
  audit: Audit, shown: Container[ThreatModel] | None = None
) -> list[str]:
  """What a reader of the numbers has to know before all else.

  That canaries are few; the failed checks of the attackers that are shown, None for
  all; of all attackers, what contradicts the claim at a level that counts all tests.
  """
  return [*_warn_of_few(audit), *_list_remarks(audit, 'serious', shown)]


def list_other_warnings(
  audit: Audit, shown: Container[ThreatModel] | None = None
) -> list[str]:
  """The warnings that `list_serious_warnings` leaves out: chance explains them."""
  return _list_remarks(audit, 'other', shown)


def list_notes(audit: Audit) -> list[str]:
  """What to know of the numbers of an audit, and speaks against none of them.

  Why a bound is another than usual, what an estimate extrapolates, and every point
  estimate that is above the ε that the mechanism allows, as chance may put it.
  """
  return _list_remarks(audit, 'note', None)


def format_notes(audit: Audit) -> list[str]:
  """Warnings, then notes: each a sentence that says which of the two it is."""
  return [
    *(f'Warning: {warning}.' for warning in list_warnings(audit)),
    *(f'Note: {note}.' for note in list_notes(audit)),
  ]


def find_lowest(audit: Audit, estimate: Estimate) -> float:
  """The lower limit of an estimate, with its interval, if all tests are counted."""
  assert estimate.interval is not None
  below = float(estimate.epsilon) - estimate.interval[0]
  widened = special.ndtri(audit.significance_of_one) / special.ndtri(0.05)
  return float(estimate.epsilon - widened * below)


def replace_checks(audit: Audit, check: Fact) -> Audit:
  """The same audit with one failed check in place of those that follow from it."""
  attacks = (
    dataclasses.replace(attack, failed_checks=(check,), notes=())
    for attack in audit.attacks
  )
  return audit._replace(attacks=tuple(attacks))


def add_check(audit: Audit, check: Fact) -> Audit:
  """The same audit of scores with what is known of the groups that are compared."""
  kind = 'notes' if check.key == 'populations_alike' else 'contradictions'
  attacks = (
    dataclasses.replace(attack, **{kind: (*getattr(attack, kind), check)})
    for attack in audit.attacks
  )
  return audit._replace(attacks=tuple(attacks))


def describe_participations(run: Participations) -> str:
  """Which population the claim covers; empty if clients take part as often as canaries."""
  if run.is_sampled and run.clients > run.canaries:
    return (
      f'It was tested by canaries of {cells.format_rounds(run.canaries)}, which are '
      f'known. Clients take part in up to {run.clients}, drawn in secret, and may leak '
      'more.'
    )
  if run.is_sampled:
    return (
      'It was tested as one of a client whose rounds are known. They are drawn in '
      'secret, so that a client leaks less.'
    )
  if run.clients <= run.canaries:
    return ''
  return (
    f'It was tested by canaries of {cells.format_rounds(run.canaries)}. Clients take '
    f'part in up to {run.clients}, and leak more.'
  )


def _list_remarks(
  audit: Audit, level: Level, shown: Container[ThreatModel] | None
) -> list[str]:
  """The remarks of a level, kind by kind."""
  remarks = []
  for describe in _REMARKS:
    names: dict[str, list[str]] = {}
    for attack in audit.attacks:
      is_shown = shown is None or attack.threat_model in shown
      # Scores from elsewhere are of one attacker, who needs no name.
      name = [words.spell_name(attack.threat_model)] * (
        attack.threat_model != EXTERNAL
      )
      for at, text in describe(audit, attack, is_shown):
        if at == level:
          names.setdefault(text, []).extend(name)
    remarks += [
      f'{"; ".join(who)}: {text}' if who else text
      for text, who in names.items()
    ]
  return remarks


def _warn_of_few(audit: Audit) -> list[str]:
  """That canaries are few; attackers of one audit have about as many."""
  groups = {
    'took part': max((a.num_observed for a in audit.attacks), default=_FEW),
    'held out': max((a.num_unobserved for a in audit.attacks), default=_FEW),
  }
  # Without unobserved canaries the null law is known.
  few = [f'{num:,} {who}' for who, num in groups.items() if 0 < num < _FEW]
  if not few:
    return []
  return [
    f'canaries are few ({", ".join(few)}): estimates scatter, and bounds may stay far '
    'below the ε that leaks. Use hundreds'
  ]


_Remarks = Iterator[tuple[Level, str]]


def _list_failed_checks(
  audit: Audit, attack: AttackResult, is_shown: bool
) -> _Remarks:
  for check in attack.failed_checks:
    yield 'serious' if is_shown else 'other', checks.describe_check(check)


def _list_contradictions(
  audit: Audit, attack: AttackResult, is_shown: bool
) -> _Remarks:
  """That the bound fixed in advance is above what is allowed; and what was measured."""
  if attack.bounds and _is_above(attack, attack.bounds[0]):
    yield _describe_violation(attack, attack.bounds[0])
  for check in attack.contradictions:
    yield 'serious', checks.describe_check(check)


def _describe_violation(
  attack: AttackResult, bound: Estimate
) -> tuple[Level, str]:
  above = f'the lower bound {cells.format_epsilon(bound)} is above {_name_limit(attack)}'
  if not attack.is_violated:
    return 'other', (
      f'{above}: chance explains this, as there are several bounds of {_LEVEL}; with '
      'all tests of this audit counted it is not above'
    )
  assert attack.joint_bound is not None, 'it is above'
  return 'serious', (
    f'{above}, and so is {cells.format_epsilon(attack.joint_bound)}, which holds '
    f'with {_LEVEL} confidence if all tests of this audit are counted: '
    f'{_CLAIM_IS_WRONG}, or what the bound assumes is untrue ({_assumed(bound)})'
  )


def _list_notes(audit: Audit, attack: AttackResult, is_shown: bool) -> _Remarks:
  for note in attack.notes:
    yield 'note', checks.describe_check(note)


def _list_estimate_above(
  audit: Audit, attack: AttackResult, is_shown: bool
) -> _Remarks:
  """A point estimate above what is allowed, by chance or beyond it.

  Nothing follows from one but by an interval, at a level that counts all tests.
  """
  first, analytic = attack.first, attack.analytic
  if not attack.is_calibrated or analytic is None or analytic.kind != 'bound':
    return
  if not upper_bounds.is_above(float(first.epsilon), analytic):
    return
  level: Level = 'note'
  why = 'it has no interval, so that nothing follows'
  if first.interval is not None:
    why = (
      f'its 90 % interval, {cells.format_interval(first.interval)}, is not. Chance '
      'explains this'
    )
    if upper_bounds.is_above(first.interval[0], analytic):
      lowest = find_lowest(audit, first)
      begins = (
        'with all tests of this audit counted, its interval begins at '
        f'{cells.format_number(lowest)}'
      )
      why = f'{begins}. Chance explains this'
      if upper_bounds.is_above(lowest, analytic):
        level, why = (
          'serious',
          f'{begins}. Chance does not explain this: {_CLAIM_IS_WRONG}, or what the '
          f'estimate assumes is untrue ({_assumed(first)})',
        )
  yield (
    level,
    f'the estimate {cells.format_epsilon(first)} is above {_name_limit(attack)}; {why}',
  )


def _list_other_bounds_above(
  audit: Audit, attack: AttackResult, is_shown: bool
) -> _Remarks:
  """Bounds other than that fixed in advance that are above what is allowed."""
  above = [
    f'{cells.format_epsilon(bound)} ({cells.describe_method(bound)}; holds if '
    f'{_assumed(bound)})'
    for bound in attack.bounds[1:]
    if _is_above(attack, bound)
  ]
  worth = f'each holds at {_LEVEL} by itself, and several not all at once'
  if audit.is_simultaneous:
    worth = f'all bounds hold together at {_LEVEL}'
  if above:
    yield (
      'other',
      f'{len(above)} of {len(attack.bounds) - 1} other lower bounds '
      f'{"is" if len(above) == 1 else "are"} above {_name_limit(attack)}: '
      f'{", ".join(above)}. Of these bounds {worth}',
    )


_REMARKS: tuple[Callable[[Audit, AttackResult, bool], _Remarks], ...] = (
  _list_failed_checks,
  _list_contradictions,
  _list_notes,
  _list_estimate_above,
  _list_other_bounds_above,
)


def _is_above(attack: AttackResult, bound: Estimate) -> bool:
  return attack.describe_excess(bound) == 'violation'


def _assumed(estimate: Estimate) -> str:
  return ', '.join(words.list_assumptions(estimate.assumes))


def _name_limit(attack: AttackResult) -> str:
  return f'the limit {cells.format_analytic(attack.analytic)}'
