"""Canaries of the white-box game that are inputs: the gradient of an example.

An attacker who cannot choose a gradient chooses an example, whose gradient the
model makes. Some examples are chosen once, some anew as the model moves.
"""

from collections.abc import Callable
import math
from typing import NamedTuple

import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
from jaxtyping import Float, Int

from epe_jax.dpsgd.gradient_canaries import GradientCanary
from epe_jax.types import Array, Batch, Key, Params, Task, weighted

# Examples of which the gradient is computed at once.
_MAX_CHUNK = 64


class InputState(NamedTuple):
  """The example of a canary.

  Attributes:
    key: of what is drawn later.
    original: the example as it was chosen, arrays without the axis of examples.
    example: the example as it is now.
    pool: examples in the attacker's hands, arrays [n, ...]; None if it needs
      none.
  """

  key: Key
  original: Batch
  example: Batch
  pool: Batch | None


Refine = Callable[[InputState, Params, Key], Batch]


def make_example_canary(task: Task, example: Batch) -> GradientCanary:
  """The gradient of a given example, ∇_θ l(θ, (x', y')).

  Args:
    task: the model and its loss.
    example: arrays without the axis of examples.
  """
  example = jax.tree.map(jnp.asarray, example)
  return _make_canary(task, lambda key: example)


def make_mislabelled_canary(
  task: Task, examples: Batch, *, num_classes: int, labels: str = 'label'
) -> GradientCanary:
  """A random example with a random label that is not its own.

  Args:
    task: the model and its loss.
    examples: arrays [n, ...], of which one is drawn; not those of training.
    num_classes: >= 2.
    labels: name of the classes in the examples.

  Raises:
    ValueError: num_classes is out of range.

  Reference: Tight Auditing of Differentially Private Machine Learning, appendix
  C.3.
  """
  if num_classes < 2:
    raise ValueError(
      f'num_classes={num_classes}; a wrong label needs 2 or more.'
    )

  def choose(key: Key) -> Batch:
    example_key, label_key = jax.random.split(key)
    example = _draw(examples, example_key)
    shift = jax.random.randint(label_key, (), 1, num_classes)
    wrong = (example[labels] + shift) % num_classes
    return {**example, labels: wrong.astype(example[labels].dtype)}

  return _make_canary(task, choose)


def make_blank_canary(
  task: Task,
  examples: Batch,
  *,
  inputs: str,
  value: float = 0.0,
) -> GradientCanary:
  """An input whose numbers are all alike, with the label of a random example.

  Args:
    task: the model and its loss.
    examples: arrays [n, ...], for shapes and the label.
    inputs: name of the inputs in the examples.
    value: of all numbers of the input: 0 for a black image, 1 for a white one.

  Reference: as for `make_mislabelled_canary`.
  """

  def choose(key: Key) -> Batch:
    example = _draw(examples, key)
    return {**example, inputs: jnp.full_like(example[inputs], value)}

  return _make_canary(task, choose)


def make_adversarial_canary(
  task: Task,
  examples: Batch,
  *,
  inputs: str,
  radius: float = 8 / 255,
  step_size: float = 2 / 255,
  num_steps: int = 10,
  every: int = 1,
) -> GradientCanary:
  """A random example, moved in a ball to where its loss is high, by PGD.

  x <- Π(x + α sign ∇_x l(θ, (x, y))), from a random point of the ball
  |x - x_0|_∞ <= r within [0, 1].

  Args:
    task: the model and its loss.
    examples: arrays [n, ...] with inputs in [0, 1], of which one is drawn; not
      those of training.
    inputs: name of the inputs in the examples.
    radius: r > 0, in units of the inputs.
    step_size: α > 0.
    num_steps: steps of ascent, >= 1.
    every: steps of training after which it is made anew, >= 1.

  Raises:
    ValueError: a number is out of range.

  References:
    Madry et al. 2018, "Towards Deep Learning Models Resistant to Adversarial
    Attacks"; Tight Auditing, appendix C.3, which does not say r, α or the number
    of steps: these are those of Madry et al. for CIFAR-10.
  """
  _check_positive(radius=radius, step_size=step_size)
  _check_counts(num_steps=num_steps, every=every)

  def refine(state: InputState, params: Params, key: Key) -> Batch:
    start_key, loss_key = jax.random.split(key)
    x0 = state.original[inputs]
    low, high = jnp.maximum(x0 - radius, 0), jnp.minimum(x0 + radius, 1)

    def loss(x: Array) -> Float[Array, '']:
      return _loss(task, params, {**state.original, inputs: x}, loss_key)

    def ascend(x: Array, _: None) -> tuple[Array, None]:
      x = x + step_size * jnp.sign(jax.grad(loss)(x))
      return jnp.clip(x, low, high), None

    start = jax.random.uniform(start_key, x0.shape, x0.dtype)
    x, _ = jax.lax.scan(ascend, low + start * (high - low), length=num_steps)
    return {**state.original, inputs: x}

  return _make_canary(
    task, lambda key: _draw(examples, key), refine=refine, every=every
  )


