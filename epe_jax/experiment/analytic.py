"""The analytic ε of a run, by its mechanism and its participation."""

import math
from typing import Any

from epe_jax import accounting
from epe_jax.experiment import build, participation


def summarize(config: build.Config, setup: build.Setup) -> dict[str, Any]:
  """Summarizes what the mechanism alone says of a run, for result.json.

  Args:
    config: the config of the run, with every field set.
    setup: what was built of it.

  Returns:
    The analytic ε of the canary and of the client who take part most often,
    each with what it assumes, and what is known of amplification by sampling.
    The ε of canaries is None in a run without any.
  """
  participants = setup.participants
  clients = compute_epsilon(
    config, participations=participants.max_rounds, delta=setup.delta
  )
  canaries = None
  if setup.observers:
    max_rounds = int(participants.canaries.sum(axis=0).max())
    canaries = compute_epsilon(
      config, participations=max_rounds, delta=setup.delta
    )
  return {
    'analytic_epsilon': canaries and canaries.epsilon,
    'analytic_assumes': canaries and canaries.assumes,
    'clients_analytic_epsilon': clients.epsilon,
    'clients_analytic_assumes': clients.assumes,
    'amplification': describe_amplification(
      config, num_clients=setup.train.num_clients, delta=setup.delta
    ),
  }


def compute_epsilon(
  config: build.Config, *, participations: int, delta: float
) -> accounting.Analytic:
  """Computes ε of one who takes part in so many rounds of a run.

  Args:
    config: the config of the run, with every field set.
    participations: the number of rounds, >= 1.
    delta: the δ of the run, in (0, 1).

  Raises:
    ValueError: an argument is out of range.
  """
  analytic = accounting.epsilon_of_releases(
    config.noise_multiplier, delta=delta, participations=participations
  )
  if config.divisor == 'expected':
    return analytic
  # The actual number of clients shows in what it divides.
  public = '; clients of a round counted in public'
  return analytic._replace(assumes=analytic.assumes + public)


def describe_amplification(
  config: build.Config, *, num_clients: int, delta: float
) -> str | None:
  """Says what is known of amplification by sampling.

  The attacker of the analytic ε knows the rounds of each client. An attacker
  who does not know them learns less where rounds are drawn in secret.

  Args:
    config: the config of the run, with every field set.
    num_clients: the number of real clients, >= 1.
    delta: the δ of the run, in (0, 1).

  Returns:
    A sentence; None if no clients are sampled.
  """
  kind = config.participation.kind
  if kind == 'poisson' and config.divisor != 'expected':
    return (
      'not known: the number of clients of a round, which says something of '
      f'each coin, shows in what divisor={config.divisor!r} divides'
    )
  if kind == 'poisson':
    analytic = accounting.epsilon_of_poisson(
      config.noise_multiplier,
      delta=delta,
      probability=config.clients_per_round
      / participation.count_population(config, num_clients),
      rounds=config.rounds,
    )
    epsilon = '∞' if math.isinf(analytic.epsilon) else f'{analytic.epsilon:.4g}'
    return f'ε = {epsilon} for clients: {analytic.assumes}'
  if kind in ('fixed_size', 'limited'):
    return (
      'not known: there is no tight analysis of a participation '
      f'{kind.replace("_", " ")}'
    )
  return None
