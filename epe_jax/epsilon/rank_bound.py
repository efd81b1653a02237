"""Bounds from both rates at once, by a test of the ranks of scores.

Two limits, one of the false positive and one of the false negative rate, each at
half the significance, make a bound that practically never fails: both rates would
have to be far from their estimates at the same threshold. Here a privacy level is
rejected by a single test of the pair, whose level is that of the bound.

Let f be a trade-off curve, r_1 < ... < r_m ranks that were fixed before any score was
seen, N_k the number of observed scores above the r_k-th largest unobserved one, and
S(N) nondecreasing in every count. If no attack "in if the score exceeds t" has rates
below f, then P(S(N) >= s) <= P(S(N*) >= s) for every s, where N* are the counts of n0
uniforms U and n1 independent V with distribution function 1 - f, and "above" means
V_j <= U_i: docs/estimates.md has the proof. Ties can only lower N. If f_θ falls as the
strength θ of the leak grows, the largest θ at which P_θ(S(N*) >= s) is at most the
significance is a lower bound of θ, which is sharp for the pair of laws of N*.

U_(r_k) is a ratio of sums of gamma variables, and given these the counts are a chain
of binomial variables, so that N* is drawn quickly for any number of scores. The
p-value (1 + #{S(N*) >= s})/(1 + draws) makes the Monte Carlo test exact on average
over the draws (Barnard 1963; Besag and Clifford 1989).

References: Kairouz, Oh and Viswanath (2015) for attacks and f; Newcombe (1998)
and Zou and Donner (2008) for combining two limits as roots of squares.
"""

from collections.abc import Callable
import dataclasses
import functools

from jaxtyping import Float, Int
import numpy as np
from scipy import special

from epe_jax.epsilon import threshold, tradeoff
from epe_jax.epsilon.types import Real, Scores, Sides, scalar_or_array

# Neighbouring ranks differ by this factor.
_RATIO = 1.35
# So many draws beyond the critical value give the level to 5 %, its standard error.
# Below 4e-4 more draws would take minutes and gigabytes, and the error is 10 % at most.
_DRAWS_BEYOND, _MAX_DRAWS = 400, 1_000_000
_SMALLEST_SIGNIFICANCE = 1e-4
_CURVE_POINTS = 3000
# Weights of the parts of a statistic. A bound is valid for any choice.
_RATIO_LEVEL, _SHIFT_LEVEL, _AREA_ERRORS = 0.01, 0.003, 1.8
_NARROW, _CLOSE, _ROUNDING = 4, 1e-5, 1e-9


@dataclasses.dataclass(frozen=True, eq=False)
class Statistic:
  """A test statistic of the counts above some ranks.

  Attributes:
    num: number of observed scores, >= 1.
    num_null: number of unobserved scores, >= 1.
    ranks: [m] ranks of unobserved scores from the top, increasing.
    value: counts [..., m] -> statistic [...], nondecreasing in each count and on
      the scale of θ.
    spread: approximate standard deviation, the unit of the search for θ.
  """

  num: int
  num_null: int
  ranks: Int[np.ndarray, 'm']
  value: Callable[[Int[np.ndarray, '*b m']], Float[np.ndarray, '*b']]
  spread: float


def epsilon_bound(
  scores: Scores, *, delta: float, significance: float, sides: Sides
) -> Float[np.ndarray, '*batch']:
  """Lower bound of the ε of any (ε, δ)-DP mechanism, >= 0 and finite.

  The curve is that of (ε, δ)-DP in both directions, and the statistic the best
  approximate lower limit of log (1 - δ - FNR)/FPR over the thresholds. The null law
  is ignored.
  """
  num, num_null = scores.observed.shape[-1], scores.unobserved.shape[-1]
  statistic = log_ratio_statistic(num, num_null, delta, sides)
  return max_rejected(
    scores, tradeoff.approximate_dp_curves(delta), statistic, significance
  )


def strength_bound(
  scores: Scores,
  family: tradeoff.MechanismFamily,
  *,
  significance: float,
) -> Float[np.ndarray, '*batch']:
  """Lower bound of 1/noise of a member of a family, which is μ if it is Gaussian.

  The statistic is the larger of two approximate lower limits of μ: that of the
  best threshold, and that from the area under the ROC curve. The area detects a
  shift of all scores best, a threshold a leak of few canaries. The bound is inf if no
  member of the family allows such scores. The null law is ignored.
  """
  num, num_null = scores.observed.shape[-1], scores.unobserved.shape[-1]
  statistic = shift_statistic(num, num_null)
  return max_rejected(
    scores, tradeoff.family_curves(family), statistic, significance
  )


