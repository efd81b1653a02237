"""Walsh-Hadamard transforms of vectors that are folded with random signs.

`hadamard`, `hadamard2` and their forms for several devices have these in
common: signs made by the tile, a pass over v that adds s ∘ v up into B numbers,
the pass back, and the transform of these B numbers.
"""

from collections.abc import Callable
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int
import numpy as np

from epe_jax.canaries import _signs, _threefry
from epe_jax.canaries.base import Canaries, accept_stacks
from epe_jax.canaries.registry import check_sizes
from epe_jax.types import Array

PURPOSE = 2
ORDER = 4096
"""The largest B."""
LANES = ORDER // 4
"""The counters of a tile; each gives two words."""
TILE = _signs.PER_LANE * LANES
"""Coordinates whose signs are made together, 16 rows of 4096; a vector is cut
between tiles."""


class Passes(NamedTuple):
  """The two passes over v, `fold` and its transpose `unfold`.

  Attributes:
    length: entries of the vectors, d unless they are padded.
    fold: (root, stream, x [r, length]) -> [r, 4096].
    unfold: (root, streams [g], shorts [g, 4096]) -> [length].
  """

  length: int
  fold: Callable[..., Float[Array, 'r b']]
  unfold: Callable[..., Float[Array, ' d']]


def make_canaries(
  root: _threefry.Root, num: int, dim: int, passes: Passes | None = None
) -> Canaries:
  """Makes the canaries of `hadamard.hadamard` from the two passes over v.

  Args:
    root: generator of the signs.
    num: k >= 1.
    dim: d >= 2.
    passes: the passes over v; None for those of one device.
  """
  check_sizes(num, dim)
  passes = passes or Passes(
    dim, fold, lambda root, which, shorts: unfold(root, which, shorts, dim)
  )
  order = compute_order(dim)
  groups = -(-num // order)

  def project(v: Float[Array, 'r d']) -> Float[Array, 'r k']:
    v = v.astype(jnp.float32)

    def project_group(group: Int[Array, '']) -> Float[Array, 'r b']:
      short = passes.fold(root, group, v).reshape(-1, ORDER // order, order)
      return transform(short.sum(1))

    products = jax.lax.map(project_group, jnp.arange(groups)) / math.sqrt(dim)
    return jnp.moveaxis(products, 0, 1).reshape(-1, groups * order)[:, :num]

  def superpose(
    ids: Int[Array, ' m'], weights: Float[Array, ' m']
  ) -> Float[Array, ' d']:
    weights = weights.astype(jnp.float32) / math.sqrt(dim)
    which, rows = group_weights(ids, weights, groups, order)
    shorts = jnp.tile(transform(rows), ORDER // order)
    return passes.unfold(root, which, shorts)

  return Canaries(
    num, dim, accept_stacks(project, num, passes.length), superpose
  )


def compute_order(dim: int) -> int:
  """Returns B: 4096, or the largest power of two that is at most d."""
  return min(ORDER, 1 << (dim.bit_length() - 1))


def group_weights(
  ids: Int[Array, ' m'],
  weights: Float[Array, ' m'],
  groups: int,
  order: int,
) -> tuple[Int[Array, ' g'], Float[Array, 'g b']]:
  """Turns weights of canaries into weights of the rows of groups.

  Args:
    ids: of the canaries.
    weights: one of each canary.
    groups: the number of groups.
    order: B, the number of canaries of a group.

  Returns:
    Groups, and for each of them the weights of its B rows. A group may occur
    more than once.
  """
  group, row = ids // order, ids % order
  if ids.shape[0] < groups:  # With few ids each is a group of its own.
    return group, jax.nn.one_hot(row, order) * weights[:, None]
  rows = jnp.zeros((groups, order)).at[group, row].add(weights)
  return jnp.arange(groups), rows


def transform(x: Float[Array, '*r b']) -> Float[Array, '*r b']:
  """Returns H x, with the unscaled Hadamard matrix of order b = 2^n.

  H of order p q is the Kronecker product of those of orders p and q, so two
  products with small matrices do what n rounds of butterflies do.
  """
  bits = x.shape[-1].bit_length() - 1
  left, right = _make_matrix(bits // 2), _make_matrix(bits - bits // 2)
  square = x.reshape(*x.shape[:-1], left.shape[0], right.shape[0])
  # In full float32 on every device.
  product = jnp.einsum(
    'pa,...ab,bq->...pq', left, square, right, precision='highest'
  )
  return product.reshape(x.shape)


def fold(
  root: _threefry.Root,
  stream: Int[Array, ''],
  x: Float[Array, 'r d'],
  first: int | Int[Array, ''] = 0,
) -> Float[Array, 'r b=4096']:
  """Sums s_i x_i over all coordinates i with the same i mod 4096.

  Args:
    root: generator of the signs.
    stream: index of the group.
    x: vectors, or consecutive coordinates of them that begin with a tile.
    first: index of that tile.
  """
  tiles = x.shape[1] // TILE

  def add(
    total: Float[Array, 'r w=2 h=2 n'],
    tile: Int[Array, ''],
    x: Float[Array, 'r x'],
    start: Int[Array, ''],
  ) -> Float[Array, 'r w=2 h=2 n']:
    words = _signs.draw_words(root, first + tile, stream[None], LANES)[0]
    rows = []
    for i in range(_signs.ROWS):
      row = jax.lax.dynamic_slice_in_dim(x, start + i * ORDER, ORDER, 1)
      rows.append(_signs.apply_signs(row.reshape(total.shape), words, i))
    # By halves: a sum that waits for the one before it is slower.
    while len(rows) > 1:
      rows = [a + b for a, b in zip(rows[::2], rows[1::2])]
    return total + rows[0]

  total = jnp.zeros((x.shape[0], 2, 2, LANES), jnp.float32)
  if tiles:
    total = jax.lax.fori_loop(
      0, tiles, lambda i, total: add(total, i, x, i * TILE), total
    )
  rest = x[:, tiles * TILE :]
  if rest.shape[1]:
    rest = jnp.pad(rest, ((0, 0), (0, TILE - rest.shape[1])))
    total = add(total, jnp.int32(tiles), rest, jnp.int32(0))
  return total.reshape(-1, ORDER)


def unfold(
  root: _threefry.Root,
  streams: Int[Array, ' g'],
  shorts: Float[Array, 'g b=4096'],
  dim: int,
  first: int | Int[Array, ''] = 0,
) -> Float[Array, ' d']:
  """Sums s ∘ (short, short, ...) over streams: the transpose of `fold`."""

  def make_tile(i: Int[Array, '']) -> Float[Array, 'rows=16 w=2 h=2 n']:
    def make_signed(stream: Int[Array, ''], short: Float[Array, ' b=4096']):
      words = _signs.draw_words(root, i, stream[None], LANES)
      return _signs.apply_signs(
        short.reshape(1, 2, 2, LANES), words, _signs.ALL_ROWS
      )

    if streams.shape[0] == 1:
      return make_signed(streams[0], shorts[0])
    zero = jnp.zeros((_signs.ROWS, 2, 2, LANES), jnp.float32)
    total, _ = jax.lax.scan(
      lambda total, x: (total + make_signed(*x), None), zero, (streams, shorts)
    )
    return total

  # Flattened after the loop; within it XLA:CPU would divide at each entry.
  tiles = first + jnp.arange(-(-dim // TILE))
  return jax.lax.map(make_tile, tiles).ravel()[:dim]


def _make_matrix(bits: int) -> Float[np.ndarray, 'b b']:
  """The Hadamard matrix of order 2^bits in the order of Sylvester."""
  i = np.arange(1 << bits)
  shared = np.bitwise_count(i[:, None] & i)
  return np.where(shared % 2, -1, 1).astype(np.float32)
