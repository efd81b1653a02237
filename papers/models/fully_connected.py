"""Purchase-100: a three-layer fully connected network, 245,348 parameters."""

from collections.abc import Sequence

from flax import linen as nn
import jax.numpy as jnp
from jaxtyping import Float

from epe_jax.tasks import classifier
from epe_jax.types import Array, Task


class FullyConnected(nn.Module):
  """Dense layers with tanh between them.

  Attributes:
    num_classes: number of classes.
    hidden: sizes of the hidden layers.
  """

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


def task(
  num_classes: int = 100,
  *,
  num_features: int = 600,
  hidden: Sequence[int] = (256, 256),
) -> Task:
  """Classification of vectors of features, such as Purchase-100's.

  "Tight Auditing of Differentially Private Machine Learning" does not give the sizes of
  its three-layer network; the defaults are those of Jayaraman and Evans.

  Args:
    num_classes: number of classes.
    num_features: size of an example.
    hidden: sizes of the hidden layers, >= 1 each.

  Returns:
    A task whose batches are {'features': float32 [b, num_features], 'label':
    int32 [b]}.

  Raises:
    ValueError: a size is not positive.

  References:
    Jayaraman and Evans 2019, "Evaluating Differentially Private Machine Learning in
    Practice", section 4.1.
  """
  if min(num_classes, num_features, *hidden) < 1:
    raise ValueError(
      f'num_classes={num_classes}, num_features={num_features} and '
      f'hidden={tuple(hidden)} must all be 1 or more.'
    )
  network = FullyConnected(num_classes, tuple(hidden))
  return classifier.flax_classifier(network, (num_features,), inputs='features')
