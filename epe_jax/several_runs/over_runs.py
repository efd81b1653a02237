"""ε over several runs: canaries vary within a run, and runs vary too.

Run r shifts the scores of its canaries by μ_r, in units of the null's standard
deviation, and has an estimate y_r of it:

  y_r ~ N(μ_r, v_r)   and   μ_r ~ N(μ, τ²)

To pool the canaries of all runs as independent draws of one law is to assume τ = 0:
their interval is too narrow for μ, and says nothing about the μ of a new run.

References: Cochran, "The combination of estimates from different experiments"
(1954), for Q; DerSimonian and Laird, "Meta-analysis in clinical trials" (1986),
for the model; Paule and Mandel, "Consensus values and weighting factors" (1982),
for τ; Bakirov and Székely, "Student's t-test for Gaussian scale mixtures" (2005), and
Ibragimov and Müller, "t-statistic based correlation and heterogeneity robust
inference" (2010), for the interval of μ;
Higgins and Thompson, "Quantifying heterogeneity in a meta-analysis" (2002), for
I²; Viechtbauer, "Confidence intervals for the amount of heterogeneity in
meta-analysis" (2007).
"""

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Float
import numpy as np
from scipy import optimize, special

from epe_jax.epsilon import known_shifts, tradeoff
from epe_jax.epsilon.types import (
  Assumption,
  Estimate,
  Scores,
  check_one_audit,
  make_bound,
)

_NODES = 41  # Of a quadrature over runs.


class RandomEffects(NamedTuple):
  """The law of μ over runs.

  Attributes:
    mu: the mean of the estimates of runs, each counting alike.
    interval: two-sided confidence interval of that mean.
    prediction: two-sided prediction interval of the μ of one more run.
    tau: standard deviation of μ between runs, >= 0.
    tau_interval: two-sided confidence interval of it, both ends >= 0.
    i_squared: share of the variance of the estimates that is not due to canaries,
      in [0, 1).
    p_value: p-value of the hypothesis that all runs have the same μ.
    confidence: nominal coverage of the intervals.
  """

  mu: float
  interval: tuple[float, float]
  prediction: tuple[float, float]
  tau: float
  tau_interval: tuple[float, float]
  i_squared: float
  p_value: float
  confidence: float


class ShiftEstimate(NamedTuple):
  """The mean shift of the canaries of a run, in units of the null's std.

  Attributes:
    mu: the shift.
    variance: of its estimate, > 0.
  """

  mu: float
  variance: float


def estimate_shift(scores: Scores) -> ShiftEstimate:
  """The mean shift of the canaries of one run; see `estimate_shifts`.

  Raises:
    ValueError: scores have leading axes, or are too few to fit their null law.
  """
  check_one_audit(scores)
  fit = known_shifts.fit_shift(scores)
  mean = float(np.mean(known_shifts.shift_of(scores)))
  square = 1 / float(fit.scale) ** 2 + float(fit.s) ** 2 / (2 * fit.df)
  return ShiftEstimate(mean * float(fit.s), mean**2 * square)


def estimate_shifts(
  runs: Sequence[Scores],
) -> tuple[Float[np.ndarray, ' runs'], Float[np.ndarray, ' runs']]:
  """y_r, the mean shift of the canaries of each run, and its variance v_r.

  With n canaries that are shifted alike and a known null law, v_r is exactly 1/n.
  With a null law fitted to m unobserved canaries it is, to first order,
  1/n + 1/m + y_r²/(2 (n + m - 2)).

  Args:
    runs: scores of two runs or more, without leading axes, of one null law and one
      design. Their `shift` is used if it is given.

  Returns:
    y and v, in units of the null's standard deviation and of its square.

  Raises:
    ValueError: there are fewer than two runs, runs differ in null law or design,
      scores have leading axes, or a run has too few scores to fit its null law.

  >>> from epe_jax.epsilon import Sphere
  >>> runs = [Scores(np.full(4, x), np.empty(0), Sphere(100)) for x in (0.1, 0.2)]
  >>> [values.tolist() for values in estimate_shifts(runs)]
  [[1.0, 2.0], [0.25, 0.25]]
  """
  _check_runs(runs)
  shifts = np.array([estimate_shift(scores) for scores in runs])
  return shifts[:, 0], shifts[:, 1]


