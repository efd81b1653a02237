"""Lower bounds on ε from one run, of a mechanism with a known trade-off curve.

The recursion of Mahloujifar et al. takes any curve f: a step asks how improbable an
event of probability x can become if a canary moves in or out, which is f(1 - x). It
holds for canaries that leak together too, as `independent` does not.

References: Mahloujifar, Melis, Chaudhuri, "Auditing f-differential privacy in one run"
(ICML 2025, arXiv:2410.22235).
"""

from __future__ import annotations

import functools

from scipy import special

from epe_jax.epsilon import two_gaussians
from epe_jax.epsilon.guessing import (
  GuessesToTry,
  best_bound,
  check_counts,
  check_fair_coins,
  max_rejected,
)
from epe_jax.epsilon.types import (
  Assumption,
  Estimate,
  Scores,
  check_scores,
  make_bound,
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
  check_scores(scores, delta)
  check_fair_coins(scores)

  def solve(num, pair, correct, level):
    return _find_mu(num, sum(pair), correct, level)

  mu = best_bound(scores, significance, guesses, solve)
  epsilon = two_gaussians.epsilon_two_gaussians(0.0, 1.0, mu, 1.0, delta)
  return make_bound(
    epsilon,
    delta,
    'one_run_gdp',
    significance=significance,
    assumes=(Assumption.COINS, Assumption.GAUSSIAN_CURVE),
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
  return _find_mu(num_canaries, num_guesses, correct, significance)


# Audits of a study, or rounds of a run, often have equal counts.
@functools.lru_cache(maxsize=4096)
def _find_mu(num_canaries, num_guesses, correct, significance):
  unit = num_guesses / num_canaries

  def excess(mu):
    """Lower limit of H_0 + R_0, less r/m, in units of r/m: positive if rejected."""
    right = significance * correct / num_guesses
    wrong = significance * (num_guesses - correct) / num_guesses
    for i in range(correct - 1, -1, -1):
      moved = special.ndtr(special.ndtri(right * unit) - mu) / unit
      # Leaving out small terms only lowers the limit.
      if moved - wrong <= 1e-13 * wrong or right + wrong > 2:
        break
      right += (moved - wrong) * i / (num_guesses - i)
      right = min(right, 1.0 / unit)
      wrong = moved
    return float(right + wrong - 1)

  return max_rejected(excess)
