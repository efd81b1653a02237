"""Models of single examples which the papers train; no layer mixes examples."""

from collections.abc import Sequence
import functools

from flax import linen as nn
import jax.numpy as jnp
from jaxtyping import Float

from epe_jax.tasks import classifier, kernels
from epe_jax.types import Array, Task

# In each of three stages a block has two convolutions; four more are outside.
_PER_BLOCK, _OUTSIDE = 6, 4


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


def _center_pixels(pixels: Float[Array, '*n']) -> Float[Array, '*n']:
  """Maps pixels from [0, 1] to [-2, 2], independently of the data."""
  return 4 * pixels - 2


class ConvNet(nn.Module):
  """Three blocks of conv, conv, pool; then dense 128 and dense classes; with tanh.

  `width` is that of the first two convolutions; the next two have twice as many
  filters, the last two and the dense layer four times.
  """

  num_classes: int
  width: int = 32

  @nn.compact
  def __call__(
    self, pixels: Float[Array, 'b h w c'], train: bool
  ) -> Float[Array, 'b classes']:
    del train  # No dropout.
    x = _center_pixels(pixels)
    for filters in (self.width, 2 * self.width, 4 * self.width):
      x = jnp.tanh(Conv(filters)(x))
      # tanh and maximum commute; in this order tanh has a fourth of the entries.
      x = jnp.tanh(pool_maxima(Conv(filters)(x)))
    x = x.reshape(x.shape[0], -1)
    x = jnp.tanh(nn.Dense(4 * self.width)(x))
    return nn.Dense(self.num_classes)(x)


class WideResNet(nn.Module):
  """Three stages of residual blocks of two convolutions each.

  Groups of channels are normalized instead of batches, after the activation, and the
  weights of convolutions are standardized. The stages have 16, 32 and 64 times `width`
  channels, and `depth` convolutions and dense layers in all.
  """

  num_classes: int
  depth: int = 16
  width: int = 4
  groups: int = 16

  @nn.compact
  def __call__(
    self, pixels: Float[Array, 'b h w c'], train: bool
  ) -> Float[Array, 'b classes']:
    del train  # No dropout.
    conv = functools.partial(Conv, standardize=True)

    def activate(x: Array) -> Array:
      return nn.GroupNorm(self.groups, epsilon=1e-5)(nn.relu(x))

    x = conv(16)(_center_pixels(pixels))
    for stage, channels in enumerate((16, 32, 64)):
      for block in range((self.depth - _OUTSIDE) // _PER_BLOCK):
        stride = 2 if stage > 0 and block == 0 else 1
        features = channels * self.width
        skip = x
        if block == 0:
          skip = conv(features, size=1, stride=stride)(activate(x))
        x = conv(features, stride=stride)(activate(x))
        x = conv(features)(activate(x)) + skip
    x = jnp.mean(activate(x), axis=(1, 2))
    return nn.Dense(self.num_classes)(x)


class FullyConnected(nn.Module):
  """Dense layers of `hidden` sizes with tanh between them."""

  num_classes: int
  hidden: Sequence[int] = (256, 256)

  @nn.compact
  def __call__(
    self, x: Float[Array, 'b n'], train: bool
  ) -> Float[Array, 'b classes']:
    del train  # No dropout.
    for size in self.hidden:
      x = jnp.tanh(nn.Dense(size)(x))
    return nn.Dense(self.num_classes)(x)


def convnet(
  num_classes: int = 10,
  *,
  image_shape: tuple[int, int, int] = (32, 32, 3),
  width: int = 32,
) -> Task:
  """The ConvNet of private CIFAR-10: 550,570 parameters.

  "Tight Auditing of Differentially Private Machine Learning" does not specify its
  "ConvNet". This is the usual one for private CIFAR-10 before wide residual networks; it
  reaches the accuracy that the paper reports.

  Args:
    num_classes: number of classes.
    image_shape: height, width and channels, of 8 pixels or more each way.
    width: filters of the first convolution, >= 1; the literature's model has 32.

  Returns:
    A task whose batches are {'pixels': float32 [b, *image_shape] in [0, 1],
    'label': int32 [b]}.

  References:
    Papernot et al. 2021, "Tempered Sigmoid Activations for Deep Learning with
    Differential Privacy"; Tramèr and Boneh 2021, "Differentially Private
    Learning Needs Better Features (or Much More Data)", table 10.
  """
  network = ConvNet(num_classes, width)
  return classifier.flax_classifier(network, image_shape)


def wide_resnet(
  num_classes: int = 10,
  *,
  image_shape: tuple[int, int, int] = (32, 32, 3),
  depth: int = 16,
  width: int = 4,
) -> Task:
  """A wide residual network for private training; WRN-16-4 has 2,753,818 parameters.

  Args:
    num_classes: number of classes.
    image_shape: height, width and channels.
    depth: 16 for WRN-16, 40 for WRN-40: 6 n + 4 for n >= 1 blocks a stage.
    width: >= 1; 4 in WRN-16-4.

  Returns:
    A task with batches as those of `convnet`.

  Raises:
    ValueError: depth is out of range.

  References:
    De et al. 2022, "Unlocking High-Accuracy Differentially Private Image
    Classification through Scale", section 3, and the code released with it;
    Zagoruyko and Komodakis 2016, "Wide Residual Networks".
  """
  if depth < _OUTSIDE + _PER_BLOCK or (depth - _OUTSIDE) % _PER_BLOCK:
    raise ValueError(f'depth={depth} is not 6 n + 4; use 10, 16, 28 or 40.')
  network = WideResNet(num_classes, depth, width)
  return classifier.flax_classifier(network, image_shape)


def fully_connected(
  num_classes: int = 100,
  *,
  num_features: int = 600,
  hidden: Sequence[int] = (256, 256),
) -> Task:
  """Purchase-100: a three-layer fully connected network, 245,348 parameters.

  "Tight Auditing of Differentially Private Machine Learning" does not give the sizes of
  its three-layer network; the defaults are those of Jayaraman and Evans 2019,
  "Evaluating Differentially Private Machine Learning in Practice", section 4.1.

  Returns:
    A task whose batches are {'features': float32 [b, num_features], 'label':
    int32 [b]}.
  """
  network = FullyConnected(num_classes, tuple(hidden))
  return classifier.flax_classifier(network, (num_features,), inputs='features')
