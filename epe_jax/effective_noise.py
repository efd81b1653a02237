"""What the other clients hide: the noise that an attacker of one round meets.

One who knows the round of a canary, but not the updates of the others, meets
these on top of the privacy noise.
"""

from collections.abc import Mapping, Sequence
import math
from typing import Any

from jaxtyping import Bool, Float
import numpy as np

from epe_jax.epsilon import gaussian


def multipliers(
  history: Sequence[Mapping[str, Any]], *, dim: int
) -> Float[np.ndarray, ' T']:
  """σ_eff of each round, in units of the clip norm.

  The cosine of a canary with the aggregate of its round is, up to 1/√d, that of
  a Gaussian mechanism with

    σ_eff² = z² + (|Σ_i CLIP(x_i; S)|² + n S²) / (S² d)

  because the sum of the clients' updates and the n canaries of the round are one
  more vector that a random direction seldom meets.

  Args:
    history: the lines of metrics.jsonl of all rounds, with noise_std,
      canary_cosine, aggregate_norm, clip_norm, sum_norm and canaries.
    dim: d.

  Source: One-shot Empirical Privacy Estimation, section 3, with the other
  clients' updates as part of the noise.
  """
  sigma = []
  for line in history:
    # S / m, by what the server logged, and from it z.
    share = line['canary_cosine'] * line['aggregate_norm']
    z = line['noise_std'] / share
    others = (line['sum_norm'] / line['clip_norm']) ** 2 + line['canaries']
    sigma.append(math.sqrt(z**2 + others / dim))
  return np.array(sigma, np.float64)


def epsilon(
  history: Sequence[Mapping[str, Any]],
  participation: Bool[np.ndarray, 'T k'],
  *,
  dim: int,
  delta: float,
) -> float:
  """ε that the own-round reading should find, from norms alone.

  A point prediction, no bound. The reading has mean 1/σ_eff of the round in
  units of 1/√d and keeps its spread; over canaries it is the mean of them.

  Args:
    history: the lines of metrics.jsonl of all rounds.
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
  sigma = multipliers(history, dim=dim)
  mean = np.average(1 / sigma, weights=participation.sum(axis=1))
  return float(gaussian.epsilon_two_gaussians(0, 1, mean, 1, delta))
