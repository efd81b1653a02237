"""Any Flax classifier of images as a Task."""

from typing import Any

from flax import linen as nn
import jax.numpy as jnp
from jaxtyping import Float

from epe_jax.tasks import classifier as classifier_lib
from epe_jax.types import Array, Key, Params, Task


def classifier(module: nn.Module, image_shape: tuple[int, ...]) -> Task:
  """The task of a Flax module, with cross-entropy and accuracy.

  Args:
    module: (pixels [b, *image_shape], train: bool) -> logits [b, classes], with
      an rng stream 'dropout' in training.
    image_shape: shape of one image.

  Returns:
    A task whose batches are {'pixels': float32 [b, *image_shape],
    'label': int32 [b]}.
  """

  def init(key: Key) -> Params:
    image = jnp.zeros((1, *image_shape), jnp.float32)
    return module.init(key, image, train=False)['params']

  def logits(
    params: Params, pixels: Float[Array, 'b ...'], key: Key | None
  ) -> Any:
    rngs = {} if key is None else {'dropout': key}
    train = key is not None
    return module.apply({'params': params}, pixels, train=train, rngs=rngs)

  return classifier_lib.classifier(
    init, logits, inputs='pixels', labels='label'
  )
