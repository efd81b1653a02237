"""What was found, in a line each: the titles of figures."""

from collections.abc import Sequence
import math

from epe_jax.audit import threat_models
from epe_jax.audit.by_round import RoundEstimate
from epe_jax.audit.clients import Participations
from epe_jax.audit.evaluation import Attack
from epe_jax.experiment.run_result import RunResult
from epe_jax.report import facts
from epe_jax.text import cells


def describe_headline(result: RunResult) -> str:
  """The lower bound that the design fixed, beside what the analysis allows."""
  if result.audit.headline is None:
    return 'No lower bound could be made'
  attack, bound = result.audit.headline
  return (
    f'ε ≥ {cells.format_epsilon(bound)} with {100 * (bound.confidence or 0):.4g} % '
    f'confidence ({attack.threat_model.name}); {_describe_limit(result)}'
  )


def describe_guesses(attack: Attack, participations: Participations) -> str:
  """How well an attack guesses who took part at even odds, of how many rounds."""
  if not attack.is_calibrated:
    return 'not calibrated'
  text = f'ε ≈ {cells.format_epsilon(attack.first)}'
  if participations.differ:
    text = f'{facts.count_rounds_of_canary(participations)}: {text}'
  if attack.rates is None:
    return text
  share = cells.format_estimated_share(attack.rates.accuracy)
  return f'{text}, {share} of guesses right'


def describe_tradeoff(result: RunResult) -> str:
  """Whether attacks stay above what the mechanism allows."""
  headline = result.audit.headline
  if headline is None:
    return 'Errors of each attack'
  attack, bound = headline
  if attack.is_violated:
    return (
      f'{attack.threat_model.name}: errors are below what the mechanism allows, '
      f'ε ≥ {cells.format_epsilon(bound)}'
    )
  return (
    f'{attack.threat_model.name}: errors reach down to ε ≥ '
    f'{cells.format_epsilon(bound)} (95 %); {_describe_limit(result)}'
  )


def describe_range(result: RunResult) -> str:
  """The least and the largest calibrated ε, beside what the analysis allows."""
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


def describe_rounds(estimates: Sequence[RoundEstimate]) -> str:
  """What the model and the releases tell after the last round."""
  last = max(one.round for one in estimates)
  found = {
    one.threat_model: one.estimate
    for one in estimates
    if one.round == last and one.estimate.kind == 'point estimate'
  }
  parts = [
    f'ε ≈ {cells.format_epsilon(found[attacker])} {where}'
    for attacker, where in (
      (threat_models.CHANGE, 'in the model'),
      (threat_models.OWN, 'in what was released'),
    )
    if attacker in found
  ]
  after = f'After {last:,} {"round" if last == 1 else "rounds"}'
  return f'{after}: {", ".join(parts) or "no estimate is calibrated"}'


def _describe_limit(result: RunResult) -> str:
  limit = facts.find_analytic_epsilon(result)
  if math.isnan(limit):
    return 'the analytic ε is not known'
  if limit == math.inf:
    return 'without noise there is no limit'
  return f'the analysis allows {cells.format_number(limit)}'
