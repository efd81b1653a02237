"""A network of two layers; the gradient of an example is two rank-one matrices.

With x̃ = (x, 1) and h̃ = (relu(W₁ᵀx̃), 1) the gradient is x̃ δ₁ᵀ and h̃ δ₂ᵀ, so that

  <g, g'> = <x̃, x̃'> <δ₁, δ₁'> + <h̃, h̃'> <δ₂, δ₂'>,

which takes about p + h products instead of the d = (p + 1) h + (h + 1) c of the
gradients themselves, which are never formed.

References:
  Goodfellow 2015, "Efficient Per-Example Gradient Computations".
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from epe_jax.tasks import classifier
from epe_jax.types import Array, Key, Params, Task


class Factors(NamedTuple):
  """Gradients of the cross-entropy of examples, as factors.

  Attributes:
    inputs: x, [*n, p].
    hidden: relu of the first layer, [*n, h].
    first: derivative by the input of the relu, [*n, h].
    second: derivative by the logits, [*n, c].
  """

  inputs: Float[Array, '*n p']
  hidden: Float[Array, '*n h']
  first: Float[Array, '*n h']
  second: Float[Array, '*n c']


def make_task(inputs: int, *, width: int, classes: int) -> Task:
  """The network as a task, with batches {'x': [b, p], 'y': int32 [b]}.

  Args:
    inputs: p >= 1.
    width: h >= 1, of the hidden layer.
    classes: c >= 2.
  """

  def init(key: Key) -> Params:
    keys = jax.random.split(key)
    draw = jax.nn.initializers.lecun_normal()
    return {
      'w1': draw(keys[0], (inputs, width), jnp.float32),
      'b1': jnp.zeros(width, jnp.float32),
      'w2': draw(keys[1], (width, classes), jnp.float32),
      'b2': jnp.zeros(classes, jnp.float32),
    }

  def logits(params: Params, x: Float[Array, 'b p'], key: Key | None):
    del key
    return _forward(params, x)[1]

  return classifier.classifier(init, logits)


def factor_gradients(
  params: Params, x: Float[Array, '*n p'], y: Float[Array, '*n c']
) -> Factors:
  """The gradients of the cross-entropy of each example with class probabilities y."""
  hidden, logits = _forward(params, x)
  second = jax.nn.softmax(logits) - y
  first = jnp.where(hidden > 0, second @ params['w2'].T, 0)
  return Factors(x, hidden, first, second)


def inner_products(
  one: Factors, others: Factors
) -> Float[Array, '*n'] | Float[Array, '']:
  """<g, g_i> of one gradient with each of others; of shape [] with one other."""
  return (others.inputs @ one.inputs + 1) * (others.first @ one.first) + (
    others.hidden @ one.hidden + 1
  ) * (others.second @ one.second)


def norms(factors: Factors) -> Float[Array, '*n']:
  """|g| of each gradient."""
  square = lambda v: jnp.sum(v * v, axis=-1)
  return jnp.sqrt(
    (square(factors.inputs) + 1) * square(factors.first)
    + (square(factors.hidden) + 1) * square(factors.second)
  )


def clip(factors: Factors, clip_norm: float) -> Factors:
  """CLIP(g; S) of each gradient."""
  scale = jnp.minimum(1, clip_norm / jnp.maximum(norms(factors), 1e-30))
  return factors._replace(
    first=scale[..., None] * factors.first,
    second=scale[..., None] * factors.second,
  )


def _forward(params: Params, x: Float[Array, '*n p']):
  hidden = jax.nn.relu(x @ params['w1'] + params['b1'])
  return hidden, hidden @ params['w2'] + params['b2']
