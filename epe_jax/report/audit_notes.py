"""What a reader has to know next to the numbers of an audit: warnings, and plain notes.

Texts, JSON, pages and comparisons all take them from here.
"""

from collections.abc import Callable, Container, Iterable
import dataclasses

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
_CLAIM_IS_WRONG = 'the run does not match its claim'


def list_warnings(audit: Audit) -> list[str]:
  """What speaks against the numbers of an audit, in sentences without a full stop.
  Returns:
    The serious ones first, then the others; each once.
  """
  return [*list_serious_warnings(audit), *list_other_warnings(audit)]


def list_serious_warnings(
  audit: Audit, shown: Container[ThreatModel] | None = None
) -> list[str]:
  """What a reader of the numbers has to know before all else.

  Args:
    shown: the attackers whose numbers are read; None for all.

  Returns:
    The failed checks of these attackers; of all attackers, what contradicts the claim
    at a level that counts all tests; and that canaries are few.
  """
  failed = _describe_failed_checks(audit, lambda model: _is_in(model, shown))
  violations = (
    (attack, violation)
    for attack in audit.attacks
    if attack.is_violated
    and (violation := describe_violation(attack)) is not None
  )
  measured = (
    (attack, checks.describe_check(check))
    for attack in audit.attacks
    for check in attack.contradictions
  )
  above = _describe_estimates_above(audit, beyond_chance=True)
  return [
    *_warn_of_few(audit),
    *_name_attackers(failed),
    *_name_attackers([*violations, *measured]),
    *_name_attackers(above),
  ]


def list_other_warnings(
  audit: Audit, shown: Container[ThreatModel] | None = None
) -> list[str]:
  """The warnings that `list_serious_warnings` leaves out: chance explains them.

  Args:
    shown: as there.
  """
  failed = _describe_failed_checks(
    audit, lambda model: not _is_in(model, shown)
  )
  by_chance = (
    (attack, violation)
    for attack in audit.attacks
    if not attack.is_violated
    and (violation := describe_violation(attack)) is not None
  )
  return [
    *_name_attackers(failed),
    *_name_attackers(by_chance),
    *_list_other_violations(audit),
  ]


def list_notes(audit: Audit) -> list[str]:
  """What to know of the numbers of an audit, in sentences without a full stop.
  Returns:
    Why a bound is another than usual, what an estimate extrapolates, and every point
    estimate that is above the ε that the mechanism allows, as chance may put it.
  """
  notes = (
    (attack, checks.describe_check(note))
    for attack in audit.attacks
    for note in attack.notes
  )
  return _name_attackers(
    [*notes, *_describe_estimates_above(audit, beyond_chance=False)]
  )


def format_notes(audit: Audit) -> list[str]:
  """Warnings, then notes: each a sentence that says which of the two it is."""
  return [
    *(f'Warning: {warning}.' for warning in list_warnings(audit)),
    *(f'Note: {note}.' for note in list_notes(audit)),
  ]


def replace_checks(audit: Audit, check: Fact) -> Audit:
  """The same audit with one failed check in place of those that follow from it."""
  attacks = (
    dataclasses.replace(attack, failed_checks=(check,), notes=())
    for attack in audit.attacks
  )
  return audit._replace(attacks=tuple(attacks))


def describe_violation(attack: AttackResult) -> str | None:
  """That the bound of an attacker, fixed in advance, is above what is allowed.
  Returns:
    A sentence without its attacker and full stop; None if the bound is not above.
  """
  if not attack.bounds:
    return None
  bound = attack.bounds[0]
  if attack.describe_excess(bound) != 'violation':
    return None
  above = f'the lower bound {cells.format_epsilon(bound)} is above {_name_limit(attack)}'
  if not attack.is_violated:
    return (
      f'{above}, which happens by chance, as there are several bounds of '
      f'{100 - 100 * SIGNIFICANCE:g} %: at a level that counts all tests of this '
      'audit it is not above'
    )
  assert attack.joint_bound is not None, 'it is above'
  return (
    f'{above}, and so is {cells.format_epsilon(attack.joint_bound)}, which holds '
    f'with {100 - 100 * SIGNIFICANCE:g} % confidence if all tests of this audit are '
    f'counted: {_CLAIM_IS_WRONG}, or what the bound assumes is untrue '
    f'({", ".join(words.list_assumptions(bound.assumes))})'
  )


def describe_participations(run: Participations) -> str:
  """Which population the claim covers; empty if clients take part as often as canaries."""
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


