"""An LSTM in a form that XLA runs well inside loops.

With an unrolled cell and its gradient a training step of the StackOverflow
model takes more than twice as long on XLA:CPU.
Three things make the difference:

  - The gradient of the weights is one matrix product over all steps of time,
    and not a sum that is carried from step to step.
  - Whatever does not depend on the step before is computed outside of the loop
    over time, the transposed weights above all.
  - States are columns: W^T [x; h] with a tall W^T and few columns is read as it
    lies in memory, where [x, h] W would first be packed at every step.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from epe_jax.tasks._cpu.products import dot_general, round_factor
from epe_jax.types import Array


@jax.custom_vjp
def lstm(
  inputs: Float[Array, 'b t e'],
  w: Float[Array, 'e_plus_h four_h'],
  b: Float[Array, ' four_h'],
) -> Float[Array, 'b t h']:
  """Returns the hidden states of a cell that starts at zero, as hk.LSTM does.

  i, g, f, o = [x, h] w + b;  c' = sigmoid(f + 1) c + sigmoid(i) tanh(g);
  h' = sigmoid(o) tanh(c').

  Args:
    inputs: x of every step of time.
    w: weights, with the rows of x first, then those of h, and the columns of
      the gates i, g, f and o.
    b: bias of the gates.

  Returns:
    h' after every step.

  References:
    Zaremba et al. 2014, "Recurrent Neural Network Regularization". The 1 of the
    forget gate: Jozefowicz et al. 2015, "An Empirical Exploration of Recurrent
    Network Architectures".
  """
  return _forward(inputs, w, b)[0]


class _Activations(NamedTuple):
  """The arrays that the gradient needs, steps of time first and batch last."""

  w: Float[Array, 'e_plus_h four_h']
  x: Float[Array, 't e b']
  h: Float[Array, 't h b']
  c: Float[Array, 't h b']
  # The gates before their sigmoid or tanh.
  z: Float[Array, 't four_h b']


def _forward(
  inputs: Float[Array, 'b t e'],
  w: Float[Array, 'e_plus_h four_h'],
  b: Float[Array, ' four_h'],
) -> tuple[Float[Array, 'b t h'], _Activations]:
  x = inputs.transpose(1, 2, 0)
  # Outside the loop, where XLA would transpose them in every step.
  transposed, bias = round_factor(w.T), b[:, None]

  def step(state: tuple[Array, Array], x: Float[Array, 'e b']):
    h, c = state
    z = dot_general(transposed, jnp.concatenate([x, h])) + bias
    i, g, f, o = _gates(z)
    c = f * c + i * g
    h = o * jnp.tanh(c)
    return (h, c), (h, c, z)

  zero = jnp.zeros((w.shape[1] // 4, x.shape[2]), x.dtype)
  _, (h, c, z) = jax.lax.scan(step, (zero, zero), x)
  return h.transpose(2, 0, 1), _Activations(w, x, h, c, z)


def _backward(
  activations: _Activations, out_grad: Float[Array, 'b t h']
) -> tuple[
  Float[Array, 'b t e'],
  Float[Array, 'e_plus_h four_h'],
  Float[Array, ' four_h'],
]:
  w, x, h, c, z = activations
  i, g, f, o = _gates(z)
  tanh_c = jnp.tanh(c)
  # dz = slopes * [dc, dc, dc, dh]. Only dc and dh depend on other steps.
  slopes = jnp.concatenate(
    [
      g * i * (1 - i),
      i * (1 - g**2),
      _shift_one_step(c) * f * (1 - f),
      tanh_c * o * (1 - o),
    ],
    axis=1,
  )
  dc_dh = o * (1 - tanh_c**2)
  factor = round_factor(w)

  def step(grads: tuple[Array, Array], at: tuple[Array, Array, Array, Array]):
    dh, dc = grads
    out_grad, slopes, dc_dh, f = at
    dh = dh + out_grad
    dc = dc + dh * dc_dh
    dz = slopes * jnp.concatenate([dc, dc, dc, dh])
    dx, dh = jnp.split(dot_general(factor, dz), [x.shape[1]])
    return (dh, dc * f), (dx, dz)

  zero = jnp.zeros_like(h[0])
  _, (dx, dz) = jax.lax.scan(
    step,
    (zero, zero),
    (out_grad.transpose(1, 2, 0), slopes, dc_dh, f),
    reverse=True,
  )
  inputs = jnp.concatenate([x, _shift_one_step(h)], axis=1)
  columns = inputs.transpose(1, 0, 2).reshape(w.shape[0], -1)
  rows = dz.transpose(0, 2, 1).reshape(-1, w.shape[1])
  return dx.transpose(2, 0, 1), dot_general(columns, rows), dz.sum(axis=(0, 2))


def _gates(z: Float[Array, '*t four_h b']) -> tuple[Array, Array, Array, Array]:
  i, g, f, o = jnp.split(z, 4, axis=-2)
  sigmoid = jax.nn.sigmoid
  return sigmoid(i), jnp.tanh(g), sigmoid(f + 1), sigmoid(o)


def _shift_one_step(x: Float[Array, 't h b']) -> Float[Array, 't h b']:
  """The state before each step."""
  return jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]])


lstm.defvjp(_forward, _backward)
