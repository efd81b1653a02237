"""The paper's estimates: equation (1) at the threshold where it is largest.

They are no bounds (`lower_bounds`): the maximum over thresholds is not corrected for.
"""

import functools
from typing import Literal

import numpy as np
from scipy import special

from epe_jax.epsilon import checks, threshold, two_gaussians
from epe_jax.epsilon.types import (
  Assumption,
  Estimate,
  Scores,
  check_scores,
  scalar_or_array,
)

_REFINEMENTS, _GRID = 8, 65


def eps_lo(scores: Scores, *, delta: float) -> Estimate:
  """The paper's ε_lo: (1) with upper limits of both rates, at its best threshold.

  The FNR is replaced by its Jeffreys upper limit of 95 %. The FPR is exact if the null law
  is known (the paper's final-model column), and otherwise replaced by its Jeffreys
  upper limit too (its all-iterates column).

  The paper calls this a 95 % lower bound. It is not, because each threshold has its
  own 5 % chance of error and the maximum is not corrected for: without leakage, k =
  1000 and δ = 1e-5 it exceeds ε = 0 in about 74 % of audits with the exact null
  law, and in 29 % with the empirical one. Of two sets of k canaries it is at most
  log((1 - δ - b)/b) with b the Jeffreys limit for no error in k, 6.25 for k = 1000.

  Returns:
    A point estimate >= 0. It is inf if a cosine of 1 has no false positives.

  References: section 5.1 of the paper; Jagielski et al. (2020) and, for the
  Jeffreys limit, Zanella-Béguelin et al. (2023).
  """
  check_scores(scores, delta)
  upper = functools.partial(threshold.jeffreys_upper, significance=0.05)
  return _estimate('eps_lo', scores, delta, upper, (Assumption.INDEPENDENT,))


def max_threshold(
  scores: Scores,
  *,
  delta: float,
  rates: Literal['gaussian', 'empirical'] = 'gaussian',
) -> Estimate:
  """The estimate of the paper's first version: (1) at its best threshold.

  It uses estimates of both rates, not limits.

  Args:
    rates: 'gaussian', as printed: from the Gaussians of `two_gaussian` with
      std='fitted'; the threshold is then any number. 'empirical': from counts,
      where c canaries out of n are a rate of (c + 1/2)/(n + 1), the Jeffreys mean,
      because a rate of 0 would make ε infinite. The FPR is then exact if the null
      law is known.

  Returns:
    A point estimate >= 0. With Gaussian rates it is at most `two_gaussian`, which
    may choose any event, and equal to it for equal standard deviations.

  Raises:
    ValueError: also if a Gaussian is fitted to equal scores.

  References: arXiv:2302.03098, text of May 2023, sections 3 and 4.
  """
  check_scores(scores, delta)
  checks.check_choice('rates', rates, ('gaussian', 'empirical'))
  if rates == 'empirical':
    mean = lambda count, trials: (count + 0.5) / (trials + 1)
    return _estimate('max_threshold_empirical', scores, delta, mean, ())
  null_mean, null_std = two_gaussians.null_gaussian(scores)
  mean, std = two_gaussians.fitted_gaussian('observed', scores.observed)
  above = _best_half_line(mean, std, null_mean, null_std, delta)
  below = _best_half_line(-null_mean, null_std, -mean, std, delta)
  return Estimate(
    scalar_or_array(np.maximum(np.maximum(above, below), 0.0)),
    delta,
    'max_threshold_gaussian',
    confidence=None,
    assumes=(Assumption.GAUSSIAN_SCORES,),
  )


def _estimate(method, scores, delta, rate, assumes):
  """(1) at the best threshold, with a rate or limit from counts."""
  at, false_negatives = threshold.find_realisable(scores.observed)
  false_positives = None
  if not scores.has_known_null:
    false_positives = threshold.count_at_least(scores.unobserved, at)
  counted = threshold.Counted(scores, at, false_negatives, false_positives)
  log_fpr, fnr = counted.rates(rate)
  epsilon = np.max(threshold.epsilon_at(log_fpr, np.log(fnr), delta), axis=-1)
  return Estimate(
    scalar_or_array(epsilon), delta, method, confidence=None, assumes=assumes
  )


def _best_half_line(mean_p, std_p, mean_q, std_q, delta):
  """Maximum over a of log (P(X > a) - δ)/Q(X > a), by repeated grid search.

  The threshold is a = mean_p + z std_p with z below that at which P(X > a) is δ.
  Each grid spans two steps on either side of the best point of the one before; the
  last step is 1e-9, and the maximum is flat.
  """
  shift, scale = (mean_p - mean_q) / std_q, std_p / std_q
  low, high = np.full_like(mean_p, -9.0), np.full_like(mean_p, 0.0)
  high = high - special.ndtri(delta)
  for _ in range(_REFINEMENTS):
    z = np.linspace(low, high, _GRID, axis=-1)
    gain = special.ndtr(-z) - delta
    value = np.log(np.where(gain > 0, gain, 1.0)) - special.log_ndtr(
      -(shift[..., None] + scale[..., None] * z)
    )
    value = np.where(gain > 0, value, -np.inf)
    best = np.argmax(value, axis=-1, keepdims=True)
    step = (high - low) / (_GRID - 1)
    centre = np.take_along_axis(z, best, axis=-1)[..., 0]
    low, high = (
      np.maximum(low, centre - 2 * step),
      np.minimum(high, centre + 2 * step),
    )
  return np.max(value, axis=-1)
