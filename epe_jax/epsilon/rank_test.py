"""Bounds from both rates at once, by a test of the ranks of scores.

Two limits, one of the false positive and one of the false negative rate, each
at half the significance, make a bound that practically never fails: for it to
be false both rates have to be far from what they look, at the same threshold.
Here a privacy level is rejected by a single test of the pair, whose level is
that of the bound.

Let f be a trade-off curve and r_1 < ... < r_m ranks that were fixed before any
score was seen. N_k is the number of observed scores above the r_k-th largest
unobserved one, and S(N) any statistic that does not fall when a count rises. If
no attack "in if the score exceeds t" has rates below f, then

  P(S(N) >= s) <= P(S(N*) >= s)   for every s,

where N* are the counts of U_1, ..., U_n0 uniform on [0, 1] and V_1, ..., V_n1
with distribution function 1 - f, "above" meaning V_j <= U_i.

Proof. With a uniform ξ of its own for every score, let U_i be the chance that
an unobserved score X exceeds X_i, plus ξ_i P(X = X_i), and V_j the same of Y_j.
The U_i are uniform. "In if V <= u" is an attack with false positive rate u, so
P(V_j <= u) <= 1 - f(u): coupled by their quantiles, V_j >= V*_j. Y_j > X_i
implies V_j <= U_i, so that fewer than r unobserved scores at or above Y_j imply
V_j <= U_(r), and N_k <= #{j: V_j <= U_(r_k)} <= N*_k.

Ties can only lower N, scores may have any laws, and observed ones may differ in
theirs. The law of N* depends on f alone. If f_θ falls as the strength θ of the
leak grows, N* rises, so p(θ) = P_θ(S(N*) >= s) rises too and the largest θ at
which p(θ) is at most the significance is a lower bound of θ at that
significance. It is attained: by the pair of laws that N* has.

U_(r_k) is a sum of gamma variables, and given these the counts are a chain of
binomial ones, so N* is drawn quickly whatever the number of scores. p(θ) is
(1 + #{S(N*) >= s})/(1 + draws), which makes a Monte Carlo test exact, averaged
over what is drawn (Barnard 1963; Besag and Clifford 1989).

References: Kairouz, Oh and Viswanath (2015) for attacks and f; Newcombe (1998)
and Zou and Donner (2008) for combining two limits as roots of squares.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools
from typing import NamedTuple

from jaxtyping import Float, Int
import numpy as np
from scipy import special

from epe_jax.epsilon import threshold, tradeoff_curves
from epe_jax.epsilon.types import Real, Scores, scalar_or_array

# Neighbouring ranks differ by this factor.
_RATIO = 1.35
# The draws give the level to 3 % of itself: one standard error.
_DRAWS_BEYOND = 1000
_CURVE_POINTS = 3000
# How the parts of a statistic are weighed. No choice makes a bound false.
_RATIO_LEVEL, _SHIFT_LEVEL, _AREA_ERRORS = 0.01, 0.003, 1.8
# The strengths of a family beyond which its curve no longer changes.
_SATURATED = 16.0
_NARROW, _CLOSE, _ROUNDING = 4, 1e-5, 1e-9


class Curve(NamedTuple):
  """Trade-off curves f_θ that fall as the strength θ grows from 0.

  Attributes:
    fnr: (θ, log FPR) -> the smallest FNR, or less.
    limit: the curve is the same for all larger θ; inf if there is none.
  """

  fnr: Callable[[float, Float[np.ndarray, 'n']], Float[np.ndarray, 'n']]
  limit: float


@dataclasses.dataclass(frozen=True, eq=False)
class Statistic:
  """What a test looks at.

  Attributes:
    num: number of observed scores, >= 1.
    num_null: number of unobserved scores, >= 1.
    ranks: of unobserved scores from the top, increasing.
    value: counts [..., m] -> [...], rising in each count and on the scale of θ.
    spread: about its standard deviation, where a search for θ begins.
  """

  num: int
  num_null: int
  ranks: Int[np.ndarray, 'm']
  value: Callable[[Int[np.ndarray, '*b m']], Float[np.ndarray, '*b']]
  spread: float


def epsilon_bound(
  scores: Scores, *, delta: float, significance: float, one_sided: bool
) -> Float[np.ndarray, '*batch']:
  """Lower bound of the ε of any (ε, δ)-DP mechanism.

  The curve is that of (ε, δ)-DP in both directions, and the statistic the best
  approximate lower limit of log (1 - δ - FNR)/FPR over the thresholds.

  Args:
    scores: scores of canaries, any leading axes, `dim` not used.
    delta: δ, in (0, 1).
    significance: chance that the bound exceeds the true ε, in (0, 1).
    one_sided: do not look at log (1 - δ - FPR)/FNR as well.

  Returns:
    The bound, >= 0 and finite.
  """
  num, num_null = scores.observed.shape[-1], scores.unobserved.shape[-1]
  statistic = log_ratio_statistic(num, num_null, delta, one_sided)
  return max_rejected(
    scores, approximate_dp_curve(delta), statistic, significance
  )


def strength_bound(
  scores: Scores, family: tradeoff_curves.Family, *, significance: float
) -> Float[np.ndarray, '*batch']:
  """Lower bound of 1/noise of a member of a family; of μ if it is Gaussian.

  The statistic is the larger of two approximate lower limits of μ: the best
  threshold's, and that from the area under the ROC. The area sees a shift of
  all scores best, a threshold a leak that few canaries show.

  Args:
    scores: scores of canaries, any leading axes, `dim` not used.
    family: from `tradeoff_curves`.
    significance: chance that the bound exceeds the truth, in (0, 1).

  Returns:
    The bound, >= 0; inf if no member of the family allows such scores.
  """
  num, num_null = scores.observed.shape[-1], scores.unobserved.shape[-1]
  statistic = shift_statistic(num, num_null)
  return max_rejected(scores, family_curve(family), statistic, significance)


def max_rejected(
  scores: Scores, curve: Curve, statistic: Statistic, significance: float
) -> Float[np.ndarray, '*batch']:
  """The largest θ at which scores as telling as these are too rare.

  Args:
    scores: scores of canaries, any leading axes.
    curve: what is tested.
    statistic: by what.
    significance: how rare, in (0, 1).

  Returns:
    θ >= 0; inf if even the curve's limit is rejected.
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
  curve: Curve,
  strength: float,
  statistic: Statistic,
  significance: float,
) -> float | Float[np.ndarray, '...']:
  """Largest chance of a statistic like these, or above, at a strength.

  Args:
    values: of the statistic.
    curve: what is tested.
    strength: θ >= 0.
    statistic: by what.
    significance: that p-values are compared with, and known well around.

  Returns:
    The p-values, in (0, 1], with the shape of `values`.
  """
  draws = int(np.ceil(_DRAWS_BEYOND / significance))
  law = _law(curve, strength, statistic, draws)
  # Equal statistics may differ by rounding.
  exceed = draws - np.searchsorted(law, values - _ROUNDING)
  return scalar_or_array((1 + exceed) / (1 + draws))


