"""Valid lower bounds of ε from thresholds on the score.

A bound consists of two choices: trade-off curves, which say what a pair of error
rates proves, those of any (ε, δ)-DP mechanism (`lower_bound`), of a Gaussian one
(`gdp_bound`) or of another family (`family_bound`); and a `Correction` for the
choice among many thresholds, since a limit that fails at a given one with
probability 5 % fails at some much more often.

Limits α of the FPR and β of the FNR allow a mechanism with trade-off curve f only if
f(α) <= β, because f falls. (ε, δ)-DP bounds the rates by two lines, which touch the
curve of a Gaussian mechanism at two points; everywhere else even the best attack
proves less than ε. A bound that assumes the shape of the curve, and bounds only the
noise, is tight at any threshold.

References: Jagielski et al. (2020); equation (1) of Andrew et al. (ICLR 2024); Nasr
et al., "Tight auditing of differentially private machine learning" (2023), section
4.1 and appendix A, for f-DP.
"""

import abc
from collections.abc import Callable
import dataclasses
import functools
import math
from typing import Any, ClassVar, TypeAlias, get_args

from jaxtyping import Float, Int
import numpy as np
from scipy import special

from epe_jax.epsilon import checks, diagnostics, rank_bound, threshold, tradeoff
from epe_jax.epsilon.checks import check_significance
from epe_jax.epsilon.threshold import Counted
from epe_jax.epsilon.types import (
  Assumption,
  Estimate,
  Real,
  Scores,
  Sides,
  check_scores,
  list_assumptions,
  make_bound,
  scalar_or_array,
)

FindBest: TypeAlias = Callable[[Scores], Float[np.ndarray, '*batch 1']]
"""The threshold at which a leak seems strongest."""

_RANKS, _BISECTIONS, _TAIL, _TINY = 80, 14, 9.0, 1e-12
_GAUSSIAN = tradeoff.gaussian_family()
CANDIDATES = 2000
"""The best of so many thresholds is practically as good as that of a million."""


class Correction(abc.ABC):
  """A correction for the choice among many thresholds."""

  is_valid: ClassVar[bool] = True
  """Whether what is corrected so is a bound."""

  @abc.abstractmethod
  def count_errors(
    self, scores: Scores, significance: float, find_best: FindBest, sides: Sides
  ) -> tuple[Counted, float]:
    """Errors at the thresholds, and the level of the limits at each of them.

    Any of the limits fails with the chance `significance`; `find_best` chooses the
    threshold of a split.
    """


@dataclasses.dataclass(frozen=True)
class Band(Correction):
  """The best threshold, with a correction for all of them at once.

  It loses least if nothing is known about the best threshold. If the null law is
  known, limits of the FNR hold at every threshold (`band_upper`); otherwise a single
  test of both rates decides (`rank_bound`).
  """

  def count_errors(self, scores, significance, find_best, sides):
    """All realisable thresholds, at the whole significance."""
    return count_realisable(scores), significance


@dataclasses.dataclass(frozen=True)
class Bonferroni(Correction):
  """The best of a few thresholds, each at its share of the significance.

  They are the scores at fixed ranks, geometrically spaced, among the unobserved
  canaries, or the observed ones if the null law is known. So the FPR at one is a
  beta variable, and given the unobserved scores the false negatives are binomial:
  both limits are exact. To divide by the number of thresholds on the convex hull of
  the ROC curve is not valid, since that depends on the scores.

  Attributes:
    num_thresholds: number of thresholds, >= 1. Equal ranks are merged.
  """

  num_thresholds: int = 10

  def __post_init__(self):
    checks.check_integer('num_thresholds', self.num_thresholds, 1)

  def count_errors(self, scores, significance, find_best, sides):
    """Thresholds at fixed ranks, which share the significance."""
    group = scores.observed if scores.has_known_null else scores.unobserved
    rank = _space_ranks(group.shape[-1], self.num_thresholds, sides)
    at = np.sort(group, axis=-1)[..., group.shape[-1] - rank]
    if not scores.has_known_null:
      # "In" is a score strictly above the unobserved one of this rank. rank - 1
      # unobserved ones are, or fewer if tied, which only weakens a bound.
      at = np.nextafter(at, np.inf)
    counted = threshold.count_at(scores, at)
    exact = {'false_positives': np.broadcast_to(rank - 1, at.shape)}
    if scores.has_known_null:
      below = group.shape[-1] - rank
      exact = {'false_negatives': np.broadcast_to(below, at.shape)}
    return counted._replace(**exact), significance / at.shape[-1]


