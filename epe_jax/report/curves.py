"""Curves of attackers: false negatives over false positives.

Computed here and drawn elsewhere: of the calibrated estimate, of counts, and of the
mechanism with an analytic ε.
"""

import math
from typing import NamedTuple

from jaxtyping import Float
import numpy as np
from scipy import special

from epe_jax.accounting import Analytic
from epe_jax.audit import upper_bounds
from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.audit.results import AttackResult, Audit
from epe_jax.epsilon import cosine_null, known_shifts, threshold, tradeoff
from epe_jax.epsilon.types import Estimate, Scores


class Tradeoff(NamedTuple):
  """Rates of the attack "took part if the score is high".

  Attributes:
    fpr: false positive rate of each threshold at a score, by the null law where
      that is known; else counted, and half a canary where none was.
    fnr: false negative rate counted there.
    low, high: limits of 95 % of it, for a threshold fixed in advance.
    grid: false positive rates of what follows, rising.
    fitted: the false negative rate of the fitted mixture; None where no mixture is
      calibrated.
    allowed: that below which no attack of the attacker is, the larger of the curve of
      the mechanism and the attacker's own; None where neither is known.
    bound: that of (ε, δ)-DP whose ε is the lower bound, down to which the true curve
      reaches somewhere, with the confidence of the bound; None without a finite one.
  """

  threat_model: ThreatModel
  fpr: Float[np.ndarray, ' n']
  fnr: Float[np.ndarray, ' n']
  low: Float[np.ndarray, ' n']
  high: Float[np.ndarray, ' n']
  grid: Float[np.ndarray, ' m']
  fitted: Float[np.ndarray, ' m'] | None
  allowed: Float[np.ndarray, ' m'] | None
  bound: Float[np.ndarray, ' m'] | None


def compute_tradeoffs(
  audit: Audit, *, analytic: Analytic | None = None
) -> list[Tradeoff]:
  """The trade-off of each attacker whose scores are known, given that of the run."""
  first = audit.attacks[0]
  lowest = 0.5 / max(first.num_observed, first.num_unobserved)
  # Evenly over normal quantiles, as the axes are.
  low, high = special.ndtri(1e-14), special.ndtri(1 - lowest)
  grid = special.ndtr(np.linspace(low, high, 240))
  return [
    _compute_tradeoff(attack, attack.scores, analytic, grid)
    for attack in audit.attacks
    if attack.scores is not None
  ]


def _compute_tradeoff(
  attack: AttackResult,
  scores: Scores,
  analytic: Analytic | None,
  grid: Float[np.ndarray, ' m'],
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
    grid,
    fitted,
    _find_allowed(attack.analytic, analytic, attack.first.delta, np.log(grid)),
    _find_bound(next(iter(attack.bounds), None), np.log(grid)),
  )


def _find_allowed(
  own: Analytic | None,
  run: Analytic | None,
  delta: float,
  log_fpr: Float[np.ndarray, ' m'],
) -> Float[np.ndarray, ' m'] | None:
  allowed = [
    upper_bounds.find_curve(analytic, delta)(log_fpr)
    for analytic in (run, own)
    if analytic is not None
  ]
  return np.max(allowed, axis=0) if allowed else None


def _find_bound(
  bound: Estimate | None, log_fpr: Float[np.ndarray, ' m']
) -> Float[np.ndarray, ' m'] | None:
  if bound is None or not math.isfinite(bound.epsilon):
    return None
  epsilon, delta = np.array([float(bound.epsilon)]), np.array([bound.delta])
  return tradeoff.Lines(epsilon, delta).fnr(log_fpr)
