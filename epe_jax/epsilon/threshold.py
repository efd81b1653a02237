"""ε from thresholds on the score: every canary above one is guessed "in".

A threshold has a false positive rate (FPR) among unobserved canaries and a
false negative rate (FNR) among observed ones. (ε, δ)-DP forces

  ε >= max(log (1 - δ - FNR)/FPR, log (1 - δ - FPR)/FNR),

equation (1) of Andrew et al. (ICLR 2024), after Kairouz et al. (2015).

Only thresholds equal to an observed score are tried: between two of them the
FNR is constant and the FPR falls, so the upper one is at least as good. A
canary is guessed "in" if its score is at least the threshold, so tied scores
fall on the same side.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from jaxtyping import Float, Int
import numpy as np
from scipy import special

from epe_jax.epsilon import cosine_null, gaussian
from epe_jax.epsilon.intervals import jeffreys_upper
from epe_jax.epsilon.types import (
  Assumption,
  Estimate,
  Scores,
  check_delta,
  scalar_or_array,
)

_REFINEMENTS, _GRID = 8, 65


def eps_lo(
  scores: Scores, *, delta: float, significance: float = 0.05
) -> Estimate:
  """The paper's ε_lo: (1) with upper limits of both rates, at its best threshold.

  The FNR is replaced by its Jeffreys upper limit. The FPR is exact if
  `scores.dim` is given (the paper's final-model column), otherwise replaced by
  its Jeffreys upper limit among the unobserved (its all-iterates column).

  The paper calls this a 95 % lower bound. It is none, so `confidence` is None:
  each threshold has its own 5 % chance of error and the maximum over k of them
  is not corrected for. With no leakage at all, k = 1000 and δ = 1e-5 it exceeds
  the true ε = 0 in about 74 % of audits with the exact null, 29 % with the
  empirical one.

  With two sets of k canaries it saturates at log((1 - δ - b)/b), where b is the
  Jeffreys limit for no error in k: 6.25 for k = 1000, however far apart the
  scores are. With the exact null nothing saturates.

  Args:
    scores: scores of canaries, any leading axes.
    delta: δ, in (0, 1).
    significance: chance that a limit at one fixed threshold fails, in (0, 1).

  Returns:
    A point estimate >= 0. It is inf if a cosine of 1 has no false positives.

  Source: section 5.1 of the paper; Jagielski et al. (2020) and, for the
  Jeffreys limit, Zanella-Béguelin et al. (2022).
  """
  check_delta(delta)
  threshold, misses = find_realisable(scores.observed)
  fnr = jeffreys_upper(misses, scores.observed.shape[-1], significance)
  if scores.dim is None:
    alarms = count_at_least(scores.unobserved, threshold)
    log_fpr = np.log(
      jeffreys_upper(alarms, scores.unobserved.shape[-1], significance)
    )
  else:
    log_fpr = np.asarray(cosine_null.null_law(scores.dim).logsf(threshold))
  epsilon = np.max(epsilon_at(log_fpr, np.log(fnr), delta), axis=-1)
  return Estimate(
    scalar_or_array(epsilon),
    delta,
    'eps_lo',
    confidence=None,
    assumes=(Assumption.INDEPENDENT,),
  )


def max_threshold(
  scores: Scores,
  *,
  delta: float,
  rates: Literal['gaussian', 'empirical'] = 'gaussian',
) -> Estimate:
  """The first arXiv text's estimate: (1) at its best threshold, no limits.

  Args:
    scores: scores of canaries, any leading axes.
    delta: δ, in (0, 1).
    rates: where FPR and FNR come from. 'gaussian', as printed: from the null
      Gaussian, N(0, 1/d) or fitted to the unobserved scores, and the Gaussian
      fitted to the observed ones; the threshold is then any number.
      'empirical': from counts, c canaries out of n being read as the Jeffreys
      mean (c + 1/2)/(n + 1), for a plain c/n of 0 would make ε infinite at the
      lowest observed score already. The FPR is then exact if `scores.dim` is
      given.

  Returns:
    A point estimate >= 0, confidence None: it bounds nothing. Gaussian rates
    give at most `gaussian.two_gaussian`, which may choose any event and not
    just a half-line, and the same at equal standard deviations.

  Raises:
    ValueError: if a Gaussian is fitted to scores that are all equal.

  Source: arXiv:2302.03098, text of May 2023, sections 3 and 4.
  """
  check_delta(delta)
  if rates == 'gaussian':
    epsilon = _gaussian_rates(scores, delta)
  elif rates == 'empirical':
    epsilon = _empirical_rates(scores, delta)
  else:
    raise ValueError(f"rates={rates!r} is neither 'gaussian' nor 'empirical'.")
  shape = (Assumption.GAUSSIAN_SCORES,) if rates == 'gaussian' else ()
  return Estimate(
    scalar_or_array(epsilon),
    delta,
    f'max_threshold_{rates}',
    confidence=None,
    assumes=shape,
  )


def find_realisable(
  observed: Float[np.ndarray, '*batch n'],
) -> tuple[Float[np.ndarray, '*batch n'], Int[np.ndarray, '*batch n']]:
  """The thresholds worth trying: sorted observed scores, and their misses.

  Args:
    observed: scores, [*batch, n].

  Returns:
    The scores in increasing order, and how many are strictly below each.
  """
  ordered = np.sort(observed, axis=-1)
  index = np.broadcast_to(np.arange(ordered.shape[-1]), ordered.shape)
  first = np.diff(ordered, axis=-1, prepend=-np.inf) > 0
  return ordered, np.maximum.accumulate(np.where(first, index, 0), axis=-1)


def count_at_least(
  scores: Float[np.ndarray, '*batch n'],
  threshold: Float[np.ndarray, '*batch m'],
) -> Int[np.ndarray, '*batch m']:
  """How many scores of an audit are at least each of its thresholds.

  Args:
    scores: [*batch, n].
    threshold: [*batch, m].

  Returns:
    Counts in [0, n].
  """
  ordered = np.sort(scores, axis=-1).reshape(-1, scores.shape[-1])
  levels = threshold.reshape(-1, threshold.shape[-1])
  below = [np.searchsorted(o, t) for o, t in zip(ordered, levels)]
  return scores.shape[-1] - np.reshape(below, threshold.shape)


class ErrorCounts(NamedTuple):
  """Errors of the attack "in if score >= threshold", [*batch, m] each.

  Attributes:
    threshold: each of the m thresholds.
    misses: observed canaries below it, guessed "out".
    alarms: unobserved canaries not below it, guessed "in"; None if the law of
      their scores is known.
  """

  threshold: Float[np.ndarray, '*batch m']
  misses: Int[np.ndarray, '*batch m']
  alarms: Int[np.ndarray, '*batch m'] | None


def count_at_fixed_ranks(
  scores: Scores, num: int, *, one_sided: bool = True
) -> ErrorCounts:
  """Thresholds at ranks that are fixed before any score is seen.

  Ranks are among the unobserved scores, or if their law is known among the
  observed ones. At a fixed rank the rate of that group is a beta variable, and
  given its scores the errors of the other group are binomial.

  Args:
    scores: scores of canaries, any leading axes.
    num: how many thresholds at most, >= 1; equal ranks are merged.
    one_sided: ranks from the top, dense there; otherwise from both ends.

  Returns:
    The thresholds and their counts.
  """
  if scores.dim is not None:
    size = scores.observed.shape[-1]
    rank = space_ranks(size, num, one_sided)
    thresholds = np.sort(scores.observed, axis=-1)[..., size - rank]
    misses = np.broadcast_to(size - rank, thresholds.shape)
    return ErrorCounts(thresholds, misses, None)
  size = scores.unobserved.shape[-1]
  rank = space_ranks(size, num, one_sided)
  # "In" is a score strictly above the unobserved one of this rank, which
  # rank - 1 unobserved scores are: fewer if tied, but then not by chance.
  at = np.sort(scores.unobserved, axis=-1)[..., size - rank]
  thresholds = np.nextafter(at, np.inf)
  misses = scores.observed.shape[-1] - count_at_least(
    scores.observed, thresholds
  )
  return ErrorCounts(
    thresholds, misses, np.broadcast_to(rank - 1, thresholds.shape)
  )


def space_ranks(size: int, num: int, one_sided: bool) -> Int[np.ndarray, ' m']:
  """At most `num` ranks from the top, dense there, two-sided at both ends."""
  if one_sided:
    return np.unique(np.geomspace(1, size, num).round().astype(int))
  top = np.geomspace(1, (size + 1) / 2, (num + 1) // 2).round().astype(int)
  return np.unique(np.concatenate([top, size + 1 - top]))[:num]


def epsilon_at(
  log_fpr: Float[np.ndarray, '...'],
  log_fnr: Float[np.ndarray, '...'],
  delta: float,
  *,
  one_sided: bool = False,
) -> Float[np.ndarray, '...']:
  """Equation (1) and 0, from log rates; a rate of 0 makes it infinite.

  Args:
    log_fpr: log of the false positive rate, or of an upper limit of it.
    log_fnr: the same of the false negative rate; broadcasts.
    delta: δ.
    one_sided: only log (1 - δ - FNR)/FPR.

  Returns:
    ε >= 0 at each threshold.
  """

  def one_direction(log_kept, log_lost):
    share = 1 - delta - np.exp(log_lost)
    log_share = np.log(np.where(share > 0, share, 1.0))
    return np.where(share > 0, log_share - log_kept, 0.0)

  forward = np.maximum(one_direction(log_fpr, log_fnr), 0.0)
  if one_sided:
    return forward
  return np.maximum(forward, one_direction(log_fnr, log_fpr))


def _empirical_rates(scores, delta):
  threshold, misses = find_realisable(scores.observed)
  log_fnr = np.log((misses + 0.5) / (scores.observed.shape[-1] + 1))
  if scores.dim is None:
    alarms = count_at_least(scores.unobserved, threshold)
    log_fpr = np.log((alarms + 0.5) / (scores.unobserved.shape[-1] + 1))
  else:
    log_fpr = np.asarray(cosine_null.null_law(scores.dim).logsf(threshold))
  return np.max(epsilon_at(log_fpr, log_fnr, delta), axis=-1)


def _gaussian_rates(scores, delta):
  null_mean, null_std = gaussian.null_gaussian(scores)
  mean, std = gaussian.fitted_gaussian('observed', scores.observed)
  above = _best_half_line(mean, std, null_mean, null_std, delta)
  below = _best_half_line(-null_mean, null_std, -mean, std, delta)
  return np.maximum(np.maximum(above, below), 0.0)


def _best_half_line(mean_p, std_p, mean_q, std_q, delta):
  """sup over a of log (P(X > a) - δ)/Q(X > a), by repeated grid search.

  The threshold is a = mean_p + z std_p with z below the z at which P(X > a) is
  δ. Each grid spans two steps either side of the best point of the one before,
  so it is 16 times as fine; the last step is 1e-9, and the maximum is flat.
  """
  shift, scale = (mean_p - mean_q) / std_q, std_p / std_q
  low, high = np.full_like(mean_p, -9.0), np.full_like(mean_p, 0.0)
  high = high - special.ndtri(delta)
  for _ in range(_REFINEMENTS):
    z = np.linspace(low, high, _GRID, axis=-1)
    kept = special.ndtr(-z) - delta
    value = np.log(np.where(kept > 0, kept, 1.0)) - special.log_ndtr(
      -(shift[..., None] + scale[..., None] * z)
    )
    value = np.where(kept > 0, value, -np.inf)
    best = np.argmax(value, axis=-1, keepdims=True)
    step = (high - low) / (_GRID - 1)
    centre = np.take_along_axis(z, best, axis=-1)[..., 0]
    low, high = (
      np.maximum(low, centre - 2 * step),
      np.minimum(high, centre + 2 * step),
    )
  return np.max(value, axis=-1)
