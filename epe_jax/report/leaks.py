"""What a report says first: how much each of a few attackers learns."""

from collections.abc import Sequence
import math
from typing import NamedTuple

from epe_jax.audit import attackers
from epe_jax.audit.results import AttackResult, Audit
from epe_jax.epsilon.types import Estimate
from epe_jax.experiment.client_rounds import Participations
from epe_jax.experiment.run_result import RunResult
from epe_jax.report import clients, facts, words
from epe_jax.report.clients import ClientEpsilon

FINAL_MODEL, EVERY_ROUND, WORST_CASE = (
  'final model',
  'every round',
  'worst case',
)
"""Names of the attackers of a run."""

OF_MODEL = (attackers.FINAL, attackers.CHANGE)
"""Attackers who see the model, and no round."""


class Leak(NamedTuple):
  """ε of a canary and of a client, by one attacker.

  Attributes:
    name: of the attacker.
    attack: what was found; None where nothing was measured.
    at_least: the pre-declared lower bound of a canary; None without.
    about: the point estimate of a canary; None where it is not calibrated.
    at_most: what the mechanism allows a canary; inf without noise, nan if that is
      not known.
    client_about: what is expected of a client; None where nothing is known.
    client_at_most: what the mechanism allows a client, likewise.
  """

  name: str
  attack: AttackResult | None
  at_least: Estimate | None
  about: Estimate | None
  at_most: float = math.nan
  client_about: ClientEpsilon | None = None
  client_at_most: float = math.nan


def find_leaks(result: RunResult) -> list[Leak]:
  """The leaks by the final model, by every round, and in the worst case.

  An attacker with the final model mostly has the initial one too, which every client
  was sent, so its change counts where it was measured. An attacker who sees every round
  has the model too: where the model shows more than what is made of the rounds, as it
  may where noise is correlated, what it shows is that of both. An attacker who sees
  less cannot be allowed more: what is published last follows from what was published
  before, so the limit of the strongest attacker is one of all.
  Returns:
    Three, some perhaps not measured; none of a run without canaries.
  """
  if not result.is_audited:
    return []
  limit = facts.find_analytic_epsilon(result)
  participations = facts.count_participations(result)
  by_strength = result.audit.by_strength
  of_rounds = [
    attack
    for attack in by_strength
    if attack.threat_model not in OF_MODEL
    and not attack.threat_model.is_worst_case
  ]
  worst = [a for a in by_strength if a.threat_model.is_worst_case]
  chosen = {
    FINAL_MODEL: result.audit.find(attackers.CHANGE)
    or result.audit.find(attackers.FINAL),
    EVERY_ROUND: of_rounds[-1] if of_rounds else None,
    WORST_CASE: worst[-1] if worst else None,
  }
  found = {
    name: find_leak(name, attack)._replace(
      at_most=_find_limit(attack, limit),
      client_about=attack and _expect_client(attack, participations),
      client_at_most=participations.analytic_epsilon,
    )
    for name, attack in chosen.items()
  }
  model, rounds = found[FINAL_MODEL], found[EVERY_ROUND]
  if rounds.attack is not None and _find_about(model) > _find_about(rounds):
    found[EVERY_ROUND] = model._replace(
      name=rounds.name,
      at_most=rounds.at_most,
      client_at_most=rounds.client_at_most,
    )
  return [*found.values()]


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


def find_leak(name: str, attack: AttackResult | None) -> Leak:
  """The leak to one attacker, of whose clients nothing is known.

  Args:
    attack: what was found; None where nothing was measured.
  """
  if attack is None:
    return Leak(name, None, None, None)
  headline = Audit((attack,)).headline
  bound = headline and headline.bound
  point = attack.first if attack.is_calibrated else None
  if headline is not None:
    point = headline.point
  if point is not None and math.isnan(point.epsilon):
    point = None
  return Leak(name, attack, bound, point, _find_limit(attack, math.nan))


def name_headline(audit: Audit, leaks: Sequence[Leak]) -> str:
  """The name of the attacker of the headline: that of its leak, or its own."""
  assert audit.headline is not None
  attack = audit.headline.attack
  names = (leak.name for leak in leaks if leak.attack is attack)
  return next(names, words.spell_name(attack.threat_model))


def _find_limit(attack: AttackResult | None, limit: float) -> float:
  """The least that is known to bound an attacker; nan if nothing is."""
  analytic = attack and attack.analytic
  if analytic is None or analytic.kind != 'bound':
    return limit
  return analytic.epsilon if math.isnan(limit) else min(analytic.epsilon, limit)
