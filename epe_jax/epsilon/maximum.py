"""Maxima over rounds: their null law, and ε without two fitted Gaussians.

With F the law of one score, N(0, 1) in units of 1/√d, the maximum over T rounds
has law F^T for a canary that takes no part, and

  F^(T-n) Π_t F(· - s e_t)

for one that takes part in n rounds, in which its score is shifted by s e_t. The
ratio of the densities increases, so that ε is that of half-lines (`monotone`).
Two Gaussians fitted to the maxima extrapolate instead: the null law of a maximum
is narrow, and its upper tail is heavier than that of so narrow a Gaussian.

If the aggregates of rounds are not orthogonal, the maximum is that of fewer than T
independent scores; their number τ is therefore estimated from the canaries that
took no part.
"""

from jaxtyping import Float
import numpy as np
from scipy import integrate, interpolate, optimize, special

from epe_jax.epsilon import checks, diagnostics, monotone
from epe_jax.epsilon.types import (
  Assumption,
  Estimate,
  Scores,
  check_scores,
  scalar_or_array,
)

_NODES, _QUADRATURE = 24, 200
_STEP = 0.02  # Of numerical derivatives, in logarithms.


# Logarithm of the upper tail of A²(1 + 0.6/n) for an exponential law; beyond the
# table it is extrapolated.
_LOG_TAIL = interpolate.make_interp_spline(
  [0.0, 0.736, 0.816, 0.916, 1.062, 1.321, 1.591, 1.959, 2.244],
  np.log([1.0, 0.25, 0.20, 0.15, 0.10, 0.05, 0.025, 0.01, 0.005]),
  k=1,
)


def maximum_over_rounds(
  scores: Scores,
  *,
  delta: float,
  own: Float[np.ndarray, 'n1 n'],
  rounds: int,
  confidence: float = 0.9,
  laws: int = 1,
) -> Estimate:
  """ε between the maxima of canaries that took part and of those that did not.

  The factor s is that at which the expected mean of the observed maxima is their
  mean, and τ is fitted to the unobserved maxima, at most the number of rounds.

  Args:
    scores: maxima over rounds, in units of the standard deviation of one score;
      with the `overlap` of canaries that share rounds.
    own: [n1, n] expected shifts e_t > 0 in the rounds of each observed canary, in
      the same units; 0 where it has fewer rounds than others.
    rounds: T >= 1.
    laws: into how many groups of similar τ several audits are divided. Those of a
      group share the τ of its median audit; one group makes the scatter of
      estimates smaller than that of audits that are estimated one by one.

  Returns:
    A point estimate, for an attacker who sees all rounds, does not know which are
    a canary's own, and uses the maximum. For a single audit of two observed canaries
    or more it has an interval, for large numbers of canaries: of the mean of the
    observed maxima and of τ; ε is a function of both.

  References: One-shot Empirical Privacy Estimation, Algorithm 3, for the statistic.
  """
  check_scores(scores, delta, confidence=confidence)
  laws = checks.check_integer('laws', laws)
  own = checks.check_numbers('own', own, '[0, inf)')
  _check(scores, own, rounds)
  tau = np.minimum(independent_rounds(scores.unobserved), float(rounds))
  mean, interval = np.mean(scores.observed, axis=-1), None
  if tau.ndim == 0 and scores.observed.size > 1:
    typical = float(tau)
    s = _fit_factor(mean, own, typical)
    error = _standard_error(scores, own, typical, float(s), delta)
    half = -special.ndtri((1 - confidence) / 2) * error
    ends = _fit_factor(mean + half * np.array([-1, 1]), own, typical)
    # All three at once: a solution for many costs little more than for one.
    epsilon, low, high = map(
      float, _epsilon_of(np.array([s, *ends]), own, typical, delta)
    )
    interval = low, high
  else:
    epsilon = np.empty(tau.shape)
    groups = np.array_split(np.argsort(tau, axis=None), min(laws, tau.size))
    for group in groups:
      # One law for all of them, so that ε is a function of s alone.
      typical = float(np.median(tau.flat[group]))
      s = _fit_factor(mean.flat[group], own, typical)
      epsilon.flat[group] = _epsilon_of(s, own, typical, delta)
  return Estimate(
    scalar_or_array(epsilon),
    delta,
    'maximum_over_rounds',
    confidence=None,
    assumes=(
      Assumption.INDEPENDENT,
      Assumption.GAUSSIAN_SCORES,
      Assumption.EQUAL_SPREAD,
    ),
    interval=interval,
  )


