"""Numbers of a finished run: its analytic ε, participations, and how much leaks to whom."""

import math
from typing import NamedTuple

from jaxtyping import Float
import numpy as np

from epe_jax.audit import attackers
from epe_jax.audit.record import Record
from epe_jax.audit.results import AttackResult, Audit
from epe_jax.audit.statistics import score_own_round
from epe_jax.epsilon.types import Assumption, Estimate
from epe_jax.experiment.client_rounds import Participations
from epe_jax.experiment.run_result import RunResult
from epe_jax.fact import Facts
from epe_jax.report import clients, words
from epe_jax.report.clients import ClientEpsilon

# Schedules by which canaries may take part in different numbers of rounds.
_VARYING = ('as_clients', 'replace')

OF_MODEL = (attackers.FINAL, attackers.CHANGE)
"""Attackers who see the model, and no round."""

# Of a row that nothing was measured for.
_USUAL = (attackers.CHANGE, attackers.OWN, attackers.RESIDUAL)


class Leak(NamedTuple):
  """ε of a canary and of a client, by one attacker."""

  name: str
  attack: AttackResult | None  # None where nothing was measured.
  at_least: Estimate | None  # The pre-declared lower bound of a canary.
  about: Estimate | None  # Its point estimate; None where not calibrated.
  at_most: float = math.nan  # inf without noise, nan if it is not known.
  client_about: ClientEpsilon | None = None
  client_at_most: float = math.nan


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


def list_analytic_epsilons(result: RunResult) -> dict[str, tuple[float, Facts]]:
  """Whom -> their analytic ε and what it assumes; once if both have the same."""
  client = result.clients_analytic_epsilon, result.clients_analytic_assumes
  if not result.is_audited:
    return {'clients': client}
  assert result.analytic_assumes is not None, 'canaries took part'
  canary = find_analytic_epsilon(result), result.analytic_assumes
  is_same = np.isclose(canary[0], client[0], equal_nan=True)
  if is_same and canary[1] == client[1]:
    return {'canaries and clients': canary}
  return {'canaries': canary, 'clients': client}


def count_participations(result: RunResult) -> Participations:
  """How often canaries and clients of a run take part."""
  schedule = result.config.get('canaries', {}).get('schedule')
  limit, amplified = result.clients_analytic_epsilon, math.inf
  if result.amplification and result.amplification.key == 'amplified':
    amplified = float(str(result.amplification.values['epsilon']))
  return Participations(
    result.participations,
    result.clients_participations,
    min(limit, amplified),
    canaries_vary=schedule in _VARYING,
    is_sampled=result.is_sampled,
    is_amplified=amplified < limit,
    is_gaussian=not result.config.get('secure_aggregation', {}).get('bits'),
    shifts=result.clients_shifts,
  )


def estimate_guesses(
  attack: AttackResult, participations: Participations
) -> float | None:
  """The share of right guesses, at even odds, whether a canary took part.

  It is the number of the table of risks where that table has one, else what the
  attack itself reaches; None if it is not known.
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


def find_leaks(result: RunResult) -> list[Leak]:
  """The leaks by the model, by every round, and in the worst case.

  An attacker who sees less cannot be allowed more: what is published last follows from
  what was published before, so the limit of the strongest attacker is one of all.

  Returns:
    Three, some perhaps not measured; none of a run without canaries.
  """
  if not result.is_audited:
    return []
  participations = count_participations(result)
  return [
    leak._replace(
      client_about=leak.attack and _expect_client(leak.attack, participations),
      client_at_most=participations.analytic_epsilon,
    )
    for leak in choose_leaks(result.audit, find_analytic_epsilon(result))
  ]


def choose_leaks(audit: Audit, limit: float = math.nan) -> list[Leak]:
  """The leaks of a canary by the model, by every round, and in the worst case.

  Who has the last model mostly has the first one too, which every client was sent, so
  that attacker counts where it was measured. Who sees every round has the model too:
  where the model shows more than what is made of the rounds, as it may where noise is
  correlated, the row of rounds has what it shows, and says so.

  Args:
    limit: an ε that bounds them all; nan if there is none.
  """
  strongest: dict[bool, AttackResult] = {
    attack.threat_model.is_worst_case: attack
    for attack in audit.by_strength
    if attack.threat_model not in OF_MODEL
  }
  of_model = audit.find(attackers.CHANGE) or audit.find(attackers.FINAL)
  chosen = of_model, strongest.get(False), strongest.get(True)
  model, rounds, worst = (
    find_leak(
      words.spell_name(attack.threat_model if attack else usual), attack, limit
    )
    for attack, usual in zip(chosen, _USUAL)
  )
  if rounds.attack is not None and _find_about(model) > _find_about(rounds):
    name = f'{rounds.name} ({model.name})'
    rounds = model._replace(name=name, at_most=rounds.at_most)
  return [model, rounds, worst]


def find_leak(
  name: str, attack: AttackResult | None, limit: float = math.nan
) -> Leak:
  """The leak to one attacker, of whose clients nothing is known.

  Args:
    attack: what was found; None where nothing was measured.
    limit: an ε that bounds the attacker, besides its own; nan if there is none.
  """
  if attack is None:
    return Leak(name, None, None, None, limit)
  bound, point = None, attack.first if attack.is_calibrated else None
  if (headline := Audit((attack,)).headline) is not None:
    _, bound, point = headline
  if point is not None and math.isnan(point.epsilon):
    point = None
  if attack.analytic is not None and attack.analytic.kind == 'bound':
    limit = float(np.fmin(limit, attack.analytic.epsilon))
  return Leak(name, attack, bound, point, limit)


def _find_about(leak: Leak) -> float:
  return -math.inf if leak.about is None else float(leak.about.epsilon)


def _expect_client(
  attack: AttackResult, participations: Participations
) -> ClientEpsilon | None:
  """ε of a client: a canary's if it takes part as often, or what `clients` predicts."""
  epsilon = float(attack.first.epsilon)
  is_known = clients.is_measured(attack) and not math.isnan(epsilon)
  if is_known and not participations.differ and participations.clients == 1:
    return ClientEpsilon(epsilon, epsilon)
  return clients.expect_client(attack, participations)
