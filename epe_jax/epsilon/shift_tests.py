"""Tests whether scores are Gaussian around shifts that are known multiples."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float
import numpy as np
from scipy import special

from epe_jax.epsilon import diagnostics, gaussian, shift_fit
from epe_jax.epsilon.types import Scores, scalar_or_array

REJECTED_BELOW = 1e-3
"""Significance at which a test says that an estimate is not calibrated.

A report makes about ten such tests, so that one report in a hundred raises a doubt
by chance.
"""


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
  if scores.dim is not None:
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
    ValueError: as `shift_fit.fit_shift`.
  """
  fit = shift_fit.fit_shift(scores)
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
  if scores.dim is not None:
    mean, std = gaussian.null_gaussian(scores)
  else:
    mean, std = gaussian.fitted_gaussian('unobserved', scores.unobserved)
    num = scores.unobserved.shape[-1]
    std = std * np.sqrt(num / (num - 1))
  x = (scores.observed - mean[..., None]) / std[..., None]
  shift = shift_fit.shift_of(scores)
  s = np.sum(shift * x, axis=-1) / np.sum(shift**2)
  return x - s[..., None] * shift
