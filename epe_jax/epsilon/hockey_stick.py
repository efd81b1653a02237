"""The hockey-stick divergence of two Gaussians, in numbers that never overflow.

For one direction the first Gaussian is moved to P = N(0, 1) and the second to
Q = N(-m, r²), m >= 0. The privacy loss L(y) = log p(y)/q(y) is a parabola, and
{L > ε} is bounded by two roots of L = ε. The one nearer to the bulk of P, at
y = u, names the problem:

  ε = L(u) = (v² - u²)/2 + log r  with v = (u + m)/r,
  δ = ∫_{L > ε} (p - e^ε q).

At a root e^ε q = p, so e^ε φ(v)/r = φ(u): both integrals are φ(u) times a
ratio of Mills type, and e^ε, which overflows, never appears. If r <= 1 the set
is y > u together with a far tail; if r > 1 it is the interval from u to the far
root. Both δ and its bracket are well scaled in u, whatever the size of ε, so
that δ is inverted for u and ε read off.

The functions take float64 arrays of one shape and expect the caller to ignore
floating-point warnings: branches that are not selected may overflow.
"""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float
import numpy as np
from scipy import special
from scipy.optimize import elementwise

_Array = Float[np.ndarray, '*shape']
_ROOT2 = np.sqrt(2)
_LOG_SQRT_2PI = 0.5 * np.log(2 * np.pi)
# Below -_FAR the near tail of P has mass 1 to the last digit of a float64.
_FAR = 40.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_NODES, _WEIGHTS = (1 + _NODES) / 2, _WEIGHTS / 2


class Pair(NamedTuple):
  """P = N(0, 1) and Q = N(-m, r²), in numbers that neither cancel nor overflow.

  Stored are r - 1, which r alone would lose when r is near 1, and log r before
  r is capped. Past the caps the narrow Gaussian is a point beside the wide one,
  so that r matters only through log r.
  """

  m: np.ndarray
  r: np.ndarray
  r_minus_1: np.ndarray
  log_r: np.ndarray


def standardise(
  mean_p: _Array, std_p: _Array, mean_q: _Array, std_q: _Array
) -> Pair:
  """Moves the first Gaussian to N(0, 1) and the second to its left."""
  ratio = std_q / std_p
  r = np.clip(ratio, 1e-300, 1e70)
  r_minus_1 = (std_q - std_p) / std_p
  log_r = np.where(
    (ratio > 1e-300) & (ratio < 1e300),
    _log_ratio(r_minus_1, ratio),
    np.log(std_q) - np.log(std_p),
  )
  gap = np.abs(mean_q - mean_p)
  half_gap = np.abs(mean_q / 2 - mean_p / 2)

  def in_units_of(std):
    return np.where(np.isfinite(gap), gap / std, 2 * (half_gap / std))

  m = np.where(
    ratio < 1e70,
    np.minimum(in_units_of(std_p), 1e230),
    np.minimum(in_units_of(std_q), 1e160) * r,
  )
  return Pair(m, r, np.minimum(r_minus_1, 1e70), log_r)


def _log_ratio(r_minus_1, r):
  return np.where(r_minus_1 > -0.5, np.log1p(r_minus_1), np.log(r))


def _peak(pair):
  """m/|r² - 1|: L is extremal there if r > 1, at minus it if r < 1."""
  curvature = np.abs(pair.r_minus_1) * (2 + pair.r_minus_1)
  return np.where(curvature == 0, np.inf, pair.m / curvature)


def _loss(pair, u):
  """L(u) = (v - u)(v + u)/2 + log r, with v - u free of cancellation."""
  difference = (pair.m - pair.r_minus_1 * u) / pair.r
  return difference * ((u + pair.m) / pair.r + u) / 2 + pair.log_r


