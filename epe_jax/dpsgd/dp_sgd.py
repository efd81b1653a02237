"""DP-SGD: clip the gradient of each example, sum, add noise, divide, step.

An `Algorithm` of the same form as `fedavg.dp_fedavg`, with the same `Injection`:
the update of an example is minus its gradient, as that of a client is its change of
the model, so that canaries, observers and records serve both. Clipping and noise
are those of jax-privacy.
"""

from collections.abc import Callable
import functools
import math
from typing import Any, NamedTuple

import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int
import optax

from epe_jax import extras
from epe_jax.epsilon import checks
from epe_jax.parallel.sharding import fusion_barrier
from epe_jax.training import (
  aggregation,
  algorithms,
  clipping,
  correlated_noise,
  round_scalars,
)
from epe_jax.types import Array, Batch, Key, Params, Task, weighted

with extras.explain_missing():
  import jax_privacy
  from jax_privacy import noise_addition

Augment = Callable[[Key, Batch], Batch]


class ExampleBatch(NamedTuple):
  """The examples of one step, padded to a fixed size.

  Attributes:
    examples: arrays [b, ...].
    mask: [b], true where an example is real. Microbatches at the end without any
      real example are skipped (`poisson_batches.draw_poisson_batches` puts them
      there).
  """

  examples: Batch
  mask: Bool[Array, ' b']


class DpSgdState(NamedTuple):
  """The state that a step leaves to the next one.

  Attributes:
    round: the number of steps done, int32.
    params: the model.
    opt_state: state of the optimizer.
    noise_state: of the stream of noise.
  """

  round: Int[Array, '']
  params: Params
  opt_state: optax.OptState
  noise_state: Any = ()


SumGradients = Callable[[Params, ExampleBatch, Key], algorithms.ClippedSums]

# (params, batch, gradient of a canary [d], whether it joins, training key,
#  noise key) -> noisy mean gradient [d]
NoisyGradient = Callable[
  [Params, ExampleBatch, Float[Array, ' d'], Float[Array, ''], Key, Key],
  Float[Array, ' d'],
]
"""A step of DP-SGD up to its release, in the form that can be audited.

The gradient of the canary is not clipped yet. It is one more example of the batch if
`joins` is 1, and absent if it is 0.
"""


def gather_batch(examples: Batch, indices: Int[Array, ' b']) -> ExampleBatch:
  """The examples of these indices; -1 is padding.

  >>> batch = gather_batch({'x': jnp.arange(3)}, jnp.array([2, -1]))
  >>> batch.examples['x'].tolist(), batch.mask.tolist()
  ([2, 0], [True, False])
  """
  rows = jnp.maximum(indices, 0)
  return ExampleBatch(jax.tree.map(lambda x: x[rows], examples), indices >= 0)


