"""The embedded default: 8 x 8 handwritten digits, a CNN of 151,306 parameters."""

from flax import linen as nn
from jaxtyping import Float

from epe_jax.tasks import images, layers
from epe_jax.types import Array, Task


class Cnn(nn.Module):
  """Conv 32, conv 64, dense 128, dense 10."""

  @nn.compact
  def __call__(
    self, pixels: Float[Array, 'b 8 8'], train: bool
  ) -> Float[Array, 'b 10']:
    del train  # No dropout: two dozen rounds are too few for it to pay.
    x = pixels[..., None]
    x = nn.relu(layers.Conv3x3(32)(x))
    x = nn.relu(layers.Conv3x3(64)(x))
    x = x.reshape(x.shape[0], -1)
    x = nn.relu(nn.Dense(128)(x))
    return nn.Dense(10)(x)


def task() -> Task:
  """Ten classes of 8 x 8 images with pixels in [0, 1]."""
  return images.classifier(Cnn(), (8, 8))
