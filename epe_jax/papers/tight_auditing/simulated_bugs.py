"""DP-SGD steps with and without the bugs of section 6.3, on gradients alone.

Batches of gradients are drawn, with the canary's gradient along the last coordinate
in one of two, and released by the step. The other gradients are 0 along that
coordinate, so that an observation, the last coordinate of a release in units of its
sensitivity, is N(0, σ²) or N(1, σ²) if the step is correct. `planted_bugs` are the
bugs of a training.
"""

from collections.abc import Callable

from jaxtyping import Float
import numpy as np

from epe_jax.epsilon.types import Scores

_DIM, _BATCH, _CLIP_NORM = 4, 32, 1.0
# Gradients are longer than the clip norm, the canary's by far.
_GRADIENT_NORM, _CANARY_NORM = 4.0, 1e4
_NUM_SEEDS = 100


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
  """Runs steps with the canary and without, as Algorithm 2 does.

  Args:
    rng: source of gradients and noise.
    num: number of steps of either kind.
    noise_multiplier: z > 0.
    step: `clip_each` or `clip_mean`.

  Returns:
    The observations in units of the claimed sensitivity.
  """
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

  Args:
    rng: source of the 100 noises, and of the choice in each step.
    num: number of steps of either kind.
    noise_multiplier: z > 0.
  """
  noises = noise_multiplier * rng.standard_normal(_NUM_SEEDS)
  without, with_canary = noises[rng.integers(_NUM_SEEDS, size=(2, num))]
  return Scores(with_canary + 1, without)


def _clip(vectors: Float[np.ndarray, '*b d']) -> Float[np.ndarray, '*b d']:
  norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
  return vectors * np.minimum(1.0, _CLIP_NORM / np.maximum(norms, 1e-30))
