"""One random round of t: the privacy loss of an attacker who sees all of them.

A canary that takes part in one uniformly random round of t, with noise z, leaves
in noise units

  P = (1/t) Σ_i N(e_i / z, I_t)   against   Q = N(0, I_t),

whose likelihood ratio S = (1/t) Σ_i W_i, W_i = exp(x_i/z - 1/(2z²)), is under Q
the mean of t independent lognormal numbers of mean 1. Both directions of δ are
expectations under Q of convex functions of S,

  δ(P || Q) = E (S - e^ε)_+    and    δ(Q || P) = E (1 - e^ε S)_+,

so that moving mass apart without changing its mean can only raise them. S is kept
on a geometric grid; mass between two points goes to these two such that its mean
stays; means and products of independent ratios are then upper bounds
again. The law of the mean of t comes by doubling, in O(log t) convolutions, with
an error of the second order in the width of the grid, which is halved as the law
narrows.

References:
  Feldman and Shenfeld 2026, Efficient privacy loss accounting for subsampling and
  random allocation, arXiv 2602.17284 (the same law by other roundings);
  Doroshenko et al. 2022, Connect the dots, arXiv 2207.04380 (mass that keeps its
  mean).
"""

import functools
import math
from typing import NamedTuple

from dp_accounting.pld import pld_pmf, privacy_loss_distribution
from jaxtyping import Float
import numpy as np
from scipy import signal, special

from epe_jax.accounting import gaussian
from epe_jax.accounting.analytic import Allocation, Analytic
from epe_jax.epsilon import checks, tradeoff
from epe_jax.epsilon.checks import check_delta
from epe_jax.fact import Fact

SMALLEST_NOISE = 1 / 30
"""The z below which float64 has no number for the probabilities of a loss."""

LARGEST_NOISE = 1e3
"""The z above which ε is bounded by other means: a mean of t would have z x 224 points."""

# Of the first grid; later ones have as many or half.
_POINTS = 6000
# Standard deviations beyond which there is less than 1e-20 of a normal law.
_TAIL_STD = 9.3
_NEGLIGIBLE = 1e-20
_NEGLIGIBLE_EPSILON = 1e-6
# Of the ε of lines: how many, up to which δ.
_LINES, _SMALLEST_DELTA = 1000, 1e-13


class _Ratio(NamedTuple):
  """The law under Q of a likelihood ratio, on the grid exp(h (first + j)).

  Attributes:
    h: width of the grid, > 0.
    first: index of its first point.
    mass: of each point.
    zero: mass of the ratio 0.
    infinite: part of the mean that lies at no finite ratio.
  """

  h: float
  first: int
  mass: Float[np.ndarray, ' n']
  zero: float
  infinite: float

  @property
  def log_ratio(self) -> Float[np.ndarray, ' n']:
    """ln S of each point."""
    return self.h * (self.first + np.arange(self.mass.size))


def epsilon_of_allocation(
  noise_multiplier: float, *, delta: float, rounds: int, periods: int = 1
) -> Analytic:
  """Computes ε of one who takes part in a random round of each period.

  Args:
    rounds: t >= 1 of each period.
    periods: R >= 1, each with a random round of its own.

  >>> round(epsilon_of_allocation(1.0, delta=1e-5, rounds=100).epsilon, 2)
  0.62
  """
  noise_multiplier = checks.check_number(
    'noise_multiplier', noise_multiplier, '[0, inf)'
  )
  delta = check_delta(delta)
  rounds = checks.check_integer('rounds', rounds)
  periods = checks.check_integer('periods', periods)
  assumes = (
    Fact('random_allocation', {'rounds': rounds, 'periods': periods}),
    Fact('equally_likely_rounds'),
  )
  if noise_multiplier == 0:
    return Analytic(math.inf, assumes)
  known = gaussian.epsilon_of_releases(
    noise_multiplier, delta=delta, participations=periods
  )._replace(assumes=assumes)
  if not SMALLEST_NOISE <= noise_multiplier <= LARGEST_NOISE:
    # With little noise the round is not secret: at most log t of hundreds.
    if noise_multiplier < SMALLEST_NOISE or known.epsilon < _NEGLIGIBLE_EPSILON:
      return known
    less_noise = epsilon_of_allocation(
      LARGEST_NOISE, delta=delta, rounds=rounds, periods=periods
    )
    return min(known, less_noise, key=lambda analytic: analytic.epsilon)
  loss = compute_pld(noise_multiplier, rounds=rounds, periods=periods)
  return Analytic(
    # At a tiny δ what is cut off from the loss counts, and nothing else is finite.
    min(float(loss.get_epsilon_for_delta(delta)), known.epsilon),
    assumes,
    law=Allocation(noise_multiplier, rounds, periods),
  )