def make_crafted_canary(
  task: Task,
  pool: Batch,
  *,
  inputs: str,
  max_step: float = 0.05,
  num_steps: int = 20,
  every: int = 1,
  bounds: tuple[float, float] | None = (0.0, 1.0),
) -> GradientCanary:
  """An input whose gradient is orthogonal to the mean gradient of a pool.

  Descent on f(x) = |cos(∇l(θ, (x, y)), g)|, where g is the mean gradient of the
  pool: what other examples add to the sum then disturbs the score as little as
  may be. The paper gives no step size; steps are Polyak's, f / |∇f|, as the
  least value 0 is known, but no longer than a given length. Of all inputs on the
  way the best is kept. After the first time the search begins at the canary of
  before. The label stays that of the example that is drawn, and with some labels
  a small model has no orthogonal gradient within the bounds.

  Args:
    task: the model and its loss; the loss needs second derivatives.
    pool: arrays [n, ...] of the distribution of the training data, but not of
      them, since nobody sees their gradients without noise. It is kept in the
      state. 64 or multiples of it are quick.
    inputs: name of the inputs in the pool.
    max_step: root mean square of what a step adds to the numbers of an input
      at most, > 0.
    num_steps: steps of descent each time, >= 1.
    every: steps of training after which it is crafted anew, >= 1.
    bounds: between which inputs stay; None for none.

  Raises:
    ValueError: a number is out of range.

  References:
    Tight Auditing of Differentially Private Machine Learning, Algorithm 3 and
    appendix C.3; Polyak 1987, "Introduction to Optimization", section 5.3.
  """
  _check_positive(max_step=max_step)
  _check_counts(num_steps=num_steps, every=every)
  if bounds is not None and not bounds[0] < bounds[1]:
    raise ValueError(f'bounds={bounds}; give (low, high) with low < high.')
  pool = jax.tree.map(jnp.asarray, pool)

  def refine(state: InputState, params: Params, key: Key) -> Batch:
    assert state.pool is not None
    mean = mean_gradient(task, params, state.pool, key)

    def similarity(x: Array) -> Float[Array, '']:
      example = {**state.original, inputs: x}
      return jnp.abs(_cosine(_gradient(task, params, example, key), mean))

    def descend(
      best: tuple[Array, Array, Array], _: None
    ) -> tuple[tuple[Array, Array, Array], None]:
      x, best_x, lowest = best
      value, slope = jax.value_and_grad(similarity)(x)
      best_x = jnp.where(value < lowest, x, best_x)
      norm = jnp.maximum(jnp.linalg.norm(slope.ravel()), 1e-30)
      length = jnp.minimum(value / norm, max_step * math.sqrt(x.size))
      x = x - length * slope / norm
      x = x if bounds is None else jnp.clip(x, *bounds)
      return (x, best_x, jnp.minimum(value, lowest)), None

    x = state.example[inputs]
    start = (x, x, jnp.float32(jnp.inf))
    (x, best_x, lowest), _ = jax.lax.scan(descend, start, length=num_steps)
    best_x = jnp.where(similarity(x) < lowest, x, best_x)
    return {**state.original, inputs: best_x}

  return _make_canary(
    task,
    lambda key: _draw(pool, key),
    refine=refine,
    every=every,
    pool=pool,
  )