def count_above(
  scores: Scores, ranks: Int[np.ndarray, 'm']
) -> Int[np.ndarray, '*batch m']:
  """How many observed scores exceed the unobserved ones of these ranks."""
  size = scores.unobserved.shape[-1]
  at = np.sort(scores.unobserved, axis=-1)[..., size - ranks]
  return threshold.count_at_least(scores.observed, np.nextafter(at, np.inf))


def draw_counts(
  rng: np.random.Generator,
  fnr: Callable[[Float[np.ndarray, 'n']], Float[np.ndarray, 'n']],
  statistic: Statistic,
  draws: int,
) -> Int[np.ndarray, 'draws m']:
  """Counts of scores whose trade-off curve is the given one: N* above.

  Args:
    rng: source of the draws.
    fnr: the trade-off curve, log FPR -> the smallest FNR.
    statistic: what the counts are for.
    draws: how many.
  """
  num, num_null, ranks = statistic.num, statistic.num_null, statistic.ranks
  steps = np.append(np.diff(ranks, prepend=0), num_null + 1 - ranks[-1])
  sums = np.cumsum(rng.standard_gamma(steps, (draws, len(steps))), axis=-1)
  rates = sums[:, :-1] / sums[:, -1:]
  # Points are so dense that lines between them are out by far less than the
  # draws; below the first one the curve is flat, which can only raise a count.
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
  num: int, num_null: int, delta: float, one_sided: bool
) -> Statistic:
  """Best approximate lower limit of ε at a threshold.

  Args:
    num: number of observed scores.
    num_null: number of unobserved scores.
    delta: δ.
    one_sided: only log (1 - δ - FNR)/FPR, at ranks that are dense at the top.
  """
  ranks = _spaced_ranks(num_null, one_sided)
  fpr, highest_fpr = _fpr(ranks, num_null, _RATIO_LEVEL)

  def value(counts):
    tpr, lowest_tpr = _tpr(counts, num, _RATIO_LEVEL)
    forward = _combined(
      _log(tpr - delta), _log(lowest_tpr - delta), _log(fpr), _log(highest_fpr)
    )
    if one_sided:
      return np.max(forward, axis=-1)
    backward = _combined(
      -_log(1 - tpr),
      -_log(1 - lowest_tpr),
      -_log(1 - fpr - delta),
      -_log(1 - highest_fpr - delta),
    )
    return np.max(np.maximum(forward, backward), axis=-1)

  spread = 4 * np.sqrt(1 / num + 1 / num_null)
  return Statistic(num, num_null, ranks, value, spread)


