"""What canaries tell of a client who takes part in another number of rounds.

A canary of m rounds sends the same direction each time. To an attacker who sees
every round, n releases of noise z are one of noise z/√n, so that a client of n rounds
is allowed μ = √n/z, whatever it sends. In the final model of a linear server shifts
of n updates add up. Updates of the full clip norm that agree, as those of a canary
do, shift it n times as far as one update; orthogonal ones, √n times. A canary of m
rounds shows μ, and so a client

  n/m μ   if its updates agree,   √n/m μ   if they are orthogonal,

as long as its rounds weigh as much as those of canaries. `compute_attack_risks` says
what that means for a person, in probabilities.
"""

import math
from typing import NamedTuple

from epe_jax.audit import upper_bounds
from epe_jax.audit.attack_results import AttackResult
from epe_jax.epsilon.trade_offs import risks, tradeoff_curves
from epe_jax.epsilon.trade_offs.risks import Curve, Risks

FPR, PRIOR, BASELINE = 0.01, 0.01, 0.001
"""What risks of a report are stated for, as in `risks.compute_risks`."""


class Participations(NamedTuple):
  """How often canaries and clients of a run take part.

  Attributes:
    canaries: m >= 1, rounds of a canary, at most.
    clients: n >= 1, rounds of the client who takes part most often.
    analytic_epsilon: of that client, at the δ of the run; inf without noise.
    canaries_vary: canaries may take part in different numbers of rounds.
  """

  canaries: int
  clients: int
  analytic_epsilon: float
  canaries_vary: bool = False

  @property
  def differ(self) -> bool:
    """Whether what canaries show is of another number of rounds than a client's."""
    return self.canaries_vary or self.canaries != self.clients


class ClientEpsilon(NamedTuple):
  """ε of a client of the run, to expect of one attacker.

  Attributes:
    orthogonal: if the updates of the client are orthogonal to each other.
    agreeing: if they all agree. It is no less.
  """

  orthogonal: float
  agreeing: float


def scale_shift(
  mu: float, participations: Participations
) -> tuple[float, float]:
  """μ of a client in the final model of a linear server.

  Args:
    mu: μ >= 0 of a canary.
    participations: of canaries and clients.

  Returns:
    μ if the updates of the client are orthogonal, and if they agree.

  >>> scale_shift(0.5, Participations(1, 16, math.inf))
  (2.0, 8.0)
  """
  once = mu / participations.canaries
  n = participations.clients
  return math.sqrt(n) * once, n * once


def scale_epsilon(
  epsilon: float, delta: float, participations: Participations
) -> ClientEpsilon:
  """`scale_shift` in ε, no more than the analytic ε of the client.

  Args:
    epsilon: ε >= 0 of a canary, in the final model of a linear server.
    delta: δ in (0, 1).
    participations: of canaries and clients.
  """
  mu = tradeoff_curves.mu_of_epsilon(epsilon, delta)
  limit = participations.analytic_epsilon
  return ClientEpsilon(
    *(
      min(float(tradeoff_curves.epsilon_gdp(x, delta)), limit)
      for x in scale_shift(mu, participations)
    )
  )


def is_measured(attack: AttackResult) -> bool:
  """Whether the shift of canaries was measured, or is only expected."""
  return attack.is_calibrated and not attack.first.is_within_floor


def expect_client(
  attack: AttackResult, participations: Participations
) -> ClientEpsilon | None:
  """ε of a client by an attacker who sees no more than the model.

  The shift of canaries is what was measured of them; where the estimate is not
  calibrated or within its floor, what a linear server is expected to leave.

  Args:
    attack: what was found about the attacker.
    participations: of canaries and clients.

  Returns:
    No more than the analytic ε of the client; None where rounds are seen, the
    server is not linear, canaries take part in different numbers of rounds, or the
    estimate is nan, and nothing but that ε is known.
  """
  analytic, first = attack.analytic, attack.first
  if analytic is None or analytic.kind != 'expectation':
    return None
  if participations.canaries_vary:
    return None
  epsilon = float(first.epsilon)
  if not is_measured(attack):
    epsilon = analytic.epsilon
  if math.isnan(epsilon):
    return None
  return scale_epsilon(epsilon, first.delta, participations)


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
  attack: AttackResult, participations: Participations
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

  client = expect_client(attack, participations)
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
