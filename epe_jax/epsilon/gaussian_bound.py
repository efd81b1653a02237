"""A lower bound of ε that assumes Gaussian scores.

It is far tighter than bounds from counts, but a bound only if the assumption
holds: ε depends on tails in which no canary was observed. So the assumption is
part of the method's name, and is tested before a confidence is stated.

For Gaussians ε depends on two numbers only: the gap m between the means in units
of the null's standard deviation, and the ratio r of the standard deviations.
"""

from typing import Literal

from jaxtyping import Float
import numpy as np
from scipy import special

from epe_jax.epsilon import checks, diagnostics, two_gaussians
from epe_jax.epsilon.types import (
  Assumption,
  Estimate,
  Real,
  Scores,
  check_scores,
  make_bound,
  scalar_or_array,
)

REJECTED_BELOW = 0.01
# The share of the significance that the ratio of the stds takes.
_RATIO_SHARE = 0.2
_GRID, _REFINEMENTS, _ITERATIONS = 33, 3, 60


def gaussian_lower_bound(
  scores: Scores,
  *,
  delta: float,
  significance: float = 0.05,
  std: Literal['free', 'common'] = 'free',
) -> Estimate:
  """The smallest ε of all pairs of Gaussians that the scores do not reject.

  For a given ratio r of the standard deviations, the difference of the means over
  the pooled standard deviation is a noncentral t variable, whose noncentrality is
  m up to a known factor: its exact lower limit is a function m(r), with 80 % of the
  significance. The ratio has an exact interval from the F law, independent of both,
  with the rest. ε increases with |m| at every r, so that the minimum of ε(m(r), r)
  over the interval is an exact bound. If the null law is known, it is N(0, 1/d), and
  normal and χ² limits replace those of t and F.

  Args:
    std: 'free', or 'common' if participation is known to shift a score and not to
      change its spread. Then r = 1 and the gap has the whole significance.

  Returns:
    The bound, >= 0; but if Gaussian scores are rejected at 1 % (`gaussian_p_value`)
    in any of the audits, it is a point estimate by the method
    'gaussian_lower_bound_rejected', or '..._null_rejected' if the unobserved scores
    reject their null law. The test detects gross departures only: docs/coverage.md
    shows how many bounds of other laws pass it and are too high.

  Raises:
    ValueError: also if the scores of a group are all equal or fewer than two.

  >>> from scipy import stats
  >>> sample = stats.norm.ppf((np.arange(1000) + 0.5) / 1000)
  >>> bound = gaussian_lower_bound(Scores(sample + 2, sample), delta=1e-5)
  >>> round(bound.epsilon, 1), bound.confidence
  (9.4, 0.95)
  """
  check_scores(scores, delta)
  # The sums below are right to 1e-15.
  checks.check_number('significance', significance, '[1e-12, 1)')
  checks.check_choice('std', std, ('free', 'common'))
  share = _RATIO_SHARE * significance if std == 'free' else 0.0
  low, high, gap = _limits(scores, share, significance - share)
  if std == 'common':
    low, high = np.zeros_like(low), np.zeros_like(high)
  epsilon = _smallest(gap, low, high, delta)
  rejected = diagnostics.name_rejected_null(scores)
  if np.any(np.asarray(gaussian_p_value(scores)) < REJECTED_BELOW):
    rejected = 'rejected'
  assumes = (Assumption.INDEPENDENT, Assumption.GAUSSIAN_SCORES)
  if scores.has_known_null:
    assumes += (Assumption.COSINE_NULL,)
  if std == 'common':
    assumes += (Assumption.EQUAL_SPREAD,)
  return make_bound(
    epsilon,
    delta,
    'gaussian_lower_bound',
    significance=significance,
    assumes=assumes,
    rejected=rejected,
  )


def gaussian_p_value(scores: Scores) -> float | Float[np.ndarray, '...']:
  """P-value, of each audit, of Anderson and Darling's test that scores are Gaussian.

  Mean and standard deviation are fitted. The observed scores are tested and,
  unless their law is known, the unobserved ones; the smaller of the two p-values
  is then doubled. Fewer than eight scores can hardly reject anything.
  """
  _, _, p_value = _fit('observed', scores.observed)
  if not scores.has_known_null:
    _, _, other = _fit('unobserved', scores.unobserved)
    p_value = np.minimum(1.0, 2 * np.minimum(p_value, other))
  return scalar_or_array(p_value)


def noncentrality_lower(
  t: Real, df: float, significance: float
) -> float | Float[np.ndarray, '...']:
  """Lower limit of the noncentrality μ of a t variable (Z + μ)/√(W/df).

  It is the μ at which P(T >= t) = significance. The probability is a trapezoidal
  sum over Z or over log W, whichever leaves the smoother integrand; both converge
  geometrically, for any df >= 1 and t. `scipy.special.nctdtrinc` is off by 3 % at |t|
  = 0.1 and a significance of 0.001, and by more below.

  >>> from scipy import stats
  >>> limit = noncentrality_lower(3.0, 10, 0.05)
  >>> round(float(stats.nct.sf(3.0, 10, limit)), 6)
  0.05
  """
  t = np.asarray(t, dtype=np.float64)
  flat, target = t.ravel(), special.ndtri(significance)
  slope = np.sqrt(1 + flat**2 / (2 * df))
  limit, max_step = flat + target * slope, 8 * slope
  low, high = np.full_like(flat, -np.inf), np.full_like(flat, np.inf)
  last = last_probit = np.full_like(flat, np.nan)
  for _ in range(_ITERATIONS):
    # The probit of the probability is nearly linear in the noncentrality, so that
    # secants converge quickly; earlier values bracket the root.
    exceeds = np.clip(_exceedance(flat, df, limit), 1e-300, 1 - 1e-16)
    probit = special.ndtri(exceeds)
    low = np.where(probit <= target, limit, low)
    high = np.where(probit >= target, limit, high)
    rises = (probit - last_probit) * (limit - last) > 0
    rise = np.where(rises, probit - last_probit, 1.0)
    slope = np.where(rises, (limit - last) / rise, slope)
    step = np.clip((target - probit) * slope, -max_step, max_step)
    proposal = limit + step
    outside = (proposal < low) | (proposal > high)
    # A proposal is outside only if both ends have been evaluated and are finite.
    middle = np.where(outside, low, 0.0) / 2 + np.where(outside, high, 0.0) / 2
    last, last_probit = limit, probit
    limit = np.where(outside, middle, proposal)
    if np.all(np.abs(limit - last) <= 1e-10 * (1 + np.abs(limit))):
      break
  return scalar_or_array(limit.reshape(t.shape))


