"""What the estimates of an attacker mean for a person, in probabilities."""

from __future__ import annotations

import math
from typing import NamedTuple

from epe_jax.audit import clients, upper_bounds
from epe_jax.audit.evaluation import Attack
from epe_jax.epsilon import risks, tradeoff_curves
from epe_jax.epsilon.risks import Curve, Risks

FPR, PRIOR, BASELINE = 0.01, 0.01, 0.001
"""What risks of a report are stated for, as in `risks.compute_risks`."""


class AttackRisks(NamedTuple):
  """Risks of a client of a run by one attacker.

  Attributes:
    estimate: of the Gaussian mechanism with the first estimate at its δ; None if what
      the mechanism allows the attacker is no Gaussian curve, and ε at one δ says
      little of the others, and if canaries do not take part as clients do.
    interval: likewise, of both limits of its interval; None if it has none.
    expected: in the final model of a linear server, if the updates of a client are
      orthogonal, and if they agree; None of one update, and of other attackers.
    limit: by what the mechanism allows a client, or is expected to leave of one that
      takes part as canaries do; None if that is not known.
  """

  estimate: Risks | None
  interval: tuple[Risks, Risks] | None
  expected: tuple[Risks, Risks] | None
  limit: Risks | None


def compute_attack_risks(
  attack: Attack, participations: clients.Participations
) -> AttackRisks | None:
  """Computes the risks of a client by one attacker.

  Args:
    attack: what was found about the attacker.
    participations: of canaries and clients.

  Returns:
    The risks; None where the first estimate is not calibrated.
  """
  if not attack.is_calibrated or math.isnan(attack.first.epsilon):
    return None
  delta, analytic = attack.first.delta, attack.analytic

  def of(epsilon: float) -> Risks:
    mu = tradeoff_curves.mu_of_epsilon(float(epsilon), delta)
    return risks.compute_risks(mu, fpr=FPR, prior=PRIOR, baseline=BASELINE)

  client = clients.expect_client(attack, participations)
  if client is not None and participations.clients > 1:
    return AttackRisks(
      None, None, (of(client.orthogonal), of(client.agreeing)), None
    )
  if participations.differ:
    return AttackRisks(None, None, None, of(participations.analytic_epsilon))
  limit = (
    None
    if analytic is None
    else _compute_of_curve(upper_bounds.find_curve(analytic, delta))
  )
  # Sums of many rounds are nearly Gaussian.
  if analytic is not None and not (
    analytic.is_gaussian or analytic.kind == 'expectation'
  ):
    return AttackRisks(None, None, None, limit)
  interval = attack.first.interval
  return AttackRisks(
    of(float(attack.first.epsilon)),
    None if interval is None else (of(interval[0]), of(interval[1])),
    None,
    limit,
  )


def _compute_of_curve(curve: Curve) -> Risks:
  return risks.compute_risks_of_curve(
    curve, fpr=FPR, prior=PRIOR, baseline=BASELINE
  )
