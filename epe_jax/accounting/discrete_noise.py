"""The analytic ε of noise on a grid: discrete Gaussian, sums of it, and Skellam.

Distances and noise are in units of the grid's step below, v is the variance and Δ₂, Δ₁
are the largest norms of what a client changes in a sum of integers.

In one coordinate and one round, the privacy loss ln p(x)/p(x - Δ) is summed over all
integers x. These laws are log-concave, so that the loss is monotone in x and no shorter
shift loses more; they are symmetric, so that both directions have one δ. Rounds are
composed as in `gaussian.epsilon_of_poisson`.

In d coordinates the worst direction is not known, and Rényi divergences are bounded:

- discrete Gaussian: α Δ₂²/(2v), as of the continuous one (Canonne, Kamath and Steinke);
- the sum of n clients' discrete Gaussians, each of variance v/n >= 1/4, whose law is that
  of one of variance v up to a factor e^τ, τ = 10 Σ_{k<n} exp(-2π² (v/n) k/(k+1)): the
  least of α Δ₂²/(2v) + τ d, (α/2) (Δ₂²/v + 2 Δ₁ τ/√v + τ² d) and
  (α/2) (Δ₂/√v + τ √d)² (Kairouz, Liu and Steinke);
- Skellam: α Δ₂²/(2v) + min{((2α - 1) Δ₂² + 6 Δ₁)/(4v²), 3 Δ₁/(2v)} at integers α >= 2
  (Agarwal, Kairouz and Liu). Sums of Skellam noise are Skellam noise.

ε then follows by proposition 12 of Canonne, Kamath and Steinke, at the best α.

References:
  Canonne, Kamath and Steinke 2020, The discrete Gaussian for differential privacy,
  arXiv 2004.00010; Kairouz, Liu and Steinke 2021, The distributed discrete Gaussian
  mechanism, arXiv 2102.06387, proposition 14; Agarwal, Kairouz and Liu 2021, The Skellam
  mechanism, arXiv 2110.04995; Doroshenko et al. 2022 (connect the dots).
"""

from collections.abc import Callable
import functools
import math
from typing import NamedTuple

from jaxtyping import Float
import numpy as np
from scipy import special

from epe_jax.accounting.analytic import Analytic, Ring
from epe_jax.epsilon import checks
from epe_jax.epsilon.checks import check_delta
from epe_jax.fact import Fact

LARGEST_SUM = 2_000_000
"""Integers over which losses are summed; for finer grids the bounds are taken."""
SMALLEST_SHARE = 0.5
"""Of the noise of one of several clients, in steps: with less no bound is known."""

# As LARGEST_SUM, where laws of clients are convolved.
_LARGEST_CONVOLUTION = 5000
# Mass below exp(-80) δ is left out of sums, and counts as an infinite loss.
_NEGLIGIBLE = 80.0
# Of the grid of losses that are composed: in standard deviations, and how many.
_STEP, _POINTS = 1e-3, 200_000

Vector = Float[np.ndarray, 'n']


class _Sensitivity(NamedTuple):
  """What one client changes in a sum of integers, and the noise of that sum.

  Attributes:
    v: variance.
    l2: Δ₂, in one coordinate an integer.
    l1: Δ₁.
    dim: d.
  """

  v: float
  l2: float
  l1: float
  dim: int

  def limit(self, delta: float) -> int:
    """The integer beyond which noise has negligible mass (Bernstein)."""
    exponent = _NEGLIGIBLE - math.log(delta)
    third = exponent / 3
    return math.ceil(third + math.sqrt(third**2 + 2 * self.v * exponent))


