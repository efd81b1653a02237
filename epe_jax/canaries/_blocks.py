"""C v, computed piece by piece of coordinates for blocks of canaries."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from epe_jax.types import Array, PyTree

Projection = Callable[[Int[Array, ' b']], PyTree]


class Shard(NamedTuple):
  """The consecutive canaries that one device scores, a block at a time.

  Attributes:
    num: k, the number of these canaries.
    block: canaries that are held at once.
    first: id of the first one; it may be traced.
    gather: a piece of the vectors of this device -> that piece of all vectors.
  """

  num: int
  block: int
  first: int | Int[Array, ''] = 0
  gather: Callable[[Float[Array, 'r w']], Float[Array, 'all_r w']] = (
    lambda piece: piece
  )


def sum_over_pieces(
  project_piece: Callable[[Int[Array, '']], Projection],
  pieces: int,
  shard: Shard,
) -> PyTree:
  """Sums projections onto canaries over the pieces of coordinates.

  Pieces are the outer loop and canaries the inner one, so that the vectors
  that canaries are compared with are read once, however many canaries there
  are.

  Args:
    project_piece: i -> a function from ids [b] to arrays [b, ...].
    pieces: the number of pieces.
    shard: the canaries.

  Returns:
    Arrays [k, ...]; added up in the order of the pieces.
  """
  block = min(shard.block, shard.num)
  # The last block is filled up with ids past the last, which are dropped.
  ids = shard.first + jnp.arange(-(-shard.num // block) * block)
  ids = ids.reshape(-1, block)

  def project_all(i: Int[Array, '']) -> PyTree:
    return jax.lax.map(project_piece(i), ids)

  def add(sums: PyTree, i: Int[Array, '']):
    return jax.tree.map(jnp.add, sums, project_all(i)), None

  zero = jax.tree.map(
    lambda x: jnp.zeros(x.shape, x.dtype),
    jax.eval_shape(project_all, jnp.int32(0)),
  )
  sums = jax.lax.scan(add, zero, jnp.arange(pieces))[0]
  return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[: shard.num], sums)


def read_piece(
  v: Float[Array, 'r d'], start: Int[Array, ''], width: int, end: int
) -> Float[Array, 'r w']:
  """Reads `width` coordinates from `start` on as float32; from `end` on, zeros.

  They are cut out of v as it is. Padding v to whole pieces would copy all the
  vectors, and these are most of the memory in use.
  """
  v = jnp.pad(v, ((0, 0), (0, max(width - v.shape[1], 0))))
  # A slice that would reach past the last coordinate is moved to end there.
  begin = jnp.minimum(start, v.shape[1] - width)
  piece = jax.lax.dynamic_slice_in_dim(v, begin, width, 1)
  piece = jax.lax.dynamic_slice_in_dim(
    jnp.pad(piece, ((0, 0), (0, width))), start - begin, width, 1
  )
  piece = jnp.where(start + jnp.arange(width) < end, piece, 0)
  return piece.astype(jnp.float32)
