"""What the estimates of an attacker mean for a person, in probabilities."""

from __future__ import annotations

import math
from typing import NamedTuple

from epe_jax.accounting import Analytic
from epe_jax.audit import upper_bounds
from epe_jax.audit.estimates import Attack
from epe_jax.epsilon import risks, tradeoff_curves
from epe_jax.epsilon.risks import Risks

FPR, PRIOR, BASELINE = 0.01, 0.01, 0.001
"""What risks of a report are stated for, as in `risks.compute_risks`."""


class AttackRisks(NamedTuple):
  """Risks of a person by one attacker.

  Attributes:
    estimate: of the Gaussian mechanism with the first estimate at its δ; None if what
      the mechanism allows the attacker is no Gaussian curve, and ε at one δ says
      little of the others.
    interval: likewise, of both limits of its interval; None if it has none.
    allowed: by what the mechanism allows the attacker; None if that is not known.
  """

  estimate: Risks | None
  interval: tuple[Risks, Risks] | None
  allowed: Risks | None


def compute_attack_risks(attack: Attack) -> AttackRisks | None:
  """Computes the risks of a person by one attacker.

  Args:
    attack: what was found about the attacker.

  Returns:
    The risks; None where the first estimate is not calibrated.
  """
  if not attack.is_calibrated or math.isnan(attack.first.epsilon):
    return None
  delta = attack.first.delta

  def of(epsilon: float) -> Risks:
    mu = tradeoff_curves.mu_of_epsilon(float(epsilon), delta)
    return risks.compute_risks(mu, fpr=FPR, prior=PRIOR, baseline=BASELINE)

  interval, analytic = attack.first.interval, attack.analytic
  allowed = None if analytic is None else _compute_allowed(analytic, delta)
  # Sums of many rounds are nearly Gaussian.
  if analytic is not None and not (
    analytic.is_gaussian or analytic.kind == 'expectation'
  ):
    return AttackRisks(None, None, allowed)
  return AttackRisks(
    of(float(attack.first.epsilon)),
    None if interval is None else (of(interval[0]), of(interval[1])),
    allowed,
  )


def _compute_allowed(analytic: Analytic, delta: float) -> Risks:
  return risks.compute_risks_of_curve(
    upper_bounds.find_curve(analytic, delta),
    fpr=FPR,
    prior=PRIOR,
    baseline=BASELINE,
  )