def mean_gradient(
  task: Task, params: Params, pool: Batch, key: Key
) -> Float[Array, ' d']:
  """The gradient of the mean loss of examples, in chunks.

  Args:
    task: the model and its loss.
    params: the model.
    pool: arrays [n, ...].
    key: of dropout and the like.
  """
  num = len(jax.tree.leaves(pool)[0])
  size = max(i for i in range(1, min(num, _MAX_CHUNK) + 1) if num % i == 0)
  chunks = jax.tree.map(lambda x: x.reshape(-1, size, *x.shape[1:]), pool)

  def total(params: Params, batch: Batch) -> Float[Array, '']:
    losses = weighted(task.loss(params, batch, key))
    means = losses.total / jnp.where(losses.weight > 0, losses.weight, 1)
    return jnp.sum(means, dtype=jnp.float32)

  def add(sum_: Array, batch: Batch) -> tuple[Array, None]:
    return sum_ + ravel_pytree(jax.grad(total)(params, batch))[0], None

  zero = jnp.zeros(sum(x.size for x in jax.tree.leaves(params)), jnp.float32)
  return jax.lax.scan(add, zero, chunks)[0] / num


def _make_canary(
  task: Task,
  choose: Callable[[Key], Batch],
  *,
  refine: Refine | None = None,
  every: int = 1,
  pool: Batch | None = None,
) -> GradientCanary:
  """The gradient of a chosen example, refined at every so many steps."""

  def init(key: Key, params: Params) -> InputState:
    del params
    example_key, key = jax.random.split(key)
    example = choose(example_key)
    # Copies, so that a caller may donate the state.
    copy = lambda batch: jax.tree.map(jnp.copy, batch)
    return InputState(key, copy(example), copy(example), copy(pool))

  def gradient(
    state: InputState, params: Params, step: Int[Array, '']
  ) -> tuple[Float[Array, ' d'], InputState]:
    key = jax.random.fold_in(state.key, step)
    refine_key, loss_key = jax.random.split(key)
    if refine is not None:
      state = state._replace(
        example=jax.lax.cond(
          step % every == 0,
          refine,
          lambda state, params, key: state.example,
          state,
          params,
          refine_key,
        )
      )
    return _gradient(task, params, state.example, loss_key), state

  return GradientCanary(init, gradient)


def _draw(examples: Batch, key: Key) -> Batch:
  num = len(jax.tree.leaves(examples)[0])
  row = jax.random.randint(key, (), 0, num)
  return jax.tree.map(lambda x: jnp.asarray(x)[row], examples)


def _loss(
  task: Task, params: Params, example: Batch, key: Key
) -> Float[Array, '']:
  one = jax.tree.map(lambda x: x[None], example)
  losses = weighted(task.loss(params, one, key))
  weight = jnp.where(losses.weight > 0, losses.weight, 1)
  return jnp.sum(losses.total / weight, dtype=jnp.float32)


def _gradient(
  task: Task, params: Params, example: Batch, key: Key
) -> Float[Array, ' d']:
  loss = lambda params: _loss(task, params, example, key)
  return ravel_pytree(jax.grad(loss)(params))[0]


def _cosine(a: Float[Array, ' d'], b: Float[Array, ' d']) -> Float[Array, '']:
  # The square root of a sum that is never 0 has a gradient.
  norm = lambda x: jnp.sqrt(jnp.sum(x**2) + 1e-30)
  return jnp.sum(a * b) / (norm(a) * norm(b))


def _check_positive(**values: float) -> None:
  for name, value in values.items():
    if not (value > 0 and math.isfinite(value)):
      raise ValueError(f'{name}={value}; give a finite number > 0.')


def _check_counts(**values: int) -> None:
  for name, value in values.items():
    if value < 1:
      raise ValueError(f'{name}={value}; give 1 or more.')
