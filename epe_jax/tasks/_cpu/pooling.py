"""2 x 2 max pooling that stores the index of the maximum in a byte."""

import jax.numpy as jnp
from jaxtyping import Float, UInt8

from epe_jax.types import Array


def find_maxima(
  x: Float[Array, 'b h w c'],
) -> tuple[Float[Array, 'b i j c'], UInt8[Array, 'b i j c']]:
  """Returns the largest number of each 2 x 2 window, and its index 0 to 3.

  Ties give the first index; an odd last row or column is dropped.
  """
  h, w = x.shape[1] // 2 * 2, x.shape[2] // 2 * 2
  x = x[:, :h, :w]
  first, second = x[:, ::2, ::2], x[:, ::2, 1::2]
  third, fourth = x[:, 1::2, ::2], x[:, 1::2, 1::2]
  top = jnp.maximum(jnp.maximum(first, second), jnp.maximum(third, fourth))
  index = jnp.where(
    first == top, 0, jnp.where(second == top, 1, jnp.where(third == top, 2, 3))
  )
  return top, index.astype(jnp.uint8)


def spread_gradient(
  out_grad: Float[Array, 'b i j c'],
  index: UInt8[Array, 'b i j c'],
  height: int,
  width: int,
) -> Float[Array, 'b h w c']:
  """Returns the gradient w.r.t. the images, which is nonzero at their maxima."""
  b, i, j, c = out_grad.shape
  place = jnp.arange(4, dtype=jnp.uint8).reshape(1, 1, 2, 1, 2, 1)
  is_maximum = index[:, :, None, :, None] == place
  grad = jnp.where(is_maximum, out_grad[:, :, None, :, None], 0)
  grad = grad.reshape(b, 2 * i, 2 * j, c)
  return jnp.pad(
    grad, ((0, 0), (0, height - 2 * i), (0, width - 2 * j), (0, 0))
  )
