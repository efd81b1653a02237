"""Exact p-values of influences over noise, of angles, and of the law of noise.

A covariance Σ of T rounds that is estimated from N independent coordinates is
Wishart, so mᵀ Σ̂⁻¹ m is mᵀ Σ⁻¹ m times N / χ² with N - T + 1 degrees of freedom,
for every vector m that does not depend on it (Muirhead, Aspects of multivariate
statistical theory, theorem 3.2.12). With T = 1 that is the law of a variance.
"""

import math
from typing import NamedTuple

from jaxtyping import Bool, Float
import numpy as np
from scipy import linalg, optimize, stats

ALPHA = 1e-7
"""Maximum probability that a correct mechanism breaks a rule by chance."""
SUSPICION = 1e-5
"""Maximum probability that a rule is left unchecked by chance."""
TOLERANCE = 1e-3
"""Relative error allowed to arithmetic, on top of chance."""
FLOAT32_END = 5.42
"""Largest normal number, in std, that is made of a uniform float32 number."""
FEW_DIMS = 16
"""Dimensions below which many rows tell the correlation of each pair of coordinates."""
MAX_EPSILON = 700.0
"""Largest ε of spreads that is not infinite: exp of it is a float64."""
# Fewer values than normal numbers have that are rounded to float32.
_FLOAT32_VALUES = 1.5e7
# Mean and variance of the square of a Gaussian of variance 1/2 that is less than 1.
_NEAR_SQUARE = 0.253704, 0.069894
# Of noise that is used again, of unit variance; float32 rounds to less.
_SAME_SIZE, _WIDER = 5e-7, 4
# Of a size, between which its normal number is within 3 of 0.
_TAILS = 1.35e-3, 1 - 1.35e-3
# Numbers that are compared: of more, neighbours would be closer.
_MAX_SIZES = 50_000
# Steps of a grid, in standard deviations, below which it looks continuous.
_FINEST = 0.01
# Values of a subsample of which the law is tested.
_COMPARED = 4000
# Standard deviations by which equal noise may differ, as releases are rounded.
_EQUAL = 1e-4


def p_of_mu(
  measured: float, allowed: float, *, num: int, rounds: int = 1
) -> float:
  """Probability that μ̂ = sqrt(mᵀ Σ̂⁻¹ m) is as large as measured if μ <= allowed.

  Σ̂ = Σ x xᵀ / N is that of T rounds, of N > T independent coordinates each.
  """
  if math.isinf(measured):
    return 0.0
  if measured == 0:
    return 1.0
  degrees = num - rounds + 1
  return float(stats.chi2.cdf(num * (allowed / measured) ** 2, degrees))


def upper_mu(measured: float, *, num: int) -> float:
  """Upper bound of μ, which is above it with probability `ALPHA`.

  μ is measured with N independent values of the noise.
  """
  return measured * math.sqrt(float(stats.chi2.ppf(1 - ALPHA, num)) / num)


def epsilon_of_spreads(ratio: float, dim: int, delta: float) -> float:
  """ε of telling N(0, 1) from N(0, ratio²) in each of d coordinates, at δ.

  Their likelihood ratio is monotone in the sum of squares, so that the best tests
  compare it with a threshold, from either side.
  """
  log_ratio, rest = abs(math.log(ratio)), 1 - min(ratio, 1 / ratio) ** 2
  if not dim * log_ratio:
    return 0.0
  narrow, wide = (
    stats.chi2(dim, scale=x) for x in (1.0, math.exp(2 * log_ratio))
  )

  def excess(epsilon: float) -> float:
    low, high = (
      2 * (dim * log_ratio + sign * epsilon) / rest for sign in (-1, 1)
    )
    below = narrow.cdf(low) - math.exp(epsilon) * wide.cdf(low)
    above = wide.sf(high) - math.exp(epsilon) * narrow.sf(high)
    return max(below, above) - delta

  if excess(0.0) <= 0:
    return 0.0
  if excess(MAX_EPSILON) > 0:
    return math.inf
  bracket = 0.0, MAX_EPSILON
  return optimize.root_scalar(excess, bracket=bracket).root


