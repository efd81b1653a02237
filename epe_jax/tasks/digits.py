"""The embedded default: 8 x 8 handwritten digits, a CNN of 151,306 parameters."""

from flax import linen as nn
from jaxtyping import Float

from epe_jax.tasks import images, layers
from epe_jax.types import Array, Task


class Cnn(nn.Module):
  """Conv 32, conv 64, dense 128, dense 10; all but the last grow with width.

  Attributes:
    width: filters of the first convolution.
  """

  width: int = 32

  @nn.compact
  def __call__(
    self, pixels: Float[Array, 'b 8 8'], train: bool
  ) -> Float[Array, 'b 10']:
    del train  # No dropout: two dozen rounds are too few for it to pay.
    x = pixels[..., None]
    x = nn.relu(layers.Conv3x3(self.width)(x))
    x = nn.relu(layers.Conv3x3(2 * self.width)(x))
    x = x.reshape(x.shape[0], -1)
    x = nn.relu(layers.Dense(4 * self.width)(x))
    return layers.Dense(10)(x)


def task(width: int = 32) -> Task:
  """Ten classes of 8 x 8 images with pixels in [0, 1].

  Args:
    width: filters of the first convolution, >= 1.

  Raises:
    ValueError: width is out of range.
  """
  return images.classifier(Cnn(layers.checked_width(width)), (8, 8))
