"""Cross-entropy of a last layer with thousands of classes.

The logits are then the largest array of a model, and each pass over them is expensive.
So the gradient reuses the exponentials of the loss, and the bias needs no extra pass.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from epe_jax.tasks._cpu.products import dot_general
from epe_jax.types import Array


@jax.custom_vjp
def cross_entropy(
  x: Float[Array, 'n e'],
  w: Float[Array, 'e classes'],
  b: Float[Array, ' classes'],
  labels: Int[Array, ' n'],
) -> Float[Array, ' n']:
  """Returns -log softmax(x w + b) at the labels: a dense layer and its loss.

  Args:
    x: inputs of the last layer.
    w: its weights.
    b: its bias.
    labels: the true classes, in [0, classes).

  Returns:
    The loss of each row of x, in nats.
  """
  return _forward(x, w, b, labels)[0]


class _Activations(NamedTuple):
  """The arrays that the gradient needs."""

  ones: Float[Array, 'n e_plus_1']
  w: Float[Array, 'e classes']
  labels: Int[Array, ' n']
  exp: Float[Array, 'n classes']
  total: Float[Array, ' n']


def _forward(
  x: Float[Array, 'n e'],
  w: Float[Array, 'e classes'],
  b: Float[Array, ' classes'],
  labels: Int[Array, ' n'],
) -> tuple[Float[Array, ' n'], _Activations]:
  # The bias is the row of weights of an input that is 1.
  ones = jnp.concatenate([x, jnp.ones_like(x[:, :1])], axis=1)
  logits = dot_general(ones, jnp.concatenate([w, b[None]]))
  top = logits.max(axis=1, keepdims=True)
  exp = jnp.exp(logits - top)
  total = exp.sum(axis=1)
  at_label = jnp.take_along_axis(logits, labels[:, None], axis=1)
  loss = jnp.log(total) + (top - at_label)[:, 0]
  return loss, _Activations(ones, w, labels, exp, total)


def _backward(
  activations: _Activations, loss_grad: Float[Array, ' n']
) -> tuple[
  Float[Array, 'n e'],
  Float[Array, 'e classes'],
  Float[Array, ' classes'],
  None,
]:
  ones, w, labels, exp, total = activations
  # XLA fuses a comparison with the rest, where a scatter would run by itself.
  hit = labels[:, None] == jnp.arange(w.shape[1])
  softmax_grad = exp * (loss_grad / total)[:, None]
  logits_grad = softmax_grad - jnp.where(hit, loss_grad[:, None], 0)
  both = ones.T @ logits_grad
  # w as it lies in memory, where XLA:CPU would make a copy of w.T.
  x_grad = dot_general(logits_grad, w, (((1,), (1,)), ((), ())))
  return x_grad, both[:-1], both[-1], None


cross_entropy.defvjp(_forward, _backward)