@functools.lru_cache(maxsize=64)
def shift_statistic(num: int, num_null: int) -> Statistic:
  """Larger of two approximate lower limits of μ: of thresholds, of the area.

  Args:
    num: number of observed scores.
    num_null: number of unobserved scores.
  """
  ranks = _spaced_ranks(num_null, one_sided=False)
  fpr, highest_fpr = _fpr(ranks, num_null, _SHIFT_LEVEL)
  ends = np.concatenate([[0], ranks, [num_null + 1]])
  # Of the trapezoids over ranks, twice; integers, so that equals stay equal.
  widths = ends[2:] - ends[:-2]
  last = (num_null + 1 - ranks[-1]) * num
  variance = 1 / num + 1 / num_null

  def value(counts):
    tpr, lowest_tpr = _tpr(counts, num, _SHIFT_LEVEL)
    at_thresholds = _combined(
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


@functools.lru_cache(maxsize=64)
def approximate_dp_curve(delta: float) -> Curve:
  """(ε, δ)-DP in both directions, of strength ε."""

  def fnr(epsilon, log_fpr):
    return tradeoff_curves.Lines(np.array([epsilon]), np.array([delta])).fnr(
      log_fpr
    )

  return Curve(fnr, np.inf)


@functools.lru_cache(maxsize=64)
def family_curve(family: tradeoff_curves.Family) -> Curve:
  """A family by its 1/noise; without a leak at 0, whatever it makes of inf."""

  def fnr(strength, log_fpr):
    if strength == 0:
      return -np.expm1(log_fpr)
    return family.fnr(1 / strength, log_fpr)

  return Curve(fnr, _SATURATED)


@functools.lru_cache(maxsize=1024)
def _law(curve, strength, statistic, draws):
  """Sorted draws of the statistic; always the same ones."""
  fnr = functools.partial(curve.fnr, strength)
  counts = draw_counts(np.random.default_rng(0), fnr, statistic, draws)
  return np.sort(statistic.value(counts))


def _crossing(p_value, start, unit, limit, significance):
  """Where the p-value, which rises with θ, passes the significance.

  Found between two multiples of a power of two, so that audits share their
  draws, by a straight line in probits.
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
  close = _CLOSE * (1 + high)
  # Not further from the significance than the line is straight.
  ends = significance / _NARROW, min(significance * _NARROW, 0.9)
  while high - low > close and not (
    p_value(low) >= ends[0] and p_value(high) <= ends[1]
  ):
    middle = (low + high) / 2
    if p_value(middle) <= significance:
      low = middle
    else:
      high = middle
  if high - low <= close:
    return low
  probits = special.ndtri([p_value(low), significance, p_value(high)])
  share = (probits[1] - probits[0]) / (probits[2] - probits[0])
  return low + share * (high - low)


def _spaced_ranks(size, one_sided):
  """Ranks from the top that are dense there, or at both ends."""

  def spaced(last):
    num = int(np.ceil(np.log(last) / np.log(_RATIO))) + 1
    return np.geomspace(1, last, num).round().astype(int)

  if one_sided:
    return np.unique(spaced(size))
  top = spaced((size + 1) / 2)
  return np.unique(np.concatenate([top, size + 1 - top]))


def _fpr(ranks, num_null, level):
  """Mean and upper limit of P(score > the unobserved one of a rank)."""
  limit = special.betainccinv(ranks, num_null - ranks + 1.0, level)
  return ranks / (num_null + 1.0), limit


def _tpr(counts, num, level):
  """Estimate and Wilson's lower limit of a rate, both rising in the count."""
  rate, z2 = counts / num, special.ndtri(level) ** 2
  spread = np.sqrt(z2 * (rate * (1 - rate) / num + z2 / (4 * num**2)))
  lowest = (rate + z2 / (2 * num) - spread) / (1 + z2 / num)
  return (counts + 0.5) / (num + 1), np.maximum(lowest, 0.0)


def _combined(first, lowest_first, second, highest_second):
  """Lower limit of a difference from one limit of each of its terms.

  It rises with `first` and `lowest_first`, and is -inf where they are.
  """
  with np.errstate(invalid='ignore'):
    distance = np.hypot(first - lowest_first, highest_second - second)
    limit = first - second - distance
  return np.where(np.isnan(limit), -np.inf, limit)


def _log(x):
  return np.log(x, out=np.full_like(x, -np.inf), where=x > 0)
