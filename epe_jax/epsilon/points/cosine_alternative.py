"""The exact law of the cosine of a canary with a sum that contains it.

The estimates of this package treat √d times a cosine as N(μ, 1). Its exact law is
that of a function of a noncentral t variable, for any d >= 2, and
`epsilon_cosines` is its exact ε. Below some hundred dimensions `shifted_cosine` is
the estimate to use.

References: Johnson, Kotz and Balakrishnan, "Continuous univariate distributions",
volume 2 (1995), chapter 31; Mardia and Jupp, "Directional statistics" (2000),
section 9.3.3, on the law of the direction.
"""

from __future__ import annotations

import dataclasses

from jaxtyping import Float
import numpy as np
from scipy import special
from scipy.optimize import elementwise

from epe_jax.epsilon import arguments
from epe_jax.epsilon.null_laws import cosine_null
from epe_jax.epsilon.types import (
  Estimate,
  Real,
  Scores,
  Sphere,
  check_delta,
  check_scores,
  scalar_or_array,
)

_Value = float | Float[np.ndarray, '...']
# Integrands fall on scales that may be far wider than their peak, on either side:
# nodes spread as a hyperbolic sine.
_BEND, _STEP = 0.35, 0.2
_Z = np.arange(-32.0, 32.0, _STEP)
_NODES, _LOG_WEIGHTS = np.sinh(_BEND * _Z) / _BEND, np.log(np.cosh(_BEND * _Z))
_SMALLEST = -1e4


@dataclasses.dataclass(frozen=True)
class ShiftedCosine:
  """Law of cos(c, s c + w), for a unit vector c and w ~ N(0, σ² I_d).

  Along c the sum is s + σ Z, and across it has length σ χ_(d-1), so that with
  μ = s/σ the cotangent of the angle is (Z + μ)/χ_(d-1): √(d-1) times it is a
  noncentral t variable with d - 1 degrees of freedom and noncentrality μ. For
  μ = 0 the law is `cosine_null.CosineNull`. c may be fixed, or random and independent.

  All methods broadcast and return a float for a scalar argument.

  Attributes:
    dim: d >= 2.
    shift: μ >= 0.

  Raises:
    ValueError: an attribute is out of range.

  >>> law = ShiftedCosine(dim=3, shift=1.0)
  >>> round(law.cdf(0.5), 6), round(law.mean, 6)
  (0.396273, 0.483941)
  """

  dim: int
  shift: float

  def __post_init__(self):
    cosine_null.CosineNull(self.dim)
    arguments.check_number('shift', self.shift, '[0, inf)')

  @property
  def mean(self) -> float:
    """Mean of the cosine, about μ/√(d + μ²)."""
    return float(_mean(self.dim, np.asarray(self.shift)))

  @property
  def std(self) -> float:
    """Standard deviation of the cosine."""
    # 1 - cos² = χ²_(d-1)/|v|²: its mean, by Kummer's function.
    sine2 = special.hyp1f1(1, self.dim / 2 + 1, -(self.shift**2) / 2)
    sine2 = sine2 * (self.dim - 1) / self.dim
    return float(np.sqrt(1 - sine2 - self.mean**2))

  def log_ratio(self, cosine: Real) -> _Value:
    """Log of the density over that of `cosine_null.CosineNull`; increasing.

    It is bounded, so that cosines are (ε, 0)-DP for some ε.
    """
    x = np.asarray(cosine, dtype=np.float64)
    shift = np.full(x.shape, float(self.shift))
    return scalar_or_array(_log_ratio(self.dim, shift, x))

  def logpdf(self, cosine: Real) -> _Value:
    """Log density; -inf outside [-1, 1]."""
    x = np.asarray(cosine, dtype=np.float64)
    base = np.asarray(cosine_null.CosineNull(self.dim).logpdf(x))
    return scalar_or_array(base + self.log_ratio(np.clip(x, -1.0, 1.0)))

  def pdf(self, cosine: Real) -> _Value:
    """Density; 0 outside [-1, 1]."""
    return scalar_or_array(np.exp(self.logpdf(cosine)))

  def logsf(self, cosine: Real) -> _Value:
    """Log of P(cos > cosine), also where that probability underflows."""
    return scalar_or_array(self._log_tail(cosine, 1.0))

  def sf(self, cosine: Real) -> _Value:
    """P(cos > cosine)."""
    return scalar_or_array(np.exp(self.logsf(cosine)))

  def logcdf(self, cosine: Real) -> _Value:
    """Log of P(cos <= cosine), also where that probability underflows."""
    return scalar_or_array(self._log_tail(cosine, -1.0))

  def cdf(self, cosine: Real) -> _Value:
    """P(cos <= cosine)."""
    return scalar_or_array(np.exp(self.logcdf(cosine)))

  def _log_tail(self, cosine, side):
    x = np.asarray(cosine, dtype=np.float64)
    inside = np.abs(x) < 1
    cot = _cot(np.where(inside, x, 0.0))
    shift = np.full(x.shape, float(self.shift))
    tail = _log_tail(self.dim, shift, cot, side)
    return np.where(inside, tail, np.where(side * x < 0, 0.0, -np.inf))


