"""Sentences about a finished run, each made once.

A terminal, Markdown, HTML and the card all take them from here: what the run was, a
verdict, what each attacker learns, what is assumed and what was not measured, and the
titles of figures.
"""

from collections.abc import Mapping, Sequence
import math
from typing import Any

import numpy as np

from epe_jax.audit import (
  clients,
  threat_models,
  upper_bounds,
)
from epe_jax.audit.attack_results import (
  Agreement,
  Attack,
  Audit,
  Rates,
  RoundEstimate,
)
from epe_jax.audit.clients import Participations
from epe_jax.audit.record import respond_at_end
from epe_jax.epsilon.null_laws import diagnostics
from epe_jax.epsilon.trade_offs import risks, tradeoff_curves
from epe_jax.epsilon.types import Estimate
from epe_jax.experiment.run_result import RunResult
from epe_jax.report import facts
from epe_jax.text import audit_notes, cells, checks, methods
from epe_jax.text.audit_notes import warn_of_low_dimension

NOT_AUDITED = (
  'Not audited: no canaries took part, so nothing was measured of what this run '
  'tells of anyone.'
)
"""All there is to say of a run without canaries."""

NO_CANARIES = 'not audited: no canaries'

ABOUT_RISKS = (
  'How well the best attack on a client of this run does. "In or out": share of right '
  'guesses whether a person took part, at even odds. "Found": share of those who took '
  f'part that is found, with {100 * clients.FPR:g} false alarm in 100. "Named": probability that '
  f'whoever is named did take part, if {100 * clients.PRIOR:g} in 100 did. "Secret": largest '
  'probability of guessing an attribute or record of a person that anyone guesses with '
  f'probability {clients.BASELINE:g}. Without a word: of a Gaussian mechanism with the '
  'estimated ε (in brackets: with the limits of its interval), if canaries take part '
  'as clients do. "At most": what the mechanism allows. "Expected": what a linear '
  'server leaves of a client in the model; of several updates, from those that are '
  'orthogonal to those that agree.'
)
"""What the columns of the table of risks are."""

# A regret is known to about as much.
_EXACT_REGRET = 1e-4
_UNKNOWN_SHIFT = 'by how much taking part moves a score is not known here'
_ABOUT_EXCESSES: dict[upper_bounds.Excess, str] = {
  'violation': (
    'A lower bound above the analytic ε: 1 in 20 is too high by chance, and more '
    'where what a bound assumes is not so. The more bounds there are, the likelier is '
    'one that is too high. A warning says so where a bound is above it at a level that '
    'counts all tests, and only then is it evidence against the run.'
  ),
  'extrapolates': (
    'A point estimate above the analytic ε, by more than its error: random scatter, or '
    'an ε read from tails of a law where no canary was. A note says where scatter does '
    'not suffice.'
  ),
  'more than expected': (
    'Above the expected ε: more than a server that adds up aggregates would leave if '
    'clients did not respond to what it has learnt. That is no limit.'
  ),
}
_ABOUT_EPS_LO = (
  'The paper calls its ε_lo a lower bound at 95 %. It is not a bound: it takes '
  'the best of many thresholds but corrects only for the error of one, so it can '
  'exceed the true ε in far more than 5 % of audits.'
)
_ABOUT_COIN_FLIPS = (
  'Each canary was included independently with probability 1/2. The bounds from '
  'one run need only this, and nothing about the scores of canaries or their '
  'law. The one for a Gaussian f also assumes that the mechanism is Gaussian, '
  'as that of this run is by design.'
)
_ABOUT_CONFIDENCE_BOUNDS = (
  'A lower bound at 95 % exceeds the true ε in at most 5 % of audits, if '
  'canaries score independently. It does not say how far below the truth it '
  'is. A bound "if Gaussian" holds only if scores are Gaussian, and tests '
  'detect only large deviations from that.'
)
_ABOUT_CREDIBLE_BOUNDS = (
  'A credible bound holds as often as it states on average over its prior; at '
  'a given ε it may fail more often.'
)