def independent_rounds(
  maxima: Float[np.ndarray, '*batch n0'],
) -> Float[np.ndarray, '*batch']:
  """τ > 0 of the law F^τ, by maximum likelihood, as -log F(g) is exponential.

  >>> rng = np.random.default_rng(0)
  >>> float(independent_rounds(rng.normal(size=(10**4, 50)).max(axis=1)).round())
  50.0
  """
  return np.asarray(-1 / np.mean(special.log_ndtr(maxima), axis=-1))


def fit_rounds(maxima: Float[np.ndarray, '...'], rounds: int) -> float:
  """τ of the unobserved maxima of one audit, or of the first of several, in [1, T]."""
  tau = float(np.ravel(independent_rounds(maxima))[0])
  return min(max(tau, 1.0), float(rounds))


def p_value(maxima: Float[np.ndarray, ' n0']) -> float:
  """P-value of Anderson and Darling's test of F^τ with a fitted τ, of one audit.

  References: D'Agostino and Stephens, Goodness-of-Fit Techniques (1986), table 4.14.
  """
  n = maxima.size
  waiting = np.sort(np.maximum(-special.log_ndtr(maxima), 1e-300))
  rate = 1 / waiting.mean()
  log_above = -rate * waiting
  log_below = np.log(-np.expm1(log_above))
  a = float(diagnostics.a_squared(log_below, log_above)) * (1 + 0.6 / n)
  return float(np.exp(_LOG_TAIL(a)))


def mean_shifted(
  own: Float[np.ndarray, 'n1 n'], tau: float, s: float
) -> Float[np.ndarray, ' n1']:
  """Expected maximum of each canary that took part, with shifts s >= 0 times its own."""
  # The law of a maximum is practically within nine standard deviations of the
  # largest shift.
  top = s * np.max(own, axis=1, initial=0.0)
  x = top - 9.0 + np.linspace(0.0, 18.0, _QUADRATURE)[:, None]
  above = -np.expm1(_log_below(x, own, tau, np.full(1, s)))
  return top - 9.0 + integrate.trapezoid(above, x, axis=0)


def _log_below(x, own, tau, s):
  """log F of each canary's maximum; x [..., 1 or n1], s [...] -> [..., n1]."""
  total = (tau - own.shape[1]) * special.log_ndtr(x)
  for e in own.T:
    total = total + special.log_ndtr(x - s[..., None] * e)
  return total


def _standard_error(scores, own, tau, s, delta):
  """Of the mean of the observed maxima, and of log τ at as much of that mean."""
  rest = scores.observed - mean_shifted(own, tau, s)
  # Two canaries of a round are noise to each other, and equally so.
  of_mean = (np.var(rest, ddof=1) + s**2 * scores.overlap) / rest.size
  unique, counts = np.unique(own, axis=0, return_counts=True)

  def of_law(factors, tau):
    means = [
      np.average(mean_shifted(unique, tau, one), weights=counts)
      for one in factors
    ]
    return np.array([means, _epsilon_of(factors, own, tau, delta)])

  here = np.array([s])
  by_tau = of_law(here, tau * np.exp(_STEP)) - of_law(
    here, tau * np.exp(-_STEP)
  )
  by_tau = by_tau[:, 0]
  by_s = np.diff(of_law(s * np.array([1 - _STEP, 1 + _STEP]), tau))[:, 0]
  # By how much the mean moves with log τ where ε stays the same.
  along = by_tau[0]
  if by_s[1] > 0:
    along = by_tau[0] - by_s[0] * by_tau[1] / by_s[1]
  # τ is one over the mean of exponential variables.
  of_tau = (along / (2 * _STEP)) ** 2 / scores.unobserved.size
  return float(np.sqrt(of_mean + of_tau))


