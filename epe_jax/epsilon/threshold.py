"""ε from thresholds on the score: every canary at or above one is guessed "in".

A threshold has a false positive rate (FPR) among unobserved canaries and a false
negative rate (FNR) among observed ones. (ε, δ)-DP forces

  ε >= max(log (1 - δ - FNR)/FPR, log (1 - δ - FPR)/FNR),

equation (1) of Andrew et al. (ICLR 2024), after Kairouz et al. (2015). Only
thresholds equal to an observed score are tried: between two of them the FNR is
constant and the FPR falls. Tied scores are guessed alike.

The estimates here are those of the paper, and no bounds (`lower_bounds`).
"""

from __future__ import annotations

from collections.abc import Callable
import functools
import reprlib
from typing import Literal, NamedTuple

from jaxtyping import Float, Int
import numpy as np
from scipy import special

from epe_jax.epsilon import checks, cosine_null, two_gaussians
from epe_jax.epsilon.checks import check_significance
from epe_jax.epsilon.types import (
  Assumption,
  Estimate,
  Real,
  Scores,
  Sides,
  check_scores,
  scalar_or_array,
)

_REFINEMENTS, _GRID = 8, 65

Rate = Callable[..., float | Float[np.ndarray, '...']]
"""(count, trials) -> an estimate of a rate, or an upper limit."""


def eps_lo(
  scores: Scores, *, delta: float, significance: float = 0.05
) -> Estimate:
  """The paper's ε_lo: (1) with upper limits of both rates, at its best threshold.

  The FNR is replaced by its Jeffreys upper limit. The FPR is exact if the null law
  is known (the paper's final-model column), and otherwise replaced by its Jeffreys
  upper limit too (its all-iterates column).

  The paper calls this a 95 % lower bound. It is not, because each threshold has its
  own 5 % chance of error and the maximum is not corrected for: without leakage, k =
  1000 and δ = 1e-5 it exceeds ε = 0 in about 74 % of audits with the exact null
  law, and in 29 % with the empirical one. Of two sets of k canaries it is at most
  log((1 - δ - b)/b) with b the Jeffreys limit for no error in k, 6.25 for k = 1000.

  Args:
    significance: chance that a limit at one fixed threshold fails.

  Returns:
    A point estimate >= 0. It is inf if a cosine of 1 has no false positives.

  References: section 5.1 of the paper; Jagielski et al. (2020) and, for the
  Jeffreys limit, Zanella-Béguelin et al. (2023).
  """
  check_scores(scores, delta, significance=significance)
  upper = functools.partial(jeffreys_upper, significance=significance)
  return _estimate('eps_lo', scores, delta, upper, (Assumption.INDEPENDENT,))


def max_threshold(
  scores: Scores,
  *,
  delta: float,
  rates: Literal['gaussian', 'empirical'] = 'gaussian',
) -> Estimate:
  """The estimate of the paper's first version: (1) at its best threshold.

  It uses estimates of both rates, not limits.

  Args:
    rates: 'gaussian', as printed: from the Gaussians of `two_gaussian` with
      std='fitted'; the threshold is then any number. 'empirical': from counts,
      where c canaries out of n are a rate of (c + 1/2)/(n + 1), the Jeffreys mean,
      because a rate of 0 would make ε infinite. The FPR is then exact if the null
      law is known.

  Returns:
    A point estimate >= 0. With Gaussian rates it is at most `two_gaussian`, which
    may choose any event, and equal to it for equal standard deviations.

  Raises:
    ValueError: also if a Gaussian is fitted to equal scores.

  References: arXiv:2302.03098, text of May 2023, sections 3 and 4.
  """
  check_scores(scores, delta)
  checks.check_choice('rates', rates, ('gaussian', 'empirical'))
  if rates == 'empirical':
    mean = lambda count, trials: (count + 0.5) / (trials + 1)
    return _estimate('max_threshold_empirical', scores, delta, mean, ())
  null_mean, null_std = two_gaussians.null_gaussian(scores)
  mean, std = two_gaussians.fitted_gaussian('observed', scores.observed)
  above = _best_half_line(mean, std, null_mean, null_std, delta)
  below = _best_half_line(-null_mean, null_std, -mean, std, delta)
  return Estimate(
    scalar_or_array(np.maximum(np.maximum(above, below), 0.0)),
    delta,
    'max_threshold_gaussian',
    confidence=None,
    assumes=(Assumption.GAUSSIAN_SCORES,),
  )


