"""ε over several runs: canaries vary within a run, and runs vary too.

Run r shifts the scores of its canaries by μ_r, in units of the null's standard
deviation, and has an estimate y_r of it:

  y_r ~ N(μ_r, v_r)   and   μ_r ~ N(μ, τ²)

To treat the canaries of all runs as independent draws of one law, as
`pooling.pool_scores` does, is to assume τ = 0: their interval is too narrow for μ,
and says nothing about the μ of a new run.

References: Cochran, "The combination of estimates from different experiments"
(1954), for Q; DerSimonian and Laird, "Meta-analysis in clinical trials" (1986),
for the model; Paule and Mandel, "Consensus values and weighting factors" (1982),
for τ; Hartung and Knapp, "On tests of the overall treatment effect in
meta-analysis with normally distributed responses" (2001), for the interval of μ;
Higgins and Thompson, "Quantifying heterogeneity in a meta-analysis" (2002), for
I²; Higgins, Thompson and Spiegelhalter, "A re-evaluation of random-effects
meta-analysis" (2009), for a new run; Field and Welsh, "Bootstrapping clustered
data" (2007).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import dataclasses
from typing import NamedTuple

from jaxtyping import Float, Int
import numpy as np
from scipy import optimize, special

from epe_jax.epsilon import bootstrap, pooling, shift_fit, tradeoff_curves
from epe_jax.epsilon.types import Assumption, Estimate, Scores, check_confidence

_BLOCK_BYTES = 2**26


class RandomEffects(NamedTuple):
  """The law of μ over runs.

  Attributes:
    mu: the estimated mean of μ over runs.
    interval: two-sided confidence interval of that mean.
    prediction: two-sided prediction interval of the μ of one more run; None for
      two runs, which are too few.
    tau: standard deviation of μ between runs, >= 0.
    i_squared: share of the variance of the estimates that is not due to canaries,
      in [0, 1).
    p_value: p-value of the hypothesis that all runs have the same μ.
    confidence: nominal coverage of both intervals.
  """

  mu: float
  interval: tuple[float, float]
  prediction: tuple[float, float] | None
  tau: float
  i_squared: float
  p_value: float
  confidence: float


def estimate_shifts(
  runs: Sequence[Scores],
) -> tuple[Float[np.ndarray, ' runs'], Float[np.ndarray, ' runs']]:
  """y_r, the mean shift of the canaries of each run, and its variance v_r.

  With n canaries that are shifted alike and a known null law, v_r is exactly 1/n.
  With a null law fitted to m unobserved canaries it is, to first order,
  1/n + 1/m + y_r²/(2 (n + m - 2)).

  Args:
    runs: scores of two runs or more, without leading axes, of one dim and one
      design. Their `shift` is used if it is given.

  Returns:
    y and v, in units of the null's standard deviation and of its square.

  Raises:
    ValueError: there are fewer than two runs, runs differ in dim or design,
      scores have leading axes, or a run has too few scores to fit its null law.

  >>> runs = [Scores(np.full(4, x), np.empty(0), dim=100) for x in (0.1, 0.2)]
  >>> [values.tolist() for values in estimate_shifts(runs)]
  [[1.0, 2.0], [0.25, 0.25]]
  """
  _check_runs(runs)
  mu, variance = [], []
  for scores in runs:
    fit = shift_fit.fit_shift(scores)
    mean = float(np.mean(shift_fit.shift_of(scores)))
    mu.append(mean * float(fit.s))
    square = 1 / float(fit.scale) ** 2 + float(fit.s) ** 2 / (2 * fit.df)
    variance.append(mean**2 * square)
  return np.array(mu), np.array(variance)


def random_effects(
  mu: Float[np.ndarray, ' runs'],
  variance: Float[np.ndarray, ' runs'],
  *,
  confidence: float = 0.9,
) -> RandomEffects:
  """The mean of μ over runs, and a prediction for one more run.

  τ² solves Q(τ²) = Σ (y_r - ŷ)²/(v_r + τ²) = R - 1 after Paule and Mandel, with ŷ
  the mean under weights 1/(v_r + τ²), and is 0 if Q(0) is less. The interval of
  the mean is Hartung and Knapp's, which for equal v_r is that of Student's t test
  of the y_r: exact for every τ and R. That of a new run is
  ŷ ± t √(τ² + 1/Σ 1/(v_r + τ²)) with R - 2 degrees of freedom; with few runs it is
  rough, because the estimate of τ is.

  Args:
    mu: estimates y_r of R >= 2 runs.
    variance: their variances v_r within runs, > 0.
    confidence: of both two-sided intervals, in (0, 1).

  Returns:
    The estimates and both intervals.

  Raises:
    ValueError: there are fewer than two runs, a number is not finite or is out of
      range, or the arrays differ in shape.

  >>> effects = random_effects(np.array([1.0, 2.0, 3.0]), np.full(3, 0.19))
  >>> round(effects.mu, 6), round(effects.tau, 6), round(effects.i_squared, 6)
  (2.0, 0.9, 0.81)
  """
  _check_estimates(mu, variance, confidence)
  num, tail = mu.size, (1 + confidence) / 2
  q_value = _q_value(0.0, mu, variance)
  tau_squared = _tau_squared(mu, variance)
  mean, weights = _weighted_mean(tau_squared, mu, variance)
  error = np.sqrt(_q_value(tau_squared, mu, variance) / (num - 1))
  error /= np.sqrt(np.sum(weights))
  prediction = None
  if num > 2:
    spread = np.sqrt(tau_squared + 1 / np.sum(weights))
    prediction = _around(mean, special.stdtrit(num - 2, tail) * spread)
  return RandomEffects(
    mu=mean,
    interval=_around(mean, special.stdtrit(num - 1, tail) * error),
    prediction=prediction,
    tau=float(np.sqrt(tau_squared)),
    i_squared=max(0.0, 1 - (num - 1) / q_value) if q_value > 0 else 0.0,
    p_value=float(special.chdtrc(num - 1, q_value)),
    confidence=confidence,
  )


def epsilon_of_mean(effects: RandomEffects, *, delta: float) -> Estimate:
  """ε of the Gaussian mechanism with the mean μ of the runs.

  Args:
    effects: the result of `random_effects`.
    delta: δ, in (0, 1).

  Returns:
    A point estimate with the interval that follows from that of the mean, of the
    same confidence.

  Raises:
    ValueError: delta is out of range.
  """
  return _estimate('random_effects', effects, effects.interval, delta)


def epsilon_of_new_run(effects: RandomEffects, *, delta: float) -> Estimate:
  """ε of the Gaussian mechanism with the predicted μ of one more run.

  See `epsilon_of_mean`. The interval is the prediction interval, and None if
  there are only two runs.
  """
  return _estimate('random_effects_new_run', effects, effects.prediction, delta)


def cluster_bootstrap(
  rng: np.random.Generator,
  estimator: Callable[..., Estimate],
  runs: Sequence[Scores],
  *,
  delta: float,
  confidence: float = 0.9,
  resamples: int = 1000,
) -> Estimate:
  """The estimate from the pooled canaries, with an interval over other runs.

  It has two stages: R of the R runs are drawn with replacement, and then from each
  as many observed and as many unobserved canaries as it has. The limits are
  percentiles of the resampled ε. The mean of R runs of n canaries, whose variance
  is (τ² + σ²/n)/R, has over resamples an average variance of

    (1 - 1/R) (τ² + (1 - 1/n) σ²/n)/R + (1 - 1/n) σ²/(n R).

  That is too large if runs hardly differ, and too small for few runs that do,
  though less so than in the usual cluster bootstrap, which resamples whole runs
  and lacks the last term. With fewer than about ten runs prefer `random_effects`.

  Args:
    rng: source of the resamples.
    estimator: as for `bootstrap.bootstrap_interval`.
    runs: scores of two runs or more, without leading axes, which are cosines of
      one dim and one design. Their `shift` is ignored, as by pooling.
    delta: δ, in (0, 1).
    confidence: nominal coverage of the interval, in (0, 1).
    resamples: number of resamples, at least 2/(1 - confidence).

  Returns:
    The estimate from the pooled canaries, with its `interval`.

  Raises:
    ValueError: there are fewer than two runs, runs cannot be pooled, scores have
      leading axes, a setting is out of range, or the estimator rejects a
      resample.

  >>> from epe_jax import epsilon
  >>> rng = np.random.default_rng(0)
  >>> runs = [Scores(rng.normal(m, 1, 50) / 100, np.empty(0), 10_000) for m in
  ...         (0.5, 1.0, 1.5)]
  >>> e = cluster_bootstrap(rng, epsilon.two_gaussian, runs, delta=1e-5)
  >>> e.interval[0] < e.epsilon < e.interval[1]
  True
  """
  _check_runs(runs)
  bootstrap.check_settings(confidence, resamples)
  scores = pooling.pool_scores(runs)
  estimate = estimator(scores, delta=delta)

  def epsilon(observed, unobserved):
    block = dataclasses.replace(
      scores, observed=observed, unobserved=unobserved
    )
    return np.asarray(estimator(block, delta=delta).epsilon)

  groups = (
    [scores.observed for scores in runs],
    [scores.unobserved for scores in runs],
  )
  values = []
  for block in _draw_runs(rng, groups, resamples):
    resampled = [_draw_canaries(rng, group, block) for group in groups]
    values.append(bootstrap.call_with_cure(epsilon, *resampled))
  values = np.sort(np.concatenate(values))
  levels = np.array([1 - confidence, 1 + confidence]) / 2
  interval = bootstrap.order_statistics(values, levels)
  return dataclasses.replace(estimate, interval=interval)


def _draw_runs(
  rng: np.random.Generator,
  groups: Sequence[Sequence[Float[np.ndarray, '_']]],
  resamples: int,
) -> Iterator[Int[np.ndarray, 'block runs']]:
  """Runs of each resample, in blocks of resamples with equally many canaries."""
  sizes = np.array([[scores.size for scores in group] for group in groups])
  num = sizes.shape[1]
  runs = rng.integers(num, size=(resamples, num))
  totals, block_of = np.unique(
    np.sum(sizes[:, runs], axis=-1), axis=1, return_inverse=True
  )
  for i, total in enumerate(totals.max(axis=0)):
    same = runs[block_of.ravel() == i]
    rows = max(1, _BLOCK_BYTES // (8 * int(total)))
    for start in range(0, len(same), rows):
      yield same[start : start + rows]


def _draw_canaries(
  rng: np.random.Generator,
  scores: Sequence[Float[np.ndarray, '_']],
  runs: Int[np.ndarray, 'block runs'],
) -> Float[np.ndarray, 'block n']:
  """As many scores of each run as it has, drawn with replacement."""
  sizes = np.array([x.size for x in scores])
  starts = np.cumsum(sizes) - sizes
  # The run of each canary; all rows have equally many.
  run_of = np.stack([np.repeat(row, sizes[row]) for row in runs])
  return np.concatenate(scores)[starts[run_of] + rng.integers(sizes[run_of])]


def _tau_squared(mu, variance) -> float:
  target = mu.size - 1
  if _q_value(0.0, mu, variance) <= target:
    return 0.0
  # Q(t) < Σ (y_r - ȳ)²/t, so it has fallen below R - 1 here.
  high = float(np.var(mu, ddof=1))

  def excess(tau_squared):
    return _q_value(tau_squared, mu, variance) - target

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


def _estimate(
  method: str,
  effects: RandomEffects,
  limits: tuple[float, float] | None,
  delta: float,
) -> Estimate:
  interval = None
  if limits is not None:
    low, high = np.asarray(tradeoff_curves.epsilon_gdp(np.array(limits), delta))
    interval = float(low), float(high)
  return Estimate(
    float(tradeoff_curves.epsilon_gdp(effects.mu, delta)),
    delta,
    method,
    confidence=None,
    assumes=(Assumption.GAUSSIAN_SCORES, Assumption.EQUAL_SPREAD),
    interval=interval,
  )


def _check_runs(runs: Sequence[Scores]) -> None:
  if len(runs) < 2:
    raise ValueError(
      f'runs has {len(runs)} of them, but how runs differ takes two or more. Give '
      'more runs, or use bootstrap_interval for the canaries of one.'
    )
  for name in ('dim', 'design'):
    kinds = {getattr(scores, name) for scores in runs}
    if len(kinds) > 1:
      raise ValueError(
        f'runs have several values of {name}: {sorted(kinds, key=str)}. Give runs '
        'of one config, which differ in their seeds alone.'
      )
  for scores in runs:
    if scores.observed.ndim != 1:
      raise ValueError(
        f'runs have scores of shape {scores.observed.shape}; give one audit for '
        'each run, without leading axes.'
      )


def _check_estimates(mu, variance, confidence) -> None:
  if mu.ndim != 1 or mu.size < 2:
    raise ValueError(
      f'mu has shape {mu.shape}, but how runs differ takes an array [R] of two or '
      'more. Give more runs.'
    )
  if variance.shape != mu.shape:
    raise ValueError(
      f'variance has shape {variance.shape} and mu {mu.shape}; give one variance '
      'for each run.'
    )
  if not np.all(np.isfinite(mu)):
    raise ValueError(
      f'mu={mu[~np.isfinite(mu)][0]} of a run is not finite; leave that run out.'
    )
  if not np.all(np.isfinite(variance) & (variance > 0)):
    bad = variance[~(np.isfinite(variance) & (variance > 0))][0]
    raise ValueError(
      f'variance={bad} of a run must be finite and > 0; give the square of a '
      'standard error, such as 1/n of n canaries.'
    )
  check_confidence(confidence)
