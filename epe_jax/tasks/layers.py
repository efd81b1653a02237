"""Convolution and pooling in forms that XLA runs well inside loops.

XLA:CPU runs `lax.conv` inside a scan some 45 times slower than outside of one,
and the usual gradient of max-pooling slowly too; local training is such a loop.
"""

from flax import linen as nn
import jax.numpy as jnp
from jaxtyping import Float

from epe_jax.types import Array


class Conv3x3(nn.Module):
  """A 3 x 3 VALID convolution: the parameters and numbers of nn.Conv.

  The nine shifted images are laid side by side and multiplied with the kernel
  as one matrix.

  Attributes:
    features: channels out.
  """

  features: int

  @nn.compact
  def __call__(
    self, x: Float[Array, 'b h w c']
  ) -> Float[Array, 'b h-2 w-2 features']:
    channels = x.shape[-1]
    kernel = self.param(
      'kernel',
      nn.initializers.lecun_normal(),
      (3, 3, channels, self.features),
      jnp.float32,
    )
    bias = self.param(
      'bias', nn.initializers.zeros, (self.features,), jnp.float32
    )
    h, w = x.shape[1] - 2, x.shape[2] - 2
    shifted = [x[:, i : i + h, j : j + w] for i in range(3) for j in range(3)]
    patches = jnp.concatenate(shifted, axis=-1)
    return patches @ kernel.reshape(9 * channels, self.features) + bias


def max_pool2x2(
  x: Float[Array, 'b h w c'],
) -> Float[Array, 'b h//2 w//2 c']:
  """Maximum over 2 x 2 windows; of equal values the first has the gradient.

  An odd last row or column is left out, as VALID pooling does.
  """
  h, w = x.shape[1] // 2 * 2, x.shape[2] // 2 * 2
  x = x[:, :h, :w]

  def first_max(a, b):
    return jnp.where(a >= b, a, b)

  return first_max(
    first_max(x[:, ::2, ::2], x[:, ::2, 1::2]),
    first_max(x[:, 1::2, ::2], x[:, 1::2, 1::2]),
  )


def checked_width(width: int) -> int:
  """A number of filters, or a ValueError."""
  if width < 1:
    raise ValueError(f'model.width={width} filters; give 1 or more.')
  return width