def _fit_factor(target, own, tau):
  """s >= 0 at which the mean of maxima is the given one."""
  unique, counts = np.unique(own, axis=0, return_counts=True)
  mean_of = lambda s: float(
    np.average(mean_shifted(unique, tau, s), weights=counts)
  )
  target = np.asarray(target)
  lowest = mean_of(0.0)
  high = 1.0
  while mean_of(high) < np.max(target, initial=lowest) and high < 2.0**30:
    high *= 2

  def solve(mean) -> float:
    if mean <= lowest:
      return 0.0
    excess = lambda s: mean_of(s) - mean
    return float(optimize.brentq(excess, 0.0, high, xtol=1e-8))  # pyright: ignore

  if target.size <= _NODES:
    return np.reshape([solve(mean) for mean in target.ravel()], target.shape)
  ends = solve(np.min(target)), solve(np.max(target))
  nodes = np.linspace(*ends, _NODES)
  means = np.array([mean_of(s) for s in nodes])
  # Near 0 the mean does not rise, as the maximum is of other rounds.
  kept = np.append(True, np.diff(np.maximum.accumulate(means)) > 0)
  if np.count_nonzero(kept) < 2:
    return np.full(target.shape, ends[0])
  factor = interpolate.PchipInterpolator(means[kept], nodes[kept])
  return factor(np.clip(target, means[kept][0], means[kept][-1]))


def _epsilon_of(s, own, tau, delta):
  unique, counts = np.unique(own, axis=0, return_counts=True)
  pair = _pair(unique, counts / len(own), tau)
  few = np.unique(s)
  if few.size > _NODES:
    return monotone.interpolate_epsilon(pair, s, delta, _NODES)
  solved = monotone.solve_epsilon(pair, few, delta)
  return solved[np.searchsorted(few, np.ravel(s))].reshape(np.shape(s))


def _pair(own, weights, tau):
  log_weights, n = np.log(weights), own.shape[1]

  def log_hazard(x):
    return -(x**2) / 2 - special.log_ndtr(x)

  def log_ratio(x, s):
    x = x[..., None]
    shifted = x[..., None] - s[..., None, None] * own
    # Density over law, of all rounds: τ - n rounds of others, and the own ones.
    hazards = monotone.log_sum(log_hazard(shifted))
    others = np.log(max(tau - n, 0.0) + 1e-300) + log_hazard(x)
    both = np.logaddexp(hazards, others) - log_hazard(x) - np.log(tau)
    laws = _log_below(x, own, tau, s) - tau * special.log_ndtr(x)
    return monotone.log_sum(log_weights + laws + both)

  def tails(x):
    log_below = tau * special.log_ndtr(x)
    return log_below, np.log(-np.expm1(log_below))

  def shifted_tails(x, s):
    log_below = _log_below(x[..., None], own, tau, s)
    log_above = np.log(-np.expm1(log_below))
    return (
      monotone.log_sum(log_weights + log_below),
      monotone.log_sum(log_weights + log_above),
    )

  def bracket(s, delta):
    low = special.ndtri_exp(np.log(delta) / tau)
    high = s * np.max(own) - special.ndtri(delta / max(tau, 1.0))
    return low, high

  return monotone.MonotonePair(log_ratio, tails, shifted_tails, bracket)


def _check(scores, own, rounds):
  if own.ndim != 2 or own.shape[0] != scores.observed.shape[-1]:
    raise ValueError(
      f'own has shape {own.shape}; give shifts >= 0, a row for each of the '
      f'{scores.observed.shape[-1]} observed canaries.'
    )
  if not np.max(own, initial=0.0) >= 1e-6:
    raise ValueError(
      'own has no shift of 1e-6 or more, so that no factor of it is the shift of '
      'the scores; give expected shifts.'
    )
  if checks.check_integer('rounds', rounds) < own.shape[1]:
    raise ValueError(
      f'rounds={rounds}, but canaries have {own.shape[1]} own rounds; give the '
      'number of all rounds.'
    )
  if not scores.unobserved.size:
    raise ValueError(
      'unobserved is empty, so the number of independent scores that the '
      'maximum is taken over is unknown; use unobserved canaries.'
    )