def max_rejected(
  scores: Scores,
  curve: tradeoff.Curves,
  statistic: Statistic,
  significance: float,
) -> Float[np.ndarray, '*batch']:
  """The largest strength θ that the test rejects at this level.

  It is 0 if none is rejected, and inf if the limit of the curves is.
  """
  values = statistic.value(count_above(scores, statistic.ranks))
  unit = 2.0 ** np.round(np.log2(statistic.spread))

  def bound(value):
    def rarity(strength):
      return p_value(value, curve, strength, statistic, significance)

    return _crossing(rarity, value, unit, curve.limit, significance)

  return np.reshape([bound(v) for v in np.ravel(values)], values.shape)


def p_value(
  values: Real,
  curve: tradeoff.Curves,
  strength: float,
  statistic: Statistic,
  significance: float,
) -> float | Float[np.ndarray, '...']:
  """P-values of values of the statistic under the curve of a strength.

  They are accurate near the significance with which they will be compared.

  Raises:
    ValueError: significance is so small that too many draws would be needed.
  """
  if significance < _SMALLEST_SIGNIFICANCE:
    raise ValueError(
      f'significance={significance:g}, but the test of all thresholds is '
      f'simulated, which a level below {_SMALLEST_SIGNIFICANCE:g} needs too many '
      f'draws for; give at least {_SMALLEST_SIGNIFICANCE:g}, or to a bound '
      'multiplicity=Bonferroni(100), whose limits are computed at any level.'
    )
  draws = min(int(np.ceil(_DRAWS_BEYOND / significance)), _MAX_DRAWS)
  law = _law(curve, strength, statistic, draws)
  # Equal statistics may differ by rounding.
  exceed = draws - np.searchsorted(law, values - _ROUNDING)
  return scalar_or_array((1 + exceed) / (1 + draws))


def count_above(
  scores: Scores, ranks: Int[np.ndarray, 'm']
) -> Int[np.ndarray, '*batch m']:
  """How many observed scores exceed the unobserved ones of given ranks from the top."""
  size = scores.unobserved.shape[-1]
  at = np.sort(scores.unobserved, axis=-1)[..., size - ranks]
  return threshold.count_at_least(scores.observed, np.nextafter(at, np.inf))


def draw_counts(
  rng: np.random.Generator,
  fnr: Callable[[Float[np.ndarray, 'n']], Float[np.ndarray, 'n']],
  statistic: Statistic,
  draws: int,
) -> Int[np.ndarray, 'draws m']:
  """Draws of N*, the counts of scores with a trade-off curve, log FPR -> FNR."""
  num, num_null, ranks = statistic.num, statistic.num_null, statistic.ranks
  steps = np.append(np.diff(ranks, prepend=0), num_null + 1 - ranks[-1])
  sums = np.cumsum(rng.standard_gamma(steps, (draws, len(steps))), axis=-1)
  rates = sums[:, :-1] / sums[:, -1:]
  # The grid is so dense that linear interpolation errs by far less than the
  # draws; below its first point the curve is flat, which can only raise a count.
  grid = np.linspace(np.log(1e-9 / num_null), 0.0, _CURVE_POINTS)
  hit = np.interp(np.log(rates), grid, 1 - fnr(grid))
  counts = np.empty(rates.shape, dtype=np.int64)
  left, before = np.full(draws, num), np.zeros(draws)
  for k in range(len(ranks)):
    share = (hit[:, k] - before) / np.maximum(1 - before, 1e-300)
    left = left - rng.binomial(left, np.clip(share, 0.0, 1.0))
    counts[:, k], before = num - left, hit[:, k]
  return counts


@functools.lru_cache(maxsize=64)
def log_ratio_statistic(
  num: int, num_null: int, delta: float, sides: Sides
) -> Statistic:
  """The largest approximate lower limit of ε over thresholds."""
  ranks = _space_ranks(num_null, sides)
  fpr, highest_fpr = _fpr(ranks, num_null, _RATIO_LEVEL)

  def value(counts):
    tpr, lowest_tpr = _tpr(counts, num, _RATIO_LEVEL)
    of_guesses_in = _limit_difference(
      _log(tpr - delta), _log(lowest_tpr - delta), _log(fpr), _log(highest_fpr)
    )
    if sides == 'in':
      return np.max(of_guesses_in, axis=-1)
    of_guesses_out = _limit_difference(
      -_log(1 - tpr),
      -_log(1 - lowest_tpr),
      -_log(1 - fpr - delta),
      -_log(1 - highest_fpr - delta),
    )
    return np.max(np.maximum(of_guesses_in, of_guesses_out), axis=-1)

  spread = 4 * np.sqrt(1 / num + 1 / num_null)
  return Statistic(num, num_null, ranks, value, spread)


