"""Wide residual networks for private training; WRN-16-4 has 2,753,818 parameters."""

import functools

from flax import linen as nn
import jax.numpy as jnp
from jaxtyping import Float

from epe_jax.tasks import classifier
from epe_jax.tasks.layers import check_width
from epe_jax.types import Array, Task
from papers.models import layers

# In each of three stages a block has two convolutions; four more are outside.
_PER_BLOCK, _OUTSIDE = 6, 4


class WideResNet(nn.Module):
  """Three stages of residual blocks of two convolutions each.

  No layer mixes examples, so that each example has its own gradient: groups of channels
  are normalized instead of batches, and the weights of convolutions are standardized.
  Normalization follows the activation.

  Attributes:
    num_classes: number of classes.
    depth: number of convolutions and dense layers, 6 n + 4 for n blocks a stage.
    width: the stages have 16, 32 and 64 times as many channels.
    groups: of channels, in the normalization.

  References:
    De et al. 2022, "Unlocking High-Accuracy Differentially Private Image
    Classification through Scale", section 3, and the code released with it;
    Zagoruyko and Komodakis 2016, "Wide Residual Networks".
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
    conv = functools.partial(layers.Conv, standardize=True)

    def activate(x: Array) -> Array:
      return nn.GroupNorm(self.groups, epsilon=1e-5)(nn.relu(x))

    x = conv(16)(layers.center_pixels(pixels))
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


def task(
  num_classes: int = 10,
  *,
  image_shape: tuple[int, int, int] = (32, 32, 3),
  depth: int = 16,
  width: int = 4,
) -> Task:
  """Classification of small images, such as CIFAR-10's.

  Args:
    num_classes: number of classes.
    image_shape: height, width and channels.
    depth: 16 for WRN-16, 40 for WRN-40: 6 n + 4 with n >= 1.
    width: >= 1; 4 in WRN-16-4.

  Returns:
    A task whose batches are {'pixels': float32 [b, *image_shape] in [0, 1],
    'label': int32 [b]}.

  Raises:
    ValueError: depth or width is out of range.
  """
  if depth < _OUTSIDE + _PER_BLOCK or (depth - _OUTSIDE) % _PER_BLOCK:
    raise ValueError(f'depth={depth} is not 6 n + 4; use 10, 16, 28 or 40.')
  network = WideResNet(num_classes, depth, check_width(width))
  return classifier.flax_classifier(network, image_shape)
