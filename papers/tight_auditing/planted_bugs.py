"""Training steps of DP-SGD with the bugs of Tight Auditing, section 6.3.

Each is a `dp_sgd.NoisyGradient` that the white-box game must detect. The third bug,
noise that is too small, is `dp_sgd.noisy_gradient` with a smaller noise multiplier
than claimed. `simulated_steps` has the same bugs without a model.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Float

from epe_jax.dpsgd import dp_sgd
from epe_jax.training import clipping
from epe_jax.types import Array, Key, Params, Task

# Larger than the norm of any gradient.
_UNCLIPPED = 1e30


def clip_after_averaging(
  task: Task,
  *,
  clip_norm: float,
  noise_multiplier: float,
  expected_batch: float,
  microbatch: int | None = None,
) -> dp_sgd.NoisyGradient:
  """CLIP((Σ_i ∇ℓ_i + g')/m; C) + N(0, (σ C/m)² I): violation 1.

  The noise is that of a mean of clipped gradients, which one example moves m times
  less than this one. Arguments are those of `dp_sgd.noisy_gradient`.
  """
  sum_gradients = dp_sgd.sum_clipped_gradients(
    task, clip_norm=_UNCLIPPED, microbatch=microbatch
  )

  def release(
    params: Params,
    batch: dp_sgd.ExampleBatch,
    canary: Float[Array, ' d'],
    joins: Float[Array, ''],
    training_key: Key,
    noise_key: Key,
  ) -> Float[Array, ' d']:
    sums = sum_gradients(params, batch, training_key)
    mean = (sums.vector + joins * canary) / expected_batch
    std = noise_multiplier * clip_norm / expected_batch
    clipped, _ = clipping.clip(mean, clip_norm)
    return dp_sgd.add_noise(clipped, std, noise_key, always=sums.num >= 0)

  return release


def noise_of_few_seeds(
  noisy_gradient: dp_sgd.NoisyGradient, seeds_key: Key, *, num_seeds: int = 100
) -> dp_sgd.NoisyGradient:
  """A correct step with one of `num_seeds` noise vectors: violation 2."""

  def release(
    params: Params,
    batch: dp_sgd.ExampleBatch,
    canary: Float[Array, ' d'],
    joins: Float[Array, ''],
    training_key: Key,
    noise_key: Key,
  ) -> Float[Array, ' d']:
    seed = jax.random.randint(noise_key, (), 0, num_seeds, jnp.int32)
    return noisy_gradient(
      params,
      batch,
      canary,
      joins,
      training_key,
      jax.random.fold_in(seeds_key, seed),
    )

  return release
