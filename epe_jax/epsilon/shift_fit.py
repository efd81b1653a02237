"""The model x_j = s μ_j + noise with known μ_j: the fit of s, its limits, and tests.

In units of the null's standard deviation the noise is N(0, 1), whether or not a
canary took part.
"""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float, Int
import numpy as np
from scipy import special

from epe_jax.epsilon import diagnostics, gaussian_bound, two_gaussians
from epe_jax.epsilon.types import (
  NullLaw,
  Real,
  Scores,
  Sphere,
  check_scores,
  scalar_or_array,
)

REJECTED_BELOW = 1e-3
"""Significance at which a test says that an estimate is not calibrated.

A report makes about ten such tests, so that one report in a hundred raises a doubt
by chance.
"""


class Fit(NamedTuple):
  """The fitted factor s, and how accurately it is known.

  Attributes:
    s: [*batch], in units of the null's standard deviation; negative if canaries
      that took part score lower than others.
    scale: [*batch], 1 over the standard error of s.
    df: degrees of freedom of the fitted standard deviation, for which s times
      scale is a t statistic; inf if the null law is known.
  """

  s: Float[np.ndarray, '*batch']
  scale: Float[np.ndarray, '*batch']
  df: float


def fit_shift(scores: Scores) -> Fit:
  """Fits s by least squares, together with the null law if that is not known.

  Args:
    scores: scores of canaries, any leading axes.

  Raises:
    ValueError: there are fewer than two unobserved scores to fit the spread of
      the null, or all scores of each group are equal.
  """
  shift = shift_of(scores)
  if scores.has_known_null:
    null_mean, null_std = two_gaussians.null_gaussian(scores)
    x = (scores.observed - null_mean[..., None]) / null_std[..., None]
    square = float(np.sum(shift**2))
    s = np.asarray(np.sum(shift * x, axis=-1) / square)
    return Fit(s, _find_scale(scores, s, square), np.inf)
  null = scores.unobserved
  total = shift.size + null.shape[-1]
  if null.shape[-1] < 2:
    raise ValueError(
      f'unobserved has {null.shape[-1]} scores, but their spread needs two. Use '
      'more canaries, or, if scores are cosines in R^d, give null=Sphere(d), on the '
      'command line --dim=D.'
    )
  # The regression x = m + s σ μ, with μ = 0 for those that took no part.
  pooled = np.concatenate([scores.observed, null], axis=-1)
  mu = np.concatenate([shift, np.zeros(null.shape[-1])])
  centred = mu - mu.mean()
  square = float(np.sum(centred**2))
  slope = np.sum(centred * pooled, axis=-1) / square
  rest = pooled - pooled.mean(axis=-1, keepdims=True)
  rest = rest - slope[..., None] * centred
  std = np.sqrt(np.sum(rest**2, axis=-1) / (total - 2))
  if not np.all(std > 0):
    raise ValueError(
      'the scores of an audit are all equal in each group, so their spread is 0 '
      'and ε is undefined: use more canaries.'
    )
  s = np.asarray(slope / std)
  return Fit(s, _find_scale(scores, s, square), float(total - 2))


def _find_scale(scores, s, square):
  """1 over the standard error of s, with what canaries of one vector share.

  A mean that is fitted too takes as much of what is shared as of the shifts: `square`
  is what is left of Σ μ².
  """
  shared = scores.overlap * square / np.sum(shift_of(scores) ** 2)
  return np.sqrt(square / (1 + s**2 * shared))


def compute_overlap(
  shift: Float[np.ndarray, ' n1'],
  vector: Int[np.ndarray, ' n1'],
  null: NullLaw,
) -> float:
  """`Scores.overlap` of canaries that are noise to others in the same vector.

  Args:
    shift: μ of each observed canary.
    vector: the number of the vector that holds each canary.
    null: the law of unobserved canaries; unless it is `Sphere`, overlap is 0.
  """
  if not isinstance(null, Sphere):
    return 0.0
  of_vector = np.bincount(vector, shift**2)
  # Of canaries alone in their vectors it is 0 but for rounding.
  others = max(0.0, np.sum(of_vector**2) - np.sum(shift**4))
  return float(others / (null.dim * np.sum(shift**2)))


def shift_of(scores: Scores) -> Float[np.ndarray, ' n1']:
  """The shift μ of each observed canary, up to a factor; 1 if none is given."""
  check_scores(scores)
  if scores.shift is not None:
    return scores.shift
  return np.ones(scores.observed.shape[-1])


