"""What the other clients hide: the noise that an attacker of one round meets.

One who knows the round of a canary, but not the updates of the others, meets
these on top of the privacy noise.
"""

from jaxtyping import Bool, Float
import numpy as np

from epe_jax.epsilon import gaussian
from epe_jax.round_scalars import RoundScalars


def multipliers(rounds: RoundScalars, *, dim: int) -> Float[np.ndarray, ' T']:
  """σ_eff of each round, in units of the clip norm.

  The cosine of a canary with the aggregate of its round is, up to 1/√d, that of
  a Gaussian mechanism with

    σ_eff² = z² + (|Σ_i CLIP(x_i; S)|² + n S²) / (S² d)

  because the sum of the clients' updates and the n canaries of the round are one
  more vector that a random direction seldom meets.

  Args:
    rounds: what is known of each round.
    dim: d.

  Source: One-shot Empirical Privacy Estimation, section 3, with the other
  clients' updates as part of the noise.
  """
  z = np.asarray(rounds.noise_std / rounds.canary_norm, np.float64)
  others = (rounds.sum_norm / rounds.clip_norm) ** 2 + rounds.canaries
  return np.sqrt(z**2 + others / dim)


def epsilon(
  rounds: RoundScalars,
  participation: Bool[np.ndarray, 'T k'],
  *,
  dim: int,
  delta: float,
) -> float:
  """ε that the own-round reading should find, from norms alone.

  A point prediction, no bound. The reading has mean 1/σ_eff of the round in
  units of 1/√d and keeps its spread; over canaries it is the mean of them.

  Args:
    rounds: what is known of each round.
    participation: 0/1, row t holds the canaries of round t; each in one round
      at most.
    dim: d.
    delta: in (0, 1).

  Raises:
    ValueError: a canary takes part more than once, when the aggregates of its
      rounds are no independent looks, or none does.
  """
  counts = participation.sum(axis=0)
  if counts.max(initial=0) != 1:
    raise ValueError(
      f'a canary takes part in {int(counts.max(initial=0))} rounds; the norms of '
      'rounds tell what is read from one round. Give a run in which canaries '
      'take part once.'
    )
  sigma = multipliers(rounds, dim=dim)
  mean = np.average(1 / sigma, weights=participation.sum(axis=1))
  return float(gaussian.epsilon_two_gaussians(0, 1, mean, 1, delta))
