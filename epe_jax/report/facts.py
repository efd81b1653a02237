"""Numbers of a finished run that its results do not state."""

import math
from typing import NamedTuple

from jaxtyping import Float
import numpy as np

from epe_jax.audit.record import Record
from epe_jax.audit.results import AttackResult
from epe_jax.audit.statistics import score_own_round
from epe_jax.epsilon.types import Assumption
from epe_jax.experiment import client_rounds
from epe_jax.experiment.run_result import RunResult
from epe_jax.fact import Facts
from epe_jax.report import clients

# Schedules by which canaries may take part in different numbers of rounds.
_VARYING = ('as_clients', 'replace')


class AnalyticEpsilon(NamedTuple):
  """An analytic ε of a run.

  Attributes:
    who: 'canaries', 'clients', or 'canaries and clients'.
    epsilon: at the δ of the run; inf without noise.
    assumes: the participation and the attacker that it holds for.
  """

  who: str
  epsilon: float
  assumes: Facts


def is_coin_flip(result: RunResult) -> bool:
  """Whether each canary was included independently with probability 1/2."""
  return any(
    Assumption.COINS in estimate.assumes
    for attack in result.audit.attacks
    for estimate in attack.estimates
  )


def find_analytic_epsilon(result: RunResult) -> float:
  """The analytic ε of a canary, or of a client where there are no canaries.

  Returns:
    ε >= 0; inf without noise.
  """
  if not result.is_audited:
    return result.clients_analytic_epsilon
  assert result.analytic_epsilon is not None, 'canaries took part'
  return result.analytic_epsilon


def list_analytic_epsilons(result: RunResult) -> list[AnalyticEpsilon]:
  """The analytic ε of canaries and of clients, once if they are the same."""
  of_client = AnalyticEpsilon(
    'clients',
    result.clients_analytic_epsilon,
    result.clients_analytic_assumes,
  )
  if not result.is_audited:
    return [of_client]
  assert result.analytic_assumes is not None, 'canaries took part'
  of_canary = AnalyticEpsilon(
    'canaries',
    find_analytic_epsilon(result),
    result.analytic_assumes,
  )
  is_same = np.isclose(of_canary.epsilon, of_client.epsilon, equal_nan=True)
  if is_same and of_canary.assumes == of_client.assumes:
    return [of_canary._replace(who='canaries and clients')]
  return [of_canary, of_client]


def count_participations(result: RunResult) -> client_rounds.Participations:
  """How often canaries and clients of a run take part."""
  schedule = result.config.get('canaries', {}).get('schedule')
  limit, amplified = result.clients_analytic_epsilon, math.inf
  if result.amplification and result.amplification.key == 'amplified':
    amplified = float(str(result.amplification.values['epsilon']))
  return client_rounds.Participations(
    result.participations,
    result.clients_participations,
    min(limit, amplified),
    canaries_vary=schedule in _VARYING,
    is_sampled=result.is_sampled,
    is_amplified=amplified < limit,
    shifts=result.clients_shifts,
  )


def estimate_guesses(
  attack: AttackResult, participations: client_rounds.Participations
) -> float | None:
  """The share of right guesses, at even odds, whether a canary took part.

  It is the number of the table of risks where that table has one, else what the
  attack itself reaches.
  Returns:
    A share in [0.5, 1]; None if it is not known.
  """
  found = clients.compute_attack_risks(attack, participations)
  if found is not None and found.estimate is not None:
    return float(found.estimate.accuracy)
  return None if attack.rates is None else attack.rates.accuracy


def find_typical_canary(record: Record, trace: Float[np.ndarray, 'T k']) -> int:
  """The observed canary whose score in its own rounds is the median."""
  observed = np.flatnonzero(record.observed)
  own_round = score_own_round(trace[:, observed], record.included[:, observed])
  middle = (len(own_round) - 1) // 2
  return int(observed[np.argsort(own_round, kind='stable')[middle]])
