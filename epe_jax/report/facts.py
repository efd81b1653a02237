"""Numbers of a finished run that its results do not state directly."""

from typing import NamedTuple

import numpy as np

from epe_jax.audit import attack_risks, clients
from epe_jax.audit.evaluation import Attack
from epe_jax.epsilon.types import Assumption
from epe_jax.experiment.run_result import RunResult

# Schedules by which canaries may take part in different numbers of rounds.
_VARYING = ('as_clients', 'replace', 'matrix')


class AnalyticEpsilon(NamedTuple):
  """An analytic ε of a run.

  Attributes:
    who: 'canaries', 'clients', or 'canaries and clients'.
    epsilon: at the δ of the run; inf without noise.
    assumes: what it assumes, without a full stop.
  """

  who: str
  epsilon: float
  assumes: str


def is_coin_flip(result: RunResult) -> bool:
  """Whether each canary was included independently with probability 1/2."""
  return any(
    Assumption.COINS in estimate.assumes
    for attack in result.audit.attacks
    for estimate in attack.estimates
  )


def is_alarming(result: RunResult) -> bool:
  """Whether a pre-declared bound, or the rounds of a run, contradict its claim."""
  if result.claim is not None and result.claim.rejected_after is not None:
    return True
  return any(attack.is_violated for attack in result.audit.attacks)


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
    result.clients_analytic_assumes.rstrip('.'),
  )
  if not result.is_audited:
    return [of_client]
  assert result.analytic_assumes is not None, 'canaries took part'
  of_canary = AnalyticEpsilon(
    'canaries',
    find_analytic_epsilon(result),
    result.analytic_assumes.rstrip('.'),
  )
  is_same = np.isclose(of_canary.epsilon, of_client.epsilon, equal_nan=True)
  if is_same and of_canary.assumes == of_client.assumes:
    return [of_canary._replace(who='canaries and clients')]
  return [of_canary, of_client]


def count_participations(result: RunResult) -> clients.Participations:
  """How often canaries and clients of an audited run take part."""
  schedule = result.config.get('canaries', {}).get('schedule')
  return clients.Participations(
    result.repetitions,
    result.clients_participations,
    result.clients_analytic_epsilon,
    canaries_vary=schedule in _VARYING,
  )


def estimate_guesses(
  attack: Attack, participations: clients.Participations
) -> float | None:
  """The share of right guesses, at even odds, whether a canary took part.

  It is the number of the table of risks where that table has one, else what the
  attack itself reaches.

  Args:
    attack: what was found about the attacker.
    participations: of canaries and clients.

  Returns:
    A share in [0.5, 1]; None if it is not known.
  """
  found = attack_risks.compute_attack_risks(attack, participations)
  if found is not None and found.estimate is not None:
    return float(found.estimate.accuracy)
  return None if attack.rates is None else attack.rates.accuracy
