"""The statistics of attackers: one number per canary, higher for "took part".

They are in order, from the attacker who knows least to the one who knows most; the
analytic ε is of the last.
"""

from jaxtyping import Bool, Float
import numpy as np
from scipy import special

from epe_jax.audit.record import RoundScalars


def max_over_rounds(trace: Float[np.ndarray, 'T k']) -> Float[np.ndarray, ' k']:
  """Returns g_j = max_t cos(c_j, ρ̄_t), if the attacker does not know the rounds.

  References:
    One-shot Empirical Privacy Estimation, Algorithm 3.
  """
  return np.max(np.asarray(trace, np.float64), axis=0)


def score_own_round(
  trace: Float[np.ndarray, 'T k'],
  participation: Bool[np.ndarray, 'T k'] | Float[np.ndarray, 'T k'],
) -> Float[np.ndarray, ' k']:
  """Returns the cosine in a canary's own rounds, if the attacker knows them.

  With n own rounds it is their sum over √n. For n = 1 an unobserved canary has the
  exact null law; for n > 1 its variance is 1/d only if the aggregates of those rounds
  are orthogonal, and client updates seldom are.

  With weights it is Σ_t w_t x_t / √(Σ_t w_t²), the likelihood ratio of independent
  rounds that hold w_t of a canary.

  Args:
    trace: cosines [T, k].
    participation: 0/1 matrix [T, k], or weights; each canary takes part at
      least once. `assign_held_out` assigns rounds to unobserved canaries.

  Raises:
    ValueError: a canary has no round of its own.
  """
  own = np.asarray(participation, np.float64)
  n = np.sum(own**2, axis=0)
  if not np.all(n > 0):
    raise ValueError(
      f'participation has no round for canary {int(np.argmin(n))}; assign '
      "it another's, with `assign_held_out`, or read observed canaries only."
    )
  return np.sum(np.asarray(trace, np.float64) * own, axis=0) / np.sqrt(n)


def assign_held_out(
  participation: Bool[np.ndarray, 'T k'] | Float[np.ndarray, 'T k'],
) -> Bool[np.ndarray, 'T k'] | Float[np.ndarray, 'T k']:
  """Assigns the rounds of observed canaries to the unobserved ones, in turn.

  The two groups then differ in nothing but having taken part.

  Raises:
    ValueError: no canary takes part in any round.
  """
  own = np.asarray(participation)
  observed = own.any(axis=0)
  if not observed.any():
    raise ValueError(
      'participation is all zeros; no canary has rounds to assign to others.'
    )
  whose = np.arange(own.shape[1])
  whose[~observed] = np.resize(
    np.flatnonzero(observed), np.count_nonzero(~observed)
  )
  return own[:, whose]


def score_mixture(
  trace: Float[np.ndarray, 'T k'],
  expected: Float[np.ndarray, ' T'],
  *,
  dim: int,
) -> Float[np.ndarray, ' k']:
  """Returns log mean_t exp(s_t x_t - s_t²/2), the likelihood ratio over rounds.

  x_t is √d times the cosine of round t, N(s_t, 1) if the canary took part in it and
  N(0, 1) if not. If the attacker knows that a canary took part once, and not when, no
  statistic of the trace is more powerful (Neyman and Pearson 1933). It replaces the
  maximum of the paper, which is not the best test for its attacker.

  Args:
    trace: cosines [T, k] with the aggregates.
    expected: mean cosine of a canary in its own round, S / (m |ρ̄|), which an attacker
      who sees the aggregates and knows S and m can compute.
    dim: d.

  References:
    One-shot Empirical Privacy Estimation, Algorithm 3.
  """
  x = np.sqrt(dim) * np.asarray(trace, np.float64)
  s = np.sqrt(dim) * np.asarray(expected, np.float64)[:, None]
  return special.logsumexp(s * x - s**2 / 2, axis=0) - np.log(len(trace))


def score_residual(
  residual: Float[np.ndarray, 'T k'],
  participation: Bool[np.ndarray, 'T k'],
  assigned: Bool[np.ndarray, 'T k'],
  rounds: RoundScalars,
) -> Float[np.ndarray, ' k']:
  """Returns Σ_t <c, Z_t + S c>/(z S √n) over own rounds, the Gaussian mechanism.

  An attacker who knows all other updates and subtracts them is left with noise of a
  known standard deviation, and with the canary if it took part: N(√n/z, 1), or
  N(0, 1) if it did not. The analytic ε is of this attacker.

  Args:
    residual: cosines [T, k] with the residuals, without any canary.
    participation: row t holds the canaries of round t.
    assigned: row t holds the canaries that are scored in round t; `assign_held_out`
      assigns rounds to unobserved ones.
    rounds: the scalars of rounds with noise.

  References:
    One-shot Empirical Privacy Estimation, section 3.1.
  """
  noise = np.asarray(rounds.residual_norm, np.float64)[:, None] * residual
  total = noise * assigned + rounds.canary_norm[:, None] * participation
  in_noise = np.sum(total / rounds.noise_std[:, None], axis=0)
  return in_noise / np.sqrt(assigned.sum(axis=0))


def expect_residual(
  assigned: Bool[np.ndarray, 'T k'], rounds: RoundScalars
) -> Float[np.ndarray, ' k']:
  """Returns the mean of `score_residual` for observed canaries, √n/z."""
  share = np.asarray(rounds.canary_norm / rounds.noise_std, np.float64)
  return (share @ assigned) / np.sqrt(assigned.sum(axis=0))
