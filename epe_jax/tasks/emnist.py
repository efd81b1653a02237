"""Federated EMNIST: the paper's CNN, 1,206,590 parameters for 62 classes."""

from flax import linen as nn
from jaxtyping import Float

from epe_jax.tasks import classifier, layers
from epe_jax.types import Array, Task


class Cnn(nn.Module):
  """Conv 32, conv 64, pool, dropout, dense 128, dropout, dense classes.

  Attributes:
    num_classes: number of classes.
    width: filters of the first convolution. All layers but the last grow in
      proportion to it.

  Weights are initialized as Flax does (LeCun normal), not as Keras does (Glorot uniform).

  References:
    Reddi et al. 2020, "Adaptive Federated Optimization", table 4; used by
    One-shot Empirical Privacy Estimation, section 5.2.1.
  """

  num_classes: int
  width: int = 32

  @nn.compact
  def __call__(
    self, pixels: Float[Array, 'b 28 28'], train: bool
  ) -> Float[Array, 'b classes']:
    x = pixels[..., None]
    x = nn.relu(layers.Conv3x3(self.width)(x))
    # relu and maximum commute; in this order relu has a fourth of the entries.
    x = nn.relu(layers.max_pool2x2(layers.Conv3x3(2 * self.width)(x)))
    x = layers.Dropout(0.25)(x, train)
    x = x.reshape(x.shape[0], -1)
    x = nn.relu(layers.Dense(4 * self.width)(x))
    x = layers.Dropout(0.5)(x, train)
    return layers.Dense(self.num_classes)(x)


def task(num_classes: int = 62, *, width: int = 32) -> Task:
  """Classification of 28 x 28 images of handwritten characters.

  Args:
    num_classes: 62, or 10 for the digits-only split.
    width: filters of the first convolution, >= 1; the paper's model has 32.

  Returns:
    A task whose batches are {'pixels': float32 [b, 28, 28], 'label': int32
    [b]}.
  """
  cnn = Cnn(num_classes, width)
  return classifier.flax_classifier(cnn, (28, 28))
