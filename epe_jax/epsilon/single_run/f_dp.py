"""Lower bounds on ε from one run, of a mechanism with a known trade-off curve.

The recursion of Mahloujifar et al. takes any curve f: a step asks how improbable an
event of probability x can become if a canary moves in or out, which is f(1 - x). It
holds for canaries that leak together too, as `independent` does not.

References: Mahloujifar, Melis, Chaudhuri, "Auditing f-differential privacy in one run"
(ICML 2025, arXiv:2410.22235).
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
import functools

import numpy as np
from scipy import special

from epe_jax.epsilon.bounds.rank_bound import Curve
from epe_jax.epsilon.points import gaussian
from epe_jax.epsilon.single_run.guessing import (
  GuessesToTry,
  best_bound,
  bound_family,
  check_counts,
  check_fair_coins,
  max_rejected,
)
from epe_jax.epsilon.trade_offs import tradeoff_curves
from epe_jax.epsilon.types import (
  Assumption,
  Estimate,
  Scores,
  check_scores,
  make_bound,
)

Move = Callable[[float], float]
"""x -> f(1 - x), the smallest probability of an event if a canary moves in or out,
where that of the event was x; or a lower value."""

# So dense that the lines next to an interval are below a smooth curve by less than a
# part in a million.
_NODES = 20_000
# The logarithm of the smallest probability that is told from 0.
_SMALLEST = -40.0


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
  check_scores(scores, delta)
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


def one_run_fdp(
  scores: Scores,
  *,
  delta: float,
  significance: float = 0.05,
  guesses: GuessesToTry | None = None,
  family: tradeoff_curves.MechanismFamily | None = None,
) -> Estimate:
  """Lower bound on ε from one run, for a family of trade-off curves.

  Args:
    scores: scores of m canaries with design 'coin_flip', any leading axes.
    delta: δ, in (0, 1).
    significance: chance that the bound exceeds the true ε, in (0, 1).
    guesses: pairs (k₊, k₋) chosen in advance; `choose_guesses` if None.
    family: of trade-off curves, from `tradeoff_curves` or `families`, such
      as `pld_family` of whatever dp_accounting accounts for; that of (ε, δ)-DP at
      this δ if None, which every mechanism keeps.

  Returns:
    A lower bound >= 0 at confidence 1 - significance; inf if the scores reject
    every member of the family. Its method ends in the name of the family.

  Raises:
    ValueError: as `one_run_gdp`.

  >>> scores = Scores(np.ones(500), np.zeros(500), design='coin_flip')
  >>> bound = one_run_fdp(scores, delta=1e-5, guesses=[(500, 500)])
  >>> round(bound.epsilon, 2)
  5.81
  """
  check_fair_coins(scores)
  return bound_family(
    scores,
    _solve_strength,
    method='one_run_fdp',
    delta=delta,
    significance=significance,
    guesses=guesses,
    family=family,
    assumes=(Assumption.COINS,),
  )


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
  return _find_strength(
    _move_gaussian, num_canaries, num_guesses, correct, significance
  )


def _find_strength(
  make_move: Callable[[float], Move],
  num_canaries: int,
  num_guesses: int,
  correct: int,
  significance: float,
  limit: float = np.inf,
) -> float:
  """The largest strength of a leak whose curve makes the guesses too improbable."""

  def excess(strength):
    return total_excess(
      make_move(strength),
      num_canaries=num_canaries,
      num_guesses=num_guesses,
      correct=correct,
      significance=significance,
    )

  return max_rejected(excess, limit)


def total_excess(
  move: Move,
  *,
  num_canaries: int,
  num_guesses: int,
  correct: int,
  significance: float,
) -> float:
  """Lower limit of H_0 + R_0 of `max_rejected_mu`, less r/m, in units of r/m.

  Args:
    move: of the curve f.
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


# Audits of a study, or rounds of a run, often have equal counts.
@functools.lru_cache(maxsize=4096)
def _solve_mu(num, pair, correct, level):
  return _find_strength(_move_gaussian, num, sum(pair), correct, level)


@functools.lru_cache(maxsize=4096)
def _solve_strength(curve, num, pair, correct, level):
  make_move = functools.partial(_tabulate_move, curve)
  return _find_strength(make_move, num, sum(pair), correct, level, curve.limit)


def _move_gaussian(mu: float) -> Move:
  return lambda rate: special.ndtr(special.ndtri(rate) - mu)


# The numbers of guesses of an audit try the same strengths at first.
@functools.lru_cache(maxsize=16)
def _tabulate_move(curve: Curve, strength: float) -> Move:
  """x -> f(1 - x), which is the inverse of 1 - f, as f is its own inverse."""
  log_rates = np.linspace(_SMALLEST, 0.0, _NODES)
  rates = np.exp(log_rates)
  hit = np.maximum.accumulate(1 - curve.fnr(strength, log_rates))
  # The first of equal values, so that the result is never too large.
  hit, first = np.unique(hit, return_index=True)
  rates = rates[first]
  slopes = np.diff(rates) / np.diff(hit)
  # At the ends no line is known from outside.
  below = np.concatenate([[0.0, 0.0], slopes])
  above = np.concatenate([slopes[1:], [1e300, 1e300]])
  xs, ys = hit.tolist(), rates.tolist()
  before, after = below.tolist(), above.tolist()

  def move(x: float) -> float:
    i = bisect.bisect_left(xs, x)
    if i == 0:
      return 0.0
    if i == len(xs):
      return ys[-1]
    # A convex function is above the lines of the intervals next to its own.
    first_line = ys[i - 1] + before[i] * (x - xs[i - 1])
    second_line = ys[i] - after[i - 1] * (xs[i] - x)
    return max(first_line, second_line, 0.0)

  return move