def dpsgd(
  task: Task,
  *,
  optimizer: optax.GradientTransformation,
  clip_norm: float,
  noise_multiplier: float,
  expected_batch: float,
  correlation: correlated_noise.Stream = correlated_noise.INDEPENDENT,
  microbatch: int | None = None,
  augment: Augment | None = None,
  augmentations: int = 1,
) -> algorithms.Algorithm:
  """ρ = Σ_i CLIP(-∇ℓ_i; S) + S Σ_j c_j;  θ <- optimizer(θ, -(ρ + Z) / m).

  ∇ℓ_i is the gradient of example i, or its mean over augmentations of the
  example, and c_j a canary of the step: an example whose gradient is -S c_j.
  Z ~ N(0, (z S)^2 I_d).

  Args:
    task: the model and its loss. The loss of an example must not depend on the
      others of its batch.
    optimizer: is given -(ρ + Z) / m as the gradient.
    clip_norm: S, in parameter units, in `round_scalars.CLIP_NORMS`.
    noise_multiplier: z, finite and >= 0. With 0 no noise is drawn at all.
    expected_batch: m > 0, examples and canaries expected in a batch.
    correlation: of the noise over steps; Z is then (B Z)_t.
    microbatch: examples whose gradients are held at once, which divides the
      padded size of a batch. None chooses: one on a CPU, and all of them
      elsewhere. The result is the same up to rounding.
    augment: (key, batch of arrays [n, ...]) -> the same with every example
      augmented; None for none.
    augmentations: K >= 1 augmentations of each example, whose gradients are
      averaged before clipping. They cost K times the work and no privacy.

  Returns:
    init(params) -> `DpSgdState`, and step(state, batch, injection,
    training_key, noise_key) with an `ExampleBatch`, to be jitted by the caller.
    Each key must be new for each step: the noise key from the operating system,
    the training key (dropout, augmentation) from any source.

  Raises:
    ValueError: an argument is out of range.
    ModuleNotFoundError: jax-privacy is not installed.

  References:
    Abadi et al. 2016, "Deep Learning with Differential Privacy", Algorithm 1;
    De et al. 2022, "Unlocking High-Accuracy Differentially Private Image
    Classification through Scale" (augmentations).
  """
  check_sizes(clip_norm, noise_multiplier, expected_batch)
  summed = correlated_noise.correlated(correlation)(noise_multiplier)
  sum_gradients = sum_clipped_gradients(
    task,
    clip_norm=clip_norm,
    microbatch=microbatch,
    augment=augment,
    augmentations=augmentations,
  )

  def init(params: Params) -> DpSgdState:
    # A copy, so that a caller may donate the state and keep the parameters.
    return DpSgdState(
      round=jnp.zeros((), jnp.int32),
      params=jax.tree.map(jnp.copy, params),
      opt_state=optimizer.init(params),
      noise_state=summed.init(sum(x.size for x in jax.tree.leaves(params))),
    )

  def step(
    state: DpSgdState,
    batch: ExampleBatch,
    injection: algorithms.Injection,
    training_key: Key,
    noise_key: Key,
  ) -> tuple[DpSgdState, algorithms.Round]:
    sums = sum_gradients(state.params, batch, training_key)
    # An update is minus a gradient.
    sums = sums._replace(vector=-sums.vector)
    always = sums.num >= 0
    rho = sums.vector + algorithms.sum_canaries(
      summed, injection, clip_norm, training_key, always=always
    )
    add = functools.partial(
      add_noise, std=noise_multiplier * clip_norm, always=always
    )
    noisy = aggregation.Finished(rho, state.noise_state)
    # jax-privacy adds independent noise as it draws it, which has other last bits.
    if correlation is correlated_noise.INDEPENDENT:
      noisy = noisy._replace(total=add(rho, key=noise_key))
    elif noise_multiplier:
      draw = lambda key: add(jnp.zeros_like(rho), key=key)
      noisy = summed.finish(draw, noise_key, rho, state.noise_state)
    aggregate = noisy.total / expected_batch
    params, opt_state = algorithms.apply_gradient(
      optimizer, -aggregate, state.params, state.opt_state
    )
    round = algorithms.make_round(
      sums,
      aggregate,
      injection,
      clip_norm=clip_norm,
      noise_multiplier=noise_multiplier,
      divisor=expected_batch,
    )
    new_state = DpSgdState(state.round + 1, params, opt_state, noisy.state)
    return new_state, round

  return algorithms.Algorithm(init, step)


def noisy_gradient(
  task: Task,
  *,
  clip_norm: float,
  noise_multiplier: float,
  expected_batch: float,
  microbatch: int | None = None,
  augment: Augment | None = None,
  augmentations: int = 1,
) -> NoisyGradient:
  """(Σ_i CLIP(∇ℓ_i; S) + CLIP(g'; S) + Z) / m, the release of one step.

  The arguments are those of `dpsgd`.

  Raises:
    ValueError: an argument is out of range.
  """
  check_sizes(clip_norm, noise_multiplier, expected_batch)
  sum_gradients = sum_clipped_gradients(
    task,
    clip_norm=clip_norm,
    microbatch=microbatch,
    augment=augment,
    augmentations=augmentations,
  )

  def release(
    params: Params,
    batch: ExampleBatch,
    canary: Float[Array, ' d'],
    joins: Float[Array, ''],
    training_key: Key,
    noise_key: Key,
  ) -> Float[Array, ' d']:
    sums = sum_gradients(params, batch, training_key)
    clipped, _ = clipping.clip(canary, clip_norm)
    total = sums.vector + joins * clipped
    std = noise_multiplier * clip_norm
    total = add_noise(total, std, noise_key, always=sums.num >= 0)
    return total / expected_batch

  return release


