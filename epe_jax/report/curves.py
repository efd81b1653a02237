"""Curves of attackers: ε over δ, and false negatives over false positives.

Computed here and drawn elsewhere. Those of scores are of the calibrated estimate
or of counts; those called Gaussian are of the mechanism with an analytic ε.
"""

from collections.abc import Sequence
import math
from typing import NamedTuple

from jaxtyping import Float
import numpy as np

from epe_jax.accounting import Analytic
from epe_jax.audit import upper_bounds
from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.audit.results import AttackResult, Audit
from epe_jax.epsilon import (
  cosine_null,
  known_shifts,
  threshold,
  tradeoff,
  two_gaussians,
)
from epe_jax.epsilon.types import Estimate, Scores


class DeltaCurve(NamedTuple):
  """ε over δ of one attacker, with the 90 % interval of the shift of its scores."""

  threat_model: ThreatModel
  epsilon: Float[np.ndarray, ' n']
  low: Float[np.ndarray, ' n']
  high: Float[np.ndarray, ' n']


class Tradeoff(NamedTuple):
  """Rates of the attack "took part if the score is high".

  Attributes:
    threat_model: the attacker.
    fpr: false positive rate of each threshold at a score, by the null law where
      that is known; else counted, and half a canary where none was.
    fnr: false negative rate counted there.
    low: the lower limit of 95 % of it, for a threshold fixed in advance.
    high: the upper limit.
    fitted: the rate of the fitted mixture at given false positive rates; None
      where no mixture is calibrated.
  """

  threat_model: ThreatModel
  fpr: Float[np.ndarray, ' n']
  fnr: Float[np.ndarray, ' n']
  low: Float[np.ndarray, ' n']
  high: Float[np.ndarray, ' n']
  fitted: Float[np.ndarray, ' m'] | None


def compute_over_delta(
  attacks: Sequence[AttackResult], deltas: Float[np.ndarray, ' n']
) -> list[DeltaCurve]:
  """ε at each δ, of the attackers whose estimate is calibrated."""
  return [
    DeltaCurve(
      attack.threat_model, *known_shifts.compute_curve(attack.scores, deltas)
    )
    for attack in attacks
    if attack.is_calibrated
    and attack.scores is not None
    and attack.scores.shift is not None
  ]


def compute_gaussian_over_delta(
  analytic: float, delta: float, deltas: Float[np.ndarray, ' n']
) -> Float[np.ndarray, ' n']:
  """ε at each δ of the Gaussian mechanism with an analytic ε; inf if that is."""
  if math.isinf(analytic):
    return np.full(len(deltas), math.inf)
  mu = tradeoff.mu_of_epsilon(analytic, delta)
  return np.asarray(two_gaussians.epsilon_two_gaussians(0, 1, mu, 1, deltas))


def compute_tradeoffs(
  audit: Audit, grid: Float[np.ndarray, ' m']
) -> list[Tradeoff]:
  """The trade-off of each attacker whose scores are known.

  Args:
    grid: false positive rates, in (0, 1), for the fitted mixture.
  """
  return [
    _compute_tradeoff(attack, attack.scores, grid)
    for attack in audit.attacks
    if attack.scores is not None
  ]


def _compute_tradeoff(
  attack: AttackResult, scores: Scores, grid: Float[np.ndarray, ' m']
) -> Tradeoff:
  at, false_negatives = threshold.find_realisable(scores.observed)
  num = scores.observed.size
  if scores.has_known_null:
    fpr = np.asarray(cosine_null.null_distribution(scores.null).sf(at))
  else:
    false_positives = threshold.count_at_least(scores.unobserved, at)
    fpr = np.maximum(false_positives, 0.5) / scores.unobserved.size
  upper = threshold.clopper_pearson_upper
  fitted = None
  if attack.is_calibrated and scores.shift is not None:
    fitted = 1 - known_shifts.compute_rates(scores, grid)
  return Tradeoff(
    attack.threat_model,
    fpr,
    false_negatives / num,
    1 - np.asarray(upper(num - false_negatives, num, 0.025)),
    np.asarray(upper(false_negatives, num, 0.025)),
    fitted,
  )


def compute_allowed_fnr(
  own: Analytic | None,
  run: float,
  delta: float,
  grid: Float[np.ndarray, ' m'],
) -> Float[np.ndarray, ' m'] | None:
  """False negative rates below which no attack of one attacker is.

  Args:
    own: analytic ε of the attacker at delta; None where it is not known.
    run: analytic ε of the Gaussian mechanism, which bounds all attackers; nan where
      it is not known.

  Returns:
    The larger of the curve of that mechanism and the attacker's own; None where
    neither is known.
  """
  allowed = []
  if not math.isnan(run):
    allowed.append(upper_bounds.find_gaussian_curve(run, delta)(np.log(grid)))
  if own is not None:
    allowed.append(upper_bounds.find_curve(own, delta)(np.log(grid)))
  return np.max(allowed, axis=0) if allowed else None


def compute_bound_fnr(
  bound: Estimate | None, grid: Float[np.ndarray, ' m']
) -> Float[np.ndarray, ' m'] | None:
  """False negative rates of (ε, δ)-DP whose ε is a lower bound.

  The true trade-off curve reaches down to this one somewhere, with the confidence of
  the bound.

  Args:
    bound: of an attacker; None if it has none.

  Returns:
    None without a bound, and where it is infinite.
  """
  if bound is None or not math.isfinite(bound.epsilon):
    return None
  lines = tradeoff.Lines(
    np.array([float(bound.epsilon)]), np.array([bound.delta])
  )
  return lines.fnr(np.log(grid))