def count_rounds_of_canary(participations: Participations) -> str:
  """The rounds of a canary, as text."""
  rounds = cells.format_rounds(participations.canaries)
  return f'up to {rounds}' if participations.canaries_vary else rounds


def describe_participation(result: RunResult) -> str | None:
  """In how many rounds canaries and clients take part; None if it is the same."""
  participations = facts.count_participations(result)
  if not result.is_audited or not participations.differ:
    return None
  of_canary = count_rounds_of_canary(participations)
  of_client = cells.format_rounds(participations.clients)
  epsilon = result.clients_analytic_epsilon
  limit = (
    'without noise there is no limit to its ε'
    if epsilon == math.inf
    else f'is allowed ε = {cells.format_number(epsilon)}'
  )
  return (
    f'Canaries take part in {of_canary}, and what they show is of as many. A client '
    f'of this run takes part in up to {of_client}, and {limit}.'
  )


def describe_run(result: RunResult) -> str:
  """The run in one line: task, sizes, canaries, noise, δ and accuracy."""
  total = result.num_observed + result.num_unobserved
  coins = describe_coins(result)
  canaries = (
    f'{result.num_observed:,} of {total:,} canaries in{coins} for '
    f'{count_rounds_of_canary(facts.count_participations(result))}'
  )
  if not result.is_audited:
    canaries = NO_CANARIES
  return (
    f'{result.task}: {result.rounds:,} rounds, d = {result.dim:,}, '
    f'{canaries}, noise {result.noise_multiplier:g}, '
    f'δ = {cells.format_delta(result.delta)}, '
    f'accuracy {cells.format_percent(result.accuracy)} (majority class: '
    f'{cells.format_percent(result.baseline_accuracy)})'
  )


def describe_overflow(history: Sequence[Mapping[str, Any]]) -> list[str]:
  """The number of rounds in which clients diverged, so that their updates were lost.

  CLIP(x; S) = x min(1, S / |x|) is 0 where |x| overflows float32. Metrics have the
  mean norm of a round's updates, so they do not tell how many of its clients it was.

  Args:
    history: the lines of metrics.jsonl. Those that may be published have no norms of
      updates, and nothing is said of them.

  Returns:
    One paragraph; nothing if all norms are finite.
  """
  rounds = [line for line in history if 'update_norm' in line]
  lost = [x for x in rounds if not math.isfinite(float(x['update_norm']))]
  if not lost:
    return []
  empty = sum(float(line.get('sum_norm', math.nan)) == 0 for line in lost)
  text = (
    f'In {len(lost):,} of {len(rounds):,} rounds clients diverged: the norm of at '
    'least one update overflowed, and clipping made such updates zero.'
  )
  if empty:
    text += (
      f' In {empty:,} of them nothing was left of any update, so the model learned '
      'nothing from its clients.'
    )
  return [f'{text} Lower config.client.learning_rate.']


def give_verdict(result: RunResult) -> list[str]:
  """The verdict on a run: the bound, the final model, and evidence against either.

  Args:
    result: what result.json holds.
  """
  if not result.is_audited:
    return [NOT_AUDITED]
  last = [*_list_doubts(result.audit), *describe_claim(result)]
  if any(attack.is_violated for attack in result.audit.attacks):
    # What alarms stays the last sentence.
    last = last[::-1]
  return [*_state_findings(result), *last]


def _state_findings(result: RunResult) -> list[str]:
  """The headline, and the ε of the final model."""
  sentences = []
  if result.audit.headline is not None:
    sentences.append(_state_headline(result, *result.audit.headline[:2]))
  final = result.audit.find(threat_models.FINAL)
  if final is not None:
    sentences.append(_describe_final_model(result, final))
  return sentences