@dataclasses.dataclass(frozen=True)
class Explicit(Correction):
  """The best of given thresholds, each at its share of the significance.

  Attributes:
    thresholds: chosen without looking at these scores; at least one, finite.
  """

  thresholds: tuple[float, ...]

  def __post_init__(self):
    values = self.thresholds
    if isinstance(values, str) or np.ndim(values) != 1 or not len(values):
      raise ValueError(
        f'thresholds={values!r} must be one or more numbers, as (0.5, 1.0).'
      )
    checks.check_numbers('thresholds', values, '(-inf, inf)')

  def count_errors(self, scores, significance, find_best, sides):
    """Given thresholds, which share the significance."""
    values = np.asarray(self.thresholds, dtype=np.float64)
    each = np.broadcast_to(values, (*scores.observed.shape[:-1], values.size))
    return threshold.count_at(scores, each), significance / values.size


@dataclasses.dataclass(frozen=True)
class Split(Correction):
  """A threshold chosen by half of the canaries, for a bound from the others.

  Attributes:
    seed: of the random split, >= 0. A bound is not valid if several seeds are
      tried and the best is kept.
  """

  seed: int

  def __post_init__(self):
    checks.check_integer('seed', self.seed, 0, math.inf)

  def count_errors(self, scores, significance, find_best, sides):
    """One threshold for scores that did not choose it."""
    choose, held_out = self.partition(scores)
    return threshold.count_at(held_out, find_best(choose)), significance

  def partition(self, scores: Scores) -> tuple[Scores, Scores]:
    """Scores that choose a threshold, and those that are counted.

    Raises:
      ValueError: a part would be empty.
    """
    rng = np.random.default_rng(self.seed)
    parts: tuple[dict[str, Any], ...] = ({}, {})
    for name in ('observed', 'unobserved'):
      values = getattr(scores, name)
      size = values.shape[-1]
      first = size // 2
      if size == 1:
        raise ValueError(
          f'one {name} score has no halves; use more canaries or '
          'multiplicity=Band().'
        )
      order = rng.permutation(size)
      for part, chosen in zip(parts, (order[:first], order[first:])):
        part[name] = values[..., chosen]
        if name == 'observed' and scores.shift is not None:
          part['shift'] = scores.shift[chosen]
    choose, count = (dataclasses.replace(scores, **part) for part in parts)
    return choose, count


_BAND = Band()


def lower_bound(
  scores: Scores,
  *,
  delta: float,
  significance: float = 0.05,
  multiplicity: Correction = _BAND,
  sides: Sides = 'in',
) -> Estimate:
  """Lower bound of ε that exceeds the truth with probability <= significance.

  At a threshold with upper limits a of the FPR and b of the FNR, ε is at least

    log (1 - δ - b)/a,  and if sides='both' also  log (1 - δ - a)/b.

  Each of the two limits fails with probability significance/2. If the null law is
  known, a is exact, b has the whole significance, and no unobserved scores are
  needed. Band() without it tests both rates at once (`rank_bound`). If canaries
  leak unequally, it is a bound of the ε of the most exposed one.

  Args:
    multiplicity: the correction for the choice of the threshold.
    sides: those of 'both' help if the unobserved scores have a lower tail that no
      observed score reaches.

  Returns:
    The bound, >= 0; a point estimate if `multiplicity` gives no guarantee, or if
    the unobserved scores reject their null law (`diagnostics.is_null_rejected`).

  Raises:
    ValueError: also if a group is too small to split.

  >>> scores = Scores(np.linspace(2, 4, 1000), np.linspace(-1, 1, 1000))
  >>> bound = lower_bound(scores, delta=1e-5)
  >>> round(bound.epsilon, 1), bound.confidence
  (6.5, 0.95)
  """
  check_scores(scores, delta, significance=significance)
  checks.check_choice('sides', sides, get_args(Sides))
  delta = float(delta)

  def at(log_fpr, fnr):
    return threshold.epsilon_at(log_fpr, np.log(fnr), delta, sides=sides)

  return _bound(
    scores,
    delta,
    significance,
    multiplicity,
    at=at,
    prove=lambda *rates: np.max(at(*rates), axis=-1),
    test_ranks=lambda: rank_bound.epsilon_bound(
      scores, delta=delta, significance=significance, sides=sides
    ),
    max_candidates=CANDIDATES,
    sides=sides,
  )


