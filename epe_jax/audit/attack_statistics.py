"""What each attacker reads from the trace of cosines, on the host.

Each statistic is one number per canary, higher for "took part". They are in order,
from an attacker who knows least to one who knows most; the last is the
attacker that the analytic bound assumes.
"""

from jaxtyping import Bool, Float
import numpy as np
from scipy import special

from epe_jax.audit.record import RoundScalars


def max_over_rounds(trace: Float[np.ndarray, 'T k']) -> Float[np.ndarray, ' k']:
  """g_j = max_t cos(c_j, rho_bar_t): for one who does not know the rounds.

  Source: One-shot Empirical Privacy Estimation, Algorithm 3.
  """
  return np.max(np.asarray(trace, np.float64), axis=0)


def score_own_round(
  trace: Float[np.ndarray, 'T k'],
  participation: Bool[np.ndarray, 'T k'] | Float[np.ndarray, 'T k'],
) -> Float[np.ndarray, ' k']:
  """Cosine in a canary's own rounds: for one who knows when it took part.

  With n rounds of its own it is their sum over sqrt(n). For n = 1 a canary that
  took no part has the exact null law; for n > 1 its variance is 1/d only if the
  aggregates of those rounds are orthogonal, and client updates seldom are.

  Where rounds hold more or less of a canary, they count by what they hold:
  Σ_t w_t x_t / sqrt(Σ_t w_t²), the likelihood ratio of independent rounds.

  Args:
    trace: cosines [T, k].
    participation: 0/1 matrix [T, k], or weights; each canary takes part at
      least once. Use `assign_held_out` to read unobserved canaries too.

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
  """The same matrix, with rounds assigned to the held-out canaries.

  Unobserved canaries are read in the rounds of the observed ones in turn, so
  that the two groups differ in nothing but in having taken part.

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
  """log mean_t exp(s_t x_t - s_t^2 / 2): the likelihood ratio over rounds.

  x_t is sqrt(d) times the cosine of round t, N(s_t, 1) if the canary took part
  in it and N(0, 1) if not. For one who knows that a canary took part once and
  not when, no statistic of the trace tells the two apart better.

  Args:
    trace: cosines [T, k] with the aggregates.
    expected: the cosine of a canary in its own round on average, S / (m |rho|),
      which one who sees the aggregates and knows S and m can compute.
    dim: d.

  Source: Neyman and Pearson 1933; it replaces the maximum of One-shot Empirical
  Privacy Estimation, Algorithm 3, which is not the best test for its attacker.
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
  """Σ_t <c, Z_t + S c>/(z S √n) over own rounds: the Gaussian mechanism itself.

  Who knows all that was put in, and removes all but the canary asked about, is
  left with noise, whose standard deviation is known, and that canary if it took
  part: N(√n/z, 1), or N(0, 1) if it did not.

  Args:
    residual: cosines [T, k] with what is left when all canaries are removed.
    participation: row t holds the canaries of round t.
    assigned: rounds in which a canary is read; use `assign_held_out` to read
      unobserved ones.
    rounds: what is known of each round, with noise.

  Source: One-shot Empirical Privacy Estimation, section 3.1; the attacker of the
  analytic ε.
  """
  noise = np.asarray(rounds.residual_norm, np.float64)[:, None] * residual
  total = noise * assigned + rounds.canary_norm[:, None] * participation
  in_noise = np.sum(total / rounds.noise_std[:, None], axis=0)
  return in_noise / np.sqrt(assigned.sum(axis=0))


def expect_residual(
  assigned: Bool[np.ndarray, 'T k'], rounds: RoundScalars
) -> Float[np.ndarray, ' k']:
  """What `score_residual` is to be expected to read of canaries: √n/z."""
  share = np.asarray(rounds.canary_norm / rounds.noise_std, np.float64)
  return (share @ assigned) / np.sqrt(assigned.sum(axis=0))