def epsilon_cosines(dim: int, shift: Real, delta: float) -> _Value:
  """Smallest ε >= 0 at which null and shifted cosines are (ε, δ)-close.

  The likelihood ratio R increases with the cosine, so {R > e^ε} is a half-line,
  and δ = P_μ(cos > x) - R(x) P_0(cos > x) is solved for x; likewise for cosines
  below x, and ε is the larger of both.

  It is at most the ε of N(μ, 1) and N(0, 1): an attacker who sees cosines and not
  lengths learns less.

  Args:
    dim: d >= 2.
    shift: μ = s/σ >= 0, any shape.
    delta: δ, in (0, 1).

  Returns:
    ε with the shape of `shift`, to eight digits.

  Raises:
    ValueError: an argument is out of range.

  >>> round(epsilon_cosines(10**6, 1.0, 1e-5), 3), round(
  ...   epsilon_cosines(10, 1.0, 1e-5), 3)
  (4.377, 3.035)
  """
  cosine_null.CosineNull(dim)
  check_delta(delta)
  mu = arguments.check_numbers('shift', shift, '[0, inf)')
  flat = mu.ravel()
  epsilon = np.zeros_like(flat)
  positive = flat > 0
  if np.any(positive):
    # From the angle at which both laws are equally likely, outwards.
    even = _even(dim, flat[positive])
    epsilon[positive] = np.maximum(
      _one_side(dim, flat[positive], even, delta, 1.0),
      _one_side(dim, flat[positive], even, delta, -1.0),
    )
  return scalar_or_array(epsilon.reshape(mu.shape))


def shifted_cosine(scores: Scores, *, delta: float) -> Estimate:
  """ε of cosines in few dimensions, at the μ whose mean cosine is the observed one.

  It assumes Gaussian noise and the same μ for all canaries, and holds for any d.

  Args:
    scores: cosines, with null=Sphere(d), any leading axes.
    delta: δ, in (0, 1).

  Returns:
    A point estimate; inf if all cosines are 1.

  Raises:
    ValueError: delta is out of range, or `scores.null` is not `Sphere`.
  """
  check_scores(scores, delta)
  if not isinstance(scores.null, Sphere):
    raise ValueError(
      f'scores have null={scores.null}, so their law is not that of a cosine. Give '
      'null=Sphere(d), or use two_gaussian.'
    )
  dim = int(scores.null.dim)
  mu = shift_of_mean(dim, np.mean(scores.observed, axis=-1))
  epsilon = np.full(np.shape(mu), np.inf)
  finite = np.isfinite(mu)
  epsilon[finite] = epsilon_cosines(dim, np.asarray(mu)[finite], delta)
  return Estimate(
    scalar_or_array(epsilon), delta, 'shifted_cosine', confidence=None
  )


def shift_of_mean(dim: int, mean: Real) -> _Value:
  """The μ >= 0 at which the mean of the cosine is a given one.

  Args:
    dim: d >= 2.
    mean: mean cosines, any shape.

  Returns:
    μ, with the shape of `mean`: 0 for a mean of at most 0, inf for one of at
    least 1.
  """
  mean = np.asarray(mean, dtype=np.float64)
  inside = (mean > 0) & (mean < 1)
  target = np.where(inside, mean, 0.5)
  # The mean is between μ/√(d + μ²) and that with one dimension less.
  odds = target / np.sqrt((1 - target) * (1 + target))
  low, high = odds * np.sqrt(dim - 1) * 0.5, odds * np.sqrt(dim) * 2 + 1e-300

  def excess(mu, target):
    return _mean(dim, mu) - target

  root = elementwise.find_root(excess, (low, high), args=(target,)).x
  return scalar_or_array(
    np.where(inside, root, np.where(mean > 0, np.inf, 0.0))
  )


def _mean(dim, mu):
  kummer = special.hyp1f1(0.5, dim / 2 + 1, -(mu**2) / 2)
  return mu / np.sqrt(2) / special.poch((dim + 1) / 2, 0.5) * kummer


def _cot(cosine):
  return cosine / np.sqrt((1 - cosine) * (1 + cosine))


