"""The statistics of attackers: a score for each canary, from what they see.

Each is a function of arrays, [T, k] for T rounds and k canaries, in float64.

References:
  Andrew et al. 2023, "One-shot Empirical Privacy Estimation for Federated Learning",
  Algorithms 2 and 3, section 3.1.
"""

from jaxtyping import Bool, Float, Int
import numpy as np
from scipy import special

from epe_jax.audit.record import Record
from epe_jax.training.round_scalars import RoundScalars


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


def max_over_rounds(trace: Float[np.ndarray, 'T k']) -> Float[np.ndarray, ' k']:
  """Returns g_j = max_t cos(c_j, ρ̄_t), if the attacker does not know the rounds."""
  return np.max(np.asarray(trace, np.float64), axis=0)


def score_mixture(
  trace: Float[np.ndarray, 'T k'],
  expected: Float[np.ndarray, ' T'],
  *,
  dim: int,
) -> Float[np.ndarray, ' k']:
  """Returns log mean_t exp(s_t x_t - s_t²/2), the likelihood ratio over rounds.

  x_t is √d times the cosine of round t, N(s_t, 1) if the canary took part in it and
  N(0, 1) if not. If the attacker knows that a canary took part once, and not when, no
  statistic of the trace is more powerful (Neyman and Pearson 1933): the maximum of the
  paper is not the best test for its attacker.

  Args:
    expected: mean cosine of a canary in its own round, S / (m |ρ̄|), which an attacker
      who sees the aggregates and knows S and m can compute.
  """
  x = np.sqrt(dim) * np.asarray(trace, np.float64)
  s = np.sqrt(dim) * np.asarray(expected, np.float64)[:, None]
  return special.logsumexp(s * x - s**2 / 2, axis=0) - np.log(len(trace))


def score_left(record: Record) -> Float[np.ndarray, 'T k']:
  """Returns the cosines with what the other updates leave of each release.

  That is its residual and the canary itself, if it took part; 0 if nothing is left.
  """
  rounds = record.rounds
  assert rounds is not None, 'the record of a whole run'
  norm = np.asarray(rounds.residual_norm, np.float64)[:, None]
  own = np.asarray(rounds.canary_norm, np.float64)[:, None] * record.included
  left = norm * np.asarray(record.cosines['residual'], np.float64)
  square = np.maximum(norm**2 + 2 * left * own + own**2, 0.0)
  return (left + own) / np.maximum(np.sqrt(square), 1e-300)


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
    participation: 0/1, or weights; each canary takes part at least once.
      `assign_held_out` assigns rounds to unobserved canaries.

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


def score_residual(
  residual: Float[np.ndarray, 'T k'],
  participation: Bool[np.ndarray, 'T k'],
  assigned: Bool[np.ndarray, 'T k'],
  rounds: RoundScalars,
) -> Float[np.ndarray, ' k']:
  """Returns Σ_t <c, Z_t + S c>/(z S √n) over own rounds, the Gaussian mechanism.

  An attacker who subtracts all other updates is left with noise of a known standard
  deviation, and with the canary if it took part: N(√n/z, 1), or N(0, 1) if it did not.

  Args:
    residual: cosines with the residuals, without any canary.
    assigned: row t holds the canaries that are scored in round t; `assign_held_out`
      assigns rounds to unobserved ones.
    rounds: the scalars of rounds with noise.
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


def score_combined(
  record: Record, strategy: Float[np.ndarray, 'T T'] | None
) -> tuple[Float[np.ndarray, ' k'], Float[np.ndarray, ' k']]:
  """Weighted sums over rounds in units of their noise, and their expectation.

  Args:
    record: with residuals, and with the strategy of its noise.
    strategy: C of the record, for <C a, C y>/|C a|, which expects |C a| of a canary
      of the rounds a, in residuals y; None for sums over own rounds, <a, y>.

  Returns:
    Scores and their expectation where the canary took part, each [k].

  Raises:
    ValueError: the record has not all of that.
  """
  residual, rounds = record.cosines.get('residual'), record.rounds
  if residual is None or rounds is None or record.noising is None:
    raise ValueError('the record lacks residuals, rounds or a strategy.')
  std = np.asarray(rounds.noise_std, np.float64)[:, None]
  share = np.asarray(rounds.canary_norm, np.float64)[:, None] / std
  left = np.asarray(rounds.residual_norm, np.float64)[:, None] * residual / std
  released = left + share * record.included
  signal = share * assign_held_out(record.assigned)
  # Noise of <w, y> is |C⁻ᵀ w|; the weights that tell most are w = Cᵀ C a.
  weights = signal if strategy is None else strategy.T @ (strategy @ signal)
  size = np.linalg.norm(record.noising.T @ weights, axis=0)
  return (
    np.sum(weights * released, axis=0) / size,
    np.sum(weights * signal, axis=0) / size,
  )


def measure_overlap(
  expected: Float[np.ndarray, ' T'], in_round: Int[np.ndarray, ' T'], dim: int
) -> float:
  """`Scores.overlap` of canaries that are in the same rounds.

  Args:
    in_round: number of observed canaries that are assigned each round.
  """
  squares = dim * np.square(expected, dtype=np.float64)
  others = np.sum(in_round * (in_round - 1) * squares**2)
  return float(others / (dim * np.sum(in_round * squares)))
