"""Scores of white-box games without a model: of correct steps, and of section 6.3's bugs.

With the canary in every step, scores of a correct step are N(0, σ²) without it and
N(1, σ²) with it, where σ is the noise multiplier; otherwise those with it are a mixture
of the two. Audits only count how many exceed a threshold. For very many scores these
counts are drawn, which are multinomial, and not the scores.

To show a bug, batches of gradients are drawn, with the canary's gradient along the last
coordinate in one of two, and released by the step. The other gradients are 0 along that
coordinate, so that the last coordinate of a release in units of its sensitivity follows
the same law if the step is correct. `planted_bugs` are the bugs of a training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Float, Int
import numpy as np
from scipy import special

from epe_jax.epsilon.types import Scores

_DIM, _BATCH, _CLIP_NORM = 4, 32, 1.0
# Gradients are longer than the clip norm, the canary's by far.
_GRADIENT_NORM, _CANARY_NORM = 4.0, 1e4
_NUM_SEEDS = 100


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
  """Observations [*audits, n] of either kind by Algorithm 2, of a correct step.

  Their null law is unknown, as audits must not trust the claimed noise.
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
  """The errors [audits, m] of n observations of each kind, q_c = 1.

  Args:
    rng: source of the draws.
    thresholds: [m], increasing, in units of the clip norm.
    num: n, which may be in the billions.
    noise_multiplier: σ > 0.
    audits: number of independent audits.
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


def clip_each(
  gradients: Float[np.ndarray, 'n batch d'],
  noise: Float[np.ndarray, 'n d'],
  *,
  noise_multiplier: float,
) -> Float[np.ndarray, 'n d']:
  """A correct step: clips each gradient, adds noise to the sum, and averages."""
  total = _clip(gradients).sum(axis=1)
  return (total + noise_multiplier * _CLIP_NORM * noise) / _BATCH


def clip_mean(
  gradients: Float[np.ndarray, 'n batch d'],
  noise: Float[np.ndarray, 'n d'],
  *,
  noise_multiplier: float,
) -> Float[np.ndarray, 'n d']:
  """Violation 1: averages the gradients, and clips their mean."""
  mean = _clip(gradients.sum(axis=1) / _BATCH)
  return mean + noise_multiplier * _CLIP_NORM / _BATCH * noise


def draw_step_observations(
  rng: np.random.Generator,
  num: int,
  *,
  noise_multiplier: float,
  step: Callable[..., Float[np.ndarray, 'n d']] = clip_each,
) -> Scores:
  """Observations of steps, in units of the claimed sensitivity, as Algorithm 2 does."""
  observed = []
  for canary_norm in (0.0, _CANARY_NORM):
    directions = rng.standard_normal((num, _BATCH, _DIM))
    directions[..., -1] = 0.0
    norms = np.linalg.norm(directions, axis=-1, keepdims=True)
    gradients = _GRADIENT_NORM * directions / norms
    if canary_norm:
      canary = np.zeros((num, 1, _DIM))
      canary[..., -1] = canary_norm
      gradients = np.concatenate([gradients, canary], axis=1)
    noise = rng.standard_normal((num, _DIM))
    release = step(gradients, noise, noise_multiplier=noise_multiplier)
    observed.append(release[:, -1] * _BATCH / _CLIP_NORM)
  return Scores(observed[1], observed[0])


def draw_few_seeds(
  rng: np.random.Generator, num: int, *, noise_multiplier: float
) -> Scores:
  """Violation 2: the noise of each step is that of one of 100 seeds.

  The canary is static: if it moved there would be more than 100 values, and the bug
  would not show.
  """
  noises = noise_multiplier * rng.standard_normal(_NUM_SEEDS)
  without, with_canary = noises[rng.integers(_NUM_SEEDS, size=(2, num))]
  return Scores(with_canary + 1, without)


def _clip(vectors: Float[np.ndarray, '*b d']) -> Float[np.ndarray, '*b d']:
  norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
  return vectors * np.minimum(1.0, _CLIP_NORM / np.maximum(norms, 1e-30))
