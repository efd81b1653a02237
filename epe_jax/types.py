"""The types of signatures, and the functions that a model must offer."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from jaxtyping import Float

from epe_jax import extras

with extras.explain_missing():
  import jax
  import jax.numpy as jnp

Array: TypeAlias = jax.Array
Key: TypeAlias = jax.Array  # one typed PRNG key, jax.random.key(...)
PyTree: TypeAlias = Any
Params: TypeAlias = PyTree  # float32 leaves, d numbers in all
Batch: TypeAlias = PyTree  # arrays with the examples along the first axis


class Weighted(NamedTuple):
  """A value of each example that is itself a sum, such as over its words.

  The mean over several examples is sum(total) / sum(weight), or 0 if all
  weights are 0: a mean over words and not over sentences.

  Attributes:
    total: [b] sums, one for each example; 0 where the weight is 0.
    weight: [b] the number of terms in each sum, >= 0.
  """

  total: Float[Array, ' b']
  weight: Float[Array, ' b']


def weighted(values: Float[Array, ' b'] | Weighted) -> Weighted:
  """Gives values of examples their weights, which are 1 in a plain array.

  >>> weighted(jnp.array([0.5, 2.0])).weight.tolist()
  [1.0, 1.0]
  """
  if isinstance(values, Weighted):
    return values
  return Weighted(values, jnp.ones_like(values))


class Task(NamedTuple):
  """Anything trainable, as three pure functions of Flax, Haiku or your own.

  The values of examples are an array [b], in which each has the weight 1, or
  `Weighted`. The library masks padded examples and takes the mean. The values
  of padded examples are never used, but must be finite.

  Attributes:
    init: key -> params, whose leaves are float32.
    loss: (params, batch, key) -> losses, one for each example. The key is for
      dropout and the like.
    metrics: (params, batch) -> name -> values, one for each example, without
      dropout. 'loss' and 'accuracy' are required.
  """

  init: Callable[[Key], Params]
  loss: Callable[[Params, Batch, Key], Float[Array, ' b'] | Weighted]
  metrics: Callable[
    [Params, Batch], Mapping[str, Float[Array, ' b'] | Weighted]
  ]