def near_root(pair: Pair, epsilon: _Array | float) -> _Array:
  """The root u of L(u) = ε, at least -_FAR; +inf if L stays below ε.

  With E = ε - log r and s² = m² + 2(1 - r²)E it is (2r²E - m²)/(m + r s). It is
  evaluated on the scale of square roots, where nothing overflows.
  """
  m, r, r_minus_1, log_r = pair
  excess = epsilon - log_r
  scale = _ROOT2 * np.sqrt(np.abs(excess))
  e = r * scale
  k = np.sqrt(np.abs(r_minus_1)) * np.sqrt(2 + r_minus_1) * scale
  grows = (r_minus_1 <= 0) == (excess >= 0)
  exists = grows | (k <= m)
  s = np.where(grows, np.hypot(m, k), np.sqrt(np.abs(m - k)) * np.sqrt(m + k))
  below = m + r * s
  product = np.where(
    excess >= 0,
    (e - m) * ((e + m) / below),
    -np.hypot(e, m) * (np.hypot(e, m) / below),
  )
  u = np.where(below > 0, product, 0.0)
  return np.where(exists, np.maximum(u, -_FAR), np.inf)


def log_delta(pair: Pair, u: _Array) -> _Array:
  """log δ as a function of the near root u."""
  m, r, r_minus_1, _ = pair
  log_r = _log_ratio(r_minus_1, r)
  interval = r_minus_1 > 0
  peak = _peak(pair)
  # 1e300 stands for an infinite width: the mass beyond it is 0.
  width = np.where(interval, 2 * (peak - u), 1e300)
  near = _log_excess(u, (u + m) / r, width, width / r, log_r)
  near = np.where((interval & (u >= peak)) | np.isinf(u), -np.inf, near)
  far = u + 2 * peak
  used = ~interval & (far < 100)
  far = np.where(used, far, 100.0)
  far_q = np.maximum(far - m, 0.0) / r
  tail = _log_excess(far, far_q, 1e300, 1e300, log_r)
  both = np.logaddexp(near, np.where(used, tail, -np.inf))
  return np.minimum(both, 0.0)


def _log_excess(u, v, width, width_q, log_r):
  """log of the integral of p - e^ε q from u on, where e^ε φ(v)/r = φ(u)."""
  log_p = _log_mass(u, width)
  log_q = log_r + _log_mass(v, width_q)
  # A negative difference is rounding: there the two Gaussians agree.
  share = np.maximum(-np.expm1(log_q - log_p), 0.0)
  return -(u**2) / 2 - _LOG_SQRT_2PI + log_p + np.log(share)


def _log_mass(low, width):
  """log ∫ φ / φ(low) over an interval, -_FAR <= low, whose middle is >= 0."""
  high = low + width
  decay = width * (low + width / 2)
  tail = _mills(np.maximum(low, 0.0)) - np.exp(-decay) * _mills(high)
  across = (special.erf(high / _ROOT2) - special.erf(low / _ROOT2)) / 2
  across = np.log(across) + low**2 / 2 + _LOG_SQRT_2PI
  # Over a short interval those cancel, but the integrand is smooth.
  step = np.asarray(width)[..., None] * _NODES
  inside = np.exp(-step * (low[..., None] + step / 2))
  narrow = width * np.sum(_WEIGHTS * inside, axis=-1)
  return np.where(low < 0, across, np.log(np.where(decay < 1, narrow, tail)))


def _mills(x):
  return np.sqrt(np.pi / 2) * special.erfcx(x / _ROOT2)


def solve(
  pair: Pair, target: Float[np.ndarray, 'num']
) -> Float[np.ndarray, 'num']:
  """The smallest ε >= 0 at which log δ is at most the target, pair by pair."""
  epsilon = np.zeros_like(target)
  low = near_root(pair, 0.0)
  leaks = log_delta(pair, low) > target
  if not np.any(leaks):
    return epsilon
  pair = Pair(*(x[leaks] for x in pair))
  low, target = low[leaks], target[leaks]
  # At the solution {L > ε} has P-mass at least δ and at most twice the tail beyond u.
  high = 0.01 - special.ndtri_exp(target - np.log(2))
  high = np.where(pair.r_minus_1 > 0, np.minimum(high, _peak(pair)), high)

  def above(u, target, *pair):
    return np.maximum(log_delta(Pair(*pair), u) - target, -1e4)

  u = elementwise.find_root(above, (low, high), args=(target, *pair)).x
  epsilon[leaks] = np.maximum(_loss(pair, u), 0.0)
  return epsilon
