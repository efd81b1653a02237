"""Are scores Gaussian, as the two-Gaussian estimates assume?

Cosines with a fixed vector are close to Gaussian if the vector is spread over
many coordinates, and always for canaries uniform on the sphere. Maxima over
rounds, overlapping clients and one-hot updates can violate this, and ε depends
on the far tails, where small departures matter.

References: Anderson and Darling (1954); D'Agostino and Stephens, "Goodness-of-fit
techniques" (1986), sections 4.8 and 4.5.
"""

import functools
from typing import Literal, NamedTuple

from jaxtyping import Bool, Float
import numpy as np
from scipy import optimize, special

from epe_jax.epsilon import checks, cosine_null, two_gaussians
from epe_jax.epsilon.types import (
  NullLaw,
  Real,
  Scores,
  scalar_or_array,
)

# The approximation of the p-value holds from eight scores on.
MIN_SCORES = 8
_NULL_REJECTED_BELOW = 1e-4
_NODES = np.cos((np.arange(64) + 0.5) * np.pi / 64)


class AndersonDarling(NamedTuple):
  """A² >= 0, and the probability of a larger one if the assumed law is true."""

  statistic: float
  p_value: float


def anderson_darling(values: Float[np.ndarray, 'n']) -> AndersonDarling:
  """Anderson-Darling test of normality, mean and spread unknown (case 3).

  A² is computed as in SciPy and in the paper, with the standard deviation of
  n - 1. The p-value is that of A² (1 + 0.75/n + 2.25/n²). By it 1.088, which the
  paper rejects at 1 % (after Stephens 1974), has p = 0.0074, and the critical
  value at 1 % is 1.035 for large n.

  Args:
    values: scores, n >= 8, not all equal.

  Returns:
    The statistic and its p-value, accurate to two digits and at least 1e-23.

  References: D'Agostino and Stephens, section 4.8.5 and Table 4.9.
  """
  values = checks.check_numbers('values', values, '(-inf, inf)', is_vector=True)
  _check_number(values)
  _, _, a = fit_normal('observed', values)
  return AndersonDarling(float(a), float(p_value_fitted(a, values.size)))


def anderson_darling_null(
  values: Float[np.ndarray, 'n'], *, null: NullLaw
) -> AndersonDarling:
  """Anderson-Darling test of an exact law, `Sphere` or `Gaussian` (case 0).

  Nothing is fitted, so that the test detects a wrong mean or spread as well as a
  wrong shape. The statistic is infinite for a cosine of 1. The p-value is that of
  many scores, which for eight is wrong by at most 0.02.
  """
  _check_number(values)
  law = cosine_null.null_distribution(null)
  ordered = np.sort(values)
  log_below = np.asarray(law.logsf(-ordered))
  statistic = float(a_squared(log_below, np.asarray(law.logsf(ordered))))
  return AndersonDarling(statistic, _p_value_known(statistic))


def is_null_rejected(scores: Scores) -> Bool[np.ndarray, '*batch']:
  """Whether the unobserved scores of each audit reject their known null law.

  There are two tests, each at a significance of 5e-5: `anderson_darling_null`,
  which detects a wrong shape, and one of their mean square, which detects a wrong
  dim. A bound that is withdrawn if either rejects therefore keeps practically all
  of its confidence. In nine of ten audits 500 cosines reject a dim that is wrong
  by a factor of 1.5, and 50 cosines one that is wrong by a factor of 3. Fewer than
  eight scores, or zeros, as a vector of zeros gives, reject nothing.
  """
  batch = scores.observed.shape[:-1]
  if not scores.has_known_null or scores.unobserved.shape[-1] < MIN_SCORES:
    return np.zeros(batch, bool)
  law = cosine_null.null_distribution(scores.null)
  ordered = np.sort(scores.unobserved, axis=-1)
  statistic = a_squared(
    np.asarray(law.logsf(-ordered)), np.asarray(law.logsf(ordered))
  )
  # At most chi-squared in spread: a cosine has no more kurtosis than a Gaussian.
  n, square = ordered.shape[-1], np.sum((ordered / law.std) ** 2, axis=-1)
  tail = np.minimum(special.chdtr(n, square), special.chdtrc(n, square))
  rejected = statistic > _critical_value()
  rejected |= 2 * tail < _NULL_REJECTED_BELOW / 2
  return np.asarray(rejected & (square > 0))


