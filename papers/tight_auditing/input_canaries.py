"""Canaries of the white-box game that are inputs: the gradient of an example.

An attacker who cannot choose a gradient chooses an example, whose gradient the
model makes. Some kinds choose it once, others again as the model moves. A new kind
is a function and a line in `KINDS`.
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

# Of Madry et al. for CIFAR-10: the ball's radius, a step, and steps in each step of
# training.
_RADIUS, _STEP_SIZE, _NUM_ASCENTS = 8 / 255, 2 / 255, 10
# Largest root mean square of what a step of descent adds to the numbers of an input.
_MAX_STEP, _NUM_DESCENTS = 0.05, 20


class Pool(NamedTuple):
  """The attacker's examples, from which canaries are made.

  Attributes:
    examples: arrays [n, ...] from the distribution of the training data, but not
      training examples. The class is in 'label'.
    inputs: name of the inputs.
    num_classes: number of classes, >= 2.
  """

  examples: Batch
  inputs: str
  num_classes: int


class InputState(NamedTuple):
  """The example of a canary.

  Attributes:
    key: for later draws.
    original: the example as it was drawn, arrays without the axis of examples.
    example: the example as it is now.
  """

  key: Key
  original: Batch
  example: Batch


Refine = Callable[[InputState, Params, Key], Batch]


def make_mislabelled_canary(task: Task, pool: Pool) -> GradientCanary:
  """A random example with a random wrong label.

  Raises:
    ValueError: there is only one class.

  References:
    Tight Auditing of Differentially Private Machine Learning, appendix C.3.
  """
  if pool.num_classes < 2:
    raise ValueError(
      f'num_classes={pool.num_classes}; a wrong label needs 2 or more.'
    )

  def choose(key: Key) -> Batch:
    example_key, label_key = jax.random.split(key)
    example = _draw(pool, example_key)
    shift = jax.random.randint(label_key, (), 1, pool.num_classes)
    wrong = (example['label'] + shift) % pool.num_classes
    return {**example, 'label': wrong.astype(example['label'].dtype)}

  return _make_canary(task, choose)


def make_blank_canary(
  task: Task, pool: Pool, *, value: float = 0.0
) -> GradientCanary:
  """A constant input with the label of a random example.

  Args:
    task: the model and its loss.
    pool: for shapes and the label.
    value: of all numbers of the input: 0 for a black image, 1 for a white one.

  References:
    Tight Auditing of Differentially Private Machine Learning, appendix C.3.
  """

  def choose(key: Key) -> Batch:
    example = _draw(pool, key)
    blank = jnp.full_like(example[pool.inputs], value)
    return {**example, pool.inputs: blank}

  return _make_canary(task, choose)


def make_adversarial_canary(task: Task, pool: Pool) -> GradientCanary:
  """A random example, moved by PGD to a point of high loss in a ball.

  x <- Π(x + α sign ∇_x l(θ, (x, y))), from a random point of the ball
  |x - x_0|_∞ <= r within [0, 1].

  Args:
    task: the model and its loss.
    pool: one of its examples is drawn; inputs are in [0, 1].

  References:
    Madry et al. 2018, "Towards Deep Learning Models Resistant to Adversarial
    Attacks"; Tight Auditing, appendix C.3, which does not say r, α or the number
    of steps: these are those of Madry et al. for CIFAR-10.
  """
  inputs = pool.inputs

  def refine(state: InputState, params: Params, key: Key) -> Batch:
    start_key, loss_key = jax.random.split(key)
    x0 = state.original[inputs]
    low, high = jnp.maximum(x0 - _RADIUS, 0), jnp.minimum(x0 + _RADIUS, 1)

    def loss(x: Array) -> Float[Array, '']:
      return compute_loss(task, params, {**state.original, inputs: x}, loss_key)

    def ascend(x: Array, _: None) -> tuple[Array, None]:
      x = x + _STEP_SIZE * jnp.sign(jax.grad(loss)(x))
      return jnp.clip(x, low, high), None

    start = jax.random.uniform(start_key, x0.shape, x0.dtype)
    x, _ = jax.lax.scan(ascend, low + start * (high - low), length=_NUM_ASCENTS)
    return {**state.original, inputs: x}

  return _make_canary(task, lambda key: _draw(pool, key), refine)


def make_crafted_canary(task: Task, pool: Pool) -> GradientCanary:
  """An input whose gradient is orthogonal to the mean gradient of a pool.

  Descent within [0, 1] on f(x) = |cos(∇l(θ, (x, y)), g)|, where g is the mean gradient of the
  pool, so that the other examples of a batch disturb the score little. The paper
  gives no step size; steps are Polyak's, f / |∇f|, as the minimum 0 is known, but
  bounded. The best input of the path is kept, and the next search begins at it. The
  label stays that of the example that is drawn; with some labels a small model has no
  orthogonal gradient within [0, 1].

  Args:
    task: the model and its loss; the loss needs second derivatives.
    pool: its gradient is computed at once, so keep it small: 64 examples will do.

  References:
    Tight Auditing of Differentially Private Machine Learning, Algorithm 3 and
    appendix C.3; Polyak 1987, "Introduction to Optimization", section 5.3.
  """
  inputs = pool.inputs

  def refine(state: InputState, params: Params, key: Key) -> Batch:
    mean = mean_gradient(task, params, pool.examples, key)

    def similarity(x: Array) -> Float[Array, '']:
      example = {**state.original, inputs: x}
      gradient = compute_gradient(task, params, example, key)
      return jnp.abs(_cosine(gradient, mean))

    def descend(
      best: tuple[Array, Array, Array], _: None
    ) -> tuple[tuple[Array, Array, Array], None]:
      x, best_x, lowest = best
      value, slope = jax.value_and_grad(similarity)(x)
      best_x = jnp.where(value < lowest, x, best_x)
      norm = jnp.maximum(jnp.linalg.norm(slope.ravel()), 1e-30)
      length = jnp.minimum(value / norm, _MAX_STEP * math.sqrt(x.size))
      x = jnp.clip(x - length * slope / norm, 0, 1)
      return (x, best_x, jnp.minimum(value, lowest)), None

    x = state.example[inputs]
    start = (x, x, jnp.float32(jnp.inf))
    (x, best_x, lowest), _ = jax.lax.scan(descend, start, length=_NUM_DESCENTS)
    best_x = jnp.where(similarity(x) < lowest, x, best_x)
    return {**state.original, inputs: best_x}

  return _make_canary(task, lambda key: _draw(pool, key), refine)


KINDS: dict[str, Callable[..., GradientCanary]] = {
  'mislabelled': make_mislabelled_canary,
  'blank': make_blank_canary,
  'adversarial': make_adversarial_canary,
  'crafted': make_crafted_canary,
}
"""The kinds of canary inputs of Tight Auditing, appendix C.3: (task, pool) -> canary."""


def mean_gradient(
  task: Task, params: Params, examples: Batch, key: Key
) -> Float[Array, ' d']:
  """The gradient of the mean loss of examples, arrays [n, ...].

  Args:
    task: the model and its loss.
    params: the model.
    examples: arrays [n, ...].
    key: for dropout and the like.
  """
  examples = jax.tree.map(jnp.asarray, examples)
  num = len(jax.tree.leaves(examples)[0])

  total = lambda params: _sum_losses(task, params, examples, key)
  return ravel_pytree(jax.grad(total)(params))[0] / num


def compute_gradient(
  task: Task, params: Params, example: Batch, key: Key
) -> Float[Array, ' d']:
  """The gradient of the loss of one example, without the axis of examples."""
  loss = lambda params: compute_loss(task, params, example, key)
  return ravel_pytree(jax.grad(loss)(params))[0]


def compute_loss(
  task: Task, params: Params, example: Batch, key: Key
) -> Float[Array, '']:
  """The mean loss of one example, without the axis of examples."""
  one = jax.tree.map(lambda x: x[None], example)
  return _sum_losses(task, params, one, key)


def _sum_losses(
  task: Task, params: Params, examples: Batch, key: Key
) -> Float[Array, '']:
  """The sum of the mean losses of examples, arrays [n, ...]."""
  losses = weighted(task.loss(params, examples, key))
  means = losses.total / jnp.where(losses.weight > 0, losses.weight, 1)
  return jnp.sum(means, dtype=jnp.float32)


def _make_canary(
  task: Task,
  choose: Callable[[Key], Batch],
  refine: Refine | None = None,
) -> GradientCanary:
  """The gradient of a chosen example, refined in each step of training."""

  def init(key: Key, params: Params) -> InputState:
    del params
    example_key, key = jax.random.split(key)
    example = choose(example_key)
    # Copies, so that a caller may donate the state.
    copy = lambda batch: jax.tree.map(jnp.copy, batch)
    return InputState(key, copy(example), copy(example))

  def gradient(
    state: InputState, params: Params, step: Int[Array, '']
  ) -> tuple[Float[Array, ' d'], InputState]:
    key = jax.random.fold_in(state.key, step)
    refine_key, loss_key = jax.random.split(key)
    if refine is not None:
      state = state._replace(example=refine(state, params, refine_key))
    return compute_gradient(task, params, state.example, loss_key), state

  return GradientCanary(init, gradient)


def _draw(pool: Pool, key: Key) -> Batch:
  num = len(jax.tree.leaves(pool.examples)[0])
  row = jax.random.randint(key, (), 0, num)
  return jax.tree.map(lambda x: jnp.asarray(x)[row], pool.examples)


def _cosine(a: Float[Array, ' d'], b: Float[Array, ' d']) -> Float[Array, '']:
  # Never the square root of 0, which has no gradient.
  norm = lambda x: jnp.sqrt(jnp.sum(x**2) + 1e-30)
  return jnp.sum(a * b) / (norm(a) * norm(b))
