"""Confidence limits of a tail probability that hold at every threshold at once.

The r-th largest of n independent continuous scores has a P(score > it) that is
distributed as the r-th smallest of n uniforms, whatever the law of the scores:
Beta(r, n - r + 1). So limits for all r can be calibrated once for each n.
"""

from __future__ import annotations

import functools

from jaxtyping import Float, Int
import numpy as np
from scipy import special

from epe_jax.epsilon.types import Real, check_significance, scalar_or_array

_RANKS, _BISECTIONS, _TAIL = 80, 14, 9.0


def upper_limit(
  count: Real, trials: int, significance: float
) -> float | Float[np.ndarray, '...']:
  """Upper limits of P(score >= t) that hold at every threshold t at once.

  The limit of P(score > the r-th largest score) is a quantile of
  Beta(r, n - r + 1): the Clopper-Pearson limit of r - 1 events. All limits have
  the same local level, chosen such that they hold together with the chance
  asked for: a one-sided Berk-Jones band. Ties only make it conservative.

  Limits are computed at about 150 ranks, dense in both tails; a count between
  two of them has the limit of the next. Neighbouring thresholds separate nearly
  the same scores, so the local level falls slowly with n: for n = 1000 and 5 % it
  is 0.15 %, whereas 5 %/1000 would be 0.005 %.

  Args:
    count: how many of the scores are at least t, integers in [0, trials], any
      shape.
    trials: number of scores, >= 1.
    significance: chance that any limit is below its probability, in (0, 1).

  Returns:
    The limit, in (0, 1], with the shape of `count`.

  Raises:
    ValueError: significance is out of range.

  References: Berk and Jones (1979); Moscovich and Nadler, "Fast calculation of
  boundary crossing probabilities for Poisson processes" (2017).
  """
  significance = check_significance(significance)
  ranks = _ranks(trials)
  limits = _limits(trials, ranks, local_level(trials, significance))
  index = np.searchsorted(ranks, np.asarray(count) + 1)
  return scalar_or_array(np.append(limits, 1.0)[index])


@functools.lru_cache(maxsize=256)
def local_level(trials: int, significance: float) -> float:
  """Chance that a single limit of `upper_limit` fails.

  It is computed by bisection with an exact recursion, and rounded down. The
  result is cached, so that only the first audit of a size pays for it.

  Args:
    trials: number of scores, >= 1.
    significance: chance that any limit fails, in (0, 1).

  Returns:
    The local level, at most `significance`.
  """
  ranks = _ranks(trials)
  # The union bound, and a single limit.
  low, high = np.log(significance / len(ranks)), np.log(significance)
  for _ in range(_BISECTIONS if len(ranks) > 1 else 0):
    middle = (low + high) / 2
    limits = _limits(trials, ranks, np.exp(middle))
    if 1 - coverage(trials, ranks, limits) <= significance:
      low = middle
    else:
      high = middle
  return float(np.exp(low if len(ranks) > 1 else high))


def coverage(
  trials: int, ranks: Int[np.ndarray, 'm'], limits: Float[np.ndarray, 'm']
) -> float:
  """P(U_(r) <= limit_r at all ranks r) for the order statistics of n uniforms.

  With N(x) the number of uniforms up to x, this is P(N(limit_r) >= r for all r).
  N is a Poisson process conditioned on N(1) = n, and a Poisson process has
  independent increments: its law is convolved from limit to limit and cut below
  r. States beyond nine standard deviations are dropped, which can only lower the
  result.

  Args:
    trials: n >= 1.
    ranks: [m], increasing integers in [1, n].
    limits: [m], increasing, in (0, 1).

  Returns:
    The probability, in [0, 1].
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


def _limits(trials, ranks, level):
  return special.betainccinv(ranks, trials - ranks + 1.0, level)


def _ranks(trials):
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