def clopper_pearson_upper(
  count: Real, trials: int, significance: float
) -> float | Float[np.ndarray, '...']:
  """One-sided Clopper-Pearson upper limit of a proportion: it never fails more often.

  It is the p at which P(Binomial(trials, p) <= count) = significance. It holds at a
  threshold that does not depend on the counted scores. The lower limit of a rate is
  1 minus the upper limit of its complement.

  Args:
    count: number of events, integers in [0, trials], any shape.
    trials: >= 1.
    significance: chance that the limit is below the proportion.

  Returns:
    The limit, in (0, 1], with the shape of `count`.

  References: Clopper and Pearson, Biometrika 26 (1934).

  >>> round(clopper_pearson_upper(0, 1000, 0.05), 6)
  0.002991
  """
  return _limit('clopper_pearson', count, trials, significance)


def jeffreys_upper(
  count: Real, trials: int, significance: float
) -> float | Float[np.ndarray, '...']:
  """One-sided Jeffreys upper limit of a proportion, an approximation.

  It is a quantile of Beta(count + 1/2, trials - count + 1/2), the posterior under
  Jeffreys' prior: it fails as often as it says on average over the proportion, at
  some proportions three times as often. See `clopper_pearson_upper`.

  >>> round(jeffreys_upper(0, 1000, 0.05), 6)
  0.001918
  """
  return _limit('jeffreys', count, trials, significance)


class Counted(NamedTuple):
  """Errors of the attack "in if score >= threshold", [*batch, m] each.

  Attributes:
    scores: that are counted.
    threshold: the m thresholds.
    false_negatives: number of observed canaries below each, guessed "out".
    false_positives: number of unobserved canaries not below each, guessed "in";
      None if the law of their scores is known.
  """

  scores: Scores
  threshold: Float[np.ndarray, '*batch m']
  false_negatives: Int[np.ndarray, '*batch m']
  false_positives: Int[np.ndarray, '*batch m'] | None

  def rates(
    self, rate: Rate
  ) -> tuple[Float[np.ndarray, '*batch m'], Float[np.ndarray, '*batch m']]:
    """Log FPR, exact if the null law is known, and FNR at each threshold."""
    if self.false_positives is None:
      law = cosine_null.null_distribution(self.scores.null)
      log_fpr = law.logsf(self.threshold)
    else:
      num_null = self.scores.unobserved.shape[-1]
      log_fpr = np.log(rate(self.false_positives, num_null))
    fnr = rate(self.false_negatives, self.scores.observed.shape[-1])
    return np.asarray(log_fpr), np.asarray(fnr)


def find_realisable(
  observed: Float[np.ndarray, '*batch n'],
) -> tuple[Float[np.ndarray, '*batch n'], Int[np.ndarray, '*batch n']]:
  """The thresholds worth trying: observed scores in order, and their false negatives."""
  ordered = np.sort(observed, axis=-1)
  index = np.broadcast_to(np.arange(ordered.shape[-1]), ordered.shape)
  first = np.diff(ordered, axis=-1, prepend=-np.inf) > 0
  return ordered, np.maximum.accumulate(np.where(first, index, 0), axis=-1)


def count_at_least(
  scores: Float[np.ndarray, '*batch n'],
  threshold: Float[np.ndarray, '*batch m'],
) -> Int[np.ndarray, '*batch m']:
  """How many scores of an audit are at least each of its thresholds."""
  ordered = np.sort(scores, axis=-1).reshape(-1, scores.shape[-1])
  levels = threshold.reshape(-1, threshold.shape[-1])
  below = [np.searchsorted(o, t) for o, t in zip(ordered, levels)]
  return scores.shape[-1] - np.reshape(below, threshold.shape)


def count_at(
  scores: Scores, threshold: Float[np.ndarray, '*batch m']
) -> Counted:
  """Counts errors at thresholds."""
  num = scores.observed.shape[-1]
  return Counted(
    scores,
    threshold,
    num - count_at_least(scores.observed, threshold),
    None
    if scores.has_known_null
    else count_at_least(scores.unobserved, threshold),
  )


