"""What canaries tell of a client, who takes part in other rounds than they do.

A canary sends the same direction in each of its rounds. To an attacker who sees every
round and knows those of a client, n releases of noise z are one of noise z/√n, so that
the client is allowed μ = √n/z, whatever it sends. In the final model of a linear server
an update of the full clip norm in round t leaves a shift w_t, in units of the noise
(`upper_bounds.expect_shifts`). Those of a client of rounds B add up to

  Σ w_t   if its updates agree, as a canary's do,   √Σ w_t²   if they are orthogonal.

An attacker who does not know B tells N(0, 1) from the mixture over all rounds that
clients may have (`experiment.client_rounds`). Canaries show by which factor the shifts
of a model are those that are expected. `compute_attack_risks` says what follows for a
person, in probabilities.
"""

import functools
import math
from typing import NamedTuple

from jaxtyping import Float
import numpy as np
from scipy import optimize

from epe_jax.accounting import Analytic, Mixture
from epe_jax.audit import upper_bounds
from epe_jax.audit.results import AttackResult
from epe_jax.epsilon import known_shifts, risks, tradeoff
from epe_jax.epsilon.risks import Risks
from epe_jax.epsilon.tradeoff import Curve
from epe_jax.experiment.client_rounds import Participations, Shifts

FPR, PRIOR, BASELINE = 0.01, 0.01, 0.001
"""What risks of a report are stated for, as in `compute_risks`."""


class ClientEpsilon(NamedTuple):
  """ε of a client to expect of one attacker: if its updates are orthogonal, and agree."""

  orthogonal: float
  agreeing: float  # It is no less.


def is_measured(attack: AttackResult) -> bool:
  """Whether the shift of canaries was measured, or is only expected."""
  return attack.is_calibrated and not attack.first.is_within_floor


def scale_shifts(
  epsilon: float, analytic: Analytic, delta: float, shifts: Shifts
) -> Shifts:
  """Scales laws of clients by the factor at which that of canaries has their ε."""
  assert isinstance(analytic.law, Mixture), 'it is of a linear server'
  factor = 1.0
  if epsilon != analytic.epsilon:
    factor = _find_factor(epsilon, analytic.law, delta)
  orthogonal, agreeing = (_scale(law, factor) for law in shifts)
  return orthogonal, agreeing


# A report asks for it several times.
@functools.lru_cache(maxsize=32)
def _find_factor(epsilon: float, law: Mixture, delta: float) -> float:
  mu = float(tradeoff.mu_of_epsilon(epsilon, delta))
  # Of the most exposed canary alone, of whom no less is told than of a random one.
  low = mu / max(law.shifts)
  if not 0 < low < math.inf:
    return low

  def excess(log_factor: float) -> float:
    scaled = _scale(law, math.exp(log_factor))
    return _compute_epsilon(scaled, delta) - epsilon

  start = math.log(low)
  if excess(start) >= 0:
    return low
  width = next(w for w in 2.0 ** np.arange(-2, 9) if excess(start + w) >= 0)
  found = optimize.brentq(excess, start, start + width, xtol=1e-5)
  return math.exp(found)  # pyright: ignore


def _scale(law: Mixture, factor: float) -> Mixture:
  # Of nothing an infinite factor is nothing.
  return law._replace(
    shifts=tuple(shift and factor * shift for shift in law.shifts)
  )


def compute_epsilons(laws: Shifts, delta: float, limit: float) -> ClientEpsilon:
  """Computes ε at δ of telling N(0, 1) from each law, and no more than a limit."""
  orthogonal, agreeing = (min(_compute_epsilon(x, delta), limit) for x in laws)
  return ClientEpsilon(orthogonal, agreeing)


def _compute_epsilon(law: Mixture, delta: float) -> float:
  if max(law.shifts) == math.inf:
    return math.inf
  shifts, weights = np.array(law.shifts), np.array(law.weights)
  return float(
    known_shifts.epsilon_mixture(shifts, delta, weights / weights.sum())
  )


