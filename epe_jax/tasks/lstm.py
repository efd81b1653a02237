"""A Haiku LSTM over whole sequences."""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Float

from epe_jax import extras
from epe_jax.tasks import kernels
from epe_jax.types import Array

with extras.explain_missing():
  import haiku as hk


class Lstm(hk.Module):
  """The parameters and results of hk.LSTM, unrolled from a state of zeros."""

  def __init__(
    self,
    hidden_size: int,
    *,
    w_init: Callable[..., Array],
    name: str = 'lstm',
  ) -> None:
    """Names the layer.

    Args:
      hidden_size: h, size of the hidden state, >= 1.
      w_init: (shape, dtype) -> initial weights [e + h, 4 h], with the rows of
        inputs first and the columns of the gates i, g, f and o.
      name: of the layer in the tree of parameters.
    """
    super().__init__(name)
    self.hidden_size = hidden_size
    self.w_init = w_init

  def __call__(self, x: Float[Array, 'b t e']) -> Float[Array, 'b t h']:
    """Returns the hidden state after each of the t inputs of each sequence."""
    rows, columns = x.shape[-1] + self.hidden_size, 4 * self.hidden_size
    with hk.name_scope('linear'):
      w = hk.get_parameter('w', (rows, columns), jnp.float32, init=self.w_init)
      b = hk.get_parameter('b', (columns,), jnp.float32, init=jnp.zeros)
    return kernels.lstm(x, w, b)
