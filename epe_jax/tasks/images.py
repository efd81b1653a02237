"""A Flax classifier of images as a Task."""

from collections.abc import Callable
from typing import Any

from flax import linen as nn
import jax.numpy as jnp
from jaxtyping import Float
import optax

from epe_jax.types import Array, Batch, Key, Params, Task


def classifier(module: nn.Module, image_shape: tuple[int, ...]) -> Task:
  """Cross-entropy and accuracy of a Flax module on 'pixels' and 'label'.

  Args:
    module: called as module(pixels [b, *image_shape], train: bool) with an rng
      stream 'dropout'; gives logits [b, classes].
    image_shape: shape of one image.

  Returns:
    A task whose batches are {'pixels': float32 [b, *image_shape],
    'label': int32 [b]}.
  """

  def init(key: Key) -> Params:
    image = jnp.zeros((1, *image_shape), jnp.float32)
    return module.init(key, image, train=False)['params']

  # Flax types the result of apply as a value or a pair of values.
  apply: Callable[..., Any] = module.apply

  def cross_entropy(
    logits: Float[Array, 'b classes'], batch: Batch
  ) -> Float[Array, ' b']:
    return optax.softmax_cross_entropy_with_integer_labels(
      logits, batch['label']
    )

  def loss(params: Params, batch: Batch, key: Key) -> Float[Array, ' b']:
    logits = apply(
      {'params': params}, batch['pixels'], train=True, rngs={'dropout': key}
    )
    return cross_entropy(logits, batch)

  def metrics(params: Params, batch: Batch) -> dict[str, Float[Array, ' b']]:
    logits = apply({'params': params}, batch['pixels'], train=False)
    hit = jnp.argmax(logits, axis=-1) == batch['label']
    return {
      'loss': cross_entropy(logits, batch),
      'accuracy': hit.astype(jnp.float32),
    }

  return Task(init, loss, metrics)