class _Losses(NamedTuple):
  """Privacy losses from the largest on, and the mass of both laws up to each.

  Attributes:
    loss: ln p/q, descending.
    p: mass of the law itself on these and larger losses, with a 0 in front.
    log_q: ln of that of the shifted law.
    infinite: mass of infinite losses.
  """

  loss: Vector
  p: Vector
  log_q: Vector
  infinite: float

  def find_epsilon(self, delta: float) -> float:
    """The least ε >= 0 at which δ suffices."""
    at_losses = self.compute_delta(self.loss)
    # Between two losses δ is a constant less e^ε times another.
    i = int(np.searchsorted(at_losses, delta, side='right'))
    missing = self.p[i] + self.infinite - delta
    if missing <= 0:
      return max(0.0, float(self.loss[min(i, self.loss.size - 1)]))
    if i == 0:
      return math.inf
    return max(0.0, math.log(missing) - float(self.log_q[i]))

  def compute_delta(self, epsilon: Vector) -> Vector:
    """δ of each ε."""
    i = np.searchsorted(-self.loss, -epsilon, side='left')
    deltas = self.p[i] - np.exp(np.minimum(epsilon + self.log_q[i], 0))
    return self.infinite + np.clip(deltas, 0, 1 - self.infinite)


def epsilon_of_discrete_gaussian(
  std: float,
  *,
  delta: float,
  l2: float,
  l1: float | None = None,
  dim: int = 1,
  granularity: float = 1.0,
  clients: int = 1,
  rounds: int = 1,
) -> Analytic:
  """Computes ε of sums with discrete Gaussian noise, of one party or of n clients.

  ε is exact of one coordinate in one round (of several clients' noise up to shifts
  of some 35 σ, where float64 ends), and else a bound.

  Args:
    std: σ >= 0 of the noise in the sum, whose law is exp(-x²/(2σ²)) on the grid; of
      n clients each adds noise of σ/√n.
    l2: Δ₂ > 0 after rounding to the grid: 2 S if any update may replace another.
    l1: Δ₁; None if no bound but √d l2 is known.
    dim: d >= 1, coordinates.
    granularity: step of the grid, > 0, in the units of the former.
    clients: n >= 1 who add noise.
    rounds: T >= 1 in which a client takes part.

  Raises:
    ValueError: clients add less noise each than any bound is known for.

  >>> given = {'delta': 1e-5, 'l2': 4.0}
  >>> round(epsilon_of_discrete_gaussian(4.0, **given).epsilon, 2)
  4.39
  >>> round(epsilon_of_discrete_gaussian(4.0, dim=1000, clients=8, **given).epsilon, 2)
  4.73
  """
  sensitivity = _count_steps(std, l2, l1, dim, granularity, delta, rounds)
  checks.check_integer('clients', clients)
  v, l2, l1, dim = sensitivity
  of_one = v / clients
  if clients > 1 and 0 < of_one < SMALLEST_SHARE**2:
    raise ValueError(
      f'std={std:g} with granularity={granularity:g} is {math.sqrt(of_one):.3g} steps '
      f'for each of clients={clients}; give more noise or a finer grid, as no bound is '
      f'known below {SMALLEST_SHARE}.'
    )
  k = np.arange(1, clients)
  tau = 10 * float(np.sum(np.exp(-2 * math.pi**2 * of_one * k / (k + 1))))

  def bound(order: Vector) -> Vector:
    scaled = l2 / math.sqrt(v)
    factor = scaled**2 + 2 * l1 / math.sqrt(v) * tau + tau**2 * dim
    return np.minimum(order / 2 * scaled**2 + tau * dim, order / 2 * factor)

  size = sensitivity.limit(delta / rounds) + l2
  is_summed = clients > 1 and size < _LARGEST_CONVOLUTION
  return _account(
    sensitivity,
    delta,
    rounds,
    bound,
    shares=clients if is_summed else 1,
    ratio=0.0 if is_summed else tau,
  )


def epsilon_of_skellam(
  std: float,
  *,
  delta: float,
  l2: float,
  l1: float | None = None,
  dim: int = 1,
  granularity: float = 1.0,
  rounds: int = 1,
) -> Analytic:
  """Computes ε of sums with Skellam noise, however many parties add it.

  Arguments are those of `epsilon_of_discrete_gaussian`; ε is exact of one coordinate
  in one round, and else a bound.

  >>> round(epsilon_of_skellam(100.0, delta=1e-5, l2=100.0).epsilon, 2)
  4.38
  """
  sensitivity = _count_steps(std, l2, l1, dim, granularity, delta, rounds)
  v, l2, l1, _ = sensitivity

  def bound(order: Vector) -> Vector:
    gaussian = order * l2**2 / (2 * v)
    rest = ((2 * order - 1) * l2**2 + 6 * l1) / (4 * v**2)
    return gaussian + np.minimum(rest, 3 * l1 / (2 * v))

  return _account(sensitivity, delta, rounds, bound, shares=0)


