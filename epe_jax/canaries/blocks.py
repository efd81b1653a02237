"""C v without C: a piece of coordinates of a block of canaries at a time."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Int

from epe_jax.types import Array, PyTree

Look = Callable[[Int[Array, ' b']], PyTree]


def total(
  at: Callable[[Int[Array, '']], Look],
  *,
  num: int,
  block: int,
  pieces: int,
  first: int | Int[Array, ''] = 0,
) -> PyTree:
  """Sums over pieces of what is seen of each canary in a piece.

  Pieces are the outer loop and canaries the inner one, so that the vectors
  that canaries are compared with are read once, however many canaries there
  are.

  Args:
    at: piece i -> a function from ids [b] to arrays [b, ...].
    num: k, the number of canaries.
    block: b, canaries looked at together.
    pieces: the number of pieces.
    first: id of the first canary.

  Returns:
    Arrays [k, ...]; added up in the order of the pieces.
  """
  block = min(block, num)
  # The last block is filled up with ids past the last, which are dropped.
  ids = first + jnp.arange(-(-num // block) * block).reshape(-1, block)

  def seen(i: Int[Array, '']) -> PyTree:
    return jax.lax.map(at(i), ids)

  def add(sums: PyTree, i: Int[Array, '']):
    return jax.tree.map(jnp.add, sums, seen(i)), None

  zero = jax.tree.map(
    lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(seen, jnp.int32(0))
  )
  sums = jax.lax.scan(add, zero, jnp.arange(pieces))[0]
  return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:num], sums)
