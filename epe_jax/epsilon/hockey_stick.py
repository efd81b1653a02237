"""The hockey-stick divergence of two Gaussians, computed without overflow.

For one direction the first Gaussian is mapped to P = N(0, 1) and the second to
Q = N(-m, r²), m >= 0. The privacy loss L(y) = log p(y)/q(y) is a parabola, and
{L > ε} is bounded by the two roots of L = ε. With u the root nearer to the bulk of
P,

  ε = L(u) = (v² - u²)/2 + log r  with v = (u + m)/r,
  δ = ∫_{L > ε} (p - e^ε q).

At a root e^ε q = p, so e^ε φ(v)/r = φ(u): both integrals are φ(u) times a
ratio of Mills type, and e^ε, which overflows, never appears. If r <= 1 the set
is y > u together with a far tail; if r > 1 it is the interval from u to the far
root. Both δ and its bracket are well scaled in u for any ε, so that δ is solved
for u, which gives ε.

Gaussians are pairs of mean and standard deviation, float64 arrays of one length.
"""

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Float
import numpy as np
from scipy import special

_Array = Float[np.ndarray, ' num']
_Moments = Sequence[_Array]
_ROOT2 = np.sqrt(2)
_LOG_SQRT_2PI = 0.5 * np.log(2 * np.pi)
# Below -_FAR the near tail of P has mass 1 to the last digit of a float64.
_FAR = 40.0
# Pairs that are solved together, so that their arrays stay in a cache.
_BLOCK = 1 << 13
# Newton steps or bisections: 4 are usual, and bisection alone takes 60.
_MAX_STEPS = 200
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_NODES, _WEIGHTS = (1 + _NODES) / 2, _WEIGHTS / 2


class GaussianPair(NamedTuple):
  """P = N(0, 1) and Q = N(-m, r²), in numbers that neither cancel nor overflow.

  Beyond the caps the narrower Gaussian is a point compared with the wider, so that r
  matters only through log r.

  Attributes:
    m: distance of the means in units of the first std, >= 0.
    r: ratio of the second std to the first, capped.
    r_minus_1: r - 1, whose digits r alone would lose near 1.
    log_r: log r, not capped.
  """

  m: np.ndarray
  r: np.ndarray
  r_minus_1: np.ndarray
  log_r: np.ndarray


def _standardise(mean_p, std_p, mean_q, std_q):
  """Maps the first Gaussian to N(0, 1) and the second to its left."""
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
  return GaussianPair(m, r, np.minimum(r_minus_1, 1e70), log_r)


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


