"""A fusion barrier, behind which an array is computed once for all its uses."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Bool

from epe_jax.types import Array


def fusion_barrier(always: Bool[Array, ''], make: Callable[[], Any]) -> Any:
  """Returns what `make` returns, materialized rather than fused into its uses.

  XLA:CPU recomputes an array inside each computation that uses it if each
  single operation is cheap, and so would do the rounds of Threefry twice or 32
  times. It does not fuse across the branches of a conditional.

  Args:
    always: a traced condition that is true, which XLA cannot infer.
    make: () -> a tree of arrays.
  """
  like = jax.eval_shape(make)

  def zeros() -> Any:
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)

  return jax.lax.cond(always, make, zeros)
