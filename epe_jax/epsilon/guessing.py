"""Guesses about canaries that independent coins included, and bounds from them.

An attacker sees one trained model and guesses for some of the m canaries whether
they took part. The attacker guesses "in" for the k₊ highest scores and "out" for the
k₋ lowest. Both numbers must be chosen before the scores are seen. Several choices may
be tried: each is then tested at an equal share of the significance (Bonferroni).
Among tied scores at the edge the wrong guesses are counted first: no rule for
breaking ties that ignores the truth does worse.

How many correct guesses a mechanism allows is said by `approximate_dp` for any
(ε, δ)-DP mechanism, by `f_dp` for one with a known trade-off curve, and by
`independent` for canaries that leak independently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import operator
from typing import Any, NamedTuple, TypeAlias

from jaxtyping import Float, Int
import numpy as np
from scipy import optimize

from epe_jax.epsilon.types import (
  Scores,
  check_scores,
  check_significance,
  scalar_or_array,
)

GuessesToTry: TypeAlias = Sequence[tuple[int, int]]
"""Pairs (k₊, k₋): how many guesses "in" and "out", chosen before scores are seen."""


class Guesses(NamedTuple):
  """How many of the highest scores are guessed "in", and of the lowest "out".

  Attributes:
    k_plus: k₊ >= 0, the number of guesses "in".
    k_minus: k₋ >= 0, the number of guesses "out".
  """

  k_plus: int
  k_minus: int


def choose_guesses(
  num_canaries: int, inclusion_probability: float = 0.5
) -> tuple[Guesses, ...]:
  """Three numbers of guesses: 3/4, 1/4 and 1/16 of those that may be right.

  Many guesses detect a shift of all scores best, few guesses a leak of few
  canaries. As many guesses "in" as "out" lose least in the Gaussian bound. Of
  canaries that seldom take part only guesses "in" are worth something, of those
  that nearly always do only guesses "out".

  Args:
    num_canaries: m >= 1.
    inclusion_probability: π, in (0, 1).

  Returns:
    Pairs (k₊, k₋), the largest first, without pairs of no guess. For π = 1/2 half
    of the guesses are "in"; otherwise all are on one side.

  >>> [tuple(pair) for pair in choose_guesses(2000)]
  [(750, 750), (250, 250), (62, 62)]
  """
  right = min(inclusion_probability, 1 - inclusion_probability) * num_canaries
  counts = [int(part * right) for part in (3 / 4, 1 / 4, 1 / 16)]
  if inclusion_probability == 0.5:
    pairs = [Guesses(k, k) for k in counts if k]
    return tuple(pairs) or (Guesses(1, 0),)
  distinct = dict.fromkeys(max(k, 1) for k in counts)
  is_seldom = inclusion_probability < 0.5
  return tuple(Guesses(k, 0) if is_seldom else Guesses(0, k) for k in distinct)


def count_correct(
  scores: Scores, guesses: tuple[int, int]
) -> Int[np.ndarray, '*batch']:
  """How many guesses are correct; among tied scores wrong ones count first.

  Args:
    scores: scores of canaries, any leading axes.
    guesses: k₊ and k₋, their sum at most the number of canaries.

  Returns:
    Counts in [0, k₊ + k₋].
  """
  k_plus, k_minus = guesses
  correct_in = _count_highest(scores.observed, scores.unobserved, k_plus)
  correct_out = _count_highest(-scores.unobserved, -scores.observed, k_minus)
  return np.asarray(correct_in + correct_out)


def _count_highest(group, others, k):
  """How many of the k highest scores are of the group; ties count against it."""
  batch = group.shape[:-1]
  if k == 0:
    return np.zeros(batch, dtype=np.int64)
  pooled = np.concatenate([group, others], axis=-1)
  edge = np.partition(pooled, pooled.shape[-1] - k, axis=-1)
  edge = edge[..., pooled.shape[-1] - k, None]
  above = np.sum(group > edge, axis=-1)
  return np.maximum(above, k - np.sum(others >= edge, axis=-1))


def best_bound(
  scores: Scores,
  significance: float,
  guesses: GuessesToTry | None,
  solve: Callable[[int, tuple[int, int], int, float], float],
) -> float | Float[np.ndarray, '...']:
  """The largest of the bounds of all pairs (k₊, k₋) of guesses.

  Args:
    scores: scores of canaries with design 'coin_flip', any leading axes.
    significance: chance that the result exceeds the true ε; each pair has an equal
      share of it.
    guesses: the pairs; `choose_guesses` if None.
    solve: (number of canaries, pair, correct guesses, significance) -> bound.

  Returns:
    The bound, >= 0.

  Raises:
    ValueError: the design is another, a setting is out of range, or there are
      fewer canaries than guesses.
  """
  if scores.design != 'coin_flip':
    raise ValueError(
      'one_run needs canaries included by independent coins, but '
      f"design={scores.design!r}. Audit with design='coin_flip', or use a bound "
      'on thresholds, which takes any design.'
    )
  check_significance(significance)
  num = scores.observed.shape[-1] + scores.unobserved.shape[-1]
  if guesses is None:
    pairs = choose_guesses(num, scores.inclusion_probability)
  else:
    pairs = _validate_pairs(guesses)

  best = np.zeros(scores.observed.shape[:-1])
  for pair in pairs:
    if min(pair) < 0 or not 0 < sum(pair) <= num:
      raise ValueError(
        f'guesses has (k₊, k₋) = {tuple(pair)}; each must be >= 0 and their sum '
        f'between 1 and the {num} canaries.'
      )
    correct = count_correct(scores, pair)
    values, inverse = np.unique(correct, return_inverse=True)
    level = significance / len(pairs)
    limits = [solve(num, pair, int(v), level) for v in values]
    best = np.maximum(best, np.array(limits)[inverse].reshape(best.shape))
  return scalar_or_array(best)


def max_rejected(
  excess: Callable[[float], float], limit: float = np.inf
) -> float:
  """The largest privacy level that is rejected, found from below.

  Any rejected value is a lower bound at the same confidence: what satisfies a
  privacy guarantee satisfies all weaker ones.

  Args:
    excess: privacy level >= 0 -> a number that is positive where it is rejected.
    limit: the level beyond which all are equal.

  Returns:
    The level; 0 if none is rejected, and inf if the limit is.
  """
  if excess(0.0) <= 0:
    return 0.0
  high = 1.0
  while excess(high) > 0:
    if high >= limit:
      return np.inf
    high *= 2
  root = optimize.root_scalar(
    excess, bracket=(0.0, high), method='brentq', xtol=1e-10, rtol=1e-10
  ).root
  return max(root * (1 - 1e-9) - 1e-9, 0.0)


def prior_of_guess(
  guesses: tuple[int, int], inclusion_probability: float
) -> float | None:
  """The chance that a one-sided guess is right before any score is seen.

  A guess "out" is the mirror image of a guess "in" of the other coins.

  Args:
    guesses: k₊ and k₋.
    inclusion_probability: π, in (0, 1).

  Returns:
    π or 1 - π; None if there are guesses of both sides and coins are fair.

  Raises:
    ValueError: there are, and coins are not fair.
  """
  k_plus, k_minus = guesses
  if k_minus == 0:
    return inclusion_probability
  if k_plus == 0:
    return 1 - inclusion_probability
  if inclusion_probability == 0.5:
    return None
  raise ValueError(
    f'guesses has (k₊, k₋) = {tuple(guesses)}, but canaries take part with '
    f'inclusion_probability={inclusion_probability}; give pairs with a 0, as '
    f'({sum(guesses)}, 0).'
  )


def check_fair_coins(scores: Scores) -> None:
  """Raises a ValueError unless canaries were included with probability 1/2."""
  check_scores(scores)
  if scores.inclusion_probability != 0.5:
    raise ValueError(
      f'inclusion_probability={scores.inclusion_probability}, but one_run_gdp is '
      'for canaries included with probability 1/2. Use one_run, or '
      'one_run_independent, if canaries leak independently.'
    )


def check_counts(num_canaries: int, num_guesses: int, correct: int) -> None:
  """Raises a ValueError unless 0 <= correct <= num_guesses <= num_canaries."""
  if not 0 <= correct <= num_guesses <= num_canaries:
    raise ValueError(
      f'correct={correct}, num_guesses={num_guesses}, '
      f'num_canaries={num_canaries} must be in increasing order, from 0.'
    )


def _validate_pairs(guesses: Any) -> list[tuple[int, int]]:
  try:
    pairs = [tuple(map(operator.index, pair)) for pair in guesses]
  except TypeError:
    pairs = []
  if not pairs or any(len(pair) != 2 for pair in pairs):
    raise ValueError(
      f'guesses={guesses!r}; give one or more pairs of integers (k₊, k₋), as '
      '[(100, 100)].'
    )
  return [(k_plus, k_minus) for k_plus, k_minus in pairs]
