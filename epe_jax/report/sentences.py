"""Sentences about a finished run, for the appendix of its report and for figures."""

from collections.abc import Sequence
import math

from epe_jax.audit import attackers
from epe_jax.audit.results import AttackResult, Audit
from epe_jax.experiment.client_rounds import Participations
from epe_jax.experiment.run_result import RunResult
from epe_jax.report import audit_notes, cells, clients, leaks, words
from epe_jax.watch.by_round import RoundEstimate

NOT_AUDITED = (
  'Not audited: no canaries took part, so nothing was measured of what this run '
  'tells of anyone.'
)
"""All there is to say of a run without canaries."""

ABOUT_RISKS = (
  'How well the best attack on a client does. Right guesses: its accuracy, if half of the '
  'candidates took part; chance is 50 %. Members found: its true positive rate at '
  f'{100 * clients.FPR:g} % false positives. Right accusations: its precision, if '
  f'{100 * clients.PRIOR:g} % of the candidates took part. Secrets guessed: how often it '
  'finds an attribute that is otherwise guessed with probability '
  f'{clients.BASELINE:g}. Without a word, a number follows from the estimated ε and, in '
  'brackets, from its interval: for a model, of a client of a random round, else of a '
  'Gaussian mechanism. "At most" is the maximum by analysis, "expected" what is expected '
  'if the server only adds up aggregates.'
)
"""What the columns of the table of risks are."""

_NEIGHBOURS = (
  'Two runs are neighbours if they differ in one client, who takes part in one run '
  'and not in the other. The divisor of a round is the same in both.'
)
_ABOUT_COIN_FLIPS = (
  'Each canary was included independently with probability 1/2. The bounds from one '
  'run need only this. The one for a Gaussian f also assumes that the mechanism is '
  'Gaussian.'
)
_ABOUT_INDEPENDENCE = (
  'A 95 % lower bound exceeds the true ε in at most 5 % of audits, if canaries are '
  'independent. This holds for each bound, not for all of them together.'
)
_ABOUT_CREDIBLE_BOUNDS = (
  'A credible bound holds as often as it states on average over its prior; at a given ε '
  'it may fail more often.'
)
_ABOUT_CLIENTS = (
  'What is expected of a client in the model assumes a server that adds up aggregates, '
  'updates of the full clip norm, and an attacker who does not know its rounds.'
)
_ABOUT_SEED = 'Noise and sampling follow from the seed, which attackers are assumed not to know.'


def count_rounds_of_canary(participations: Participations) -> str:
  """The rounds of a canary, as text."""
  rounds = cells.format_rounds(participations.canaries)
  return f'up to {rounds}' if participations.canaries_vary else rounds


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
    whom = audit_notes.describe_participations(
      leaks.count_participations(result)
    )
    text += (
      f' is not contradicted: the evidence against it was at most {evidence}, '
      f'and {1 / test.significance:g} rejects it. {whom}'
    )
    return [text.rstrip()]
  return [
    f'{text} is rejected after round {test.rejected_after}, with evidence of up to '
    f'{evidence}: of Gaussian mechanisms with this ε at most '
    f'{100 * test.significance:g} % of runs ever are.'
  ]


def contradict_expectation(audit: Audit) -> list[str]:
  """That the strongest attack finds another ε than norms imply, beyond chance."""
  if not audit.attacks:
    return []
  strongest = audit.by_strength[-1]
  agreement, analytic = strongest.agreement, strongest.analytic
  # Without noise there is nothing that the analysis implies.
  is_limitless = analytic is not None and math.isinf(analytic.epsilon)
  if agreement is None or is_limitless:
    return []
  if agreement.p_value >= audit.significance_of_one:
    return []
  return [
    f'The strongest attack differs from the ε = '
    f'{cells.format_number(agreement.epsilon)} that it should find by '
    f'{cells.format_errors(abs(agreement.standard_errors))}, too many for chance even if '
    'all tests are counted: the run does not do what is assumed of it.'
  ]


