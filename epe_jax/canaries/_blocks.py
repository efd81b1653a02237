"""C v without C: a piece of coordinates of a block of canaries at a time."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from epe_jax.types import Array, PyTree

Projection = Callable[[Int[Array, ' b']], PyTree]


class Part(NamedTuple):
  """Canaries that are scored one block after another, and the vectors.

  Attributes:
    num: k, how many they are.
    block: those that are held at once.
    first: number of the first; it may be traced.
    fetched: makes a piece of the vectors at hand that of all vectors.
  """

  num: int
  block: int
  first: int | Int[Array, ''] = 0
  fetched: Callable[[Float[Array, 'r w']], Float[Array, 'all_r w']] = (
    lambda piece: piece
  )


def sum_over_pieces(
  at: Callable[[Int[Array, '']], Projection], pieces: int, part: Part
) -> PyTree:
  """Sums over pieces of what is seen of each canary in a piece.

  Pieces are the outer loop and canaries the inner one, so that the vectors
  that canaries are compared with are read once, however many canaries there
  are.

  Args:
    at: piece i -> a function from ids [b] to arrays [b, ...].
    pieces: the number of pieces.
    part: the canaries.

  Returns:
    Arrays [k, ...]; added up in the order of the pieces.
  """
  block = min(part.block, part.num)
  # The last block is filled up with ids past the last, which are dropped.
  ids = part.first + jnp.arange(-(-part.num // block) * block)
  ids = ids.reshape(-1, block)

  def seen(i: Int[Array, '']) -> PyTree:
    return jax.lax.map(at(i), ids)

  def add(sums: PyTree, i: Int[Array, '']):
    return jax.tree.map(jnp.add, sums, seen(i)), None

  zero = jax.tree.map(
    lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(seen, jnp.int32(0))
  )
  sums = jax.lax.scan(add, zero, jnp.arange(pieces))[0]
  return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[: part.num], sums)


def read_piece(
  v: Float[Array, 'r d'], start: Int[Array, ''], width: int, end: int
) -> Float[Array, 'r w']:
  """Coordinates from `start` on as float32, with zeros from `end` on.

  Cut out of v as it is: vectors that are filled up to whole pieces would be a
  copy of them all, which are most of the memory that there is.
  """
  v = jnp.pad(v, ((0, 0), (0, max(width - v.shape[1], 0))))
  # A slice that would reach past the last coordinate is moved to end there.
  begin = jnp.minimum(start, v.shape[1] - width)
  found = jax.lax.dynamic_slice_in_dim(v, begin, width, 1)
  found = jax.lax.dynamic_slice_in_dim(
    jnp.pad(found, ((0, 0), (0, width))), start - begin, width, 1
  )
  found = jnp.where(start + jnp.arange(width) < end, found, 0)
  return found.astype(jnp.float32)