def expect_shifts(
  attack: AttackResult, participations: Participations
) -> Shifts | None:
  """Laws of the shift of clients to an attacker who sees no more than the model.

  The factor is that which was measured of canaries; where the estimate is not
  calibrated or within its floor, that of a linear server. None where rounds are seen,
  the server is not linear, or the estimate is nan.
  """
  analytic, shifts = attack.analytic, participations.shifts
  if analytic is None or not isinstance(analytic.law, Mixture):
    return None
  is_known = is_measured(attack)
  epsilon = float(attack.first.epsilon) if is_known else analytic.epsilon
  if shifts is None or math.isnan(epsilon):
    return None
  return scale_shifts(epsilon, analytic, attack.first.delta, shifts)


def expect_client(
  attack: AttackResult, participations: Participations
) -> ClientEpsilon | None:
  """ε of a client by an attacker who sees no more than the model.

  Returns:
    No more than the analytic ε of a client; None as in `expect_shifts`.
  """
  laws, delta = expect_shifts(attack, participations), attack.first.delta
  limit = participations.analytic_epsilon
  return None if laws is None else compute_epsilons(laws, delta, limit)


class AttackRisks(NamedTuple):
  """Risks of a client of a run by one attacker; None where they are not known.

  Attributes:
    estimate: of the mechanism with the first estimate at its δ: of a model the mixture
      of shifts of a canary, else a Gaussian one. None if what the mechanism allows the
      attacker is neither, and ε at one δ says little of the others, and if canaries do
      not take part as clients do.
    interval: likewise, of both limits of its interval.
    expected: in the final model of a linear server, if the updates of a client are
      orthogonal, and if they agree; None of one update, and of other attackers.
    limit: by what the mechanism allows a client, or is expected to leave of one that
      takes part as canaries do.
  """

  estimate: Risks | None = None
  interval: tuple[Risks, Risks] | None = None
  expected: tuple[Risks, Risks] | None = None
  limit: Risks | None = None


def compute_attack_risks(
  attack: AttackResult, participations: Participations
) -> AttackRisks | None:
  """The risks of a client by one attacker; None where that is not calibrated."""
  if not attack.is_calibrated or math.isnan(attack.first.epsilon):
    return None
  delta, analytic = attack.first.delta, attack.analytic

  is_gaussian = participations.is_gaussian and not participations.is_amplified
  allowed = upper_bounds.find_curve(
    Analytic(participations.analytic_epsilon, (), is_gaussian=is_gaussian),
    delta,
  )

  def of(epsilon: float) -> Risks:
    if analytic is not None and isinstance(analytic.law, Mixture):
      laws = analytic.law, analytic.law
      law, _ = scale_shifts(float(epsilon), analytic, delta, laws)
      return _compute_of_curve(functools.partial(_find_fnr, law, allowed))
    mu = tradeoff.mu_of_epsilon(float(epsilon), delta)
    return risks.compute_risks(mu, fpr=FPR, prior=PRIOR, baseline=BASELINE)

  laws = expect_shifts(attack, participations)
  if laws is not None and (participations.differ or participations.clients > 1):
    orthogonal, agreeing = (
      _compute_of_curve(functools.partial(_find_fnr, law, allowed))
      for law in laws
    )
    return AttackRisks(expected=(orthogonal, agreeing))
  if participations.differ:
    return AttackRisks(limit=_compute_of_curve(allowed))
  limit = (
    None
    if analytic is None
    else _compute_of_curve(upper_bounds.find_curve(analytic, delta))
  )
  # Sums of many rounds are nearly Gaussian.
  if analytic is not None and not (
    analytic.is_gaussian or analytic.kind == 'expectation'
  ):
    return AttackRisks(limit=limit)
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


def _find_fnr(
  law: Mixture, allowed: Curve, log_fpr: Float[np.ndarray, ' m']
) -> Float[np.ndarray, ' m']:
  """FNR of a mixture, where that is allowed."""
  expected = known_shifts.fnr_mixture(
    np.array(law.shifts), np.array(law.weights, float), log_fpr
  )
  return np.maximum(expected, allowed(log_fpr))
