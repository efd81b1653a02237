"""The default task: 8 x 8 handwritten digits, a CNN of 151,306 parameters."""

from flax import linen as nn
from jaxtyping import Float

from epe_jax.tasks import images, layers
from epe_jax.types import Array, Task


class Cnn(nn.Module):
  """Conv 32, conv 64, dense 128, dense 10; no dropout.

  Attributes:
    width: filters of the first convolution. All layers but the last grow in
      proportion to it.
  """

  width: int = 32

  @nn.compact
  def __call__(
    self, pixels: Float[Array, 'b 8 8'], train: bool
  ) -> Float[Array, 'b 10']:
    del train  # Two dozen rounds are too few for dropout to pay.
    x = pixels[..., None]
    x = nn.relu(layers.Conv3x3(self.width)(x))
    x = nn.relu(layers.Conv3x3(2 * self.width)(x))
    x = x.reshape(x.shape[0], -1)
    x = nn.relu(layers.Dense(4 * self.width)(x))
    return layers.Dense(10)(x)


def task(width: int = 32) -> Task:
  """Classification of 8 x 8 images, with pixels in [0, 1], into ten digits.

  Args:
    width: filters of the first convolution, >= 1.

  Returns:
    A task whose batches are {'pixels': float32 [b, 8, 8], 'label': int32 [b]}.

  Raises:
    ValueError: width is out of range.
  """
  return images.classifier(Cnn(layers.check_width(width)), (8, 8))
