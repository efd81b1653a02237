"""The words that signatures are written in, and what a model must offer."""

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
  """A value of each example that is itself a sum, as over a sentence's words.

  Its mean over some examples is sum(total) / sum(weight), or 0 if they weigh
  nothing: a mean over words and not over sentences.

  Attributes:
    total: [b] sums, one per example; 0 where the weight is 0.
    weight: [b] how many each sums up, >= 0.
  """

  total: Float[Array, ' b']
  weight: Float[Array, ' b']


def weighted(values: Float[Array, ' b'] | Weighted) -> Weighted:
  """Values of examples with their weights; in a plain array each weighs 1.

  >>> weighted(jnp.array([0.5, 2.0])).weight.tolist()
  [1.0, 1.0]
  """
  if isinstance(values, Weighted):
    return values
  return Weighted(values, jnp.ones_like(values))


class Task(NamedTuple):
  """Anything trainable: three pure functions. Flax, Haiku or hand-written.

  A value of each example is an array [b], in which each weighs 1, or
  `Weighted`. The library masks padded examples and takes the mean; what a task
  gives for these is never used, as long as it is finite.

  Attributes:
    init: key -> params, float32 leaves.
    loss: (params, batch, key) -> losses, one per example. The key is for
      dropout and the like.
    metrics: (params, batch) -> name -> values, one per example, without
      dropout; 'loss' and 'accuracy' at least.
  """

  init: Callable[[Key], Params]
  loss: Callable[[Params, Batch, Key], Float[Array, ' b'] | Weighted]
  metrics: Callable[
    [Params, Batch], Mapping[str, Float[Array, ' b'] | Weighted]
  ]
