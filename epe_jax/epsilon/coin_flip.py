"""Lower bounds on ε from canaries that independent coins include.

An attacker sees one trained model and guesses for some of the m canaries whether
they took part. If each took part independently with probability 1/2, then (ε, δ)-DP
limits how many guesses can be correct, and many correct ones reject a small ε. Neither
a second model nor an assumption about the scores is needed.

The attacker guesses "in" for the k₊ highest scores and "out" for the k₋ lowest.
Both numbers must be chosen before the scores are seen. Several choices may be
tried: each is then tested at an equal share of the significance (Bonferroni).
Among tied scores at the edge the wrong guesses are counted first: no rule for
breaking ties that ignores the truth does worse.

Coins of another probability π need guesses of one side, say "in". Given the output y
and the earlier coins, let P and Q be the laws of y with canary i in and out. With
(ε, δ)-DP, P = P' + E with P' <= e^ε Q and ∫E <= δ. Say that an included canary is
revealed with probability E(y)/P(y), and so with probability π δ at most. A canary that
is not revealed is in with probability π P'/(π P' + (1-π) Q) <= q = π e^ε/(π e^ε + 1-π),
whatever the earlier coins were. So unless one of the m is revealed, the number of right
guesses out of r is stochastically at most Bin(r, q), and

  P(W >= v) <= P(Bin(r, q) >= v) + m π δ.

References: Steinke, Nasr, Jagielski, "Privacy auditing with one (1) training run"
(NeurIPS 2023, arXiv:2305.08846), Theorem 5.2 and appendix D; Mahloujifar, Melis,
Chaudhuri, "Auditing f-differential privacy in one run" (ICML 2025,
arXiv:2410.22235).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
import operator
from typing import Any, NamedTuple, TypeAlias

from jaxtyping import Float, Int
import numpy as np
from scipy import optimize, special

from epe_jax.epsilon import gaussian, rank_bound, tradeoff_curves
from epe_jax.epsilon.rank_bound import Curve
from epe_jax.epsilon.types import (
  Assumption,
  Estimate,
  Scores,
  check_delta,
  check_significance,
  make_bound,
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


def one_run(
  scores: Scores,
  *,
  delta: float,
  significance: float = 0.05,
  guesses: GuessesToTry | None = None,
) -> Estimate:
  """Lower bound on the ε of any (ε, δ)-DP mechanism, by Steinke et al.

  It is the largest ε whose `p_value` is at most the significance. Coins may be biased.

  Args:
    scores: scores of m canaries with design 'coin_flip', any leading axes.
    delta: δ, in [0, 1).
    significance: chance that the bound exceeds the true ε, in (0, 1).
    guesses: pairs (k₊, k₋) chosen in advance; `choose_guesses` if None. Where coins
      are not fair, one of each pair is 0.

  Returns:
    A lower bound >= 0 at confidence 1 - significance. It cannot exceed about
    log(r/log(1/significance)) with r guesses.

  Raises:
    ValueError: the design is another, a setting is out of range, or m canaries
      do not allow the guesses.

  >>> scores = Scores(np.ones(500), np.zeros(500), design='coin_flip')
  >>> round(one_run(scores, delta=1e-5, guesses=[(500, 500)]).epsilon, 2)
  5.78
  """
  if delta != 0:
    check_delta(delta)

  solve = functools.partial(_solve_epsilon, delta, scores.inclusion_probability)
  epsilon = best_bound(scores, significance, guesses, solve)
  return make_bound(
    epsilon,
    delta,
    'one_run',
    significance=significance,
    assumes=(Assumption.COINS,),
  )


def one_run_gdp(
  scores: Scores,
  *,
  delta: float,
  significance: float = 0.05,
  guesses: GuessesToTry | None = None,
) -> Estimate:
  """Lower bound on the ε of a Gaussian mechanism, by Mahloujifar et al.

  It is the exact ε at δ of a lower bound on the μ of μ-Gaussian DP
  (`max_rejected_mu`). It is tighter than `one_run`, but says nothing about a
  mechanism whose trade-off curve is not Gaussian: for one that is (ε, δ)-DP at a
  single δ it is no bound.

  Args:
    scores: scores of m canaries with design 'coin_flip', any leading axes.
    delta: δ, in (0, 1).
    significance: chance that the bound exceeds the true ε, in (0, 1).
    guesses: pairs (k₊, k₋) chosen in advance; `choose_guesses` if None.

  Returns:
    A lower bound >= 0 at confidence 1 - significance.

  Raises:
    ValueError: the design is another, a setting is out of range, or m canaries
      do not allow the guesses.
  """
  check_delta(delta)
  check_fair_coins(scores)

  mu = best_bound(scores, significance, guesses, _solve_mu)
  epsilon = gaussian.epsilon_two_gaussians(0.0, 1.0, mu, 1.0, delta)
  return make_bound(
    epsilon,
    delta,
    'one_run_gdp',
    significance=significance,
    assumes=(Assumption.COINS, Assumption.GAUSSIAN_CURVE),
  )


def p_value(
  epsilon: float,
  delta: float,
  *,
  num_canaries: int,
  num_guesses: int,
  correct: int,
  prior: float = 0.5,
) -> float:
  """Largest probability of v or more correct guesses under (ε, δ)-DP.

  It is P(W >= v) + 2 m δ max_i P(v > W >= v - i)/i, over i = 1..v, where W is the
  number of correct guesses out of r if each is correct with probability
  e^ε/(1 + e^ε). Where coins are not fair, see above, the second term is m π δ.

  Args:
    epsilon: ε >= 0.
    delta: δ, in [0, 1).
    num_canaries: m >= 1; each was included independently.
    num_guesses: r, the number of guesses, in [0, m].
    correct: v, the number of correct guesses, in [0, r].
    prior: π, the probability in (0, 1) that a guess is correct before any score is
      seen. If it is not 1/2, all guesses are of one side.

  Returns:
    The p-value, in [0, 1].

  Raises:
    ValueError: unless 0 <= v <= r <= m.

  References: Steinke et al., Theorem 5.2 (in appendix D for the form with a maximum).

  >>> round(p_value(0.0, 0.0, num_canaries=9, num_guesses=3, correct=3), 3)
  0.125
  """
  # Here and not above: it takes most of a second to import.
  from scipy import stats

  check_counts(num_canaries, num_guesses, correct)
  right = special.expit(epsilon + special.logit(prior))
  pure = float(stats.binom.sf(correct - 1, num_guesses, right))
  if delta == 0 or correct == 0:
    return min(pure, 1.0)
  if prior != 0.5:
    return min(pure + num_canaries * prior * delta, 1.0)
  # The mean of P(W = v - j), j = 1..i, falls once v - i is in the lower tail,
  # and terms far above the mode add nothing: a window around it is enough.
  mode = num_guesses * right
  width = 12 * np.sqrt(mode * (1 - right)) + 40
  last = int(min(correct - 1, mode + 4 * width))
  first = int(max(0, min(mode, last) - width))
  counts = np.arange(last, first - 1, -1)
  mass = np.cumsum(stats.binom.pmf(counts, num_guesses, right))
  steepest = np.max(mass / (correct - counts))
  return min(float(pure + 2 * num_canaries * delta * steepest), 1.0)


def max_rejected_mu(
  *, num_canaries: int, num_guesses: int, correct: int, significance: float
) -> float:
  """Largest μ for which μ-Gaussian DP makes v correct guesses too improbable.

  With p_i the probability of i correct guesses out of r, let
  R_i = Σ_{j>=i} j p_j/m and H_i = Σ_{j>=i} (r - j) p_j/m: the probabilities that
  a random canary is guessed correctly, or wrongly, and that i or more guesses are
  correct. Moving that canary in or out turns the first event into the second with
  one correct guess less, so R_{i+1} <= f̄(H_i) with f̄(x) = Φ(Φ⁻¹(x) + μ). If v or
  more correct guesses had more than the given probability, then recursion from
  i = v down to 0 gives lower limits of H_0 and R_0. If these add up to more than
  r/m, which is the sum of H_0 and R_0, then μ-Gaussian DP is rejected.

  Args:
    num_canaries: m >= 1; each was included with probability 1/2.
    num_guesses: r, the number of guesses, in [0, m].
    correct: v, the number of correct guesses, in [0, r].
    significance: the probability of v or more correct guesses at which μ is
      rejected, in (0, 1).

  Returns:
    μ >= 0; 0 if nothing is rejected.

  Raises:
    ValueError: unless 0 <= v <= r <= m.

  References: Mahloujifar et al., the algorithm for at most r guesses, with an
  alphabet of two and f of Dong, Roth, Su (2022), equation (6).
  """
  check_counts(num_canaries, num_guesses, correct)
  if num_guesses == 0:
    return 0.0

  def excess(mu):
    return total_excess(
      lambda rate: special.ndtr(special.ndtri(rate) - mu),
      num_canaries=num_canaries,
      num_guesses=num_guesses,
      correct=correct,
      significance=significance,
    )

  return max_rejected(excess)


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


def bound_family(
  scores: Scores,
  solve_strength: Callable[[Curve, int, tuple[int, int], int, float], float],
  *,
  method: str,
  delta: float,
  significance: float,
  guesses: GuessesToTry | None,
  family: tradeoff_curves.MechanismFamily | None,
  assumes: tuple[Assumption, ...],
) -> Estimate:
  """A lower bound from one run for a family of trade-off curves.

  Args:
    scores: of canaries with design 'coin_flip', any leading axes.
    solve_strength: (curve, number of canaries, pair, correct guesses, significance)
      -> the largest strength that is rejected.
    method: its name; that of the family is appended.
    delta: δ, in (0, 1).
    significance: chance that the bound exceeds the true ε, in (0, 1).
    guesses: pairs (k₊, k₋); `choose_guesses` if None.
    family: of curves; that of (ε, δ)-DP if None.
    assumes: what must hold, whatever the family.

  Returns:
    The bound, >= 0; inf if every member of the family is rejected.
  """
  check_delta(delta)
  if family is None:
    curve, shape = rank_bound.approximate_dp_curve(delta), ()
  else:
    curve, shape = rank_bound.family_curve(family), (Assumption.FAMILY,)
    method = f'{method}_{family.name}'

  def solve(num, pair, correct, level):
    strength = solve_strength(curve, num, pair, correct, level)
    if family is None or strength in (0.0, np.inf):
      return strength
    return family.epsilon(1 / strength, delta)

  return make_bound(
    best_bound(scores, significance, guesses, solve),
    delta,
    method,
    significance=significance,
    assumes=(*assumes, *shape),
  )


def check_fair_coins(scores: Scores) -> None:
  """Raises a ValueError unless canaries were included with probability 1/2."""
  if scores.inclusion_probability != 0.5:
    raise ValueError(
      f'inclusion_probability={scores.inclusion_probability}, but one_run_gdp and '
      'one_run_fdp are for canaries included with probability 1/2. Use one_run, or '
      'one_run_independent, if canaries leak independently.'
    )


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


# Audits of a study, or rounds of a run, often have equal counts.
@functools.lru_cache(maxsize=4096)
def _solve_epsilon(delta, inclusion_probability, num, pair, correct, level):
  prior = prior_of_guess(pair, inclusion_probability) or 0.5

  def excess(epsilon):
    return level - p_value(
      epsilon,
      delta,
      num_canaries=num,
      num_guesses=sum(pair),
      correct=correct,
      prior=prior,
    )

  return max_rejected(excess)


@functools.lru_cache(maxsize=4096)
def _solve_mu(num, pair, correct, level):
  return max_rejected_mu(
    num_canaries=num,
    num_guesses=sum(pair),
    correct=correct,
    significance=level,
  )


def total_excess(
  move: Callable[[float], float],
  *,
  num_canaries: int,
  num_guesses: int,
  correct: int,
  significance: float,
) -> float:
  """Lower limit of H_0 + R_0 of `max_rejected_mu`, less r/m, in units of r/m.

  Args:
    move: x -> f(1 - x), the smallest probability of an event if a canary moves in
      or out, where that of the event was x; or a lower value.
    num_canaries: m >= 1.
    num_guesses: r, in [1, m].
    correct: v, in [0, r].
    significance: the probability of v or more correct guesses, in (0, 1).

  Returns:
    A number that is positive if f is rejected.
  """
  right = significance * correct / num_guesses
  wrong = significance * (num_guesses - correct) / num_guesses
  unit = num_guesses / num_canaries
  for i in range(correct - 1, -1, -1):
    moved = move(right * unit) / unit
    # Leaving out small terms only lowers the limit.
    if moved - wrong <= 1e-13 * wrong or right + wrong > 2:
      break
    right += (moved - wrong) * i / (num_guesses - i)
    right = min(right, 1.0 / unit)
    wrong = moved
  return float(right + wrong - 1)


def check_counts(num_canaries: int, num_guesses: int, correct: int) -> None:
  """Raises a ValueError unless 0 <= correct <= num_guesses <= num_canaries."""
  if not 0 <= correct <= num_guesses <= num_canaries:
    raise ValueError(
      f'correct={correct}, num_guesses={num_guesses}, '
      f'num_canaries={num_canaries} must be in increasing order, from 0.'
    )