# Attackers who know as little as each other ask for the same.
@functools.lru_cache(maxsize=32)
def compute_lines(allocation: Allocation) -> tradeoff.Lines:
  """The trade-off curve by lines that touch it densely.

  Its direction `delta` is that of one who took part against one who did not.
  """
  noise, rounds, periods = allocation
  losses = [
    loss.self_compose(periods) if periods > 1 else loss
    for loss in _compute_losses(noise, rounds)
  ]
  top = max(loss.get_epsilon_for_delta(_SMALLEST_DELTA) for loss in losses)
  grid = np.linspace(0.0, top, _LINES)
  # One by one: of many ε at once dp_accounting takes the exponential.
  deltas = [
    np.array([loss.get_delta_for_epsilon(float(e)) for e in grid])
    for loss in losses
  ]
  return tradeoff.Lines(grid, *deltas)


@functools.lru_cache(maxsize=32)
def compute_pld(
  noise_multiplier: float, *, rounds: int, periods: int = 1
) -> privacy_loss_distribution.PrivacyLossDistribution:
  """The privacy loss of one random round in each of several periods.

  Its δ(ε) is an upper bound for both directions, and its ε(δ) likewise. z is in
  [`SMALLEST_NOISE`, inf): below it, both laws have nothing in common in float64.
  """
  loss = privacy_loss_distribution.PrivacyLossDistribution(
    *_compute_losses(noise_multiplier, rounds)
  )
  return loss.self_compose(periods) if periods > 1 else loss


@functools.lru_cache(maxsize=32)
def _compute_losses(
  noise_multiplier: float, rounds: int
) -> tuple[pld_pmf.DensePLDPmf, pld_pmf.DensePLDPmf]:
  """The losses of one random round, by P against Q and by Q against P."""
  ratio = _average(_discretize_lognormal(1 / noise_multiplier), rounds)
  # By who took part, S has the density of the null times itself.
  with np.errstate(divide='ignore'):
    remove = np.exp(np.log(ratio.mass) + ratio.log_ratio)
  last = ratio.first + ratio.mass.size - 1
  return (
    _make_pmf(ratio.h, ratio.first, remove, ratio.infinite),
    _make_pmf(ratio.h, -last, ratio.mass[::-1], ratio.zero),
  )


def _make_pmf(
  h: float, first: int, mass: Float[np.ndarray, ' n'], infinite: float
) -> pld_pmf.DensePLDPmf:
  # What rounding took from the sum may be anywhere.
  infinite = max(infinite, 1.0 - float(mass.sum()), 0.0)
  return pld_pmf.DensePLDPmf(h, first, mass, infinite, True)


def _discretize_lognormal(mu: float) -> _Ratio:
  """The law of W = exp(μ x - μ²/2), x ~ N(0, 1)."""
  reach = _TAIL_STD * mu + mu**2 / 2
  h = 2 * reach / _POINTS
  first = math.floor(-reach / h)
  log_w = h * (first + np.arange(_POINTS + 2))
  x = log_w / mu + mu / 2
  mass = _mass_between(x)
  points = np.zeros(log_w.size)
  # The mean of W under Q is its mass under P, where x ~ N(μ, 1).
  with np.errstate(divide='ignore'):
    excess = np.exp(np.log(_mass_between(x - mu)) - log_w[:-1]) - mass
  right = np.clip(excess / math.expm1(h), 0, mass)
  points[:-1] += mass - right
  points[1:] += right
  # Below the first point: its mean goes there, and the rest of its mass to 0.
  below = special.ndtr(x[0])
  at_first = min(below, math.exp(special.log_ndtr(x[0] - mu) - log_w[0]))
  points[0] += at_first
  # Above the last: its mass goes there, and the rest of its mean to infinity.
  points[-1] += special.ndtr(-x[-1])
  at_last = math.exp(special.log_ndtr(-x[-1]) + log_w[-1])
  infinite = max(0.0, special.ndtr(mu - x[-1]) - at_last)
  return _Ratio(h, first, points, below - at_first, infinite)


def _mass_between(x: Float[np.ndarray, ' m']) -> Float[np.ndarray, ' n']:
  """Of N(0, 1) between neighbours, each from the nearer tail."""
  below, above = special.ndtr(x), special.ndtr(-x)
  return np.where(x[1:] < 0, np.diff(below), -np.diff(above))


def _average(one: _Ratio, t: int) -> _Ratio:
  """The law of the mean of t independent ratios, by doubling."""
  mean, count, power, size = None, 0, one, 1
  while True:
    if t & size:
      mean = (
        power if mean is None else _mix(mean, power, count / (count + size))
      )
      count += size
    if mean is not None and count == t:
      return mean
    power, size = _mix(power, power, 0.5), 2 * size