def _exceedance(t, df, noncentrality):
  """P((Z + μ)/√(W/df) >= t), with W chi-squared."""
  result = np.empty_like(t)
  # W <= df ((Z + μ)/t)²: smooth in Z if t/√(2 df), the width, is not small, but
  # for the kink at Z = -μ, which is of order df, or out of reach.
  over_z = (t > np.sqrt(2 * df)) & ((noncentrality > 9) | (df > 30))
  z = np.linspace(-9, 9, 73)
  weight = np.exp(-z * z / 2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
  scaled = np.maximum(z + noncentrality[over_z, None], 0) / t[over_z, None]
  result[over_z] = special.gammainc(df / 2, df / 2 * scaled**2) @ weight
  # Z >= t√(W/df) - μ: smooth in log W otherwise.
  ends = 2 * special.gammaincinv(df / 2, 1e-15), special.chdtri(df, 1e-17)
  w = np.linspace(np.log(ends[0]), np.log(ends[1]), 129 if df > 30 else 513)
  log_density = df / 2 * (w - np.log(2)) - np.exp(w) / 2
  weight = np.exp(log_density - special.gammaln(df / 2)) * (w[1] - w[0])
  root = np.exp((w - np.log(df)) / 2)
  rest = ~over_z
  above = noncentrality[rest, None] - t[rest, None] * root
  result[rest] = special.ndtr(above) @ weight
  return result


def _limits(scores, ratio_share, gap_share):
  """Interval of log r, and the lower limit of m as a function of log r."""
  mean, variance, _ = _fit('observed', scores.observed)
  num = scores.observed.shape[-1]
  both = np.array([1 - ratio_share / 2, ratio_share / 2])
  if scores.has_known_null:
    null_mean, null_std = two_gaussians.null_gaussian(scores)
    shift, ratio2 = (mean - null_mean) / null_std, variance / null_std**2
    quantile = special.chdtri(num - 1, 1 - both) / (num - 1)

    def gap(log_r):
      z = -special.ndtri(gap_share)
      return shift[..., None] - z * np.exp(log_r) / np.sqrt(num)

  else:
    null_mean, null_variance, _ = _fit('unobserved', scores.unobserved)
    num_null = scores.unobserved.shape[-1]
    shift, ratio2 = mean - null_mean, variance / null_variance
    quantile = special.fdtri(num - 1, num_null - 1, both)

    def gap(log_r):
      r2, df = np.exp(2 * log_r), num + num_null - 2
      pooled = (num - 1) * variance[..., None] / r2
      pooled = (pooled + (num_null - 1) * null_variance[..., None]) / df
      unit = np.sqrt(1 / num_null + r2 / num)
      t = shift[..., None] / (np.sqrt(pooled) * unit)
      return noncentrality_lower(t, df, gap_share) * unit

  with np.errstate(divide='ignore'):
    low, high = (np.log(ratio2 / q) / 2 for q in quantile)
  return low, high, gap


def _smallest(gap, low, high, delta):
  """min of ε(m(r), r) over the interval of log r, by repeated grid search."""
  nearest = np.clip(0.0, low, high)[..., None]
  best, low_end, high_end = np.full(low.shape, np.inf), low, high
  fixed = np.all(low == high)
  for _ in range(1 if fixed else _REFINEMENTS):
    grid = np.linspace(low_end, high_end, 1 if fixed else _GRID, axis=-1)
    # At r = 1 the two directions of ε cross in a kink: it is never missed.
    grid = np.concatenate([grid, nearest], axis=-1)
    m = np.maximum(gap(grid), 0.0)
    epsilon = np.asarray(
      two_gaussians.epsilon_two_gaussians(0.0, 1.0, m, np.exp(grid), delta)
    )
    at = np.argmin(epsilon, axis=-1, keepdims=True)
    centre = np.take_along_axis(grid, at, axis=-1)[..., 0]
    best = np.minimum(best, np.min(epsilon, axis=-1))
    step = (high_end - low_end) / (_GRID - 1)
    low_end = np.maximum(low, centre - 2 * step)
    high_end = np.minimum(high, centre + 2 * step)
  return best


def _fit(name, values):
  """Mean, unbiased variance, and Anderson and Darling's p-value."""
  num = values.shape[-1]
  if num < 2:
    raise ValueError(
      f'{name} has {num} scores, but a spread needs at least two. Use '
      'lower_bound, or more canaries.'
    )
  mean, std, a = diagnostics.fit_normal(name, values)
  return mean, std**2, diagnostics.p_value_fitted(a, num)