def epsilon_of_ring(ring: Ring, *, delta: float, rounds: int = 1) -> Analytic:
  """Computes ε of a client whose messages are added up by secure aggregation.

  Arguments and errors are those of `epsilon_of_discrete_gaussian`.

  >>> ring = Ring(std=1000.0, l2=1000.0, dim=4096, shares=100)
  >>> round(epsilon_of_ring(ring, delta=1e-5).epsilon, 2)
  4.73
  """
  compute = epsilon_of_skellam
  if ring.shares:
    compute = functools.partial(
      epsilon_of_discrete_gaussian, clients=ring.shares
    )
  analytic = compute(
    ring.std, delta=delta, l2=ring.l2, dim=ring.dim, rounds=rounds
  )
  return analytic._replace(assumes=(*analytic.assumes, Fact('noise_shares')))


def compute_log_law(v: float, size: int, *, shares: int) -> Vector:
  """Computes ln of the law of noise of variance v at -size to size.

  Args:
    v: variance of the sum, > 0.
    size: the largest outcome, >= 1.
    shares: number of discrete Gaussians in the sum, >= 1; 0 for Skellam noise.
  """
  if not shares:
    one_side = _log_bessel(np.arange(size + 1.0), v)
    return np.concatenate([one_side[:0:-1], one_side])
  x = np.arange(-size, size + 1.0)
  log_p = -(x**2) * shares / (2 * v)
  log_p -= special.logsumexp(log_p)
  if shares == 1:
    return log_p
  with np.errstate(divide='ignore'):
    return np.log(_convolve(np.exp(log_p), shares))


def _count_steps(
  std: float,
  l2: float,
  l1: float | None,
  dim: int,
  granularity: float,
  delta: float,
  rounds: int,
) -> _Sensitivity:
  """What is changed, in steps of the grid, once all arguments are in range."""
  check_delta(delta)
  checks.check_integer('rounds', rounds)
  checks.check_number('std', std, '[0, 1e50]')
  checks.check_number('l2', l2, '(0, 1e50]')
  checks.check_integer('dim', dim)
  checks.check_number('granularity', granularity, '[1e-50, 1e50]')
  steps = l2 / granularity
  if dim == 1:
    steps = float(math.ceil(steps * (1 - 1e-9)))
  # The squares of integers are no less than they are.
  bounds = [math.sqrt(dim) * steps, max(1.0, steps) ** 2]
  if l1 is not None:
    bounds.append(checks.check_number('l1', l1, '(0, 1e100]') / granularity)
  return _Sensitivity((std / granularity) ** 2, steps, min(bounds), dim)


def _account(
  sensitivity: _Sensitivity,
  delta: float,
  rounds: int,
  bound: Callable[[Vector], Vector],
  *,
  shares: int,
  ratio: float = 0.0,
) -> Analytic:
  """The least ε of all that are known to hold.

  Args:
    sensitivity: of a round.
    delta: δ.
    rounds: T.
    bound: order -> Rényi divergence of a round.
    shares: of the law of the noise in a coordinate, as in `compute_log_law`.
    ratio: by which ln of that law may be wrong.
  """
  epsilon = math.inf
  if sensitivity.v:
    # Of Skellam noise orders are integers.
    first = 1e-8 if shares else 1.0
    epsilon = _convert(lambda order: rounds * bound(order), delta, first)
    if sensitivity.dim == 1:
      # If P <= e^τ P' and Q' <= e^τ Q, then δ(ε) <= e^τ δ'(ε - 2τ).
      error = rounds * ratio
      less = delta * math.exp(-error)
      summed = _sum_losses(sensitivity, less, rounds, shares) + 2 * error
      epsilon = min(epsilon, summed)
  return Analytic(
    epsilon,
    assumes=(
      Fact('participations', {'rounds': rounds}),
      Fact('known_rounds'),
      Fact('no_amplification'),
    ),
  )


