"""Data canaries that are optimized through whole trainings, for the final model.

Let A(x) be the model of a training whose examples include a random half of the
canaries x. Whoever sees A(x) scores all canaries; the audit finds the more the
further the scores of that half are above those of the other, in units of their
spread. This separation is a function of x, and its gradient, the metagradient,
passes through every step of the training.
"""

from collections.abc import Callable
import math

import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
from jaxtyping import Bool, Float
import optax

from epe_jax.dpsgd import poisson_batches
from epe_jax.training import fedavg
from epe_jax.types import Array, Batch, Key, Params, Task, weighted

ScoreCanaries = Callable[[Params, Batch], Float[Array, ' k']]
"""(model, canaries [k, ...]) -> their scores; high for those that took part."""


def optimize_canaries(
  task: Task,
  canaries: Batch,
  *,
  train: Batch,
  inputs: str,
  params: Params,
  score: ScoreCanaries,
  optimizer: optax.GradientTransformation,
  clip_norm: float,
  noise_multiplier: float,
  num_steps: int,
  expected_batch: float,
  ascent: optax.GradientTransformation,
  num_updates: int,
  key: Key,
  bounds: tuple[float, float] = (0.0, 1.0),
  progress: Callable[[int, Batch], None] | None = None,
) -> Batch:
  """Ascends the separation of canaries that take part from those that do not.

  Each update has a training of its own, by DP-SGD from the given model, and a random
  half of the canaries that takes part in it; then a second training in which
  the other half does, all else being alike, so that what does not depend on taking
  part cancels. The attacker knows the initial model: a metagradient is of use to
  trainings from that model, and those from another would have another.

  Args:
    task: the model and its loss; the loss needs second derivatives.
    canaries: arrays [k, ...], k >= 2 and even: where to begin. Labels stay.
    train: arrays [n, ...], the other examples, or as many like them.
    inputs: name of the inputs, which are optimized.
    params: the initial model.
    score: of canaries by the final model, differentiable.
    optimizer: of the model.
    clip_norm: S > 0.
    noise_multiplier: z >= 0.
    num_steps: of a training, >= 1. The gradients of a step and the models of all
      steps are held at once.
    expected_batch: m in (0, n + k/2], with the canaries that take part.
    ascent: of the inputs, given minus the metagradient: such as optax.adam(0.1).
    num_updates: >= 0.
    key: of halves, batches, noise and what else a training draws.
    bounds: between which the inputs stay.
    progress: called with the number of updates done and the canaries, after each.

  Returns:
    The canaries, with other inputs.

  Raises:
    ValueError: an argument is out of range.

  Reference: Boglioni, Liu, Ilyas and Wu 2025, "Optimizing Canaries for Privacy
  Auditing with Metagradient Descent", arXiv 2507.15836. They differentiate trainings
  without noise and the difference of the mean losses of both halves.
  """
  num, size = (len(jax.tree.leaves(x)[0]) for x in (train, canaries))
  _check(
    size,
    bounds=bounds,
    clip_norm=clip_norm,
    noise_multiplier=noise_multiplier,
    num_steps=num_steps,
    num_updates=num_updates,
  )
  most = num + size // 2
  if not 0 < expected_batch <= most:
    raise ValueError(
      f'expected_batch={expected_batch} is not in (0, {most}], of {num} '
      f'examples and half of {size} canaries.'
    )
  rate = expected_batch / most
  places = poisson_batches.choose_padded_batch(
    most, expected_batch, steps=num_steps
  )
  join = lambda x, y: jnp.concatenate([x, jnp.asarray(y, x.dtype)])

  def clip_gradient(
    params: Params, example: Batch, key: Key
  ) -> Float[Array, ' d']:
    def loss(params: Params) -> Float[Array, '']:
      one = jax.tree.map(lambda x: x[None], example)
      losses = weighted(task.loss(params, one, key))
      weight = jnp.where(losses.weight > 0, losses.weight, 1)
      return jnp.sum(losses.total / weight)

    gradient, _ = ravel_pytree(jax.grad(loss)(params))
    # The square root of a sum that is never 0 has a gradient.
    norm = jnp.sqrt(jnp.sum(gradient**2) + 1e-30)
    return gradient * jnp.minimum(1, clip_norm / norm)

  def train_model(
    examples: Batch, includes: Bool[Array, ' k'], key: Key
  ) -> Params:
    """The final model of a training with some of the canaries."""
    joins = jnp.concatenate([jnp.ones(num, bool), includes])

    @jax.checkpoint
    def step(
      state: tuple[Params, optax.OptState], key: Key
    ) -> tuple[tuple[Params, optax.OptState], None]:
      params, _ = state
      batch_key, loss_key, noise_key = jax.random.split(key, 3)
      taken = jax.random.uniform(batch_key, joins.shape) < rate
      (rows,) = jnp.nonzero(taken & joins, size=places, fill_value=-1)
      batch = jax.tree.map(lambda x: x[jnp.maximum(rows, 0)], examples)
      gradients = jax.vmap(clip_gradient, in_axes=(None, 0, None))(
        params, batch, loss_key
      )
      total = jnp.sum(gradients, axis=0, where=(rows >= 0)[:, None])
      std = noise_multiplier * clip_norm
      total += std * jax.random.normal(noise_key, total.shape)
      gradient = total / expected_batch
      return fedavg.apply_gradient(optimizer, gradient, *state), None

    start = params, optimizer.init(params)
    keys = jax.random.split(key, num_steps)
    (final, _), _ = jax.lax.scan(step, start, keys)
    return final

  def separation(x: Array, train: Batch, key: Key) -> Float[Array, '']:
    inserted = {**canaries, inputs: x}
    examples = jax.tree.map(join, train, inserted)
    half_key, training_key = jax.random.split(key)
    half = jax.random.permutation(half_key, jnp.arange(size) < size // 2)
    distances = [
      standardize_separation(
        score(train_model(examples, includes, training_key), inserted), includes
      )
      for includes in (half, ~half)
    ]
    return (distances[0] + distances[1]) / 2

  # The examples are an argument, so that they are not part of the program.
  @jax.jit
  def ascend(
    x: Array, state: optax.OptState, train: Batch, key: Key
  ) -> tuple[Array, optax.OptState]:
    metagradient = jax.grad(separation)(x, train, key)
    moved, state = fedavg.apply_gradient(
      ascent, -metagradient.ravel(), x, state
    )
    return jnp.clip(jnp.asarray(moved), *bounds), state

  on_device = jax.tree.map(jnp.asarray, train)
  x = jnp.asarray(canaries[inputs])
  state = ascent.init(x)
  for i, update_key in enumerate(jax.random.split(key, num_updates)):
    x, state = ascend(x, state, on_device, update_key)
    if progress is not None:
      progress(i + 1, {**canaries, inputs: x})
  return {**canaries, inputs: x}


def standardize_separation(
  scores: Float[Array, ' k'], includes: Bool[Array, ' k']
) -> Float[Array, '']:
  """By how many standard deviations scores of one group exceed the other's.

  The difference of the means, over the root mean square of both deviations.

  Args:
    scores: of all canaries.
    includes: which of them took part; some, and not all.

  >>> scores = jnp.array([4.0, 2.0, 1.0, -1.0])
  >>> includes = jnp.array([True, True, False, False])
  >>> float(standardize_separation(scores, includes))
  3.0
  """
  groups = [includes, ~includes]
  means = [jnp.mean(scores, where=group) for group in groups]
  variances = [jnp.var(scores, where=group) for group in groups]
  spread = jnp.sqrt((variances[0] + variances[1]) / 2 + 1e-30)
  return (means[0] - means[1]) / spread


def _check(
  num_canaries: int,
  *,
  bounds: tuple[float, float],
  clip_norm: float,
  noise_multiplier: float,
  num_steps: int,
  num_updates: int,
) -> None:
  if num_canaries < 2 or num_canaries % 2:
    raise ValueError(
      f'there are {num_canaries} canaries; give an even number >= 2, of which '
      'half take part.'
    )
  if not bounds[0] < bounds[1]:
    raise ValueError(f'bounds={bounds}; give (low, high) with low < high.')
  if not (clip_norm > 0 and math.isfinite(clip_norm)):
    raise ValueError(f'clip_norm={clip_norm}; give a finite number > 0.')
  if not (noise_multiplier >= 0 and math.isfinite(noise_multiplier)):
    raise ValueError(
      f'noise_multiplier={noise_multiplier}; give a finite z >= 0.'
    )
  if num_steps < 1:
    raise ValueError(f'num_steps={num_steps}; give 1 or more.')
  if num_updates < 0:
    raise ValueError(f'num_updates={num_updates}; give 0 or more.')