def _state_headline(result: RunResult, attack: Attack, bound: Estimate) -> str:
  """The bound that the design fixed, and the analytic ε."""
  assert bound.confidence is not None, 'bounds have one'
  participations = facts.count_participations(result)
  whose = ''
  if participations.differ:
    whose = f' of a canary of {count_rounds_of_canary(participations)}'
  return (
    f'With {100 * bound.confidence:g} % confidence '
    f'ε ≥ {cells.format_epsilon(bound)} at δ = {cells.format_delta(bound.delta)}'
    f'{whose} for {name_attacker(attack)}; {_describe_limit(result)}.'
  )


def _describe_final_model(result: RunResult, attack: Attack) -> str:
  """ε of the attacker that sees the final model alone, of a canary and of a client."""
  participations = facts.count_participations(result)
  text = f'The final model alone: ε ≈ {cells.format_epsilon(attack.first)}'
  if participations.differ:
    text += f' of a canary of {count_rounds_of_canary(participations)}'
  client = describe_client(attack, participations)
  if attack.first.is_within_floor:
    return f'{text}, which is what is found where nothing leaks.{client}'
  if not attack.is_calibrated:
    # The number could be above the analytic ε, and is not for a verdict.
    return f'The final model alone: no estimate is calibrated.{client}'
  guesses = facts.estimate_guesses(attack, participations)
  if client or guesses is None:
    return f'{text}.{client}'
  return (
    f'{text}; at even odds this attack tells whether a canary took part in '
    f'{cells.format_estimated_share(guesses)} of cases.'
  )


def _list_doubts(audit: Audit) -> list[str]:
  """The strongest evidence against the estimates, or that there is none."""
  if not audit.attacks:
    return []
  violated = [attack for attack in audit.by_strength if attack.is_violated]
  if violated:
    attack = violated[-1]
    return [
      f'For {name_attacker(attack)} {audit_notes.describe_violation(attack)}.'
    ]
  doubted = [attack for attack in audit.attacks if attack.failed_checks]
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
  """The ε that the strongest attack should find."""
  *_, strongest = audit.by_strength
  agreement, analytic = strongest.agreement, strongest.analytic
  if (
    agreement is None
    or analytic is None
    or not is_below_analytic(agreement, analytic.epsilon)
  ):
    return 'what the analysis implies'
  # The reader compares it with the analytic ε, which is in the table.
  return (
    f'the ε = {cells.format_number(agreement.epsilon)} that the noise of rounds '
    'implies'
  )


def narrate(result: RunResult) -> list[str]:
  """What the estimates mean, for a reader without statistics.

  Args:
    result: what result.json holds.

  Returns:
    A paragraph for each attacker, then what the numbers do not say.
  """
  if not result.is_audited:
    return [NOT_AUDITED, *list_caveats(result)]
  audit, paragraphs = result.audit, []
  if audit.headline is not None:
    paragraphs.append(_describe_headline(audit))
  paragraphs += describe_claim(result)
  paragraphs += [
    f'{attack.threat_model.who}: {_describe_attacker(result, attack)}'
    for attack in audit.attacks
    if attack.threat_model.is_narrated
    # It has a paragraph of its own.
    and attack.threat_model != threat_models.MAXIMUM
  ]
  maximum = audit.find(threat_models.MAXIMUM)
  if maximum is not None and result.rounds > 1:
    paragraphs.append(_describe_maximum(result, maximum))
  doubt = warn_of_low_dimension(result.effective_dimension)
  if doubt:
    paragraphs.append(doubt)
  return paragraphs + list_caveats(result)


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
  """The description of an attacker within a sentence."""
  return attack.threat_model.who.replace('An attacker', 'an attacker', 1)


def describe_client(attack: Attack, participations: Participations) -> str:
  """The ε expected of a client, after a space; '' if a canary shows the same."""
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
  """The bound that the design fixed, and the worth of the other bounds."""
  assert audit.headline is not None
  attack, bound, _ = audit.headline
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
  """ε of an attacker, its ranges, its guesses, and the comparison with the analysis."""
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
    text += f' Not calibrated: {_list_failed(attack) or _UNKNOWN_SHIFT}.'
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


