"""Numbers that are reported as bounds of ε and are none, for comparison with the paper.

The best of all thresholds without a correction for their choice, and the Katz limit,
which is an approximation for large counts.

References: Nasr et al., "Tight auditing of differentially private machine learning"
(2023), section 6.1.
"""

import dataclasses
import functools
from typing import ClassVar

from jaxtyping import Float
import numpy as np
from scipy import special

from epe_jax.epsilon import lower_bounds
from epe_jax.epsilon.lower_bounds import Correction, Split
from epe_jax.epsilon.threshold import Counted
from epe_jax.epsilon.types import (
  Estimate,
  Real,
  Scores,
  check_scores,
  list_assumptions,
  make_bound,
  scalar_or_array,
)


@dataclasses.dataclass(frozen=True)
class Uncorrected(Correction):
  """The best realisable threshold, without a correction: not a bound."""

  is_valid: ClassVar[bool] = False

  def count_errors(self, scores, significance, find_best, sides):
    """All realisable thresholds, at the whole significance."""
    return lower_bounds.count_realisable(scores), significance


def katz_estimate(
  scores: Scores,
  *,
  delta: float,
  multiplicity: Split | Uncorrected,
  significance: float = 0.05,
) -> Estimate:
  """The Katz limit of the ratio of both rates, at the best threshold.

  Each of the two directions, log((TPR - δ)/FPR) and log((TNR - δ)/FNR), has half of
  the significance.

  Args:
    scores: scores of canaries, any leading axes, whose null law is not known.
    delta: δ, in (0, 1).
    multiplicity: what chooses the threshold.
    significance: nominal chance that it exceeds the true ε, in (0, 1).

  Returns:
    A point estimate, >= 0.

  Raises:
    ValueError: a setting is out of range, the null law is known, or a group is too
      small to split.
  """
  check_scores(scores, delta, significance=significance)
  lower_bounds.check_multiplicity(multiplicity, Split, Uncorrected)
  if scores.has_known_null:
    raise ValueError(
      'the Katz limit is of a ratio of two counted rates, but '
      f'null={scores.null} makes the FPR exact. Use another estimator.'
    )
  at = functools.partial(
    _epsilon_at, delta=float(delta), significance=significance
  )
  counted, _ = multiplicity.count_errors(
    scores,
    significance,
    lambda x: lower_bounds.find_best(x, at, lower_bounds.CANDIDATES),
    'both',
  )
  return make_bound(
    np.max(at(counted), axis=-1),
    float(delta),
    f'katz_{type(multiplicity).__name__.lower()}',
    significance=significance,
    assumes=list_assumptions(scores),
    kind='point_estimate',
  )


def katz_log_lower(
  true_positives: Real,
  positives: int,
  false_positives: Real,
  negatives: int,
  significance: float,
  *,
  delta: float = 0.0,
) -> float | Float[np.ndarray, '...']:
  """One-sided Katz lower limit of log((TPR - δ)/FPR).

  It is the plug-in value minus z times its standard error by the delta method,
  √(p(1-p)/(n₁(p-δ)²) + (1-a)/(n₀a)) with p and a the two rates. One limit covers
  both rates, so that the chance of failure need not be divided between them. It is
  -inf where the method does not apply, because a count is 0 or the TPR at most δ.

  References: Katz et al., Biometrics 34 (1978), for δ = 0.

  >>> round(katz_log_lower(60, 100, 20, 100, 0.025), 3)
  0.675
  """
  p = np.asarray(true_positives, dtype=np.float64) / positives
  a = np.asarray(false_positives, dtype=np.float64) / negatives
  applies = (p > delta) & (a > 0)
  gain = np.where(applies, p - delta, 1.0)
  safe = np.where(applies, a, 1.0)
  variance = p * (1 - p) / (positives * gain**2)
  variance = variance + (1 - safe) / (negatives * safe)
  z = -special.ndtri(significance)
  limit = np.log(gain) - np.log(safe) - z * np.sqrt(variance)
  return scalar_or_array(np.where(applies, limit, -np.inf))


def _epsilon_at(
  counted: Counted, *, delta: float, significance: float
) -> Float[np.ndarray, '*batch m']:
  scores, _, missed, wrong = counted
  num, num_null = scores.observed.shape[-1], scores.unobserved.shape[-1]
  assert wrong is not None, 'they are counted'
  limit = functools.partial(
    katz_log_lower, significance=significance / 2, delta=delta
  )
  epsilon = np.maximum(
    limit(num - missed, num, wrong, num_null),
    limit(num_null - wrong, num_null, missed, num),
  )
  return np.maximum(epsilon, 0.0)
