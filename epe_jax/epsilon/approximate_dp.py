"""A lower bound on ε from one run, of any (ε, δ)-DP mechanism.

If each of m canaries took part independently with probability 1/2, then (ε, δ)-DP
limits how many guesses can be correct, and many correct ones reject a small ε. Neither
a second model nor an assumption about the scores is needed.

Coins of another probability π need guesses of one side, say "in". Given the output y
and the earlier coins, let P and Q be the laws of y with canary i in and out. With
(ε, δ)-DP, P = P' + E with P' <= e^ε Q and ∫E <= δ. Say that an included canary is
revealed with probability E(y)/P(y), and so with probability π δ at most. A canary that
is not revealed is in with probability π P'/(π P' + (1-π) Q) <= q = π e^ε/(π e^ε + 1-π),
whatever the earlier coins were. So unless one of the m is revealed, the number of right
guesses out of r is stochastically at most Bin(r, q), and

  P(W >= v) <= P(Bin(r, q) >= v) + m π δ.

References: Steinke, Nasr, Jagielski, "Privacy auditing with one (1) training run"
(NeurIPS 2023, arXiv:2305.08846), Theorem 5.2 and appendix D.
"""

from __future__ import annotations

import functools

import numpy as np
from scipy import special

from epe_jax.epsilon import arguments
from epe_jax.epsilon.guessing import (
  GuessesToTry,
  best_bound,
  check_counts,
  max_rejected,
  prior_of_guess,
)
from epe_jax.epsilon.types import (
  Assumption,
  Estimate,
  Scores,
  check_scores,
  make_bound,
)


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
  check_scores(scores)
  delta = arguments.check_number('delta', delta, '[0, 1)')
  solve = functools.partial(_solve_epsilon, delta, scores.inclusion_probability)
  epsilon = best_bound(scores, significance, guesses, solve)
  return make_bound(
    epsilon,
    delta,
    'one_run',
    significance=significance,
    assumes=(Assumption.COINS,),
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