def random_effects(
  mu: Float[np.ndarray, ' runs'],
  variance: Float[np.ndarray, ' runs'],
  *,
  confidence: float = 0.9,
) -> RandomEffects:
  """The mean of μ over runs, and a prediction for one more run.

  The mean is that of the y_r without weights, and its interval that of Student's t
  test of them. For equal v_r it is exact for every τ and R. For unequal ones it covers
  more, at a confidence of 0.917 or more for any R and of 0.9 for up to 14 runs (Bakirov
  and Székely 2005). Weights would have to be estimated with τ: Hartung and Knapp's
  interval, which has them, covers 66 % instead of 90 % for runs of 50 and of 5,000
  canaries. That of a new run is ȳ ± t s √(1 + 1/R), s the standard deviation of the
  y_r: a prediction of its estimate, and so a wider one than of its μ.

  τ² solves Q(τ²) = Σ (y_r - ŷ)²/(v_r + τ²) = R - 1 after Paule and Mandel, with ŷ
  the mean under weights 1/(v_r + τ²), and is 0 if Q(0) is less. Its interval is all τ
  for which Q(τ²) is not in a tail of its law, χ² with R - 1 degrees of freedom: exact
  for normal y_r of known v_r (Viechtbauer 2007).

  Args:
    mu: estimates y_r of R >= 2 runs.
    variance: their variances v_r within runs, > 0.
    confidence: of both two-sided intervals, in (0, 1).

  >>> effects = random_effects(np.array([1.0, 2.0, 3.0]), np.full(3, 0.19))
  >>> round(effects.mu, 6), round(effects.tau, 6), round(effects.i_squared, 6)
  (2.0, 0.9, 0.81)
  """
  num, tail = mu.size, (1 + confidence) / 2
  q_value = _q_value(0.0, mu, variance)
  mean = float(np.mean(mu))
  half = special.stdtrit(num - 1, tail) * np.std(mu, ddof=1)
  return RandomEffects(
    mu=mean,
    interval=_around(mean, half / np.sqrt(num)),
    prediction=_around(mean, half * np.sqrt(1 + 1 / num)),
    tau=float(np.sqrt(_tau_squared(mu, variance))),
    tau_interval=_tau_interval(mu, variance, confidence),
    i_squared=max(0.0, 1 - (num - 1) / q_value) if q_value > 0 else 0.0,
    p_value=float(special.chdtrc(num - 1, q_value)),
    confidence=confidence,
  )


def estimate_epsilon(
  effects: RandomEffects, *, delta: float, new_run: bool = False
) -> Estimate:
  """ε of the Gaussian mechanism with the mean μ of the runs, a point estimate.

  Its interval, of the confidence of the effects, follows from that of the mean, or
  from the prediction of a new run.
  """
  method, limits = 'random_effects', effects.interval
  if new_run:
    method, limits = 'random_effects_new_run', effects.prediction
  low, high = np.asarray(tradeoff.epsilon_gdp(np.maximum(limits, 0.0), delta))
  return Estimate(
    float(tradeoff.epsilon_gdp(max(effects.mu, 0.0), delta)),
    delta,
    method,
    confidence=None,
    assumes=(Assumption.GAUSSIAN_SCORES, Assumption.EQUAL_SPREAD),
    interval=(float(low), float(high)),
  )


def mean_shift_bound(effects: RandomEffects, *, delta: float) -> Estimate:
  """Lower bound of the ε of the Gaussian mechanism with the mean μ of the runs.

  The lower end of the interval of that mean, which misses on this side half as often as
  on both: exact at any number of runs of equal variances, and lower than it need be
  for unequal ones.
  """
  low = max(effects.interval[0], 0.0)
  return make_bound(
    tradeoff.epsilon_gdp(low, delta),
    delta,
    'mean_shift_bound',
    significance=(1 - effects.confidence) / 2,
    assumes=(
      Assumption.INDEPENDENT,
      Assumption.GAUSSIAN_SCORES,
      Assumption.EQUAL_SPREAD,
      Assumption.GAUSSIAN_RUNS,
    ),
  )