def p_of_cosine(largest: float, *, dim: int, pairs: int) -> float:
  """Probability, at most, that the largest |cosine| of pairs of directions is as large.

  The directions are random and independent, in R^d.
  """
  p = stats.beta.sf(min(largest, 1.0) ** 2, 0.5, (dim - 1) / 2)
  return float(min(1.0, pairs * p))


def p_of_repeats(
  rows: Float[np.ndarray, 'n d'],
) -> tuple[float, Bool[np.ndarray, 'n n']]:
  """Tests whether some row of unit variances repeats another, up to its sign.

  Noise on a coarse grid of few coordinates repeats by chance. How often is seen
  where it is not suspected: in other coordinates of other rows.

  Returns:
    p-value, and which rows are equal to which; the diagonal is False.
  """
  n, d = rows.shape
  squares = np.sum(rows**2, axis=1)
  sums = squares[:, None] + squares
  # Equal up to the sign, if either the difference or the sum vanishes.
  equal = sums - 2 * np.abs(rows @ rows.T) <= d * _EQUAL**2
  np.fill_diagonal(equal, False)
  if not equal.any():
    return 1.0, equal
  shifts = range(1, min(d, 9))
  # Rows that are equal have no more comparisons than one of them.
  distinct = rows[~np.tril(equal).any(axis=1)]
  collisions = [
    np.abs(np.roll(distinct, (1, s), axis=(0, 1)) - distinct) <= _EQUAL
    for s in shifts
  ]
  rate = 1.0
  if shifts:
    rate = 2 / (distinct.size * len(shifts)) + float(np.mean(collisions))
  # Coordinates that share numbers are fewer.
  p_shape, effective = p_of_sphericity(distinct)
  num = effective if p_shape < ALPHA else d
  of_a_pair = min(1.0, rate) ** num
  of_a_pair += float(stats.chi2.cdf(num * _EQUAL**2 / 2, num))
  return min(1.0, n * (n - 1) * of_a_pair), equal


def p_of_sphericity(
  rows: Float[np.ndarray, 'n d'],
) -> tuple[float, float]:
  """Tests whether rows have as many effective dimensions as coordinates.

  Squared cosines of rows average 1/d if coordinates are independent and of one
  variance, and more otherwise: 1/effective dimension. Their χ² law is a limit for many
  dimensions, exact in its mean and conservative in its variance. In few dimensions
  the law is that of the determinant of the correlations (Bartlett, 1950).

  Returns:
    p-value and estimated effective dimension.
  """
  rows = rows[np.any(rows != 0, axis=1)]
  n, d = rows.shape
  unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
  squares = (unit @ unit.T)[np.triu_indices(n, 1)] ** 2
  total = float(squares.sum())
  if total == 0:
    return 1.0, float(d)
  effective = squares.size / total
  if d >= FEW_DIMS or n < 10 * d:
    return float(stats.chi2.sf(d * total, squares.size)), effective
  some = standardize(rows)
  _, log = np.linalg.slogdet(some.T @ some / n)
  k = some.shape[1]
  statistic = -(n - (2 * k + 5) / 6) * log
  return float(stats.chi2.sf(statistic, max(1, k * (k - 1) / 2))), effective


