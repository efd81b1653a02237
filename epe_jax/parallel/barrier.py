"""Computed once and kept for all who use it, where XLA would do it for each."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Bool

from epe_jax.types import Array


def fusion_barrier(always: Bool[Array, ''], make: Callable[[], Any]) -> Any:
  """What `make` returns, computed once and kept for all who use it.

  XLA:CPU makes an array anew inside each computation that uses it if every
  single operation is cheap, and so would do the rounds of Threefry twice or 32
  times. It does not look into branches.

  Args:
    always: true, and traced: something that XLA does not know to be true.
    make: what is to be computed.
  """
  like = jax.eval_shape(make)

  def zeros() -> Any:
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)

  return jax.lax.cond(always, make, zeros)