def lower_confidence_limit(fit: Fit, significance: float) -> Real:
  """Lower limit of s, of each audit.

  Args:
    fit: of s.
    significance: chance that the limit exceeds s, in (0, 1).
  """
  if np.isinf(fit.df):
    return fit.s + special.ndtri(significance) / fit.scale
  t = fit.s * fit.scale
  limit = gaussian_bound.noncentrality_lower(t, fit.df, significance)
  return np.asarray(limit) / fit.scale


def confidence_limits(fit: Fit, tail: float) -> tuple[float, float]:
  """Lower and upper limit of |s| of one audit.

  Args:
    fit: of s.
    tail: chance with which each limit fails, in (0, 1/2).
  """
  mirrored = fit._replace(s=-fit.s)
  low, high = (
    float(lower_confidence_limit(fit, tail)),
    -float(lower_confidence_limit(mirrored, tail)),
  )
  ends = sorted((abs(low), abs(high)))
  return (0.0 if low <= 0 <= high else ends[0]), ends[1]


class PValues(NamedTuple):
  """P-values of what `mixture.location_mixture` assumes, [*batch] each.

  Attributes:
    spread: of the test that observed scores, less their shifts, have the spread
      of unobserved ones.
    shape: of Anderson and Darling's test that they are Gaussian.
  """

  spread: float | Float[np.ndarray, '*batch']
  shape: float | Float[np.ndarray, '*batch']


def p_values(scores: Scores) -> PValues:
  """Tests what `mixture.location_mixture` assumes of these scores.

  Args:
    scores: scores of canaries, any leading axes.

  Returns:
    Two p-values for each audit. That of the shape is 1 for fewer than eight
    observed scores, and that of the spread for fewer than two.
  """
  num = scores.observed.shape[-1]
  batch = scores.observed.shape[:-1]
  rest = residuals(scores)
  if num < 2 or not np.all(np.ptp(rest, axis=-1) > 0):
    one = scalar_or_array(np.ones(batch))
    return PValues(scalar_or_array(np.full(batch, float(num < 2))), one)
  square = np.sum(rest**2, axis=-1)
  if scores.has_known_null:
    below, above = (
      special.chdtr(num - 1, square),
      special.chdtrc(num - 1, square),
    )
  else:
    df = scores.unobserved.shape[-1] - 1
    ratio = square / (num - 1)
    below, above = (
      special.fdtr(num - 1, df, ratio),
      special.fdtrc(num - 1, df, ratio),
    )
  spread = np.minimum(1.0, 2 * np.minimum(below, above))
  shape = np.ones(batch)
  if num >= diagnostics.MIN_SCORES:
    centred = rest - rest.mean(axis=-1, keepdims=True)
    z = np.sort(centred, axis=-1) / np.std(rest, axis=-1, ddof=1)[..., None]
    a = diagnostics.a_squared(special.log_ndtr(z), special.log_ndtr(-z))
    shape = np.asarray(diagnostics.p_value_fitted(a, num))
  return PValues(scalar_or_array(spread), scalar_or_array(shape))


def compare_with_expected(scores: Scores) -> tuple[float, float]:
  """Compares the fitted factor ŝ with 1, for shifts known absolutely.

  Args:
    scores: one audit, with `shift` in units of the null's standard deviation, so
      that s should be 1.

  Returns:
    The difference of ŝ from 1 in standard errors, and its two-sided p-value.

  Raises:
    ValueError: as `fit_shift`.
  """
  fit = fit_shift(scores)
  z = float((fit.s - 1) * fit.scale)
  if not np.isinf(fit.df):
    # As the standard deviation is estimated, the error of ŝ grows with ŝ.
    z /= float(np.sqrt(1 + (fit.s * fit.scale) ** 2 / (2 * fit.df)))
  return z, float(2 * special.ndtr(-abs(z)))


def residuals(scores: Scores) -> Float[np.ndarray, '*batch n1']:
  """Observed scores less their fitted shifts, in units of the null's std.

  Args:
    scores: scores of canaries, any leading axes.
  """
  if scores.has_known_null:
    mean, std = two_gaussians.null_gaussian(scores)
  else:
    mean, std = two_gaussians.fitted_gaussian('unobserved', scores.unobserved)
    num = scores.unobserved.shape[-1]
    std = std * np.sqrt(num / (num - 1))
  x = (scores.observed - mean[..., None]) / std[..., None]
  shift = shift_of(scores)
  s = np.sum(shift * x, axis=-1) / np.sum(shift**2)
  return x - s[..., None] * shift
