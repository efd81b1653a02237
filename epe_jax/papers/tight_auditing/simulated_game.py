"""Scores of a white-box game by their law, without training.

With the canary in every step, scores are N(0, σ²) without it and N(1, σ²) with it,
where σ is the noise multiplier; otherwise those with it are a mixture of the two.
Audits only count how many exceed a threshold. For very many scores these counts are
drawn, which are multinomial, and not the scores.
"""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float, Int
import numpy as np
from scipy import special

from epe_jax.epsilon.types import Scores


class Counts(NamedTuple):
  """Errors at fixed thresholds, of n observations of each kind.

  Attributes:
    false_positives: [*batch, m] observations without the canary at or above each.
    false_negatives: [*batch, m] observations with the canary below each.
    num: n.
  """

  false_positives: Int[np.ndarray, '*batch m']
  false_negatives: Int[np.ndarray, '*batch m']
  num: int


def draw_observations(
  rng: np.random.Generator,
  shape: tuple[int, ...],
  *,
  noise_multiplier: float,
  canary_probability: float = 1.0,
) -> Scores:
  """Draws observations of Algorithm 2 of a correct step.

  Args:
    rng: source of the draws.
    shape: [*audits, n] of either kind.
    noise_multiplier: σ > 0, the noise in units of the clip norm.
    canary_probability: q_c, in (0, 1].

  Returns:
    The scores, with an unknown null law, as audits must not trust the claimed noise.
  """
  without, with_canary = noise_multiplier * rng.standard_normal((2, *shape))
  took_part = rng.random(shape) < canary_probability
  return Scores(with_canary + took_part, without)


def draw_counts(
  rng: np.random.Generator,
  thresholds: Float[np.ndarray, 'm'],
  num: int,
  *,
  noise_multiplier: float,
  audits: int,
) -> Counts:
  """Draws the errors at thresholds of n observations of each kind, q_c = 1.

  Args:
    rng: source of the draws.
    thresholds: [m], increasing, in units of the clip norm.
    num: n, which may be in the billions.
    noise_multiplier: σ > 0.
    audits: number of independent audits.

  Returns:
    The counts, [audits, m].
  """
  counts = []
  for mean in (0.0, 1.0):
    edges = np.concatenate([[-np.inf], thresholds, [np.inf]])
    z = (edges - mean) / noise_multiplier
    # Differences of the smaller tail, so that far cells keep their digits.
    right = z[:-1] > 0
    below, above = special.ndtr(z), special.ndtr(-z)
    cells = np.where(right, above[:-1] - above[1:], below[1:] - below[:-1])
    drawn = rng.multinomial(num, cells / cells.sum(), size=audits)
    counts.append(np.cumsum(drawn, axis=-1)[..., :-1])
  below_without, below_with = counts
  return Counts(num - below_without, below_with, num)
