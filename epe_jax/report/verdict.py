"""The verdict on a run, in a few sentences."""

import math

from epe_jax.audit import threat_models
from epe_jax.audit.evaluation import Attack, Audit
from epe_jax.epsilon.types import Estimate
from epe_jax.experiment.run_result import RunResult
from epe_jax.report import facts, narrative
from epe_jax.text import audit_notes, cells


def give_verdict(result: RunResult) -> list[str]:
  """A few sentences: what is certain, what is likely, what to doubt.

  Args:
    result: what result.json holds.
  """
  if not result.is_audited:
    return [narrative.NOT_AUDITED]
  return [
    *_state_findings(result),
    *narrative.describe_claim(result),
    *_list_doubts(result.audit),
  ]


def give_short_verdict(result: RunResult) -> list[str]:
  """What is certain, what is likely, what to doubt: a sentence each.

  Args:
    result: what result.json holds.
  """
  if not result.is_audited:
    return [narrative.NOT_AUDITED]
  audit = result.audit
  # What speaks against the run comes before what it claims.
  last = [
    *(_list_doubts(audit) if any(a.is_violated for a in audit.attacks) else ()),
    *narrative.describe_claim(result),
    *_list_doubts(audit),
  ]
  # An alarm stays the last sentence.
  return [*_state_findings(result), *last[:1]]


def is_alarming(result: RunResult) -> bool:
  """Whether a pre-declared bound, or the rounds of a run, contradict its claim."""
  if result.claim is not None and result.claim.rejected_after is not None:
    return True
  return any(attack.is_violated for attack in result.audit.attacks)


def _state_findings(result: RunResult) -> list[str]:
  """What is certain and what is likely, of canaries and of a client."""
  sentences = []
  if result.audit.headline is not None:
    sentences.append(_state_headline(result, *result.audit.headline))
  final = result.audit.find(threat_models.FINAL)
  if final is not None:
    sentences.append(_describe_final_model(result, final))
  return sentences


def _state_headline(result: RunResult, attack: Attack, bound: Estimate) -> str:
  """The bound that the design fixed, beside what the analysis allows."""
  assert bound.confidence is not None, 'bounds have one'
  limit = facts.find_analytic_epsilon(result)
  participations = facts.count_participations(result)
  whose, client = '', ''
  if participations.differ:
    whose = f' of a canary of {facts.count_rounds_of_canary(participations)}'
    client = (
      f'. A client takes part in up to {cells.format_rounds(participations.clients)}, '
      f'{facts.describe_limit_of_client(result)}'
    )
  allowed = (
    'without noise there is no limit to it'
    if limit == math.inf
    else f'the analysis allows {cells.format_number(limit)} at most'
  )
  return (
    f'With {100 * bound.confidence:g} % confidence '
    f'ε ≥ {cells.format_epsilon(bound)} at δ = {cells.format_delta(bound.delta)}'
    f'{whose} for {narrative.name_attacker(attack)}; {allowed}{client}.'
  )


def _describe_final_model(result: RunResult, attack: Attack) -> str:
  """How much the final model alone tells of a canary, and of a client."""
  participations = facts.count_participations(result)
  text = f'The final model alone: ε ≈ {cells.format_epsilon(attack.first)}'
  if participations.differ:
    text += f' of a canary of {facts.count_rounds_of_canary(participations)}'
  client = narrative.describe_client(attack, participations)
  if attack.first.is_within_floor:
    return f'{text}, which is what is found where nothing leaks.{client}'
  if not attack.is_calibrated:
    # The number could be above the analytic ε, and is not for a verdict.
    return f'The final model alone: no estimate is calibrated.{client}'
  if client or attack.rates is None:
    return f'{text}.{client}'
  return (
    f'{text}; at even odds this attack tells whether a canary took part in '
    f'{cells.format_estimated_share(attack.rates.accuracy)} of cases.'
  )


def _list_doubts(audit: Audit) -> list[str]:
  """What speaks against the estimates, or that nothing does; one sentence."""
  violated = [attack for attack in audit.by_strength if attack.is_violated]
  if violated:
    attack = violated[-1]
    return [
      f'For {narrative.name_attacker(attack)} '
      f'{audit_notes.describe_violation(attack)}.'
    ]
  doubted = [attack for attack in audit.attacks if attack.doubts]
  strongest = audit.by_strength[-1]
  agreement, analytic = strongest.agreement, strongest.analytic
  if analytic is not None and math.isinf(analytic.epsilon):
    # There is nothing that the analysis implies.
    agreement = None
  if agreement is not None and agreement.p_value < audit.significance_of_one:
    return [
      f'The strongest attack differs from {_name_expectation(audit)} by '
      f'{abs(agreement.standard_errors):.1f} standard errors, too many for chance '
      'even if all tests are counted: the run does not do what is assumed of it.'
    ]
  if doubted:
    names = ', '.join(attack.threat_model.name for attack in doubted)
    return [f'Tests contradict the estimates of: {names}.']
  if agreement is not None:
    return [
      f'The strongest attack finds {_name_expectation(audit)}, within '
      f'{max(0.1, abs(agreement.standard_errors)):.1f} standard errors.'
    ]
  return []


def _name_expectation(audit: Audit) -> str:
  """What the strongest attack should find."""
  *_, strongest = audit.by_strength
  agreement, analytic = strongest.agreement, strongest.analytic
  if (
    agreement is None
    or analytic is None
    or not narrative.is_below_analytic(agreement, analytic.epsilon)
  ):
    return 'what the analysis implies'
  # The reader compares it with the analytic ε, which is in the table.
  return (
    f'the ε = {cells.format_number(agreement.epsilon)} that the noise of rounds '
    'implies'
  )
