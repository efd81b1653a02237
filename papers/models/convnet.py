"""The ConvNet of private CIFAR-10: 550,570 parameters."""

from flax import linen as nn
import jax.numpy as jnp
from jaxtyping import Float

from epe_jax.tasks import classifier
from epe_jax.tasks.layers import check_width
from epe_jax.types import Array, Task
from papers.models import layers


class ConvNet(nn.Module):
  """Three blocks of conv, conv, pool; then dense 128 and dense classes; with tanh.

  Attributes:
    num_classes: number of classes.
    width: filters of the first two convolutions; the next two have twice as
      many, the last two and the dense layer four times.

  References:
    Papernot et al. 2021, "Tempered Sigmoid Activations for Deep Learning with
    Differential Privacy"; Tramèr and Boneh 2021, "Differentially Private
    Learning Needs Better Features (or Much More Data)", table 10.
  """

  num_classes: int
  width: int = 32

  @nn.compact
  def __call__(
    self, pixels: Float[Array, 'b h w c'], train: bool
  ) -> Float[Array, 'b classes']:
    del train  # No dropout.
    x = layers.center_pixels(pixels)
    for filters in (self.width, 2 * self.width, 4 * self.width):
      x = jnp.tanh(layers.Conv(filters)(x))
      # tanh and maximum commute; in this order tanh has a fourth of the entries.
      x = jnp.tanh(layers.pool_maxima(layers.Conv(filters)(x)))
    x = x.reshape(x.shape[0], -1)
    x = jnp.tanh(nn.Dense(4 * self.width)(x))
    return nn.Dense(self.num_classes)(x)


def task(
  num_classes: int = 10,
  *,
  image_shape: tuple[int, int, int] = (32, 32, 3),
  width: int = 32,
) -> Task:
  """Classification of small images, such as CIFAR-10 or Fashion-MNIST.

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

  Raises:
    ValueError: width or image_shape is out of range.
  """
  if min(image_shape[:2]) < 8:
    raise ValueError(
      f'image_shape={image_shape} is pooled three times. Give images of 8 x 8 '
      'pixels or more.'
    )
  network = ConvNet(num_classes, check_width(width))
  return classifier.flax_classifier(network, image_shape)
