"""What the estimates of an audit mean, in paragraphs."""

import math

from epe_jax.audit import (
  clients,
  effective_dimension,
  threat_models,
  upper_bounds,
)
from epe_jax.audit.evaluation import Agreement, Attack, Audit, Rates
from epe_jax.epsilon import diagnostics, risks, tradeoff_curves
from epe_jax.epsilon.types import Estimate
from epe_jax.experiment.run_result import RunResult
from epe_jax.report import caveats, facts
from epe_jax.text import cells

NOT_AUDITED = (
  'Not audited: no canaries took part, so nothing was measured of what this run '
  'tells of anyone.'
)
"""All there is to say of a run without canaries."""

_UNKNOWN_SHIFT = 'by how much taking part moves a score is not known here'

# The maximum has a paragraph of its own, and the likelihood is never calibrated.
_NOT_NARRATED = (threat_models.MAXIMUM, threat_models.LIKELIHOOD)


def narrate(result: RunResult) -> list[str]:
  """What the estimates mean, for a reader who is no statistician.

  Args:
    result: what result.json holds.

  Returns:
    A paragraph for each attacker, then what the numbers do not say.
  """
  if not result.is_audited:
    return [NOT_AUDITED, *caveats.list_caveats(result)]
  audit = result.audit
  paragraphs = [*filter(None, [facts.describe_participation(result)])]
  if audit.headline is not None:
    paragraphs.append(_describe_headline(audit))
  paragraphs += describe_claim(result)
  paragraphs += [
    f'{attack.threat_model.who}: {_describe_attacker(result, attack)}'
    for attack in audit.attacks
    if attack.threat_model not in _NOT_NARRATED
  ]
  maximum = audit.find(threat_models.MAXIMUM)
  if maximum is not None and result.rounds > 1:
    paragraphs.append(_describe_maximum(result, maximum))
  doubt = effective_dimension.warn_if_low(result.effective_dimension)
  if doubt:
    paragraphs.append(doubt)
  return paragraphs + caveats.list_caveats(result)


def describe_claim(result: RunResult) -> list[str]:
  """Whether the rounds of a run contradict the ε that it claims; a sentence or none."""
  claim, test = result.config['audit'].get('claim'), result.claim
  if claim is None:
    return []
  text = (
    f'The claimed ε = {cells.format_number(claim)} at '
    f'δ = {cells.format_delta(result.delta)}'
  )
  if test is None:
    reason = 'no scores of rounds have a known law'
    return [f'{text} could not be tested: {reason}.']
  evidence = cells.format_evidence(test.log_evidence)
  if test.rejected_after is None:
    return [
      f'{text} is not contradicted: the evidence against it was at most {evidence}, '
      f'and {1 / test.significance:g} rejects it.'
    ]
  return [
    f'{text} is rejected after round {test.rejected_after}, with evidence {evidence} '
    'in the end: of Gaussian mechanisms with this ε at most '
    f'{100 * test.significance:g} % of runs ever are.'
  ]


def is_below_analytic(agreement: Agreement, analytic: float) -> bool:
  """Whether the noise of rounds implies visibly less than the analytic ε.

  An adaptive clip norm spends part of the budget on a noisy count of clients, so
  the updates get more noise than the analytic ε tells.
  """
  return agreement.epsilon < 0.99 * analytic


def name_attacker(attack: Attack) -> str:
  """The attacker as it is called within a sentence."""
  return attack.threat_model.who.replace('An attacker', 'an attacker', 1)


def describe_client(
  attack: Attack, participations: clients.Participations
) -> str:
  """What to expect of a client in the model, after a space; '' where it is no news."""
  client = clients.expect_client(attack, participations)
  if client is None or participations.clients == 1 == participations.canaries:
    return ''
  shares = [
    cells.format_estimated_share(float(risks.compute_risks(mu).accuracy))
    for mu in (
      tradeoff_curves.mu_of_epsilon(x, attack.first.delta) for x in client
    )
  ]
  low, high = map(cells.format_number, client)
  of = f' A client of {cells.format_rounds(participations.clients)}'
  if low == high:
    return f'{of}: ε ≈ {low}, {shares[0]} right guesses at even odds.'
  return (
    f'{of}: ε ≈ {low} if its updates are orthogonal, ε ≈ {high} if they agree; at '
    f'even odds {shares[0]} or {shares[1]} of guesses whether it took part are right.'
  )


def _describe_headline(audit: Audit) -> str:
  """The one bound that the design fixed, and what the other bounds are worth."""
  assert audit.headline is not None
  attack, bound = audit.headline
  assert bound.confidence is not None, 'bounds have one'
  level = f'{100 * bound.confidence:g} %'
  text = (
    f'The lower bound of this report: ε ≥ {cells.format_epsilon(bound)} at '
    f'δ = {cells.format_delta(bound.delta)}, with {level} confidence and '
    'without assuming a shape of scores or mechanism, for '
    f'{name_attacker(attack)}. Which bound this is was fixed by the design and '
    'not by the scores.'
  )
  others = sum(len(attack.bounds) for attack in audit.attacks) - 1
  if others > 0:
    text += (
      f' The {others} others hold at {level} each, not all together: the largest '
      'of them is not a bound.'
    )
  return text