def name_rejected_null(scores: Scores) -> str | None:
  """'null_rejected' if any audit rejects its null law, otherwise None.

  It is what `types.make_bound` takes as `rejected`.
  """
  return 'null_rejected' if np.any(is_null_rejected(scores)) else None


@functools.cache
def _critical_value() -> float:
  excess = lambda a: _p_value_known(a) - _NULL_REJECTED_BELOW / 2
  return float(optimize.brentq(excess, 1.0, 30.0))  # pyright: ignore


def a_squared(
  log_below: Float[np.ndarray, '*batch n'],
  log_above: Float[np.ndarray, '*batch n'],
) -> Float[np.ndarray, '*batch']:
  """A² of sorted scores, from the logs of their cdf and survival function."""
  n = log_below.shape[-1]
  weight = (2 * np.arange(n) + 1) / n
  return np.asarray(
    -n - np.sum(weight * (log_below + log_above[..., ::-1]), axis=-1)
  )


def fit_normal(
  name: Literal['observed', 'unobserved'], values: Float[np.ndarray, '*batch n']
) -> tuple[Float[np.ndarray, '*batch'], ...]:
  """Mean, standard deviation (of n - 1), and A² of a Gaussian fitted to a group."""
  num = values.shape[-1]
  mean, std = two_gaussians.fitted_gaussian(name, values)
  std = np.asarray(std * np.sqrt(num / (num - 1)))
  z = (np.sort(values, axis=-1) - mean[..., None]) / std[..., None]
  return mean, std, a_squared(special.log_ndtr(z), special.log_ndtr(-z))


def p_value_fitted(
  statistic: Real, n: int
) -> float | Float[np.ndarray, '*batch']:
  """P-value of the A² of n scores whose mean and spread were fitted.

  References: D'Agostino and Stephens, Table 4.9.
  """
  # The first formula is a parabola, which turns upwards far outside its range.
  a = np.minimum(statistic * (1 + 0.75 / n + 2.25 / n**2), 10.0)
  low = np.minimum(a, 0.6)  # Out of their range the others may overflow.
  p_value = np.select(
    [a >= 0.6, a >= 0.34, a >= 0.2],
    [
      np.exp(1.2937 - 5.709 * a + 0.0186 * a * a),
      np.exp(0.9177 - 4.279 * a - 1.38 * a * a),
      -np.expm1(-8.318 + 42.796 * low - 59.938 * low * low),
    ],
    -np.expm1(-13.436 + 101.14 * low - 223.73 * low * low),
  )
  return scalar_or_array(p_value)


def _check_number(values):
  if values.size < MIN_SCORES:
    raise ValueError(
      f'values has {values.size} scores; give at least {MIN_SCORES}.'
    )


def _p_value_known(a):
  """P(Σ_j Z_j²/(j (j + 1)) > a), by Smirnov's formula.

  With D(u) = Π_j (1 - u/(j (j + 1))) = -cos(π √(1 + 4u)/2)/(π u) it is an
  alternating sum over k of the integrals of e^(-a u/2)/(u √|D(u)|)/π between
  the zeros (2k-1) 2k and 2k (2k+1), here by Gauss-Chebyshev quadrature.
  """
  # The lower tail is below 2e-10 there, and the series slow.
  if a < 0.05:
    return 1.0
  k = np.arange(1, 21)[:, None]
  low, high = (2 * k - 1) * 2 * k, 2 * k * (2 * k + 1)
  u = (low + high) / 2 + (high - low) / 2 * _NODES
  product = np.abs(np.cos(np.pi / 2 * np.sqrt(1 + 4 * u))) / (np.pi * u)
  root = np.sqrt((u - low) * (high - u))
  with np.errstate(under='ignore'):
    terms = np.mean(np.exp(-a * u / 2) * root / (u * np.sqrt(product)), axis=1)
  signs = 1 - 2 * (np.arange(20) % 2)
  return float(np.clip(np.sum(signs * terms), 0.0, 1.0))