def gdp_bound(
  scores: Scores,
  *,
  delta: float,
  significance: float = 0.05,
  multiplicity: Correction = _BAND,
) -> Estimate:
  """Lower bound of the ε of a Gaussian mechanism, from a lower bound of its μ.

  μ >= Φ⁻¹(1 - FPR) - Φ⁻¹(FNR), or 0, with limits of the rates as in `lower_bound`; ε
  at δ is then exact and has no cap. Band() without a known null law tests both rates
  at once, and with them the area under the ROC curve (`rank_bound`).

  Args:
    multiplicity: as in `lower_bound`, like the result and the errors.

  Returns:
    The bound, for mechanisms whose curve is that of a Gaussian or above, which
    counts at thresholds cannot test; inf if a cosine of 1 has no false positives.

  References: equation (12) of Nasr et al. (2023).

  >>> scores = Scores(np.linspace(2, 4, 1000), np.linspace(-1, 1, 1000))
  >>> bound = gdp_bound(scores, delta=1e-5, multiplicity=Explicit((1.5,)))
  >>> round(bound.epsilon, 2), bound.confidence
  (36.49, 0.95)
  """
  check_scores(scores, delta, significance=significance)
  epsilon = lambda mu: tradeoff.epsilon_gdp(mu, delta)
  at = tradeoff.gdp_mu
  return _bound(
    scores,
    delta,
    significance,
    multiplicity,
    at=at,
    prove=lambda *rates: epsilon(np.max(at(*rates), axis=-1)),
    test_ranks=lambda: epsilon(
      rank_bound.strength_bound(scores, _GAUSSIAN, significance=significance)
    ),
    name='gdp_',
    shape=(Assumption.GAUSSIAN_CURVE,),
  )


def family_bound(
  scores: Scores,
  *,
  family: tradeoff.MechanismFamily,
  delta: float,
  significance: float = 0.05,
  multiplicity: Correction = _BAND,
) -> Estimate:
  """Lower bound of the ε of a mechanism of a family, from an upper one of its noise.

  It is `gdp_bound` for other curves, such as those of `dpsgd.families`: of
  a subsampled Gaussian, or of any mechanism with a PLD. To audit a whole run by
  single steps, use a family whose curve is that of one step and whose ε is that of
  all steps.

  Args:
    family: whose curves the mechanism is assumed to have.
    multiplicity: as in `lower_bound`. A split chooses the threshold that is best for
      `gdp_bound`, for any family.

  Returns:
    The bound, if the mechanism is a member of the family; inf if the scores reject
    every member.
  """
  check_scores(scores, delta, significance=significance)

  epsilon = lambda x: tradeoff.epsilon_of_strength(family, x, delta)

  def prove(log_fpr, fnr):
    strength = np.empty(fnr.shape[:-1])
    for at in np.ndindex(strength.shape):
      noise = tradeoff.max_noise(family, log_fpr[at], fnr[at])
      strength[at] = 1 / noise if noise > 0 else np.inf
    return epsilon(strength)

  return _bound(
    scores,
    delta,
    significance,
    multiplicity,
    at=tradeoff.gdp_mu,
    prove=prove,
    test_ranks=lambda: epsilon(
      rank_bound.strength_bound(scores, family, significance=significance)
    ),
    name=f'{family.name}_',
    shape=(Assumption.FAMILY,),
  )


