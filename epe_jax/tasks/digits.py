"""The default task: 8 x 8 handwritten digits, a network of 55,210 parameters."""

from flax import linen as nn
from jaxtyping import Float

from epe_jax.tasks import classifier, layers
from epe_jax.types import Array, Task


class TwoHiddenLayers(nn.Module):
  """Dense 200, dense 200, dense 10, with ReLUs between them; no dropout.

  Attributes:
    width: units of each hidden layer.

  References:
    McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from
    Decentralized Data", section 3 (the "2NN" for MNIST).
  """

  width: int = 200

  @nn.compact
  def __call__(
    self, pixels: Float[Array, 'b 8 8'], train: bool
  ) -> Float[Array, 'b 10']:
    del train  # Dropout does not pay in a hundred rounds.
    x = pixels.reshape(pixels.shape[0], -1)
    x = nn.relu(layers.Dense(self.width)(x))
    x = nn.relu(layers.Dense(self.width)(x))
    return layers.Dense(10)(x)


def task(width: int = 200) -> Task:
  """Classification of 8 x 8 images, with pixels in [0, 1], into ten digits.

  Args:
    width: units of each hidden layer, >= 1.

  Returns:
    A task whose batches are {'pixels': float32 [b, 8, 8], 'label': int32 [b]}.
  """
  return classifier.flax_classifier(TwoHiddenLayers(width), (8, 8))
