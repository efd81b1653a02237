"""Canaries of Hadamard rows for sparse vectors: folded, mixed, folded again.

x is folded onto 16 rows of B numbers with random signs, each row rotated by a
random amount for every tile that is added to it. A transform of each row
spreads what is on one number over B, and then the rows are folded as those of
`hadamard`. The transforms are of 16 B numbers and not of d, so they cost
nothing.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int
import numpy as np

from epe_jax.canaries import threefry
from epe_jax.canaries.base import Canaries, accept_stacks, derive_root
from epe_jax.canaries.hadamard import (
  apply_signs,
  draw_sign_words,
  group_weights,
  sum_over_groups,
  transform,
)
from epe_jax.canaries.threefry import ALL_ROWS, LANES, ORDER, ROWS, TILE
from epe_jax.types import Array, Key

_SHAPE = (ROWS, 2, 2, LANES)
_WITHIN = np.arange(ORDER).reshape(_SHAPE[1:])


class _Layout(NamedTuple):
  """Generators, and the cut of d coordinates: whole tiles, whole blocks, the rest.

  Attributes:
    first: generator of the first signs.
    second: of those in between.
    rotations: of rotations.
    order: B.
    tiles: whole tiles that do not touch the last B coordinates.
    blocks: coordinates after the tiles in whole blocks of B, > 0; at most one more
      tile.
    remainder: L = d mod B.
  """

  first: threefry.Root
  second: threefry.Root
  rotations: threefry.Root
  order: int
  tiles: int
  blocks: int
  remainder: int


def hadamard2(key: Key, num: int, dim: int) -> Canaries:
  """`hadamard` with two folds: for v with few coordinates that matter.

  Coordinate i of tile t, of 16 x B, is signed, rotated and added to row i // B
  of 16; a transform spreads it over B numbers, which are signed and added up
  once more. Two coordinates stay together through both folds if they meet in
  the first, which they do with probability 1/B in the same row of different
  tiles, and else never. If B does not divide d, the last B coordinates are
  signed and transformed before all else, so that the L = d mod B coordinates
  that are left over need the second fold alone.

  Norms and inner products are those of `hadamard`, as are memory, 32 B floats
  a vector, and time: one pass over v for each group of canaries. So is what
  must be known of v after Adam and its like.

  >>> canaries = hadamard2(jax.random.key(0), num=5, dim=8192)
  >>> two = canaries.superpose(jnp.array([3, 4]), jnp.array([1.0, 2.0]))
  >>> abs(canaries.project(two)).round(3).tolist()
  [0.0, 0.0, 0.0, 1.0, 2.0]
  """
  threefry.check_sizes(num, dim)
  order = threefry.compute_order(dim)
  remainder, tiles = dim % order, (dim - order) // TILE
  roots = (derive_root(key, purpose) for purpose in threefry.HADAMARD2)
  layout = _Layout(
    *roots,
    order=order,
    tiles=tiles,
    blocks=dim - remainder - tiles * TILE,
    remainder=remainder,
  )
  groups = -(-num // order)

  def project(v: Float[Array, 'r d']) -> Float[Array, 'r k']:
    v = v.astype(jnp.float32)
    rest = _mix_last(layout, v[:, layout.tiles * TILE :])
    products = jax.lax.map(
      lambda group: _project_group(layout, group, v, rest),
      jnp.arange(groups),
    )
    products = jnp.moveaxis(products, 0, 1).reshape(v.shape[0], -1)[:, :num]
    return products / math.sqrt(dim)

  def superpose(
    ids: Int[Array, ' m'], weights: Float[Array, ' m']
  ) -> Float[Array, ' d']:
    which, rows = group_weights(
      ids, weights.astype(jnp.float32), groups, layout.order
    )
    return _superpose_groups(layout, which, transform(rows)) / math.sqrt(dim)

  return Canaries(num, dim, accept_stacks(project, num, dim), superpose)


def _mix_last(
  layout: _Layout,
  rest: Float[Array, 'r x'],
  *,
  back: bool = False,
) -> Float[Array, 'r x']:
  """Mixes the last B coordinates of those after the tiles, or undoes it."""
  if not layout.remainder:
    return rest
  start = rest.shape[1] - layout.order
  last = rest[:, start:]
  mix = lambda x: transform(x) / math.sqrt(layout.order)
  # Row 1 of tile 1, which nothing else uses.
  flip = lambda x: _sign_row(layout, x, jnp.int32(0), 1)
  last = flip(mix(last)) if back else mix(flip(last))
  return jnp.concatenate([rest[:, :start], last], 1)


def _project_group(
  layout: _Layout,
  group: Int[Array, ''],
  x: Float[Array, 'r d'],
  rest: Float[Array, 'r x'],
) -> Float[Array, 'r b']:
  """The inner products with the canaries of a group, before they are scaled."""

  def read_rotated(i: Int[Array, '']) -> Float[Array, 'r rows=16 w=2 h=2 n']:
    # A rotated row is its end and then its start: two windows of x, of which
    # each has some of the numbers.
    rotation = _draw_rotation(layout, i, group)
    window = lambda start: jax.lax.dynamic_slice_in_dim(
      x, start, TILE, 1
    ).reshape(-1, *_SHAPE)
    start = i * TILE - rotation
    return jnp.where(rotation > _WITHIN, window(start + ORDER), window(start))

  def add(i: Int[Array, ''], total: Array, tile: Array):
    words = draw_sign_words(layout.first, i, group)
    return total + apply_signs(tile, words, ALL_ROWS)

  once = jnp.zeros((x.shape[0], *_SHAPE), jnp.float32)
  if layout.tiles:
    once = jax.lax.fori_loop(
      0, layout.tiles, lambda i, total: add(i, total, read_rotated(i)), once
    )
  final = jnp.int32(layout.tiles)
  blocks = rest[:, : layout.blocks]
  blocks = jnp.pad(blocks, ((0, 0), (0, TILE - layout.blocks)))
  blocks = _rotate(
    blocks.reshape(-1, ROWS, ORDER), _draw_rotation(layout, final, group)
  )
  once = add(final, once, blocks.reshape(-1, *_SHAPE))
  once = once.reshape(-1, ROWS, ORDER)
  twice = _mix_rows(layout, group, once, back=False).sum(1)
  short = twice.reshape(x.shape[0], -1, layout.order).sum(1)
  tail = _sign_row(layout, rest[:, layout.blocks :], group, 0)
  tail = jnp.pad(tail, ((0, 0), (0, layout.order - layout.remainder)))
  return transform(short + tail)


def _superpose_groups(
  layout: _Layout,
  groups: Int[Array, ' g'],
  shorts: Float[Array, 'g b'],
) -> Float[Array, ' d']:
  """Sums weighted canaries of groups: the transpose of `_project_group`."""
  tiled = jnp.tile(shorts, ORDER // layout.order)[:, None]
  spread = jax.vmap(
    lambda group, x: _mix_rows(layout, group, x[None], back=True)[0]
  )(groups, jnp.broadcast_to(tiled, (tiled.shape[0], ROWS, ORDER)))

  def make_signed(
    i: Int[Array, ''], group: Int[Array, ''], spread: Float[Array, 'rows=16 w']
  ) -> Float[Array, 'rows=16 w']:
    words = draw_sign_words(layout.first, i, group)
    x = apply_signs(spread.reshape(_SHAPE), words, ALL_ROWS)
    return _rotate(
      x.reshape(-1, ORDER), ORDER - _draw_rotation(layout, i, group)
    )

  make_tile = lambda i: sum_over_groups(
    functools.partial(make_signed, i), groups, spread, (ROWS, ORDER)
  )
  tiles = jax.lax.map(make_tile, jnp.arange(layout.tiles + 1)).ravel()
  end = layout.tiles * TILE
  tail = jax.vmap(lambda group, x: _sign_row(layout, x[None], group, 0)[0])(
    groups, shorts[:, : layout.remainder]
  ).sum(0)
  rest = jnp.concatenate([tiles[end : end + layout.blocks], tail])
  rest = _mix_last(layout, rest[None], back=True)[0]
  return jnp.concatenate([tiles[:end], rest])


def _mix_rows(
  layout: _Layout,
  group: Int[Array, ''],
  x: Float[Array, 'r rows=16 w'],
  *,
  back: bool,
) -> Float[Array, 'r rows=16 w']:
  """Transforms rows in blocks of B, then signs them; or undoes it."""
  shape = x.shape
  words = draw_sign_words(layout.second, jnp.int32(0), group)

  def mix(x: Array) -> Array:
    blocks = x.reshape(-1, layout.order)
    return (transform(blocks) / math.sqrt(layout.order)).reshape(shape)

  def flip(x: Array) -> Array:
    rows = x.reshape(-1, *_SHAPE)
    return apply_signs(rows, words, ALL_ROWS).reshape(shape)

  return mix(flip(x)) if back else flip(mix(x))


def _sign_row(
  layout: _Layout, x: Float[Array, 'r x'], group: Int[Array, ''], row: int
) -> Float[Array, 'r x']:
  """Gives up to 4096 numbers the signs of a row of tile 1."""
  words = draw_sign_words(layout.second, jnp.int32(1), group)
  padded = jnp.pad(x, ((0, 0), (0, ORDER - x.shape[1])))
  padded = apply_signs(padded.reshape(-1, 2, 2, LANES), words, row)
  return padded.reshape(-1, ORDER)[:, : x.shape[1]]


def _rotate(
  x: Float[Array, '*r w'], rotation: Int[Array, '']
) -> Float[Array, '*r w']:
  """Rotates the last axis by 0 to its length, as `jnp.roll` does."""
  both = jnp.concatenate([x, x], -1)
  start = x.shape[-1] - rotation
  return jax.lax.dynamic_slice_in_dim(both, start, x.shape[-1], x.ndim - 1)


def _draw_rotation(
  layout: _Layout, tile: Int[Array, ''], group: Int[Array, '']
) -> Int[Array, '']:
  """Draws the rotation of the rows of a tile, which is 0 in the first tile."""
  word, _ = threefry.draw_words(
    layout.rotations, tile.astype(jnp.uint32), group.astype(jnp.uint32)
  )
  rotation = (word % jnp.uint32(ORDER)).astype(jnp.int32)
  # A block of fewer than 4096 fills no row; then this is the only tile.
  return jnp.where(tile > 0, rotation, 0)