def _list_failed(attack: Attack) -> str:
  return '; '.join(map(checks.describe_check, attack.failed_checks))


def _describe_own_limit(attack: Attack, exposed: Estimate) -> str:
  """The analytic ε of the most exposed canary, or its expectation."""
  limit = upper_bounds.find_limit(exposed, attack.analytic)
  if limit is None:
    return ''
  word = 'allowed' if limit.kind == 'bound' else 'expected'
  return f', where {cells.format_number(limit.epsilon)} is {word}'


def _describe_guesses(rates: Rates) -> str:
  """The rates of the attack itself, of canaries."""
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
  """The distance of scores from the shift that the analytic ε or norms imply."""
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
  """ε of the maximum over rounds, and why two fitted Gaussians exaggerate it."""
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
  if attack.failed_checks:
    text += f'Not calibrated: {_list_failed(attack)}. '
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


def list_caveats(result: RunResult) -> list[str]:
  """Paragraphs on what the estimates of a run do not say.

  Args:
    result: what result.json holds.
  """
  estimates = [e for attack in result.audit.attacks for e in attack.estimates]
  kinds = {estimate.kind for estimate in estimates}
  caveats = [_describe_worth(result)]
  if any(estimate.method == 'eps_lo' for estimate in estimates):
    caveats.append(_ABOUT_EPS_LO)
  if facts.is_coin_flip(result):
    caveats.append(_ABOUT_COIN_FLIPS)
  if 'confidence bound' in kinds:
    caveats.append(_ABOUT_CONFIDENCE_BOUNDS)
  if 'credible bound' in kinds:
    caveats.append(_ABOUT_CREDIBLE_BOUNDS)
  caveats += describe_hidden_state(result)
  if result.noise != 'fresh' and result.noise_multiplier > 0:
    caveats.append(
      f'The noise of this run is a {result.noise}: anyone who has the seed can '
      'subtract it, so do not publish this model.'
    )
  return caveats


def _describe_worth(result: RunResult) -> str:
  """The worth of a point estimate, and the limit of every attack."""
  limit = 'Only the analytic ε limits every attack, if its assumptions hold.'
  if facts.find_analytic_epsilon(result) == math.inf:
    limit = 'Without noise there is no limit: the analytic ε is infinite.'
  if not result.is_audited:
    return limit
  return (
    'A point estimate describes one attack on canaries, which are updates of '
    'the full clip norm in random directions. It is not a guarantee: another '
    f'attack may learn more. {limit}'
  )


def list_assumptions(result: RunResult) -> list[str]:
  """What the headline and the analytic ε rest on, a sentence each.

  Args:
    result: what result.json holds.
  """
  assumptions = [
    'Two runs are neighbours if they differ in one client, who takes part in one run '
    'and not in the other. The divisor of a round is the same in both.'
  ]
  if result.audit.headline is not None:
    attack, bound, _ = result.audit.headline
    listed = '; '.join(bound.assumes) or 'nothing'
    assumptions.append(
      f'The lower bound ({methods.describe_method(bound)}, '
      f'{attack.threat_model.name}) assumes: {listed}.'
    )
  assumptions += [
    f'The analytic ε of {one.who} is of {one.assumes}.'
    for one in facts.list_analytic_epsilons(result)
  ]
  if result.is_audited and result.clients_participations > 1:
    assumptions.append(
      'What is expected of a client in the model assumes a linear server, the same '
      'weight of its rounds as of those of canaries, and updates of the full clip '
      'norm.'
    )
  if result.is_simulation:
    assumptions.append(
      'The run is a reproducible simulation: noise and sampling follow from the seed, '
      'and count as unknown to attackers.'
    )
  return assumptions