def list_assumptions(result: RunResult) -> list[str]:
  """What bounds and the analytic ε rest on, a sentence each."""
  audit = result.audit
  kinds = {e.kind for attack in audit.attacks for e in attack.estimates}
  of_headline = ''
  if audit.headline is not None:
    attack, bound, _ = audit.headline
    assumed = '; '.join(words.list_assumptions(bound.assumes)) or 'nothing'
    of_headline = (
      f'The pre-declared lower bound ({cells.describe_method(bound)}, '
      f'{words.spell_name(attack.threat_model)}) assumes: {assumed}.'
    )
  are_many = result.is_audited and result.clients_participations > 1
  said = {
    _NEIGHBOURS: True,
    of_headline: audit.headline is not None,
    _ABOUT_COIN_FLIPS: leaks.is_coin_flip(result),
    _ABOUT_INDEPENDENCE: 'confidence_bound' in kinds
    and not audit.is_simultaneous,
    _ABOUT_CREDIBLE_BOUNDS: 'credible_bound' in kinds,
    _ABOUT_CLIENTS: are_many,
    _ABOUT_SEED: result.is_simulation,
  }
  return [sentence for sentence, is_so in said.items() if is_so]


def title_attackers(result: RunResult) -> str:
  """Title: the lower bound that the design fixed, and the limit."""
  if result.audit.headline is None:
    return 'No lower bound could be made'
  attack, bound, _ = result.audit.headline
  return (
    f'{words.spell_name(attack.threat_model)}: ε ≥ {cells.format_epsilon(bound)} with '
    f'{100 * (bound.confidence or 0):.4g} % confidence; {_describe_limit(result)}'
  )


def title_attack(attack: AttackResult, participations: Participations) -> str:
  """Title: ε of an attack, and its share of right guesses at even odds."""
  if not attack.is_calibrated:
    return 'not calibrated'
  text = f'ε ≈ {cells.format_epsilon(attack.first)}'
  if participations.differ:
    text = f'{count_rounds_of_canary(participations)}: {text}'
  guesses = leaks.estimate_guesses(attack, participations)
  if guesses is None:
    return text
  return f'{text}, {cells.format_estimated_share(guesses)} of guesses right'


def title_tradeoff(result: RunResult) -> str:
  """Title: whether errors stay above the least that the mechanism allows."""
  if result.audit.headline is None:
    return 'Errors of each attack'
  attack, bound, _ = result.audit.headline
  name, epsilon = (
    words.spell_name(attack.threat_model),
    f'ε ≥ {cells.format_epsilon(bound)}',
  )
  if attack.is_violated:
    return f'{name}: errors are below what the mechanism allows, {epsilon}'
  return (
    f'{name}: errors reach down to {epsilon} (95 %); {_describe_limit(result)}'
  )


def title_over_delta(result: RunResult) -> str:
  """Title: the range of calibrated ε, and the analytic ε."""
  epsilons = [
    float(attack.first.epsilon)
    for attack in result.audit.attacks
    if attack.is_calibrated and math.isfinite(attack.first.epsilon)
  ]
  learnt = 'No estimate is calibrated'
  if epsilons:
    between = cells.format_range(min(epsilons), max(epsilons))
    delta = cells.format_delta(result.delta)
    learnt = f'At δ = {delta} attackers learn ε ≈ {between}'
  return f'{learnt}; {_describe_limit(result)}'


def title_over_rounds(estimates: Sequence[RoundEstimate]) -> str:
  """Title: ε of the model and of the releases after the last round."""
  last = max(row.round for row in estimates)
  points = {
    row.threat_model: row.estimate
    for row in estimates
    if row.round == last and row.estimate.kind == 'point_estimate'
  }
  parts = [
    f'{words.spell_name(attacker)} ε ≈ {cells.format_epsilon(points[attacker])}'
    for attacker in attackers.sort_by_strength(points)
    if attacker.is_in_overview
  ]
  after = f'After {last:,} {"round" if last == 1 else "rounds"}'
  return f'{after}: {", ".join(parts) or "no estimate is calibrated"}'


def _describe_limit(result: RunResult) -> str:
  limit = leaks.find_analytic_epsilon(result)
  if math.isnan(limit):
    return 'the limit is not known'
  if limit == math.inf:
    return 'without noise there is no limit'
  return f'the limit is {cells.format_number(limit)}'
