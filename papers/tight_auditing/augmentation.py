"""Random changes of training images that keep their class."""

import jax
import jax.numpy as jnp
from jaxtyping import Float

from epe_jax.dpsgd import dp_sgd
from epe_jax.types import Array, Batch, Key

_PADDING = 4


def make_crop_and_flip(inputs: str) -> dp_sgd.Augment:
  """Shifts each image by a few pixels, and mirrors it with probability 1/2.

  An image is padded by 4 reflected pixels at each edge, and a random window of its
  own size is cropped.

  Args:
    inputs: name of the images in the batch, [n, h, w, c] or [n, h, w].

  Returns:
    (key, batch) -> the batch with every image changed independently.

  References:
    De et al. 2022, "Unlocking High-Accuracy Differentially Private Image
    Classification through Scale", section 3.
  """

  def change(key: Key, image: Float[Array, 'h w *c']) -> Float[Array, 'h w *c']:
    crop_key, flip_key = jax.random.split(key)
    edges = [(_PADDING, _PADDING)] * 2 + [(0, 0)] * (image.ndim - 2)
    wide = jnp.pad(image, edges, mode='reflect')
    at = jax.random.randint(crop_key, (2,), 0, 2 * _PADDING + 1)
    start = (*at, *[0] * (image.ndim - 2))
    image = jax.lax.dynamic_slice(wide, start, image.shape)
    is_flipped = jax.random.bernoulli(flip_key)
    return jnp.where(is_flipped, image[:, ::-1], image)

  def augment(key: Key, batch: Batch) -> Batch:
    keys = jax.random.split(key, len(batch[inputs]))
    return {**batch, inputs: jax.vmap(change)(keys, batch[inputs])}

  return augment