@functools.lru_cache(maxsize=64)
def shift_statistic(num: int, num_null: int) -> Statistic:
  """The larger of two approximate lower limits of μ: of thresholds, of the area."""
  ranks = _space_ranks(num_null, 'both')
  fpr, highest_fpr = _fpr(ranks, num_null, _SHIFT_LEVEL)
  ends = np.concatenate([[0], ranks, [num_null + 1]])
  # Twice the widths of trapezoids over ranks: as integers, so that equal areas are
  # equal numbers.
  widths = ends[2:] - ends[:-2]
  last = (num_null + 1 - ranks[-1]) * num
  variance = 1 / num + 1 / num_null

  def value(counts):
    tpr, lowest_tpr = _tpr(counts, num, _SHIFT_LEVEL)
    at_thresholds = _limit_difference(
      special.ndtri(tpr),
      special.ndtri(lowest_tpr),
      special.ndtri(fpr),
      special.ndtri(highest_fpr),
    )
    area = (counts @ widths + last) / (2.0 * num * (num_null + 1))
    edge = 0.25 / (num * num_null)
    mu = np.sqrt(2) * special.ndtri(np.clip(area, edge, 1 - edge))
    error = np.sqrt(variance * (1 + mu**2 / 8))
    return np.maximum(np.max(at_thresholds, axis=-1), mu - _AREA_ERRORS * error)

  return Statistic(num, num_null, ranks, value, np.sqrt(variance))


@functools.lru_cache(maxsize=1024)
def _law(curve, strength, statistic, draws):
  """Sorted draws of the statistic, the same in every call."""
  fnr = functools.partial(curve.fnr, strength)
  counts = draw_counts(np.random.default_rng(0), fnr, statistic, draws)
  return np.sort(statistic.value(counts))


def _crossing(p_value, start, unit, limit, significance):
  """The θ at which the p-value, which increases with θ, is the significance.

  It is interpolated between two multiples of a power of two, so that audits share
  their draws, by a straight line in probits.
  """
  low = unit * max(np.floor(start / unit), 0.0)
  high, step = low + unit, unit
  while p_value(high) <= significance:
    if high >= limit:
      return np.inf
    step *= 2
    low, high = high, min(high + step, limit)
  while low > 0 and p_value(low) > significance:
    low, high = max(low - step, 0.0), low
    step *= 2
  if p_value(low) > significance:
    return 0.0
  tolerance = _CLOSE * (1 + high)
  # The interval is narrowed until probits are nearly linear within it.
  ends = significance / _NARROW, min(significance * _NARROW, 0.9)
  while high - low > tolerance and not (
    p_value(low) >= ends[0] and p_value(high) <= ends[1]
  ):
    middle = (low + high) / 2
    if p_value(middle) <= significance:
      low = middle
    else:
      high = middle
  if high - low <= tolerance:
    return low
  probits = special.ndtri([p_value(low), significance, p_value(high)])
  share = (probits[1] - probits[0]) / (probits[2] - probits[0])
  return low + share * (high - low)


def _space_ranks(size, sides):
  """Ranks from the top: dense there, or for 'both' sides at either end."""

  def spaced(last):
    num = int(np.ceil(np.log(last) / np.log(_RATIO))) + 1
    return np.geomspace(1, last, num).round().astype(int)

  if sides == 'in':
    return np.unique(spaced(size))
  top = spaced((size + 1) / 2)
  return np.unique(np.concatenate([top, size + 1 - top]))


def _fpr(ranks, num_null, level):
  """Mean and upper limit of P(score > the unobserved score of a rank)."""
  limit = special.betainccinv(ranks, num_null - ranks + 1.0, level)
  return ranks / (num_null + 1.0), limit


def _tpr(counts, num, level):
  """Estimate and Wilson's lower limit of a rate, both increasing in the count."""
  rate, z2 = counts / num, special.ndtri(level) ** 2
  spread = np.sqrt(z2 * (rate * (1 - rate) / num + z2 / (4 * num**2)))
  lowest = (rate + z2 / (2 * num) - spread) / (1 + z2 / num)
  return (counts + 0.5) / (num + 1), np.maximum(lowest, 0.0)


def _limit_difference(first, lowest_first, second, highest_second):
  """Lower limit of a difference, from a limit of each of its terms.

  It increases with `first` and `lowest_first`, and is -inf where they are.
  """
  with np.errstate(invalid='ignore'):
    distance = np.hypot(first - lowest_first, highest_second - second)
    limit = first - second - distance
  return np.where(np.isnan(limit), -np.inf, limit)


def _log(x):
  return np.log(x, out=np.full_like(x, -np.inf), where=x > 0)
