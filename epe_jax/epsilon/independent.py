"""A tight lower bound on ε from one run, if canaries leak independently.

`approximate_dp.one_run` holds for every mechanism, also for one that makes the same
error with all canaries at once, and is therefore far below ε where canaries leak
independently: where what the attacker sees of one canary tells nothing of whether
the others took part, as with Gaussian noise in orthogonal directions. Then each
canary is a bit sent through a channel of its own, and the number of wrong guesses
among the r most confident ones has an exact law.

Let f be the trade-off curve that the mechanism keeps, symmetric in the two rates,
and P, Q the pair of laws that attains it. Every channel is a randomized function of
a draw from that pair (Blackwell), so an attacker who sees the draws themselves does
no worse. Given the draws, guess i is wrong with probability γ_i or more, where γ_i
is the smaller of the two posterior probabilities, independently over i. So T, the
number of wrong guesses among any r of the n canaries, however they were chosen, is
stochastically at least the sum of Bernoulli variables with the r smallest γ_i. Call
a canary's quantile of γ its U, uniform on [0, 1]. Given W, the (r+1)-th smallest of
n, the r smaller ones are independent and uniform below it, so that

  P(T <= u) <= E[BinCDF(u; r, γ̄(W))],   W ~ Beta(r + 1, n - r),

where γ̄(w) is the mean of γ over U < w, and W = 1 if r = n. With one attack "in if
the ratio of likelihoods exceeds t" and its mirror image "out if it is below 1/t",
both of false rate α, a fraction w = α + 1 - f(α) of canaries is guessed and a
fraction α of them wrongly, so that γ̄(w) = α/w: the law depends on f alone. If only
"in" is guessed and canaries take part with probability π, then
w = (1-π) α + π (1 - f(α)) and γ̄(w) = (1-π) α/w.

The bound fails where canaries are not independent: a mechanism that draws one error
probability and flips all bits with it keeps the same f, and T <= E[T] about half of
the time. docs/coverage.md shows it.

References: Zihang Xiang, Tianhao Wang, Di Wang, "Privacy audit as bits transmission:
(im)possibilities for audit by one run" (USENIX Security 2025), for independent
channels; Xiang, T. Wang, H. Xiao, Y. Tian, D. Wang (2025), arXiv 2509.08704, for the law
of the r most confident guesses, whose released code gives the same values; Blackwell
(1953); Dong, Roth, Su (2022), Theorem 2.10.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import TypeAlias

from jaxtyping import Float
import numpy as np
from scipy import special

from epe_jax.epsilon import guessing, rank_bound, tradeoff_curves
from epe_jax.epsilon.rank_bound import Curve
from epe_jax.epsilon.types import (
  Assumption,
  Estimate,
  Scores,
  check_delta,
  check_scores,
  make_bound,
)

# log rates -> which fractions of canaries are guessed, and which are so wrongly.
_Fractions: TypeAlias = Callable[
  [Float[np.ndarray, 'm']],
  tuple[Float[np.ndarray, 'm'], Float[np.ndarray, 'm']],
]
# W lies between these quantiles, and the rest is counted against the bound.
_TAIL = 1e-20
_NODES, _GRID, _REFINEMENTS = 200, 200, 6
# The logarithm of the smallest rate that is told from 0.
_SMALLEST = -700.0


def one_run_independent(
  scores: Scores,
  *,
  delta: float,
  significance: float = 0.05,
  guesses: guessing.GuessesToTry | None = None,
  family: tradeoff_curves.MechanismFamily | None = None,
) -> Estimate:
  """Lower bound on ε from one run, for canaries that leak independently.

  Args:
    scores: scores of n canaries with design 'coin_flip', any leading axes.
    delta: δ, in (0, 1).
    significance: chance that the bound exceeds the true ε, in (0, 1).
    guesses: pairs (k₊, k₋) chosen in advance; `choose_guesses` if None.
      Where canaries take part with another probability than 1/2, one of each pair
      is 0.
    family: of trade-off curves, from `tradeoff_curves` or `families`;
      that of (ε, δ)-DP at this δ if None, which every mechanism keeps. The curve of
      the mechanism itself gives most.

  Returns:
    A lower bound >= 0 at confidence 1 - significance; inf if the scores reject
    every member of the family. Its method ends in the name of the family.

  Raises:
    ValueError: the design is another, a setting is out of range, or n canaries do
      not allow the guesses.

  >>> scores = Scores(np.ones(500), np.zeros(500), design='coin_flip')
  >>> bound = one_run_independent(scores, delta=1e-5, guesses=[(500, 500)])
  >>> round(bound.epsilon, 2)
  5.81
  """
  check_scores(scores)
  delta = check_delta(delta)
  method = 'one_run_independent'
  assumes = Assumption.COINS, Assumption.INDEPENDENT
  if family is None:
    curve = rank_bound.approximate_dp_curve(delta)
  else:
    curve = rank_bound.family_curve(family)
    method = f'{method}_{family.name}'
    assumes += (Assumption.FAMILY,)

  def solve(num, pair, correct, level):
    strength = _solve_strength(
      curve, num, pair, correct, level, scores.inclusion_probability
    )
    if family is None or strength in (0.0, np.inf):
      return strength
    return family.epsilon(1 / strength, delta)

  return make_bound(
    guessing.best_bound(scores, significance, guesses, solve),
    delta,
    method,
    significance=significance,
    assumes=assumes,
  )


def p_value(
  curve: Curve,
  strength: float,
  *,
  num_canaries: int,
  guesses: tuple[int, int],
  wrong: int,
  inclusion_probability: float = 0.5,
) -> float:
  """Largest probability of so few wrong guesses, if canaries leak independently.

  Args:
    curve: trade-off curves, symmetric in the two rates.
    strength: of the leak.
    num_canaries: n >= 1; each was included independently.
    guesses: k₊ guesses "in" and k₋ guesses "out", at most n and at least 1.
    wrong: u, how many are wrong, in [0, k₊ + k₋].
    inclusion_probability: π, in (0, 1). If it is not 1/2, or one of the two
      numbers of guesses is 0, the law of one-sided guesses is taken.

  Returns:
    The p-value, in [0, 1], with a relative error of about 1e-4.

  Raises:
    ValueError: counts are out of range, or guesses of both sides are made of
      canaries that take part with another probability than 1/2.
  """
  num_guesses = sum(guesses)
  guessing.check_counts(num_canaries, num_guesses, num_guesses - wrong)
  prior = guessing.prior_of_guess(guesses, inclusion_probability)

  def fractions(log_rates):
    rates = np.exp(log_rates)
    right = 1 - curve.fnr(strength, log_rates)
    if prior is None:
      return rates + right, rates
    return (1 - prior) * rates + prior * right, (1 - prior) * rates

  # All are guessed where both rates are equal, or every guess is "in".
  top = np.log(0.5) if prior is None else 0.0
  if num_guesses == num_canaries:
    guessed, wrongly = fractions(np.array([_invert(fractions, 1.0, top)]))
    return float(special.bdtr(wrong, num_guesses, (wrongly / guessed)[0]))
  shape = num_guesses + 1.0, float(num_canaries - num_guesses)
  low = _invert(fractions, special.betaincinv(*shape, _TAIL), top)
  high = _invert(fractions, special.betainccinv(*shape, _TAIL), top)
  # Dense in rates and in their logarithms, as some canaries may be given away.
  rates = np.linspace(np.exp(low), np.exp(high), _NODES + 1)[1:]
  log_rates = np.union1d(np.linspace(low, high, _NODES), np.log(rates))
  guessed, wrongly = fractions(log_rates)
  errors = np.divide(
    wrongly, guessed, out=np.zeros_like(guessed), where=guessed > 0
  )
  few = special.bdtr(wrong, num_guesses, np.minimum(errors, 1.0))
  guessed = np.clip(guessed, 0.0, 1.0)
  # The lower tail, or from the middle on the upper one, so that each has its digits.
  split = np.searchsorted(guessed, num_guesses / num_canaries)
  below = special.betainc(*shape, guessed[:split])
  above = special.betaincc(*shape, guessed[split:])
  mass = np.diff(np.concatenate([below, 1 - above]))
  mass[split:] = -np.diff(above)
  inner = np.sum(mass * (few[1:] + few[:-1]) / 2)
  outside = special.betainc(*shape, guessed[0])
  outside += few[-1] * special.betaincc(*shape, guessed[-1])
  return min(float(outside + inner), 1.0)


# Audits of a study, or rounds of a run, often have equal counts.
@functools.lru_cache(maxsize=4096)
def _solve_strength(curve, num, pair, correct, level, inclusion_probability):
  def excess(strength):
    return level - p_value(
      curve,
      strength,
      num_canaries=num,
      guesses=pair,
      wrong=sum(pair) - correct,
      inclusion_probability=inclusion_probability,
    )

  return guessing.max_rejected(excess, curve.limit)


def _invert(fractions: _Fractions, target: float, top: float) -> float:
  """The largest log rate, up to `top`, at which no more than the target is guessed."""
  low, high = _SMALLEST, top
  for _ in range(_REFINEMENTS):
    log_rates = np.linspace(low, high, _GRID)
    few = np.searchsorted(fractions(log_rates)[0], target, side='right')
    low, high = log_rates[max(few - 1, 0)], log_rates[min(few, _GRID - 1)]
  return float(low)
