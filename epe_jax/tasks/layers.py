"""Layers of image classifiers, with the parameters and results of Flax's layers.

`kernels` chooses how they are computed.
"""

from flax import linen as nn
import jax.numpy as jnp
from jaxtyping import Float

from epe_jax.tasks import kernels
from epe_jax.types import Array


class Conv3x3(nn.Module):
  """A 3 x 3 convolution with stride 1 and VALID padding, as nn.Conv.

  Attributes:
    features: channels of the output.
  """

  features: int

  @nn.compact
  def __call__(
    self, x: Float[Array, 'b h w c']
  ) -> Float[Array, 'b h-2 w-2 features']:
    kernel = self.param(
      'kernel',
      nn.initializers.lecun_normal(),
      (3, 3, x.shape[-1], self.features),
      jnp.float32,
    )
    bias = self.param(
      'bias', nn.initializers.zeros, (self.features,), jnp.float32
    )
    return kernels.conv3x3(x, kernel) + bias


class Dense(nn.Module):
  """A dense layer, as nn.Dense.

  Attributes:
    features: size of the output.
  """

  features: int

  @nn.compact
  def __call__(self, x: Float[Array, 'b n']) -> Float[Array, 'b features']:
    kernel = self.param(
      'kernel',
      nn.initializers.lecun_normal(),
      (x.shape[-1], self.features),
      jnp.float32,
    )
    bias = self.param(
      'bias', nn.initializers.zeros, (self.features,), jnp.float32
    )
    return kernels.multiply(x, kernel) + bias


class Dropout(nn.Module):
  """Zeroes entries with probability `rate`, and divides the others by 1 - rate.

  It has the distribution of nn.Dropout, from other random bits.

  Attributes:
    rate: probability of a zero, in [0, 1), a multiple of 1/256.

  Raises:
    ValueError: rate is out of range or not such a multiple.
  """

  rate: float

  @nn.compact
  def __call__(self, x: Float[Array, 'b *n'], train: bool) -> Array:
    threshold = round(256 * self.rate)
    if threshold != 256 * self.rate or not 0 <= threshold < 256:
      raise ValueError(
        f'rate={self.rate}; give a multiple of 1/256 in [0, 1), because a byte '
        'decides each entry.'
      )
    if not train:
      return x
    keep = kernels.draw_keep_mask(self.make_rng('dropout'), x.shape, threshold)
    return jnp.where(keep, x / (1 - self.rate), 0)


def max_pool2x2(x: Float[Array, 'b h w c']) -> Float[Array, 'b h//2 w//2 c']:
  """Pools maxima of 2 x 2 windows, as nn.max_pool with strides (2, 2)."""
  return kernels.max_pool2x2(x)
