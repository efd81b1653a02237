"""What canaries tell of a client who takes part in another number of rounds.

A canary of m rounds sends the same direction each time. To an attacker who sees
every round, n releases of noise z are one of noise z/√n, so that a client of n rounds
is allowed μ = √n/z, whatever it sends. In the final model of a linear server shifts
of n updates add up. Updates of the full clip norm that agree, as those of a canary
do, shift it n times as far as one update; orthogonal ones, √n times. A canary of m
rounds shows μ, and so a client

  n/m μ   if its updates agree,   √n/m μ   if they are orthogonal,

as long as its rounds weigh as much as those of canaries.
"""

import math
from typing import NamedTuple

from epe_jax.audit.evaluation import Attack
from epe_jax.epsilon import tradeoff_curves


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


def expect_client(
  attack: Attack, participations: Participations
) -> ClientEpsilon | None:
  """ε of a client by an attacker who sees no more than the model.

  The shift of canaries is what was measured of them; where the estimate is not
  calibrated or within its floor, what a linear server is expected to leave.

  Args:
    attack: what was found about the attacker.
    participations: of canaries and clients.

  Returns:
    No more than the analytic ε of the client; None where rounds are seen, the
    server is not linear, or canaries take part in different numbers of rounds, and
    nothing but that ε is known.
  """
  analytic, first = attack.analytic, attack.first
  if analytic is None or analytic.kind != 'expectation':
    return None
  if participations.canaries_vary:
    return None
  epsilon = float(first.epsilon)
  if not attack.is_calibrated or first.is_within_floor:
    epsilon = analytic.epsilon
  return scale_epsilon(epsilon, first.delta, participations)
