"""What the numbers of an audit do not say."""

import math

import numpy as np

from epe_jax.audit import threat_models
from epe_jax.audit.record import respond_at_end
from epe_jax.epsilon.tradeoff_curves import epsilon_gdp
from epe_jax.experiment.run_result import RunResult
from epe_jax.report import facts
from epe_jax.text import cells, methods

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


def list_caveats(result: RunResult) -> list[str]:
  """Paragraphs on what the estimates of a run do not say.

  Args:
    result: what result.json holds.
  """
  estimates = [e for attack in result.audit.attacks for e in attack.estimates]
  kinds = {estimate.kind for estimate in estimates}
  caveats = _list_limits(result)
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


def _list_limits(result: RunResult) -> list[str]:
  """What limits the ε of every attack."""
  analytic = facts.find_analytic_epsilon(result)
  if analytic == math.inf:
    limit = 'Without noise there is no limit: the analytic ε is infinite.'
  else:
    limit = 'Only the analytic ε limits every attack, if its assumptions hold.'
  if not result.is_audited:
    return [limit]
  return [
    'A point estimate describes one attack on canaries, which are updates of '
    'the full clip norm in random directions. It is not a guarantee: another '
    f'attack may learn more. {limit}'
  ]


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
    attack, bound = result.audit.headline
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
  """What hiding all models but the last would be worth; a sentence or none.

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
  epsilon = float(epsilon_gdp(share * mu, result.delta))
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
  if facts.count_participations(result).differ:
    listed.insert(
      1,
      f'Clients who take part in {cells.format_rounds(result.clients_participations)}: '
      f'canaries took part in {facts.count_rounds_of_canary(facts.count_participations(result))}.',
    )
  if missing:
    listed.append(f'These attackers: {", ".join(missing)}.')
  return listed