def p_of_lags(
  rows: Float[np.ndarray, 'n d'],
) -> tuple[float, int, float]:
  """Tests whether rows resemble themselves shifted by some number of coordinates.

  Returns:
    p-value over all lags, the most significant lag, and its correlation.
  """
  n, d = rows.shape
  spectrum = np.fft.rfft(rows, axis=1)
  power = (spectrum.real**2 + spectrum.imag**2).sum(axis=0)
  lags = np.fft.irfft(power, n=d)[1 : d // 2 + 1] / (n * d)
  if not lags.size:
    return 1.0, 0, 0.0
  scores = np.abs(lags) * math.sqrt(n * d)
  if d % 2 == 0:
    # At half the circumference, every pair of coordinates is counted twice.
    scores[-1] /= math.sqrt(2)
  best = int(np.argmax(scores))
  p = min(1.0, 2 * lags.size * float(stats.norm.sf(scores[best])))
  return p, best + 1, float(lags[best])


def p_of_dependence(rows: Float[np.ndarray, 'n d']) -> float:
  """The smaller p-value of `p_of_lags` and `p_of_sphericity`."""
  return min(p_of_lags(rows)[0], p_of_sphericity(rows)[0])


def spread_sizes(rows: Float[np.ndarray, 'n d']) -> Float[np.ndarray, 'n d']:
  """Numbers that follow from the sizes of others, whatever their signs are.

  They are normal if the others are. In any case the mean of each coordinate is 0, as
  some have more noise, or other noise, than others; the variance of all is 1, and none
  is far from 0.
  """
  tail = 2 * stats.norm.sf(np.abs(rows))
  sizes = stats.norm.isf(np.clip(tail, *_TAILS))
  sizes = sizes - sizes.mean(axis=0)
  return sizes / (sizes.std() or 1.0)


def p_of_dependent_sizes(
  sizes: Float[np.ndarray, 'n d'],
) -> tuple[float, float]:
  """`p_of_sphericity` of what `spread_sizes` makes."""
  if len(sizes) < 2:
    return 1.0, float(sizes.shape[1])
  # Rows less their mean are correlated, and contrasts are not.
  return p_of_sphericity(standardize(linalg.helmert(len(sizes)) @ sizes))


def p_of_lags_between(
  first: Float[np.ndarray, 'n d'], second: Float[np.ndarray, 'n d']
) -> tuple[float, int]:
  """Tests whether rows resemble others that are shifted by some coordinates, not by 0.

  Normal numbers are compared, and their sizes.

  Returns:
    p-value over all lags, and the most significant lag.
  """
  n, d = first.shape
  found = []
  for a, b in ((first, second), (spread_sizes(first), spread_sizes(second))):
    products = np.conj(np.fft.rfft(a, axis=1)) * np.fft.rfft(b, axis=1)
    lags = np.fft.irfft(products.sum(axis=0), n=d)[1:]
    scores = np.abs(lags) / math.sqrt(np.sum(a**2) * np.sum(b**2) / (n * d))
    best = int(np.argmax(scores))
    found.append((2 * (d - 1) * float(stats.norm.sf(scores[best])), best + 1))
  p, lag = min(found)
  return min(1.0, 2 * p), lag


def _take_away(
  first: Float[np.ndarray, 'n d'], second: Float[np.ndarray, 'n d']
) -> Float[np.ndarray, 'n d']:
  """What momentum, or any other multiple of the first, has not put into the second."""
  return second - first * np.sum(first * second) / np.sum(first**2)


def p_of_dependence_between(
  first: Float[np.ndarray, 'n d'], second: Float[np.ndarray, 'n d']
) -> tuple[float, float]:
  """Tests whether rows are made of others by a linear map, but not of multiples alone.

  Returns:
    p-value and estimated effective dimension of both together.
  """
  both = np.concatenate([first, _take_away(first, second)], axis=1)
  return p_of_sphericity(standardize(both))


def standardize(
  rows: Float[np.ndarray, 'n d'],
) -> Float[np.ndarray, 'n _']:
  """Coordinates with unit variance, without those that are always zero."""
  stds = np.sqrt(np.mean(rows**2, axis=0))
  return rows[:, stds > 0] / stds[stds > 0]


def p_of_equal_sizes(
  sampled: Float[np.ndarray, 'R T k'], *, is_scaled: bool = False
) -> tuple[float, int, int]:
  """Tests whether rounds of a run have equal sizes of noise, wherever and of any sign.

  Independent numbers are as often that close as, per width, they are a bit further
  apart, and as numbers of one round are.

  Args:
    sampled: noise of runs and rounds.
    is_scaled: whether noise that is used again may have another scale in each round.

  Returns:
    p-value, and the two rounds that have most in common.
  """
  sampled = sampled[:, : max(2, _MAX_SIZES // sampled.shape[2])]
  num_rounds, dim = sampled.shape[1:]
  # Few numbers have no scale of their own.
  axes = 2 if is_scaled and dim >= 2 * FEW_DIMS else (0, 1, 2)
  norms = np.sqrt(np.mean(sampled**2, axis=axes, keepdims=True))
  sizes = np.abs(sampled / np.where(norms > 0, norms, 1.0))
  t = np.repeat(np.arange(num_rounds), dim)
  equal, near, alone = np.zeros((num_rounds, num_rounds)), 0, 0
  for run in sizes.reshape(len(sampled), -1):
    order = np.argsort(run)
    gaps, t_of = np.diff(run[order]), t[order]
    # What has no noise has sizes next to 0.
    is_some = run[order][1:] > 1e-3
    is_other = is_some & (t_of[1:] != t_of[:-1])
    is_equal = is_other & (gaps <= _SAME_SIZE)
    alone += int(np.sum(is_some & ~is_other & (gaps <= _SAME_SIZE)))
    np.add.at(equal, (t_of[:-1][is_equal], t_of[1:][is_equal]), 1)
    near += int(np.sum(is_other & (gaps <= _WIDER * _SAME_SIZE) & ~is_equal))
  rate = 1.1 * (near + 5 * math.sqrt(near) + 10) / (_WIDER - 1)
  # On a fine grid numbers are equal within a round and between runs as well.
  if alone:
    rate += 2 * (num_rounds - 1) * (alone + 5 * math.sqrt(alone))
  if equal.sum() > rate:
    across = sum(map(_count_equal, sizes, sizes[1:]))
    rate += across + 5 * math.sqrt(across)
  p = float(stats.poisson.sf(equal.sum() - 1, rate))
  both = equal + equal.T
  first, second = np.unravel_index(np.argmax(np.triu(both)), both.shape)
  return p, int(first), int(second)


def _count_equal(
  one: Float[np.ndarray, 'T k'], other: Float[np.ndarray, 'T k']
) -> int:
  """Counts neighbours in the order of both, one of each, that are next to equal."""
  both = np.concatenate([one, other], axis=None)
  order = np.argsort(both)
  is_one = order < one.size
  is_equal = (np.diff(both[order]) <= _SAME_SIZE) & (both[order][1:] > 1e-3)
  return int(np.sum(is_equal & (is_one[1:] != is_one[:-1])))


def p_of_smallest_variance(
  rows: Float[np.ndarray, 'n d'],
) -> tuple[float, int, float]:
  """Tests whether a coordinate has less than unit variance.

  Returns:
    p-value over all coordinates, the coordinate, and its variance.
  """
  n, d = rows.shape
  sums = (rows**2).sum(axis=0)
  worst = int(np.argmin(sums))
  p = min(1.0, d * float(stats.chi2.cdf(sums[worst], n)))
  return p, worst, float(sums[worst] / n)


def p_of_law(
  values: Float[np.ndarray, 'n'],
  law: str = 'gaussian',
  grid: float = 0.0,
) -> tuple[float, str]:
  """Tests whether values of unit variance have a law, in the bulk and the tails.

  The bulk is compared by the Kolmogorov-Smirnov distance of a subsample, the tails
  by the largest value, whose law is known. Values on a grid are compared half-way
  between its points; if the claim has none, with a Gaussian that is rounded and with
  the discrete Gaussian, of which the better one counts.

  Args:
    values: of Laplace noise, the Gaussian ones that they stand for.
    law: name of the law, as in a claim.
    grid: claimed step of the grid, 0 if there is none.

  Returns:
    p-value, and the most significant difference in words.
  """
  some = values[:: max(1, values.size // _COMPARED)]
  step = find_step(values)
  if grid > 0.05 and abs(step - grid) > 0.01 * grid:
    return 0.0, f'it has a grid of {step:.3g} std, where {grid:.3g} is claimed'
  largest = float(np.abs(values).max()) - step / 2
  if step:
    middle = max(_p_of_grid(some, step, x) for x in _grid_laws(step, law))
  else:
    middle = float(stats.kstest(some, 'norm').pvalue)
  tail = stats.norm.sf
  if step and law == 'skellam':
    tail = lambda x: stats.skellam.sf(x // step, *_skellam(step))
  # P(max <= x) = (1 - q)^n, where q is the probability of both tails beyond x.
  log_below = values.size * math.log1p(-2 * float(tail(largest)))
  high = -math.expm1(log_below)
  log_low = math.log1p(-2 * float(tail(largest + step)))
  low = math.exp(values.size * log_low)
  p, what = min(
    (middle, 'its distribution function differs from the claimed one'),
    (low, f'none of {values.size:,} values is beyond {largest:.2f} std'),
    (high, f'one of {values.size:,} values is at {largest:.1f} std'),
  )
  return min(1.0, 3 * p), what


class Values(NamedTuple):
  """Distinct values of noise.

  Attributes:
    num: effective number, None if less than 20 pairs are equal.
    p_value: of not being made of uniform float32 numbers, of which there are 2^23.
    equal, compared: pairs of values.
  """

  num: float | None
  p_value: float
  equal: int
  compared: int

  @property
  def are_few(self) -> bool:
    """Whether they are fewer than such numbers, as of float16 or bfloat16."""
    least = self.compared / 2**21
    return self.num is not None and (
      float(stats.poisson.sf(self.equal, least)) < ALPHA
    )


def count_values(
  rows: Float[np.ndarray, 'n d'], offset: Float[np.ndarray, ' d'] | float = 0.0
) -> Values:
  """Effective number of distinct noise values, and the p-value of a fine grid.

  Zeros and signs are left out. Values made of uniform numbers are equally likely, so
  that those that repeat between rows have the law of all. On a grid, or rounded to
  float32, they are as likely as the density is high, and have half of the variance.

  Args:
    rows: as they were released.
    offset: of the noise in them, such as a model.
  """
  # From one std on, what is rounded to float32 as well loses multiples of fine steps.
  is_float32 = np.array_equal(rows.astype(np.float32), rows)
  rows = rows - offset
  rows = np.abs(rows) / np.sqrt(np.mean(rows**2))
  # Noise that is cut off has the value of the end more often.
  end = rows.max() * (1 - 1e-9)
  # Far finer than float32, and coarser than the arithmetic of float64.
  parts = [np.round(row[(row != 0) & (row < end)], 11) for row in rows]
  equal, compared, near, squares = 0, 0, 0, 0.0
  # Within a row coordinates may repeat; that is another matter.
  for sign, values in [
    (1, np.concatenate(parts)),
    *((-1, part) for part in parts),
  ]:
    known, counts = np.unique(values, return_counts=True)
    pairs = counts * (counts - 1) // 2
    equal += sign * int(np.sum(pairs))
    if is_float32:
      pairs = pairs[known < 1]
      known = known[known < 1]
    near += sign * int(np.sum(pairs))
    squares += sign * float(np.sum(pairs * known**2))
    compared += sign * values.size * (values.size - 1) // 2
  if equal < 20:
    return Values(None, 1.0, equal, compared)
  found = Values(compared / equal, 1.0, equal, compared)
  if found.are_few:
    return found
  p_number = stats.poisson.sf(equal - 1, compared / _FLOAT32_VALUES)
  if is_float32:
    # Of a Gaussian of variance 1/2 within 1.
    mean, variance = _NEAR_SQUARE
    error = math.sqrt(variance / max(near, 1))
    p_grid = stats.norm.sf((squares / max(near, 1) - mean) / error)
  else:
    p_grid = stats.chi2.sf(2 * squares, near)
  return found._replace(p_value=float(max(p_number, p_grid)))


def p_of_fewer_values(noise: Values, others: Values) -> float:
  """p-value of noise having a quarter of the values of releases of updates, or more."""
  share = 4 * noise.compared / (4 * noise.compared + others.compared)
  total = noise.equal + others.equal
  return float(stats.binom.sf(noise.equal - 1, total, share))


def find_last_bits(
  values: Float[np.ndarray, '...'],
) -> Float[np.ndarray, '...']:
  """Exponent of the last bit of each number: the largest e with a multiple of 2^e.

  >>> find_last_bits(np.array([1.0, 0.75, 3 * 2.0**-24]))
  array([  0.,  -2., -24.])
  """
  mantissa, exponent = np.frexp(values)
  whole = np.abs(mantissa * 2.0**53).astype(np.int64)
  last = np.log2((whole & -whole).clip(1))
  return np.where(values == 0, np.inf, exponent - 53 + last)


def p_of_fewer_hits(
  hits: int,
  num: int,
  others: int,
  num_others: int,
  epsilon: float,
  delta: float,
) -> float:
  """p-value of P(hit) <= e^ε P(other hit) + δ, of so many hits among `num`."""
  # The level is shared with the lower bound of P(hit).
  low = stats.beta.ppf(ALPHA / 10, hits, num - hits + 1) if hits else 0.0
  least = (low - delta) * math.exp(-epsilon)
  if least <= 0:
    return 1.0
  return float(
    min(1.0, stats.binom.cdf(others, num_others, least) + ALPHA / 10)
  )


def find_step(values: Float[np.ndarray, 'n']) -> float:
  """Step of the grid on which values of unit variance lie; 0 if there is none."""
  some = np.unique(np.round(np.abs(values[:20_000]), 9))
  gaps = np.diff(some)
  gaps = gaps[gaps > _FINEST]
  # Continuous values have gaps of all sizes, those on a grid few.
  if gaps.size < 1 or some.size > 0.1 * min(values.size, 20_000):
    return 0.0
  step = float(gaps.min())
  # Of many multiples the last tells the step most precisely.
  step = float(some[-1]) / max(1, round(float(some[-1]) / step))
  off = some / step - np.rint(some / step)
  is_grid = step > _FINEST and np.all(np.abs(off) < 0.01)
  return step if is_grid else 0.0


def find_divisor(values: Float[np.ndarray, '...']) -> float:
  """Step of which values without noise are multiples.

  It is 0 if there is no such step, and infinite if there is one number only.
  """
  # Next to nothing is left of the noise; float32 rounds to 1e-7.
  sizes = np.abs(values).ravel()
  fine = 1e-4 * float(np.sqrt(np.mean(sizes**2)))
  gaps = np.diff(np.unique(np.append(sizes, 0.0)))
  gaps = gaps[gaps > fine]
  if not gaps.size:
    return math.inf
  # The greatest common divisor, as the least gap may be several steps.
  step, rests = float(gaps.min()), gaps
  while rests.size:
    step = float(rests.min())
    rests = np.abs(gaps - step * np.rint(gaps / step))
    rests = rests[rests > max(fine, 0.02 * step)]
  multiples = sizes / step
  is_grid = np.all(np.abs(multiples - np.rint(multiples)) < 0.02)
  return step if is_grid else 0.0


def _grid_laws(step: float, law: str) -> list[Float[np.ndarray, 'k']]:
  """Probabilities of multiples of a step from -m to m, of unit variance."""
  m = math.ceil(10 / step)
  points = step * np.arange(-m, m + 1)
  if law == 'skellam':
    return [stats.skellam.pmf(np.arange(-m, m + 1), *_skellam(step))]
  laws = []
  if step**2 < 12 and law == 'gaussian':
    # Rounding adds a variance of step² / 12.
    std = math.sqrt(1 - step**2 / 12)
    edges = stats.norm.cdf(np.append(points - step / 2, points[-1]) / std)
    laws.append(np.diff(edges))
  low, high = 0.3, 3.0
  weigh = lambda std: np.exp(-((points / std) ** 2) / 2)
  for _ in range(40):
    std = (low + high) / 2
    variance = np.sum(points**2 * weigh(std)) / np.sum(weigh(std))
    low, high = (std, high) if variance < 1 else (low, std)
  return [*laws, weigh(high) / np.sum(weigh(high))]


def _skellam(step: float) -> tuple[float, float]:
  """Means of the two Poisson laws whose difference has unit variance."""
  return 0.5 / step**2, 0.5 / step**2


def _p_of_grid(
  values: Float[np.ndarray, 'n'], step: float, law: Float[np.ndarray, 'k']
) -> float:
  """p-value of the distance of distribution functions, between grid points."""
  m = (law.size - 1) // 2
  index = np.clip(np.rint(values / step).astype(int) + m, 0, 2 * m)
  counts = np.bincount(index, minlength=law.size)
  distance = np.abs(np.cumsum(counts) / values.size - np.cumsum(law)).max()
  return float(stats.kstwo.sf(distance, values.size))