def sum_clipped_gradients(
  task: Task,
  *,
  clip_norm: float,
  microbatch: int | None = None,
  augment: Augment | None = None,
  augmentations: int = 1,
) -> SumGradients:
  """Σ_i CLIP(∇ℓ_i; S) over the real examples of a batch, by jax-privacy.

  The arguments are those of `dpsgd`; a clip norm of inf clips nothing.

  Returns:
    (params, batch, training key) -> `ClippedSums`. Padding adds nothing, whatever
    its values.

  Raises:
    ValueError: an argument is out of range.
  """
  if augmentations < 1:
    raise ValueError(f'augmentations={augmentations}; give 1 or more.')
  if augmentations > 1 and augment is None:
    raise ValueError(
      f'augmentations={augmentations}, but augment=None; give a function that '
      'augments, or 1.'
    )
  if microbatch is not None and microbatch < 1:
    raise ValueError(f'microbatch={microbatch}; give 1 or more, or None.')
  if microbatch is None and jax.default_backend() == 'cpu':
    # One gradient at a time is clipped and added in a loop. Several are written
    # to memory, and XLA's reduction over them takes tens of times as long as the
    # gradients.
    microbatch = 1

  def mean_loss(params: Params, example: Batch, key: Key) -> Float[Array, '']:
    """Of one example, arrays [1, ...], over its augmentations."""
    if augment is not None:
      augment_key, key = jax.random.split(key)
      copies = jax.tree.map(
        lambda x: jnp.repeat(x, augmentations, axis=0), example
      )
      example = augment(augment_key, copies)
    losses = weighted(task.loss(params, example, key))
    # Augmentations count equally, whatever their weights.
    means = losses.total / jnp.where(losses.weight > 0, losses.weight, 1)
    return jnp.mean(means, dtype=jnp.float32)

  clipped_grad = jax_privacy.clipped_grad(
    mean_loss,
    l2_clip_norm=clip_norm,
    batch_argnums=1,
    prng_argnum=2,
    return_values=True,
    return_grad_norms=True,
    microbatch_size=microbatch,
  )

  def sum_gradients(
    params: Params, batch: ExampleBatch, key: Key
  ) -> algorithms.ClippedSums:
    size = batch.mask.size
    if microbatch is not None and size % microbatch:
      raise ValueError(
        f'microbatch={microbatch} does not divide the {size} places of a '
        'batch; pad batches to a multiple of it.'
      )
    gradient, aux = clipped_grad(
      params, batch.examples, key, is_padding_example=~batch.mask
    )
    # A mask and not a product, as padding need not be finite.
    sum_real = lambda x: jnp.sum(jnp.where(batch.mask, x, 0), dtype=jnp.float32)
    return algorithms.ClippedSums(
      vector=ravel_pytree(gradient)[0],
      num=sum_real(1.0),
      num_unclipped=sum_real(aux.grad_norms <= clip_norm),
      norm=sum_real(aux.grad_norms),
      loss=sum_real(aux.values),
    )

  return sum_gradients


def add_noise(
  x: Float[Array, ' d'], std: float, key: Key, *, always: Bool[Array, '']
) -> Float[Array, ' d']:
  """x + N(0, std² I_d), by jax-privacy; x itself where std is 0.

  Args:
    x: the sum to release.
    std: of the noise.
    key: of the noise.
    always: a traced True for `fusion_barrier`, so that the noise is drawn once and
      not for each use of the sum.
  """
  if not std:
    return x
  privatizer = noise_addition.gaussian_privatizer(stddev=std, prng_key=key)
  return fusion_barrier(
    always, lambda: privatizer.update(x, privatizer.init(x))[0]
  )


def check_sizes(
  clip_norm: float, noise_multiplier: float, expected_batch: float
) -> None:
  """Checks S, z and m.

  Raises:
    ValueError: one of them is out of range.
  """
  checks.check_number('clip_norm', clip_norm, round_scalars.CLIP_NORMS)
  if not (noise_multiplier >= 0 and math.isfinite(noise_multiplier)):
    raise ValueError(
      f'noise_multiplier={noise_multiplier}; give a finite z >= 0.'
    )
  if not (expected_batch > 0 and math.isfinite(expected_batch)):
    raise ValueError(f'expected_batch={expected_batch}; give m > 0.')