def _bound(
  scores,
  delta,
  significance,
  multiplicity,
  *,
  at,
  prove,
  test_ranks,
  max_candidates=None,
  name='',
  shape=(),
  sides: Sides = 'in',
) -> Estimate:
  """The bound of ε that trade-off curves give, under a correction.

  `at` is (log FPR, FNR) -> strength of the leak at each threshold, by which a split
  chooses one of `max_candidates`; `prove` the ε that limits at all thresholds prove
  together; `test_ranks` that from one test of both rates; `shape` what is assumed of
  the curves; `name` the prefix of the method.
  """
  check_multiplicity(multiplicity)
  is_band = isinstance(multiplicity, Band)
  if is_band and not scores.has_known_null:
    method, epsilon = 'rank_test', test_ranks()
  else:
    method = f'clopper_pearson_{type(multiplicity).__name__.lower()}'
    counted, level = multiplicity.count_errors(
      scores,
      significance,
      lambda x: find_best(
        x, lambda y: at(*limit_rates(y, significance)), max_candidates
      ),
      sides,
    )
    upper = band_upper if is_band else threshold.clopper_pearson_upper
    epsilon = prove(*limit_rates(counted, level, upper))
  return make_bound(
    epsilon,
    delta,
    f'{name}{method}',
    significance=significance,
    assumes=(*list_assumptions(scores), *shape),
    kind='confidence_bound' if multiplicity.is_valid else 'point_estimate',
    rejected=diagnostics.name_rejected_null(scores),
  )


def limit_rates(
  counted: Counted,
  significance: float,
  upper: threshold.Rate = threshold.clopper_pearson_upper,
) -> tuple[Float[np.ndarray, '*batch m'], Float[np.ndarray, '*batch m']]:
  """Upper limits of log FPR and FNR, each at half of the significance.

  If the null law is known, the FPR is exact and the FNR has all.
  """
  level = significance if counted.scores.has_known_null else significance / 2
  return counted.rates(functools.partial(upper, significance=level))


def find_best(
  scores: Scores,
  strength: Callable[[Counted], Float[np.ndarray, '*batch m']],
  max_candidates: int | None = None,
) -> Float[np.ndarray, '*batch 1']:
  """The realisable threshold at which a leak seems strongest."""
  counted = count_realisable(scores, max_candidates)
  best = np.argmax(strength(counted), axis=-1, keepdims=True)
  return np.take_along_axis(counted.threshold, best, axis=-1)


def count_realisable(
  scores: Scores, max_thresholds: int | None = None
) -> Counted:
  """Counts errors at all observed scores, or at some of their ranks."""
  at, _ = threshold.find_realisable(scores.observed)
  num = at.shape[-1]
  if max_thresholds is not None and max_thresholds < num:
    at = at[..., _space_ranks(num, max_thresholds, 'both') - 1]
  return threshold.count_at(scores, at)


def check_multiplicity(multiplicity: Any, *allowed: type[Correction]) -> None:
  """Raises a ValueError unless this is an instance of an allowed class, or of any."""
  if not isinstance(multiplicity, allowed or Correction):
    names = ', '.join(
      f'{kind.__name__}()'
      for kind in allowed or (Band, Bonferroni, Explicit, Split)
    )
    raise ValueError(
      f'multiplicity={multiplicity!r}; give an instance of one of {names}.'
    )


