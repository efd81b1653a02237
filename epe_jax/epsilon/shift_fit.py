"""Fits s, and its confidence limits, to scores x_j = s μ_j + noise with known μ_j.

In units of the null's standard deviation the noise is N(0, 1), whether or not a
canary took part.
"""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float, Int
import numpy as np
from scipy import special

from epe_jax.epsilon import gaussian, parametric
from epe_jax.epsilon.types import Real, Scores


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
  if scores.dim is not None:
    null_mean, null_std = gaussian.null_gaussian(scores)
    x = (scores.observed - null_mean[..., None]) / null_std[..., None]
    square = float(np.sum(shift**2))
    s = np.asarray(np.sum(shift * x, axis=-1) / square)
    return Fit(s, _find_scale(scores, s, square), np.inf)
  null = scores.unobserved
  total = shift.size + null.shape[-1]
  if null.shape[-1] < 2:
    raise ValueError(
      f'unobserved has {null.shape[-1]} scores, but their spread needs two. Use '
      'more canaries, or give dim if scores are cosines.'
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
  dim: float | None,
) -> float:
  """`Scores.overlap` of canaries that are noise to others in the same vector.

  Args:
    shift: μ of each observed canary.
    vector: the number of the vector that holds each canary.
    dim: d of the vectors; None if the null law is fitted, and then it is 0.
  """
  if dim is None:
    return 0.0
  of_vector = np.bincount(vector, shift**2)
  others = np.sum(of_vector**2) - np.sum(shift**4)
  return float(others / (dim * np.sum(shift**2)))


def shift_of(scores: Scores) -> Float[np.ndarray, ' n1']:
  """The shift μ of each observed canary, up to a factor; 1 if none is given."""
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
  limit = parametric.noncentrality_lower(t, fit.df, significance)
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