def _describe_attacker(result: RunResult, attack: Attack) -> str:
  """ε of an attacker, how it compares, and what it lets one guess."""
  first = attack.first
  if math.isnan(first.epsilon):
    return 'no ε could be estimated.'
  text = f'ε ≈ {cells.format_epsilon(first)} at δ = {cells.format_delta(first.delta)}'
  if first.is_within_floor:
    return (
      f'{text}. This is not distinguishable from no leakage at all: '
      f'{cells.format_floor(first)} is what this estimator reports in 9 of 10 '
      'audits when nothing leaks.'
    )
  ranges = []
  if interval := cells.format_interval(first.interval):
    ranges.append(f'90 % interval {interval}')
  if floor := cells.format_floor(first):
    ranges.append(f'when nothing leaks this estimator reports {floor}')
  text += f' ({"; ".join(ranges)}).' if ranges else '.'
  if not attack.is_calibrated:
    text += f' Not calibrated: {"; ".join(attack.doubts) or _UNKNOWN_SHIFT}.'
  exposed = attack.find('most_exposed')
  if exposed is not None:
    text += (
      f' That is of a canary of a random round; of the one that shows most, '
      f'ε ≈ {cells.format_epsilon(exposed)}{_describe_own_limit(attack, exposed)}.'
    )
  if attack.rates is not None and attack.is_calibrated:
    text += _describe_guesses(attack.rates)
  text += _compare_with_analysis(result, attack)
  return text + describe_client(attack, facts.count_participations(result))


def _describe_own_limit(attack: Attack, exposed: Estimate) -> str:
  """What is allowed or expected of the most exposed canary itself."""
  limit = upper_bounds.find_limit(exposed, attack.analytic)
  if limit is None:
    return ''
  word = 'allowed' if limit.kind == 'bound' else 'expected'
  return f', where {cells.format_number(limit.epsilon)} is {word}'


def _describe_guesses(rates: Rates) -> str:
  """How well the attack itself guesses who took part."""
  accuracy, at_100, at_1000 = map(
    cells.format_estimated_share, (rates.accuracy, *rates.tpr)
  )
  text = (
    ' Of canaries that take part with a chance of 50 % this attack guesses '
  )
  if accuracy == at_100 == at_1000:
    return (
      f'{text}{accuracy} right, and with one false alarm in 1,000 it finds as '
      'many of those that did.'
    )
  return (
    f'{text}{accuracy} right; allowed one false alarm in 100 it finds {at_100} of '
    f'those that did, and one in 1,000, {at_1000}.'
  )


def _compare_with_analysis(result: RunResult, attack: Attack) -> str:
  """Whether an estimate agrees with norms, and with the analytic ε."""
  limit = facts.find_analytic_epsilon(result)
  is_strongest = attack.threat_model.is_worst_case
  if is_strongest and limit == math.inf:
    return (
      ' Without noise nothing is left but the canary itself, and the analytic ε '
      'is infinite too.'
    )
  text = ''
  if attack.agreement is not None:
    text = _describe_agreement(
      attack.agreement,
      limit if is_strongest else None,
      significance=result.audit.significance_of_one,
    )
  if attack.analytic is None or attack.analytic.kind == 'bound':
    return text
  return text + (
    ' An attacker who knows all but this canary, and so the initial model, is expected '
    f'to find ε = {cells.format_number(attack.analytic.epsilon)} where a server adds up '
    'aggregates and clients do not respond to what it has learnt.'
  )


def _describe_agreement(
  agreement: Agreement, analytic: float | None, *, significance: float
) -> str:
  """How far scores are from what the analytic ε or the norms of rounds imply."""
  errors = (
    f'{abs(agreement.standard_errors):.1f} standard errors '
    f'({diagnostics.format_p_value(agreement.p_value)})'
  )
  if analytic is not None:
    text = (
      f' This is the attacker of the analytic ε, {cells.format_number(analytic)}: '
      f'the shift of the scores differs from the one it implies by {errors}'
    )
    if is_below_analytic(agreement, analytic):
      text = (
        ' This is the attacker of the analytic ε, '
        f'{cells.format_number(analytic)}. The noise of rounds implies '
        f'ε = {cells.format_number(agreement.epsilon)}: the shift of the scores '
        f'differs from that by {errors}'
      )
  else:
    text = (
      f' From the norms of rounds ε = {cells.format_number(agreement.epsilon)} is '
      f'to be expected: the shift of the scores differs by {errors}'
    )
  if agreement.p_value < significance:
    text += (
      ', too many for chance even if all tests of this audit are counted: the run '
      'does not do what is assumed of it'
    )
  return f'{text}.'


def _describe_maximum(result: RunResult, attack: Attack) -> str:
  """ε of the paper's attacker, and why not to believe two fitted Gaussians."""
  first, fitted = attack.first, attack.find('two_gaussian_fitted')
  text = (
    'An attacker who sees what every round releases but does not know when '
    'anyone took part, and takes the largest cosine: '
  )
  if first.method == 'maximum_over_rounds':
    text += f'ε ≈ {cells.format_epsilon(first)} by the law of a maximum'
    if first.is_within_floor:
      text += (
        ', which is not distinguishable from no leakage at all (when nothing '
        f'leaks it gives {cells.format_floor(first)} in 9 of 10 audits)'
      )
    text += '. '
  if attack.doubts:
    text += f'Not calibrated: {"; ".join(attack.doubts)}. '
  if fitted is None:
    return text.rstrip()
  text += (
    f"The paper's two fitted Gaussians give {cells.format_epsilon(fitted)}"
  )
  if fitted.is_within_floor:
    return text + (
      ', which is not distinguishable from no leakage at all: when nothing leaks '
      f'they give {cells.format_floor(fitted)} in 9 of 10 audits.'
    )
  text += (
    f': this fit extrapolates, as the largest of {result.rounds:,} cosines '
    'varies less than one does, and ε is read from tails where no canary was.'
  )
  limit = facts.find_analytic_epsilon(result)
  if attack.analytic is not None:
    limit = attack.analytic.epsilon
  if fitted.epsilon > limit:
    text += (
      f' That exceeds the analytic ε of {cells.format_number(limit)}, which the '
      'true ε cannot.'
    )
  return text