def _convert(
  divergence: Callable[[Vector], Vector], delta: float, first: float
) -> float:
  """ε by Rényi divergences, at the best order α; `first` is the least α - 1."""
  low, high = first, 1e9
  for _ in range(3):
    above = np.geomspace(low, high, 2000)
    if first == 1:
      above = np.unique(np.rint(above))
    order = 1 + above
    epsilons = divergence(order) + np.log1p(-1 / order)
    epsilons -= (math.log(delta) + np.log(order)) / above
    best = int(np.argmin(epsilons))
    low, high = above[max(best - 1, 0)], above[min(best + 1, above.size - 1)]
  return max(0.0, float(epsilons[best]))


def _sum_losses(
  sensitivity: _Sensitivity,
  delta: float,
  rounds: int,
  shares: int,
) -> float:
  """ε by the privacy losses of all integers."""
  limit, shift = sensitivity.limit(delta / rounds), round(sensitivity.l2)
  size = limit + shift
  if size > LARGEST_SUM:
    return math.inf
  log_p = compute_log_law(sensitivity.v, size, shares=shares)
  losses = _list_losses(
    log_p[shift : shift + 2 * limit + 1],
    log_p[: 2 * limit + 1],
    math.exp(-_NEGLIGIBLE) * delta / rounds,
  )
  if rounds == 1:
    return losses.find_epsilon(delta)
  return _compose(losses, sensitivity, rounds, delta)


def _list_losses(log_p: Vector, log_q: Vector, missing: float) -> _Losses:
  """The losses of all outcomes under one law that lacks some mass."""
  is_possible = np.isfinite(log_p)
  log_p, log_q = log_p[is_possible], log_q[is_possible]
  is_finite = np.isfinite(log_q)
  infinite = missing + float(np.sum(np.exp(log_p[~is_finite])))
  log_p, log_q = log_p[is_finite], log_q[is_finite]
  loss = log_p - log_q
  order = np.argsort(-loss, kind='stable')
  return _Losses(
    loss[order],
    np.append(0.0, np.cumsum(np.exp(log_p[order]))),
    np.append(-np.inf, np.logaddexp.accumulate(log_q[order])),
    infinite,
  )


def _compose(
  losses: _Losses, sensitivity: _Sensitivity, rounds: int, delta: float
) -> float:
  """ε of several rounds, on a grid of losses that is rounded to more loss."""
  # Imported here, as one round needs no accountant.
  from dp_accounting.pld import pld_pmf, privacy_loss_distribution

  highest, lowest = float(losses.loss[0]), float(losses.loss[-1])
  h = max(
    _STEP * sensitivity.l2 / math.sqrt(sensitivity.v),
    (highest - lowest) / _POINTS,
  )
  first, last = math.floor(lowest / h), math.ceil(highest / h)
  pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
    h, first, last, losses.compute_delta(h * np.arange(first, last + 1))
  )
  loss = privacy_loss_distribution.PrivacyLossDistribution(pmf)
  return float(loss.self_compose(rounds).get_epsilon_for_delta(delta))


def _convolve(p: Vector, times: int) -> Vector:
  """The law of a sum of independent numbers, on the same integers."""
  total: Vector | None = None
  while times:
    if times % 2:
      total = p if total is None else np.convolve(total, p, mode='same')
    times //= 2
    if times:
      p = np.convolve(p, p, mode='same')
  assert total is not None, 'one number or more'
  return total


def _log_bessel(order: Vector, v: float) -> Vector:
  """ln of exp(-v) I_k(v), the law of Skellam noise of variance v."""
  scaled = special.ive(order, v)
  with np.errstate(divide='ignore'):
    log_p = np.log(scaled)
  # Debye's expansion, where that is not a number of float64, or v is too large for it.
  is_lost = ~(scaled > 1e-290)
  k = order[is_lost]
  root = np.hypot(k, v)
  log_p[is_lost] = (
    k**2 / (root + v)
    - k * np.arcsinh(k / v)
    - np.log(2 * math.pi * root) / 2
    + np.log1p((3 - 5 * (k / root) ** 2) / (24 * root))
  )
  return log_p