def _near_root(pair, epsilon):
  """The root u of L(u) = ε, at least -_FAR; +inf if L is below ε everywhere.

  With E = ε - log r and s² = m² + 2(1 - r²)E it is (2r²E - m²)/(m + r s), which
  is evaluated on the scale of square roots, where nothing overflows.
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


@np.errstate(all='ignore')
def log_delta(p: _Moments, q: _Moments, epsilon: _Array) -> _Array:
  """Log of the divergence of p from q at each ε >= 0; -inf where it is 0."""
  pair = _standardise(*p, *q)
  return _log_parts(pair, _near_root(pair, epsilon))[0]


@np.errstate(all='ignore')
def solve(
  p: _Moments, q: _Moments, target: _Array, min_epsilon: _Array
) -> _Array:
  """The smallest ε >= min_epsilon at which log δ of p from q is at most the target.

  Where min_epsilon is inf, so is ε.
  """
  pair = _standardise(*p, *q)
  epsilon = np.empty_like(target)
  for start in range(0, target.size, _BLOCK):
    block = slice(start, start + _BLOCK)
    epsilon[block] = _solve(
      GaussianPair(*(x[block] for x in pair)), target[block], min_epsilon[block]
    )
  return epsilon


def _solve(pair, target, min_epsilon):
  low = _near_root(pair, min_epsilon)
  leaks = np.isfinite(min_epsilon) & (_log_parts(pair, low)[0] > target)
  pair = GaussianPair(*(x[leaks] for x in pair))
  low, target = low[leaks], target[leaks]
  # At the solution {L > ε} has P-mass at least δ and at most twice the tail beyond u.
  high = 0.01 - special.ndtri_exp(target - np.log(2))
  peak = np.where(pair.r_minus_1 > 0, _peak(pair), np.inf)
  # Near the peak δ grows as the cube of the distance w from it: there L falls
  # by w² (1 - 1/r²)/2, and what it falls by is 2/3 of that on average.
  fall = pair.r_minus_1 * (2 + pair.r_minus_1) / pair.r**2
  cube = 1.5 * np.exp(target + peak**2 / 2 + _LOG_SQRT_2PI) / fall
  start = np.where(peak < high, np.maximum(peak - np.cbrt(cube), low), high)
  epsilon = min_epsilon.copy()
  root = _root(pair, target, low, np.minimum(high, peak), start)
  loss = _loss(pair, root)
  epsilon[leaks] = np.maximum(loss, min_epsilon[leaks])
  return epsilon


def _root(pair, target, low, high, u):
  """The u between low and high at which log δ is the target.

  By Newton's method for √(-log δ), which is nearly linear in u; halving, where
  a step leads out of the interval that is left.
  """
  root, left = np.empty_like(target), np.arange(target.size)
  aim = np.sqrt(-target)
  for _ in range(_MAX_STEPS):
    value, slope = _with_slope(pair, u)
    above = value > target
    low, high = np.where(above, u, low), np.where(above, high, u)
    # Newton's step for log δ tells how far it is; that for its root is nearer.
    step = (target - value) / slope
    height = np.sqrt(-value)
    new = u + step * 2 * height / (height + aim)
    # A further step would be as small as the square of this one; near the peak
    # that is so on the scale of the distance from it.
    room = np.where(pair.r_minus_1 > 0, _peak(pair) - u, 1.0)
    near = np.abs(step) <= 1e-7 * np.minimum(room, 1.0)
    inside = near | ((new > low) & (new < high))
    new = np.where(inside, np.clip(new, low, high), low + (high - low) / 2)
    done = near | (high - low <= 4e-16 * np.maximum(np.abs(low), np.abs(high)))
    root[left[done]] = new[done]
    go = ~done
    if not np.any(go):
      break
    left, aim, target = left[go], aim[go], target[go]
    pair = GaussianPair(*(x[go] for x in pair))
    u, low, high = new[go], low[go], high[go]
  else:
    root[left] = u
  return root


def _with_slope(pair, u):
  """Log of δ and its derivative: in ε that of δ is -e^ε Q(L > ε)."""
  m, r, r_minus_1, _ = pair
  value, log_q = _log_parts(pair, u)
  # dL/du, with its factor 1/r in the exponent: it may overflow.
  steep = (m - r_minus_1 * (2 + r_minus_1) * u) / r
  return value, -steep * np.exp(log_q - value - _log_ratio(r_minus_1, r))


def _log_parts(pair, u):
  """Log of δ and of e^ε Q(L > ε); δ is P(L > ε) less the second."""
  m, r, r_minus_1, _ = pair
  log_r = _log_ratio(r_minus_1, r)
  interval = r_minus_1 > 0
  peak = _peak(pair)
  # 1e300 stands for an infinite width: the mass beyond it is 0.
  width = np.where(interval, 2 * (peak - u), 1e300)
  excess, log_q = _log_excess(u, (u + m) / r, width, width / r, log_r)
  excess[(interval & (u >= peak)) | np.isinf(u)] = -np.inf
  far = u + 2 * peak
  with_far = ~interval & (far < 100)
  if np.any(with_far):
    m, r, log_r, far = m[with_far], r[with_far], log_r[with_far], far[with_far]
    infinite = np.full_like(far, 1e300)
    far_q = np.maximum(far - m, 0.0) / r
    tail, tail_q = _log_excess(far, far_q, infinite, infinite, log_r)
    excess[with_far] = np.logaddexp(excess[with_far], tail)
    log_q[with_far] = np.logaddexp(log_q[with_far], tail_q)
  return np.minimum(excess, 0.0), log_q


def _log_excess(u, v, width, width_q, log_r):
  """Log of the integral of p - e^ε q from u on, where e^ε φ(v)/r = φ(u).

  And the log of that of e^ε q alone.
  """
  log_p = _log_mass(u, width)
  log_q = log_r + _log_mass(v, width_q)
  # A negative difference is rounding: there the two Gaussians agree.
  share = np.maximum(-np.expm1(log_q - log_p), 0.0)
  log_density = -(u**2) / 2 - _LOG_SQRT_2PI
  return log_density + log_p + np.log(share), log_density + log_q


def _log_mass(low, width):
  """Log of ∫ φ / φ(low) over an interval, -_FAR <= low, whose middle is >= 0."""
  # Special functions are what takes the time, so each is called for those
  # intervals alone that need it.
  across = low < 0
  short = ~across & (width * (low + width / 2) < 1)
  log_mass = np.empty_like(low)
  for which, law in (
    (across, _log_across),
    (short, _log_short),
    (~(across | short), _log_tail),
  ):
    if np.any(which):
      log_mass[which] = law(low[which], width[which])
  return log_mass


def _log_across(low, width):
  mass = special.erf((low + width) / _ROOT2) - special.erf(low / _ROOT2)
  return np.log(mass / 2) + low**2 / 2 + _LOG_SQRT_2PI


def _log_short(low, width):
  # Tails would cancel here, but the integrand is smooth.
  mean = 0.0
  for node, weight in zip(_NODES, _WEIGHTS):
    step = node * width
    mean = mean + weight * np.exp(-step * (low + step / 2))
  return np.log(width * mean)


def _log_tail(low, width):
  mass = _mills(low)
  decay = width * (low + width / 2)
  finite = decay < 750
  if np.any(finite):
    beyond = _mills(low[finite] + width[finite])
    mass[finite] -= np.exp(-decay[finite]) * beyond
  return np.log(mass)


def _mills(x):
  return np.sqrt(np.pi / 2) * special.erfcx(x / _ROOT2)
