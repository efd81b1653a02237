"""Data canaries that are optimized through whole trainings, for the final model.

Let A(x) be the model of a training whose examples include a random half of the
canaries x. An attacker who sees A(x) scores all canaries. The audit finds more the
further the included half scores above the other, in units of their spread. This
separation is a function of x, and its gradient, the metagradient, passes through
every step of the training.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float
import optax

from epe_jax.dpsgd import dp_sgd, input_canaries, poisson_batches
from epe_jax.training import fedavg
from epe_jax.types import Array, Batch, Key, Params, Task

ScoreCanaries = Callable[[Params, Batch], Float[Array, ' k']]
"""(model, canaries [k, ...]) -> their scores; high for those that are included."""


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
  """Ascends the separation of included canaries from the others.

  Each update trains twice by DP-SGD from the given model: with a random half of the
  canaries, and with the other half, all else being equal, so that whatever does not
  depend on inclusion cancels. The attacker knows the initial model: metagradients
  hold for trainings from that model only.

  Args:
    task: the model and its loss; the loss needs second derivatives.
    canaries: arrays [k, ...], k >= 2 and even: where to begin. Labels stay.
    train: arrays [n, ...], the other examples, or as many similar ones.
    inputs: name of the inputs, which are optimized.
    params: the initial model.
    score: of canaries by the final model, differentiable.
    optimizer: of the model.
    clip_norm: S > 0.
    noise_multiplier: z >= 0.
    num_steps: of a training, >= 1. The gradients of a step and the models of all
      steps are held at once.
    expected_batch: m in (0, n + k/2], with the included canaries.
    ascent: of the inputs, given minus the metagradient; such as optax.adam(0.1).
    num_updates: >= 0.
    key: for halves, batches, noise and all else that a training draws.
    bounds: of the inputs.
    progress: called with the number of updates done and the canaries, after each.

  Returns:
    The canaries, with other inputs.

  Raises:
    ValueError: an argument is out of range.

  References:
    Boglioni, Liu, Ilyas and Wu 2025, "Optimizing Canaries for Privacy Auditing with
    Metagradient Descent", arXiv 2507.15836. They differentiate trainings without
    noise, and the difference of the mean losses of both halves.
  """
  num, size = (len(jax.tree.leaves(x)[0]) for x in (train, canaries))
  if size < 2 or size % 2:
    raise ValueError(
      f'there are {size} canaries; give an even number >= 2, as half of them are '
      'included.'
    )
  if not bounds[0] < bounds[1]:
    raise ValueError(f'bounds={bounds}; give (low, high) with low < high.')
  if num_steps < 1:
    raise ValueError(f'num_steps={num_steps}; give 1 or more.')
  if num_updates < 0:
    raise ValueError(f'num_updates={num_updates}; give 0 or more.')
  dp_sgd.check_sizes(clip_norm, noise_multiplier, expected_batch)
  num_examples = num + size // 2
  padded = poisson_batches.choose_padded_batch(
    num_examples, expected_batch, steps=num_steps
  )
  rate = expected_batch / num_examples
  join = lambda x, y: jnp.concatenate([x, jnp.asarray(y, x.dtype)])

  def clip_gradient(
    params: Params, example: Batch, key: Key
  ) -> Float[Array, ' d']:
    gradient = input_canaries.compute_gradient(task, params, example, key)
    # Never the square root of 0, which has no gradient.
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
      (rows,) = jnp.nonzero(taken & joins, size=padded, fill_value=-1)
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
  """How many standard deviations the scores of one group are above the other's.

  The difference of the means, over the root mean square of both deviations.

  Args:
    scores: of all canaries.
    includes: which of them are included; some, but not all.

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
