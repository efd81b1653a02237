"""The words that signatures are written in, and what a model must offer."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
from jaxtyping import Float

Array: TypeAlias = jax.Array
Key: TypeAlias = jax.Array  # one typed PRNG key, jax.random.key(...)
PyTree: TypeAlias = Any
Params: TypeAlias = PyTree  # float32 leaves, d numbers in all
Batch: TypeAlias = PyTree  # arrays with the examples along the first axis


class Task(NamedTuple):
  """Anything trainable: three pure functions. Flax, Haiku or hand-written.

  Attributes:
    init: key -> params, float32 leaves.
    loss: (params, batch, key) -> [b] losses, one per example; the library masks
      padded examples and averages. The key is for dropout and the like.
    metrics: (params, batch) -> name -> [b] values, one per example, without
      dropout; 'loss' and 'accuracy' at least.
  """

  init: Callable[[Key], Params]
  loss: Callable[[Params, Batch, Key], Float[Array, ' b']]
  metrics: Callable[[Params, Batch], dict[str, Float[Array, ' b']]]
