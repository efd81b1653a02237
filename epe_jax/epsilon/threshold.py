"""ε from thresholds on the score: every canary above one is guessed "in".

A threshold has a false positive rate (FPR) among unobserved canaries and a
false negative rate (FNR) among observed ones. (ε, δ)-DP forces

  ε >= max(log (1 - δ - FNR)/FPR, log (1 - δ - FPR)/FNR),

equation (1) of Andrew et al. (ICLR 2024), after Kairouz et al. (2015).

Only thresholds equal to an observed score are tried: between two of them the FNR
is constant and the FPR falls, so that the upper one is at least as good. A canary
is guessed "in" if its score is at least the threshold, so that tied scores are
guessed alike.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from jaxtyping import Float, Int
import numpy as np
from scipy import special

from epe_jax.epsilon import arguments, cosine_null, two_gaussians
from epe_jax.epsilon.intervals import jeffreys_upper
from epe_jax.epsilon.types import (
  Assumption,
  Estimate,
  Scores,
  Sides,
  check_scores,
  scalar_or_array,
)

_REFINEMENTS, _GRID = 8, 65


def eps_lo(
  scores: Scores, *, delta: float, significance: float = 0.05
) -> Estimate:
  """The paper's ε_lo: (1) with upper limits of both rates, at its best threshold.

  The FNR is replaced by its Jeffreys upper limit. The FPR is exact if
  `scores.null` is given (the paper's final-model column), and otherwise replaced
  by its Jeffreys upper limit among the unobserved (its all-iterates column).

  The paper calls this a 95 % lower bound. It is not, because each threshold has
  its own 5 % chance of error and the maximum over k of them is not corrected for.
  With no leakage at all, k = 1000 and δ = 1e-5 it exceeds the true ε = 0 in about
  74 % of audits with the exact null law, and in 29 % with the empirical one.

  With two sets of k canaries it saturates at log((1 - δ - b)/b), where b is the
  Jeffreys limit for no error in k: 6.25 for k = 1000, however far apart the
  scores are. With the exact null nothing saturates.

  Args:
    scores: scores of canaries, any leading axes.
    delta: δ, in (0, 1).
    significance: chance that a limit at one fixed threshold fails, in (0, 1).

  Returns:
    A point estimate >= 0. It is inf if a cosine of 1 has no false positives.

  Raises:
    ValueError: a setting is out of range.

  References: section 5.1 of the paper; Jagielski et al. (2020) and, for the
  Jeffreys limit, Zanella-Béguelin et al. (2023).
  """
  check_scores(scores, delta)
  threshold, false_negatives = find_realisable(scores.observed)
  fnr = jeffreys_upper(false_negatives, scores.observed.shape[-1], significance)
  if not scores.has_known_null:
    false_positives = count_at_least(scores.unobserved, threshold)
    log_fpr = np.log(
      jeffreys_upper(false_positives, scores.unobserved.shape[-1], significance)
    )
  else:
    log_fpr = np.asarray(
      cosine_null.null_distribution(scores.null).logsf(threshold)
    )
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
  """The estimate of the paper's first version: (1) at its best threshold.

  It uses estimates of both rates, not limits.

  Args:
    scores: scores of canaries, any leading axes.
    delta: δ, in (0, 1).
    rates: how FPR and FNR are estimated. 'gaussian', as printed: from the null
      Gaussian, N(0, 1/d) or fitted to the unobserved scores, and the Gaussian
      fitted to the observed ones; the threshold is then any number.
      'empirical': from counts, where c canaries out of n are a rate of
      (c + 1/2)/(n + 1), the Jeffreys mean, because with c/n a rate of 0 would
      make ε infinite at the lowest observed score already. The FPR is then exact
      if `scores.null` is given.

  Returns:
    A point estimate >= 0. With Gaussian rates it is at most
    `two_gaussians.two_gaussian`, which may choose any event and not only a half-line,
    and equal to it for equal standard deviations.

  Raises:
    ValueError: a setting is out of range, or a Gaussian has to be fitted to
      scores that are all equal.

  References: arXiv:2302.03098, text of May 2023, sections 3 and 4.
  """
  check_scores(scores, delta)
  arguments.check_choice('rates', rates, ('gaussian', 'empirical'))
  if rates == 'gaussian':
    epsilon, shape = (
      _gaussian_rates(scores, delta),
      (Assumption.GAUSSIAN_SCORES,),
    )
  else:
    epsilon, shape = _empirical_rates(scores, delta), ()
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
  """The thresholds worth trying: the observed scores, and their false negatives.

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
    threshold: the m thresholds.
    false_negatives: number of observed canaries below each, guessed "out".
    false_positives: number of unobserved canaries not below each, guessed "in";
      None if the law of their scores is known.
  """

  threshold: Float[np.ndarray, '*batch m']
  false_negatives: Int[np.ndarray, '*batch m']
  false_positives: Int[np.ndarray, '*batch m'] | None


def count_at_fixed_ranks(
  scores: Scores, num: int, *, sides: Sides = 'in'
) -> ErrorCounts:
  """Counts errors at thresholds of ranks that are fixed before a score is seen.

  Ranks are among the unobserved scores or, if their law is known, among the
  observed ones. At a fixed rank the rate of that group is a beta variable, and
  given its scores the errors of the other group are binomial.

  Args:
    scores: scores of canaries, any leading axes.
    num: maximum number of thresholds, >= 1; equal ranks are merged.
    sides: which guesses count; for 'in' ranks are dense at the top, for 'both'
      at either end.

  Returns:
    The thresholds and their counts.
  """
  if scores.has_known_null:
    size = scores.observed.shape[-1]
    rank = space_ranks(size, num, sides)
    thresholds = np.sort(scores.observed, axis=-1)[..., size - rank]
    false_negatives = np.broadcast_to(size - rank, thresholds.shape)
    return ErrorCounts(thresholds, false_negatives, None)
  size = scores.unobserved.shape[-1]
  rank = space_ranks(size, num, sides)
  # "In" is a score strictly above the unobserved one of this rank. rank - 1
  # unobserved scores are, or fewer if scores are tied, which only weakens a bound.
  at = np.sort(scores.unobserved, axis=-1)[..., size - rank]
  thresholds = np.nextafter(at, np.inf)
  false_negatives = scores.observed.shape[-1] - count_at_least(
    scores.observed, thresholds
  )
  return ErrorCounts(
    thresholds, false_negatives, np.broadcast_to(rank - 1, thresholds.shape)
  )


def space_ranks(size: int, num: int, sides: Sides) -> Int[np.ndarray, ' m']:
  """At most `num` ranks from the top: dense there, or for 'both' at either end."""
  if sides == 'in':
    return np.unique(np.geomspace(1, size, num).round().astype(int))
  top = np.geomspace(1, (size + 1) / 2, (num + 1) // 2).round().astype(int)
  return np.unique(np.concatenate([top, size + 1 - top]))[:num]


def epsilon_at(
  log_fpr: Float[np.ndarray, '...'],
  log_fnr: Float[np.ndarray, '...'],
  delta: float,
  *,
  sides: Sides = 'both',
) -> Float[np.ndarray, '...']:
  """The larger of equation (1) and 0, from log rates; inf for a rate of 0.

  Args:
    log_fpr: log of the false positive rate, or of an upper limit of it.
    log_fnr: the same for the false negative rate; broadcasts.
    delta: δ, in (0, 1).
    sides: which guesses count.

  Returns:
    ε >= 0 at each threshold.
  """

  def one_side(log_wrong, log_missed):
    share = 1 - delta - np.exp(log_missed)
    log_share = np.log(np.where(share > 0, share, 1.0))
    return np.where(share > 0, log_share - log_wrong, 0.0)

  of_guesses_in = np.maximum(one_side(log_fpr, log_fnr), 0.0)
  if sides == 'in':
    return of_guesses_in
  return np.maximum(of_guesses_in, one_side(log_fnr, log_fpr))


def _empirical_rates(scores, delta):
  threshold, false_negatives = find_realisable(scores.observed)
  log_fnr = np.log((false_negatives + 0.5) / (scores.observed.shape[-1] + 1))
  if not scores.has_known_null:
    false_positives = count_at_least(scores.unobserved, threshold)
    log_fpr = np.log(
      (false_positives + 0.5) / (scores.unobserved.shape[-1] + 1)
    )
  else:
    log_fpr = np.asarray(
      cosine_null.null_distribution(scores.null).logsf(threshold)
    )
  return np.max(epsilon_at(log_fpr, log_fnr, delta), axis=-1)


def _gaussian_rates(scores, delta):
  null_mean, null_std = two_gaussians.null_gaussian(scores)
  mean, std = two_gaussians.fitted_gaussian('observed', scores.observed)
  above = _best_half_line(mean, std, null_mean, null_std, delta)
  below = _best_half_line(-null_mean, null_std, -mean, std, delta)
  return np.maximum(np.maximum(above, below), 0.0)


def _best_half_line(mean_p, std_p, mean_q, std_q, delta):
  """Maximum over a of log (P(X > a) - δ)/Q(X > a), by repeated grid search.

  The threshold is a = mean_p + z std_p with z below that at which P(X > a) is δ.
  Each grid spans two steps on either side of the best point of the one before, so
  that it is 16 times as fine; the last step is 1e-9, and the maximum is flat.
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