def _mix(a: _Ratio, b: _Ratio, share: float) -> _Ratio:
  """The law of share S_a + (1 - share) S_b, independent of each other."""
  h = min(a.h, b.h)
  if max(a.mass.size * a.h, b.mass.size * b.h) < h * _POINTS / 2:
    h /= 2
  a, b = _refine(a, h), _refine(b, h)
  first = min(
    a.first + math.floor(math.log(share) / h),
    b.first + math.floor(math.log1p(-share) / h),
  )
  last = max(a.first + a.mass.size, b.first + b.mass.size)
  out = np.zeros(last - first + 1)
  _add_pairs(out, a, b, share, first, ties=True)
  _add_pairs(out, b, a, 1 - share, first, ties=False)
  zero = a.zero * b.zero
  # Doubling would double what float64 rounds of the total.
  out *= (1.0 - zero) / out.sum()
  infinite = share * a.infinite + (1 - share) * b.infinite
  return _trim(_Ratio(h, first, out, zero, infinite))


def _add_pairs(
  out: Float[np.ndarray, ' m'],
  a: _Ratio,
  b: _Ratio,
  share: float,
  first: int,
  *,
  ties: bool,
) -> None:
  """Adds pairs in which S_a is the larger ratio, or with ties as large.

  Such a pair lies at S_a f(D), f(D) = share + (1 - share) exp(-h D), if it is D
  points apart, so all pairs equally far apart are moved alike.
  """
  h, size = a.h, a.mass.size
  cell = lambda f: math.floor(math.log(f) / h)
  limit = cell(share)
  # From here on f is in the cell of its limit.
  gap = math.exp((limit + 1) * h) - share
  far = size + b.mass.size
  if gap > 0:
    far = min(far, max(1, math.ceil(math.log((1 - share) / gap) / h) + 1))

  def add(at: int, moved: int, mass, ratio_above) -> None:
    """Mass at the points from `at` on, moved by a factor of that cell."""
    start = at + moved - first
    out[start : start + mass.size] += mass - ratio_above
    out[start + 1 : start + 1 + mass.size] += ratio_above

  for apart in range(0 if ties else 1, far):
    # Points j of a, and j + shift of b.
    shift = a.first - b.first - apart
    begin, end = max(0, -shift), min(size, b.mass.size - shift)
    if begin >= end:
      continue
    f = share + (1 - share) * math.exp(-h * apart)
    moved = cell(f)
    above = (f * math.exp(-h * moved) - 1) / math.expm1(h)
    mass = a.mass[begin:end] * b.mass[begin + shift : end + shift]
    add(a.first + begin, moved, mass, min(max(above, 0.0), 1.0) * mass)
  # All that is farther away, and S_b = 0: by its mass and its mean.
  shift = a.first - b.first - far
  nearest = np.arange(size) + shift
  b_mass = np.zeros(size)
  inside = (nearest >= 0) & (nearest < b.mass.size)
  b_mass[inside] = b.mass[nearest[inside]]
  before = float(b.mass[: max(0, min(shift, b.mass.size))].sum())
  cumulated = b.zero + before + np.cumsum(b_mass)
  lag = shift - 1 - np.arange(max(0, min(shift, b.mass.size)))
  start = (
    float(b.mass[: lag.size] @ np.exp(-h * (lag + 1.0))) if lag.size else 0.0
  )
  decay = math.exp(-h)
  means, _ = signal.lfilter([1.0], [1.0, -decay], b_mass, zi=[start])
  means *= math.exp(-h * far)
  f_mean = share * cumulated + (1 - share) * means
  above = (f_mean * math.exp(-h * limit) - cumulated) / math.expm1(h)
  mass = a.mass * cumulated
  add(a.first, limit, mass, a.mass * np.clip(above, 0, cumulated))


def _trim(ratio: _Ratio) -> _Ratio:
  """The same law without ends of negligible mass, which keep their mean."""
  with np.errstate(divide='ignore'):
    means = np.exp(np.log(ratio.mass) + ratio.log_ratio)
  begin = int(np.searchsorted(np.cumsum(ratio.mass), _NEGLIGIBLE))
  end = means.size - int(np.searchsorted(np.cumsum(means[::-1]), _NEGLIGIBLE))
  mass, log_ratio = ratio.mass[begin:end].copy(), ratio.log_ratio
  at_first = float(
    ratio.mass[:begin] @ np.exp(log_ratio[:begin] - log_ratio[begin])
  )
  zero = float(ratio.mass[:begin].sum()) - at_first
  mass[0] += at_first
  beyond = float(ratio.mass[end:].sum())
  mass[-1] += beyond
  infinite = float(means[end:].sum())
  return ratio._replace(
    first=ratio.first + begin,
    mass=mass,
    zero=ratio.zero + max(zero, 0.0),
    infinite=ratio.infinite + infinite,
  )


def _refine(ratio: _Ratio, h: float) -> _Ratio:
  """The same law on a grid that is finer by a power of two."""
  times = round(ratio.h / h)
  if times == 1:
    return ratio
  mass = np.zeros(times * (ratio.mass.size - 1) + 1)
  mass[::times] = ratio.mass
  return ratio._replace(h=h, first=times * ratio.first, mass=mass)