def _list_other_violations(audit: Audit) -> list[str]:
  """Bounds other than those fixed in advance that are above what is allowed.
  Returns:
    A sentence for each attacker who has such bounds, without a full stop.
  """
  level = f'{100 - 100 * SIGNIFICANCE:g} %'
  worth = f'each holds at {level} by itself, and several not all at once'
  if audit.is_simultaneous:
    worth = f'all bounds hold together at {level}'
  warnings = []
  for attack in audit.attacks:
    above = [
      f'{cells.format_epsilon(bound)} ({cells.describe_method(bound)}; holds if '
      f'{", ".join(words.list_assumptions(bound.assumes))})'
      for bound in attack.bounds[1:]
      if attack.describe_excess(bound) == 'violation'
    ]
    if above:
      warnings.append(
        (
          attack,
          f'{len(above)} of {len(attack.bounds) - 1} other lower bounds '
          f'{"is" if len(above) == 1 else "are"} above {_name_limit(attack)}: '
          f'{", ".join(above)}. Of these bounds {worth}',
        )
      )
  return _name_attackers(warnings)


def _describe_failed_checks(
  audit: Audit, is_of: Callable[[ThreatModel], bool]
) -> list[tuple[AttackResult, str]]:
  return [
    (attack, checks.describe_check(check))
    for attack in audit.attacks
    if is_of(attack.threat_model)
    for check in attack.failed_checks
  ]


def _is_in(model: ThreatModel, shown: Container[ThreatModel] | None) -> bool:
  return shown is None or model in shown


def _warn_of_few(audit: Audit) -> list[str]:
  """That canaries are few; attackers of one audit have about as many."""
  groups = {
    'took part': max((a.num_observed for a in audit.attacks), default=_FEW),
    'did not': max((a.num_unobserved for a in audit.attacks), default=_FEW),
  }
  # Without unobserved canaries the null law is known.
  few = [f'{num:,} that {who}' for who, num in groups.items() if 0 < num < _FEW]
  if not few:
    return []
  return [
    f'canaries are few ({", ".join(few)}): estimates scatter, and bounds may stay far '
    'below the ε that leaks. Use hundreds'
  ]


def _describe_estimates_above(
  audit: Audit, *, beyond_chance: bool
) -> list[tuple[AttackResult, str]]:
  """The point estimates above what is allowed, by chance or beyond it.

  Nothing follows from one but by an interval, at a level that counts all tests.
  """
  described = []
  for attack in audit.attacks:
    first, analytic = attack.first, attack.analytic
    if not attack.is_calibrated or analytic is None or analytic.kind != 'bound':
      continue
    if not upper_bounds.is_above(float(first.epsilon), analytic):
      continue
    interval, why, accuses = (
      '',
      'it has no interval, so that nothing follows',
      False,
    )
    if first.interval is not None:
      interval = f' (90 % interval {cells.format_interval(first.interval)})'
      why = 'random scatter suffices'
      lowest = _find_lowest(first, audit.significance_of_one)
      accuses = upper_bounds.is_above(lowest, analytic)
    if accuses:
      why = (
        'random scatter does not suffice, even if all tests of this audit are '
        f'counted: {_CLAIM_IS_WRONG}, or what the estimate assumes is untrue '
        f'({", ".join(words.list_assumptions(first.assumes))})'
      )
    if accuses == beyond_chance:
      text = (
        f'the point estimate {cells.format_epsilon(first)}{interval} is above '
        f'{_name_limit(attack)}: {why}'
      )
      described.append((attack, text))
  return described


def _find_lowest(estimate: Estimate, significance: float) -> float:
  """The lower limit of an estimate at a level, from that of its 90 % interval."""
  assert estimate.interval is not None
  below = float(estimate.epsilon) - estimate.interval[0]
  widened = special.ndtri(significance) / special.ndtri(0.05)
  return float(estimate.epsilon - widened * below)


def _name_limit(attack: AttackResult) -> str:
  return f'{cells.format_analytic(attack.analytic)}, the most that the mechanism allows'


def _name_attackers(texts: Iterable[tuple[AttackResult, str]]) -> list[str]:
  """Each text once, after the names of the attackers it is about.

  Scores from elsewhere are of one attacker, who needs no name.
  """
  names: dict[str, list[str]] = {}
  for attack, text in texts:
    of_run = attack.threat_model != EXTERNAL
    names.setdefault(text, []).extend(
      [words.spell_name(attack.threat_model)] * of_run
    )
  return [
    f'{"; ".join(who)}: {text}' if who else text for text, who in names.items()
  ]