def describe_hidden_state(result: RunResult) -> list[str]:
  """The protection by hiding all models but the last; a sentence or none.

  A canary that is in every round adds T S c to the sum of all aggregates, in which
  the noise is N(0, T (z S)² I). A server that adds them up publishes this sum with
  its final model, which has μ = √T/z, as the rounds have together. Momentum β weighs
  round t by w_t = 1 - β^(T - t), which leaves Σ_t w_t / |w| of √T.

  Args:
    result: what result.json holds.
  """
  server = result.config.get('server') or {}
  clipping = result.config.get('clipping') or {}
  is_linear = (
    server.get('optimizer', 'sgd') == 'sgd'
    # Rounds of other clip norms have other weights.
    and clipping.get('kind', 'fixed') == 'fixed'
  )
  is_in_all = result.is_audited and result.repetitions == result.rounds > 1
  if not (is_linear and is_in_all and result.noise_multiplier > 0):
    return []
  weights = respond_at_end(
    result.rounds, momentum=server.get('momentum') or 0.0
  )
  share = weights.sum() / math.sqrt(result.rounds) / np.linalg.norm(weights)
  mu = math.sqrt(result.rounds) / result.noise_multiplier
  worth, amount = 'is no protection', 'as much as all rounds together'
  sizes = f'μ = √T/z = {cells.format_number(mu)}'
  if share < 1 - 1e-9:
    worth, amount = 'protects little', 'nearly as much as all rounds together'
    sizes = f'μ = {cells.format_number(share * mu)} of √T/z = {cells.format_number(mu)}'
  epsilon = float(tradeoff_curves.epsilon_gdp(share * mu, result.delta))
  return [
    f'A hidden state {worth} here: canaries are in all {result.rounds:,} rounds and '
    'the server adds up aggregates, so that but for how clients respond the final '
    f'model tells {amount}, {sizes}, or ε = {cells.format_number(epsilon)}.'
  ]


def list_not_measured(result: RunResult) -> list[str]:
  """What the audit did not measure, a sentence each.

  Args:
    result: what result.json holds.
  """
  if not result.is_audited:
    return ['Anything about what the run reveals: no canaries took part.']
  present = {attack.threat_model for attack in result.audit.attacks}
  missing = [t.name for t in threat_models.THREAT_MODELS if t not in present]
  listed = [
    'Clients themselves. Canaries are random directions of the full clip norm. They '
    'represent a client who sends the worst update.',
    'Whether updates of clients are clipped: canaries have the clip norm from the '
    'start.',
    'Attacks that use more than a score of each canary, such as other statistics or '
    'what a client does on the device.',
    'Everything around training: who could read updates before they were summed, how '
    'the random numbers of the noise were generated, how the model was selected.',
  ]
  participations = facts.count_participations(result)
  if participations.differ:
    listed.insert(
      1,
      f'Clients who take part in {cells.format_rounds(participations.clients)}: '
      f'canaries took part in {count_rounds_of_canary(participations)}.',
    )
  if missing:
    listed.append(f'These attackers: {", ".join(missing)}.')
  return listed


def describe_coins(result: RunResult) -> str:
  """The odds of inclusion, after the number of canaries; '' for a fixed design."""
  return ', each with probability 1/2' if facts.is_coin_flip(result) else ''


def explain_excess(attacks: Sequence[Attack]) -> list[str]:
  """The meaning of estimates above the analytic ε; a sentence for each kind."""
  excesses = {
    attack.describe_excess(estimate)
    for attack in attacks
    for estimate in attack.estimates
  }
  return [
    text for excess, text in _ABOUT_EXCESSES.items() if excess in excesses
  ]


def name_excess(excess: upper_bounds.Excess) -> str:
  """The limit that an estimate exceeds, as a cell."""
  return (
    'above the expected ε'
    if excess == 'more than expected'
    else 'above the analytic ε'
  )


