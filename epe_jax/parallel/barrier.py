"""A fusion barrier: an array is computed once, whatever the number of its uses."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Bool

from epe_jax.types import Array


def fusion_barrier(always: Bool[Array, ''], make: Callable[[], Any]) -> Any:
  """Returns what `make` returns, materialized rather than fused into its uses.

  XLA recomputes an array inside each computation that uses it if its operations
  are cheap one by one, such as the 20 rounds of Threefry. XLA:CPU drops
  optimization barriers before it fuses, but does not fuse across the branches of
  a conditional; other platforms get the optimization barrier.

  Args:
    always: a traced condition that is true, which XLA cannot infer.
    make: () -> a tree of arrays.
  """

  def choose_always() -> Any:
    like = jax.eval_shape(make)
    zeros = lambda: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)
    return jax.lax.cond(always, make, zeros)

  return jax.lax.platform_dependent(
    cpu=choose_always, default=lambda: jax.lax.optimization_barrier(make())
  )
