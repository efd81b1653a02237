"""A lower bound on ε from one run, of a mechanism with any trade-off curve.

`coin_flip.one_run_gdp` is the bound of Mahloujifar et al. for Gaussian curves. Their
recursion takes any curve f: a step asks how improbable an event of probability x
can become if a canary moves in or out, which is f(1 - x). It holds for canaries
that leak together too, as `coin_flip_independent` does not.

References: Mahloujifar, Melis, Chaudhuri, "Auditing f-differential privacy in one run"
(ICML 2025, arXiv:2410.22235).
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
import functools

import numpy as np

from epe_jax.epsilon import coin_flip, tradeoff_curves
from epe_jax.epsilon.rank_bound import Curve
from epe_jax.epsilon.types import Assumption, Estimate, Scores

# So dense that the lines next to an interval are below a smooth curve by less than a
# part in a million.
_NODES = 20_000
# The logarithm of the smallest probability that is told from 0.
_SMALLEST = -40.0


def one_run_fdp(
  scores: Scores,
  *,
  delta: float,
  significance: float = 0.05,
  guesses: coin_flip.GuessesToTry | None = None,
  family: tradeoff_curves.MechanismFamily | None = None,
) -> Estimate:
  """Lower bound on ε from one run, for a family of trade-off curves.

  Args:
    scores: scores of m canaries with design 'coin_flip', any leading axes.
    delta: δ, in (0, 1).
    significance: chance that the bound exceeds the true ε, in (0, 1).
    guesses: pairs (k₊, k₋) chosen in advance; `coin_flip.choose_guesses` if None.
    family: of trade-off curves, from `tradeoff_curves` or `families`, such
      as `pld_family` of whatever dp_accounting accounts for; that of (ε, δ)-DP at
      this δ if None, which every mechanism keeps.

  Returns:
    A lower bound >= 0 at confidence 1 - significance; inf if the scores reject
    every member of the family. Its method ends in the name of the family.

  Raises:
    ValueError: as `coin_flip.one_run_gdp`.

  >>> scores = Scores(np.ones(500), np.zeros(500), design='coin_flip')
  >>> bound = one_run_fdp(scores, delta=1e-5, guesses=[(500, 500)])
  >>> round(bound.epsilon, 2)
  5.81
  """
  coin_flip.check_fair_coins(scores)
  return coin_flip.bound_family(
    scores,
    _solve_strength,
    method='one_run_fdp',
    delta=delta,
    significance=significance,
    guesses=guesses,
    family=family,
    assumes=(Assumption.COINS,),
  )


# Audits of a study, or rounds of a run, often have equal counts.
@functools.lru_cache(maxsize=4096)
def _solve_strength(curve, num, pair, correct, level):
  def excess(strength):
    return coin_flip.total_excess(
      _tabulate_move(curve, strength),
      num_canaries=num,
      num_guesses=sum(pair),
      correct=correct,
      significance=level,
    )

  return coin_flip.max_rejected(excess, curve.limit)


# The numbers of guesses of an audit try the same strengths at first.
@functools.lru_cache(maxsize=16)
def _tabulate_move(curve: Curve, strength: float) -> Callable[[float], float]:
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