def explain_regret(attacks: Sequence[Attack]) -> str | None:
  """What a μ misstates of mechanisms that are not Gaussian; None if all are."""
  regrets = {
    attack.threat_model.name: upper_bounds.compute_gaussian_regret(
      attack.analytic, attack.first.delta
    )
    for attack in attacks
    if attack.analytic is not None
  }
  misstated = {
    name: x for name, x in regrets.items() if x and x > _EXACT_REGRET
  }
  if not misstated:
    return None
  listed = ', '.join(f'{x:.2g} for {name}' for name, x in misstated.items())
  text = (
    'A μ describes a Gaussian mechanism. What these attackers are allowed is not '
    'exactly Gaussian, so rates of false positives and false negatives that are '
    f'computed from a μ are wrong by up to (the regret): {listed}.'
  )
  exact = [
    name for name, x in regrets.items() if x is not None and x <= _EXACT_REGRET
  ]
  return f'{text} They are exact for {"; ".join(exact)}.' if exact else text


def title_attackers(result: RunResult) -> str:
  """Title: the lower bound that the design fixed, and the analytic ε."""
  if result.audit.headline is None:
    return 'No lower bound could be made'
  attack, bound, _ = result.audit.headline
  return (
    f'ε ≥ {cells.format_epsilon(bound)} with {100 * (bound.confidence or 0):.4g} % '
    f'confidence ({attack.threat_model.name}); {_describe_limit(result)}'
  )


def title_attack(attack: Attack, participations: Participations) -> str:
  """Title: ε of an attack, and its share of right guesses at even odds."""
  if not attack.is_calibrated:
    return 'not calibrated'
  text = f'ε ≈ {cells.format_epsilon(attack.first)}'
  if participations.differ:
    text = f'{count_rounds_of_canary(participations)}: {text}'
  guesses = facts.estimate_guesses(attack, participations)
  if guesses is None:
    return text
  return f'{text}, {cells.format_estimated_share(guesses)} of guesses right'


def title_tradeoff(result: RunResult) -> str:
  """Title: whether errors stay above the least that the mechanism allows."""
  headline = result.audit.headline
  if headline is None:
    return 'Errors of each attack'
  attack, bound, _ = headline
  if attack.is_violated:
    return (
      f'{attack.threat_model.name}: errors are below what the mechanism allows, '
      f'ε ≥ {cells.format_epsilon(bound)}'
    )
  return (
    f'{attack.threat_model.name}: errors reach down to ε ≥ '
    f'{cells.format_epsilon(bound)} (95 %); {_describe_limit(result)}'
  )


def title_over_delta(result: RunResult) -> str:
  """Title: the range of calibrated ε, and the analytic ε."""
  epsilons = [
    float(attack.first.epsilon)
    for attack in result.audit.attacks
    if attack.is_calibrated and math.isfinite(attack.first.epsilon)
  ]
  if not epsilons:
    return f'No estimate is calibrated; {_describe_limit(result)}'
  low, high = map(cells.format_number, (min(epsilons), max(epsilons)))
  between = low if low == high else f'{low} to {high}'
  return (
    f'At δ = {cells.format_delta(result.delta)} attackers learn ε ≈ {between}; '
    f'{_describe_limit(result)}'
  )


def title_over_rounds(estimates: Sequence[RoundEstimate]) -> str:
  """Title: ε of the model and of the releases after the last round."""
  last = max(one.round for one in estimates)
  found = {
    one.threat_model: one.estimate
    for one in estimates
    if one.round == last and one.estimate.kind == 'point estimate'
  }
  parts = [
    f'{attacker.name} ε ≈ {cells.format_epsilon(found[attacker])}'
    for attacker in threat_models.sort_by_strength(found)
    if attacker.is_in_overview
  ]
  after = f'After {last:,} {"round" if last == 1 else "rounds"}'
  return f'{after}: {", ".join(parts) or "no estimate is calibrated"}'


def _describe_limit(result: RunResult) -> str:
  limit = facts.find_analytic_epsilon(result)
  if math.isnan(limit):
    return 'the analytic ε is not known'
  if limit == math.inf:
    return 'without noise there is no limit'
  return f'the analysis allows {cells.format_number(limit)} at most'