def epsilon_at(
  log_fpr: Float[np.ndarray, '...'],
  log_fnr: Float[np.ndarray, '...'],
  delta: float,
  *,
  sides: Sides = 'both',
) -> Float[np.ndarray, '...']:
  """The larger of equation (1) and 0, from logs of rates or limits; broadcasts.

  It is inf for a rate of 0. `sides` says which guesses count.
  """

  def one_side(log_wrong, log_missed):
    share = 1 - delta - np.exp(log_missed)
    log_share = np.log(np.where(share > 0, share, 1.0))
    return np.where(share > 0, log_share - log_wrong, 0.0)

  of_guesses_in = np.maximum(one_side(log_fpr, log_fnr), 0.0)
  if sides == 'in':
    return of_guesses_in
  return np.maximum(of_guesses_in, one_side(log_fnr, log_fpr))


def _estimate(method, scores, delta, rate, assumes):
  """(1) at the best threshold, with a rate or limit from counts."""
  at, false_negatives = find_realisable(scores.observed)
  false_positives = None
  if not scores.has_known_null:
    false_positives = count_at_least(scores.unobserved, at)
  counted = Counted(scores, at, false_negatives, false_positives)
  log_fpr, fnr = counted.rates(rate)
  epsilon = np.max(epsilon_at(log_fpr, np.log(fnr), delta), axis=-1)
  return Estimate(
    scalar_or_array(epsilon), delta, method, confidence=None, assumes=assumes
  )


def _best_half_line(mean_p, std_p, mean_q, std_q, delta):
  """Maximum over a of log (P(X > a) - δ)/Q(X > a), by repeated grid search.

  The threshold is a = mean_p + z std_p with z below that at which P(X > a) is δ.
  Each grid spans two steps on either side of the best point of the one before; the
  last step is 1e-9, and the maximum is flat.
  """
  shift, scale = (mean_p - mean_q) / std_q, std_p / std_q
  low, high = np.full_like(mean_p, -9.0), np.full_like(mean_p, 0.0)
  high = high - special.ndtri(delta)
  for _ in range(_REFINEMENTS):
    z = np.linspace(low, high, _GRID, axis=-1)
    gain = special.ndtr(-z) - delta
    value = np.log(np.where(gain > 0, gain, 1.0)) - special.log_ndtr(
      -(shift[..., None] + scale[..., None] * z)
    )
    value = np.where(gain > 0, value, -np.inf)
    best = np.argmax(value, axis=-1, keepdims=True)
    step = (high - low) / (_GRID - 1)
    centre = np.take_along_axis(z, best, axis=-1)[..., 0]
    low, high = (
      np.maximum(low, centre - 2 * step),
      np.minimum(high, centre + 2 * step),
    )
  return np.max(value, axis=-1)


def _limit(kind, count, trials, significance):
  significance = check_significance(significance)
  trials = checks.check_integer('trials', trials)
  count = np.asarray(count)
  is_count = count.dtype.kind in 'iu' and np.all(
    (count >= 0) & (count <= trials)
  )
  if not is_count:
    raise ValueError(
      f'count={reprlib.repr(count.tolist())}; give integers in [0, {trials}].'
    )
  # One table serves all thresholds of all audits, unless these are fewer.
  if count.size >= trials:
    return scalar_or_array(_table(kind, trials, significance)[count])
  return scalar_or_array(_beta_limit(kind, count, trials, significance))


@functools.lru_cache(maxsize=16)
def _table(kind, trials, significance):
  table = _beta_limit(kind, np.arange(trials + 1), trials, significance)
  table.flags.writeable = False
  return table


def _beta_limit(kind, count, trials, significance):
  if kind == 'jeffreys':
    return special.betainccinv(count + 0.5, trials - count + 0.5, significance)
  # At count = trials the limit is 1, and the beta law has no quantile.
  below = np.minimum(count, trials - 1)
  limit = special.betainccinv(below + 1.0, trials - below, significance)
  return np.where(count < trials, limit, 1.0)