def _cosine(cot):
  return cot / np.hypot(1.0, cot)


def _log_integral(peak, width, log_integrand):
  """log ∫ over the log of a radius, by a trapezoidal sum."""
  y = np.log(peak)[..., None] + width[..., None] * _NODES
  y = np.minimum(y, 300.0)  # Where nothing is left, and nothing overflows.
  values = log_integrand(y) + _LOG_WEIGHTS
  top = np.max(values, axis=-1)
  total = np.sum(np.exp(values - top[..., None]), axis=-1)
  return top + np.log(total) + np.log(width * _STEP)


def _log_radial(dim, slope):
  """log ∫ r^(d-1) exp(-r²/2 + slope r) dr over r > 0."""
  root = np.sqrt(slope**2 + 4 * dim)
  # Positive in either form, and in one of them nothing cancels.
  peak = np.where(slope > 0, (slope + root) / 2, 2 * dim / (root - slope))
  width = 1 / np.sqrt(peak * root)

  def log_integrand(y):
    r = np.exp(y)
    return dim * y - r**2 / 2 + slope[..., None] * r

  return _log_integral(peak, width, log_integrand)


def _log_ratio(dim, mu, cosine):
  """log density of the direction over uniform: its radius is integrated out."""
  at_null = (dim / 2 - 1) * np.log(2) + special.gammaln(dim / 2)
  return _log_radial(dim, mu * cosine) - at_null - mu**2 / 2


def _log_tail(dim, mu, cot, side):
  """log P((Z + μ)/χ > cot), or < cot for side = -1.

  The smaller tail is E Φ(±(μ - cot χ)) over χ; the larger is its complement.
  """
  df = dim - 1
  smaller = np.where(mu < cot * np.sqrt(df), 1.0, -1.0)
  # Where the product of χ's density and a Gaussian tail has its peak.
  root = np.sqrt((cot * mu) ** 2 + 4 * df * (1 + cot**2))
  product = cot * mu
  peak = np.where(
    product > 0,
    (product + root) / (2 * (1 + cot**2)),
    2 * df / (root - product),
  )
  width = 1 / np.sqrt(peak * root)

  def log_integrand(y):
    r = np.exp(y)
    beyond = smaller[..., None] * (mu[..., None] - cot[..., None] * r)
    return df * y - r**2 / 2 + special.log_ndtr(beyond)

  constant = (df / 2 - 1) * np.log(2) + special.gammaln(df / 2)
  tail = np.minimum(_log_integral(peak, width, log_integrand) - constant, 0.0)
  return np.where(smaller == side, tail, np.log1p(-np.exp(tail)))


def _log_delta(dim, mu, cot, side):
  """Log of δ of the half-line from cot on, and of the likelihood ratio at cot."""
  log_ratio = _log_ratio(dim, mu, _cosine(cot))
  shifted = _log_tail(dim, mu, cot, side)
  central = _log_tail(dim, np.zeros_like(mu), cot, side)
  if side > 0:
    log_p, log_q = shifted, central + log_ratio
  else:
    log_p, log_q = central, shifted - log_ratio
  # A negative difference is rounding.
  share = np.maximum(-np.expm1(log_q - log_p), 1e-300)
  return log_p + np.log(share), log_ratio


def _even(dim, mu):
  """The cotangent at which both densities are equal."""

  def excess(cot, mu):
    return _log_ratio(dim, mu, _cosine(cot))

  high = np.maximum(mu, 1e-6) / np.sqrt(dim)
  while np.any(excess(high, mu) < 0):
    high = np.where(excess(high, mu) < 0, 2 * high, high)
  return elementwise.find_root(excess, (np.zeros_like(mu), high), args=(mu,)).x


def _one_side(dim, mu, even, delta, side):
  """ε of the attack that guesses by cosines on one side of a threshold."""
  target = np.log(delta)

  def excess(cot, mu):
    return np.maximum(_log_delta(dim, mu, cot, side)[0] - target, _SMALLEST)

  leaks = excess(even, mu) > 0
  epsilon = np.zeros_like(mu)
  if not np.any(leaks):
    return epsilon
  mu, near = mu[leaks], even[leaks]
  step = np.maximum(np.abs(near), 1 / np.sqrt(dim))
  far = near + side * step
  while np.any(excess(far, mu) > 0):
    step = 2 * step
    far = np.where(excess(far, mu) > 0, near + side * step, far)
  ends = (near, far) if side > 0 else (far, near)
  cot = elementwise.find_root(excess, ends, args=(mu,)).x
  epsilon[leaks] = np.maximum(side * _log_delta(dim, mu, cot, side)[1], 0.0)
  return epsilon