class EpsilonSpread(NamedTuple):
  """How ε of a Gaussian mechanism varies between runs, without canaries' noise.

  Attributes:
    std: standard deviation of ε over runs.
    low: 5 % quantile of ε over runs.
    high: 95 % quantile.
  """

  std: float
  low: float
  high: float


def compute_epsilon_spread(
  mu: float, tau: float, *, delta: float
) -> EpsilonSpread:
  """ε over runs with shifts N(μ, τ²): the empirical privacy variance.

  It is what is left of the spread of estimates once that of canaries is taken out. A
  shift below 0 counts as 0.

  References: Hu, Zhou, Zhang and others, "Empirical privacy variance" (2025).

  >>> spread = compute_epsilon_spread(1.0, 0.0, delta=1e-5)
  >>> round(spread.low, 4) == round(spread.high, 4) == 4.3772
  True
  """
  nodes, weights = special.roots_hermitenorm(_NODES)
  quantiles = special.ndtri([0.05, 0.95])
  shifts = np.maximum(mu + tau * np.concatenate([nodes, quantiles]), 0.0)
  epsilon = np.asarray(tradeoff.epsilon_gdp(shifts, delta))
  of_nodes, weights = epsilon[:_NODES], weights / np.sum(weights)
  mean = np.sum(weights * of_nodes)
  std = np.sqrt(np.sum(weights * (of_nodes - mean) ** 2))
  return EpsilonSpread(float(std), *map(float, epsilon[_NODES:]))


def _tau_interval(mu, variance, confidence) -> tuple[float, float]:
  tail = (1 - confidence) / 2
  quantiles = special.chdtri(mu.size - 1, [tail, 1 - tail])
  low, high = (np.sqrt(_tau_squared(mu, variance, q)) for q in quantiles)
  return float(low), float(high)


def _tau_squared(mu, variance, target: float | None = None) -> float:
  """τ² at which Q is the target, which is R - 1 if None; 0 if Q(0) is less."""
  target = mu.size - 1 if target is None else target
  if _q_value(0.0, mu, variance) <= target:
    return 0.0
  # Q(t) < Σ (y_r - ȳ)²/t, so it has fallen below the target here.
  high = float(np.var(mu) * mu.size / target)

  def excess(tau_squared):
    return _q_value(tau_squared, mu, variance) - target

  if not excess(high) < 0:
    return high  # Equal numbers, which differ by what their mean rounds.
  return float(optimize.brentq(excess, 0.0, high, xtol=1e-14 * high))  # pyright: ignore


def _q_value(tau_squared, mu, variance) -> float:
  mean, weights = _weighted_mean(tau_squared, mu, variance)
  return float(np.sum(weights * (mu - mean) ** 2))


def _weighted_mean(
  tau_squared, mu, variance
) -> tuple[float, Float[np.ndarray, ' runs']]:
  weights = 1 / (variance + tau_squared)
  return float(np.sum(weights * mu) / np.sum(weights)), weights


def _around(centre: float, half: float) -> tuple[float, float]:
  return float(centre - half), float(centre + half)


def _check_runs(runs: Sequence[Scores]) -> None:
  """Raises a ValueError unless these are two runs or more of one null law and design."""
  if len(runs) < 2:
    raise ValueError(
      f'runs has {len(runs)} of them, but how runs differ takes two or more. Give '
      'more runs, or use bootstrap_interval for the canaries of one.'
    )
  for name in ('null', 'design'):
    kinds = {getattr(scores, name) for scores in runs}
    if len(kinds) > 1:
      raise ValueError(
        f'runs have several values of {name}: {sorted(kinds, key=str)}. Give runs '
        'of one config, which differ in their seeds alone.'
      )