def _space_ranks(size, num, sides):
  """At most `num` ranks from the top: dense there, or for 'both' at either end."""
  if sides == 'in':
    return np.unique(np.geomspace(1, size, num).round().astype(int))
  top = np.geomspace(1, (size + 1) / 2, (num + 1) // 2).round().astype(int)
  return np.unique(np.concatenate([top, size + 1 - top]))[:num]


# Limits of a tail probability that hold at every threshold at once.


def band_upper(
  count: Real, trials: int, significance: float
) -> float | Float[np.ndarray, '...']:
  """Upper limits of P(score >= t) that hold at every threshold t at once.

  P(score > the r-th largest score) is a Beta(r, n - r + 1) variable, whatever the
  law of the scores, and its limit a quantile: the Clopper-Pearson limit of r - 1
  events. All have the same local level, chosen such that they hold together: a
  one-sided Berk-Jones band, which ties only make conservative. For n = 1000 and 5 %
  that level is 0.15 %, whereas 5 %/1000 would be 0.005 %. There are limits at about
  150 ranks, dense in both tails; a count between two has the limit of the next.

  Args:
    count: how many of the scores are at least t, integers in [0, trials].
    trials: number n of scores, >= 1.
    significance: chance that any limit is below its probability.

  References: Berk and Jones (1979); Moscovich and Nadler, "Fast calculation of
  boundary crossing probabilities for Poisson processes" (2017).
  """
  significance = check_significance(significance)
  ranks = _band_ranks(trials)
  limits = _band_limits(trials, ranks, band_level(trials, significance))
  index = np.searchsorted(ranks, np.asarray(count) + 1)
  return scalar_or_array(np.append(limits, 1.0)[index])


# Only the first audit of a size pays for it.
@functools.lru_cache(maxsize=256)
def band_level(trials: int, significance: float) -> float:
  """Chance that a single limit of `band_upper` fails, rounded down, by bisection."""
  ranks = _band_ranks(trials)
  if significance < _TINY:
    # The complement of the coverage has no digits left.
    return significance / len(ranks)
  # The union bound, and a single limit.
  low, high = np.log(significance / len(ranks)), np.log(significance)
  for _ in range(_BISECTIONS if len(ranks) > 1 else 0):
    middle = (low + high) / 2
    limits = _band_limits(trials, ranks, np.exp(middle))
    if 1 - band_coverage(trials, ranks, limits) <= significance:
      low = middle
    else:
      high = middle
  return float(np.exp(low if len(ranks) > 1 else high))


def band_coverage(
  trials: int, ranks: Int[np.ndarray, 'm'], limits: Float[np.ndarray, 'm']
) -> float:
  """P(U_(r) <= limit_r at all ranks r) for the order statistics of n uniforms.

  With N(x) the number of uniforms up to x, this is P(N(limit_r) >= r for all r).
  N is a Poisson process conditioned on N(1) = n: its law is convolved from limit to
  limit and cut below r. States beyond nine standard deviations are dropped, which
  can only lower the result. Ranks and limits increase.
  """
  state, start, before = np.ones(1), 0, 0.0
  for rank, limit in zip(ranks, limits):
    mean = trials * (limit - before)
    reach = _TAIL * np.sqrt(mean) + 2 * _TAIL
    lowest = max(0, int(mean - reach))
    step = _poisson(np.arange(lowest, int(mean + reach) + 1), mean)
    state, start = _convolve(state, step), start + lowest
    total = trials * limit
    highest = min(trials, int(total + _TAIL * np.sqrt(total) + 2 * _TAIL))
    first = max(rank - start, 0)
    state, start = state[first : max(highest - start + 1, first)], start + first
    if not state.size:
      return 0.0
    before = limit
  counts = start + np.arange(len(state))
  rest = _poisson(trials - counts, trials * (1 - before))
  return float(np.sum(state * rest) / _poisson(trials, trials))


def _band_limits(trials, ranks, level):
  return special.betainccinv(ranks, trials - ranks + 1.0, level)


def _band_ranks(trials):
  grid = np.geomspace(1, trials, min(trials, _RANKS)).round().astype(int)
  return np.unique(np.concatenate([grid, trials + 1 - grid]))


def _poisson(count, mean):
  return np.exp(special.xlogy(count, mean) - mean - special.gammaln(count + 1))


def _convolve(a, b):
  if min(len(a), len(b)) < 64:
    return np.convolve(a, b)
  size = len(a) + len(b) - 1
  padded = 1 << (size - 1).bit_length()
  product = np.fft.rfft(a, padded) * np.fft.rfft(b, padded)
  return np.fft.irfft(product, padded)[:size]
