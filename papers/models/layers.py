"""Layers for gradients of single examples."""

from flax import linen as nn
import jax.numpy as jnp
from jaxtyping import Float

from epe_jax.tasks import kernels
from epe_jax.types import Array


class Conv(nn.Module):
  """A convolution with SAME padding, as nn.Conv, for per-example gradients.

  Attributes:
    features: channels of the output.
    size: rows and columns of the kernel.
    stride: of rows and columns.
    standardize: whether the weights of each output channel are standardized, to
      mean 0 and variance 1/fan_in, and multiplied by a learnt gain.

  References:
    Qiao et al. 2019, "Micro-Batch Training with Batch-Channel Normalization and
    Weight Standardization"; Brock et al. 2021, "Characterizing signal
    propagation to close the performance gap in unnormalized ResNets", section 4
    (the gain).
  """

  features: int
  size: int = 3
  stride: int = 1
  standardize: bool = False

  @nn.compact
  def __call__(
    self, x: Float[Array, 'b h w c']
  ) -> Float[Array, 'b y x features']:
    kernel = self.param(
      'kernel',
      nn.initializers.lecun_normal(),
      (self.size, self.size, x.shape[-1], self.features),
      jnp.float32,
    )
    zeros, ones = nn.initializers.zeros, nn.initializers.ones
    if self.standardize:
      gain = self.param('gain', ones, (self.features,), jnp.float32)
      kernel = standardize_weights(kernel) * gain
    bias = self.param('bias', zeros, (self.features,), jnp.float32)
    return kernels.convolve(x, kernel, self.stride) + bias


def standardize_weights(
  kernel: Float[Array, 'i j c f'],
) -> Float[Array, 'i j c f']:
  """Gives the weights of each output channel mean 0 and variance 1/fan_in."""
  fan_in = kernel[..., 0].size
  mean = jnp.mean(kernel, axis=(0, 1, 2))
  variance = jnp.var(kernel, axis=(0, 1, 2))
  # Bounded below, so that constant weights have gradients.
  return (kernel - mean) / jnp.sqrt(jnp.maximum(fan_in * variance, 1e-4))


def pool_maxima(x: Float[Array, 'b h w c']) -> Float[Array, 'b h//2 w//2 c']:
  """Pools maxima of 2 x 2 windows, with derivatives of all orders.

  Equal numbers share the gradient. An odd last row or column is left out.
  """
  b, h, w, c = x.shape
  x = x[:, : h // 2 * 2, : w // 2 * 2]
  return x.reshape(b, h // 2, 2, w // 2, 2, c).max(axis=(2, 4))


def center_pixels(pixels: Float[Array, '*n']) -> Float[Array, '*n']:
  """Maps pixels from [0, 1] to [-2, 2], independently of the data."""
  return 4 * pixels - 2
