"""Canaries of Hadamard rows for sparse vectors: folded, mixed, folded again.

x is folded onto 16 rows of B numbers with random signs, each row rotated by a
random amount for every tile that is added to it. A transform of each row
spreads what is on one number over B, and then the rows are folded as those of
`hadamard`. The transforms are of 16 B numbers and not of d, so they cost
nothing.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int
import numpy as np

from epe_jax.canaries import _signs, _threefry, _walsh
from epe_jax.canaries.base import Canaries, accept_stacks
from epe_jax.canaries.registry import check_sizes
from epe_jax.types import Array, Key

_PURPOSES = (3, 4, 7)
_WIDTH = _walsh.ORDER
_LANES = _walsh.LANES
_TILE = _walsh.TILE
_ROWS = (_signs.ROWS, 2, 2, _LANES)
_WITHIN = np.arange(_WIDTH).reshape(_ROWS[1:])


class _Roots(NamedTuple):
  """Generators: of the first signs, of those in between, of rotations."""

  first: _threefry.Root
  second: _threefry.Root
  rotations: _threefry.Root


class _Split(NamedTuple):
  """The cut of d coordinates: whole tiles, whole blocks, the remainder.

  Attributes:
    order: B.
    tiles: whole tiles that do not touch the last B coordinates.
    blocks: coordinates after the tiles in whole blocks, > 0; at most one more
      tile.
    remainder: L = d mod B.
  """

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

  Args:
    key: the canary key; never the key of the privacy noise.
    num: k >= 1.
    dim: d >= 2.

  Raises:
    ValueError: num or dim is out of range.

  >>> canaries = hadamard2(jax.random.key(0), num=5, dim=8192)
  >>> two = canaries.superpose(jnp.array([3, 4]), jnp.array([1.0, 2.0]))
  >>> abs(canaries.project(two)).round(3).tolist()
  [0.0, 0.0, 0.0, 1.0, 2.0]
  """
  check_sizes(num, dim)
  roots = _Roots(
    *(_threefry.derive_root(key, purpose) for purpose in _PURPOSES)
  )
  split = _split_coordinates(dim)
  groups = -(-num // split.order)

  def project(v: Float[Array, 'r d']) -> Float[Array, 'r k']:
    v = v.astype(jnp.float32)
    rest = _mix_last(roots, split, v[:, split.tiles * _TILE :])
    products = jax.lax.map(
      lambda group: _project_group(roots, split, group, v, rest),
      jnp.arange(groups),
    )
    products = jnp.moveaxis(products, 0, 1).reshape(v.shape[0], -1)[:, :num]
    return products / math.sqrt(dim)

  def superpose(
    ids: Int[Array, ' m'], weights: Float[Array, ' m']
  ) -> Float[Array, ' d']:
    which, rows = _walsh.group_weights(
      ids, weights.astype(jnp.float32), groups, split.order
    )
    return _superpose_groups(
      roots, split, which, _walsh.transform(rows)
    ) / math.sqrt(dim)

  return Canaries(num, dim, accept_stacks(project, num, dim), superpose)


def _split_coordinates(dim: int) -> _Split:
  order = _walsh.compute_order(dim)
  remainder = dim % order
  tiles = (dim - order) // _TILE
  return _Split(order, tiles, dim - remainder - tiles * _TILE, remainder)


def _mix_last(
  roots: _Roots,
  split: _Split,
  rest: Float[Array, 'r x'],
  *,
  back: bool = False,
) -> Float[Array, 'r x']:
  """Mixes the last B coordinates of those after the tiles, or undoes it."""
  if not split.remainder:
    return rest
  start = rest.shape[1] - split.order
  last = rest[:, start:]
  mix = lambda x: _walsh.transform(x) / math.sqrt(split.order)
  # Row 1 of tile 1, which nothing else uses.
  flip = lambda x: _sign_row(roots, x, jnp.int32(0), 1)
  last = flip(mix(last)) if back else mix(flip(last))
  return jnp.concatenate([rest[:, :start], last], 1)


def _project_group(
  roots: _Roots,
  split: _Split,
  group: Int[Array, ''],
  x: Float[Array, 'r d'],
  rest: Float[Array, 'r x'],
) -> Float[Array, 'r b']:
  """The inner products with the canaries of a group, before they are scaled."""

  def read_rotated(i: Int[Array, '']) -> Float[Array, 'r rows=16 w=2 h=2 n']:
    # A rotated row is its end and then its start: two windows of x, of which
    # each has some of the numbers.
    rotation = _draw_rotation(roots, i, group)
    window = lambda start: jax.lax.dynamic_slice_in_dim(
      x, start, _TILE, 1
    ).reshape(-1, *_ROWS)
    start = i * _TILE - rotation
    return jnp.where(rotation > _WITHIN, window(start + _WIDTH), window(start))

  def add(i: Int[Array, ''], total: Array, tile: Array):
    words = _signs.draw_words(roots.first, i, group[None], _LANES)[0]
    return total + _signs.apply_signs(tile, words, _signs.ALL_ROWS)

  once = jnp.zeros((x.shape[0], *_ROWS), jnp.float32)
  if split.tiles:
    once = jax.lax.fori_loop(
      0, split.tiles, lambda i, total: add(i, total, read_rotated(i)), once
    )
  final = jnp.int32(split.tiles)
  blocks = rest[:, : split.blocks]
  blocks = jnp.pad(blocks, ((0, 0), (0, _TILE - split.blocks)))
  blocks = _rotate(
    blocks.reshape(-1, _signs.ROWS, _WIDTH), _draw_rotation(roots, final, group)
  )
  once = add(final, once, blocks.reshape(-1, *_ROWS))
  once = once.reshape(-1, _signs.ROWS, _WIDTH)
  twice = _mix_rows(roots, split, group, once, back=False).sum(1)
  short = twice.reshape(x.shape[0], -1, split.order).sum(1)
  tail = _sign_row(roots, rest[:, split.blocks :], group, 0)
  tail = jnp.pad(tail, ((0, 0), (0, split.order - split.remainder)))
  return _walsh.transform(short + tail)


def _superpose_groups(
  roots: _Roots,
  split: _Split,
  groups: Int[Array, ' g'],
  shorts: Float[Array, 'g b'],
) -> Float[Array, ' d']:
  """Sums weighted canaries of groups: the transpose of `_project_group`."""
  tiled = jnp.tile(shorts, _WIDTH // split.order)[:, None]
  spread = jax.vmap(
    lambda group, x: _mix_rows(roots, split, group, x[None], back=True)[0]
  )(groups, jnp.broadcast_to(tiled, (tiled.shape[0], _signs.ROWS, _WIDTH)))

  def make_tile(i: Int[Array, '']) -> Float[Array, 'rows=16 w']:
    def make_signed(group: Int[Array, ''], spread: Float[Array, 'rows=16 w']):
      words = _signs.draw_words(roots.first, i, group[None], _LANES)
      x = _signs.apply_signs(spread.reshape(_ROWS), words, _signs.ALL_ROWS)
      x = x.reshape(-1, _WIDTH)
      return _rotate(x, _WIDTH - _draw_rotation(roots, i, group))

    if groups.shape[0] == 1:
      return make_signed(groups[0], spread[0])
    zero = jnp.zeros((_signs.ROWS, _WIDTH), jnp.float32)
    return jax.lax.scan(
      lambda total, x: (total + make_signed(*x), None), zero, (groups, spread)
    )[0]

  tiles = jax.lax.map(make_tile, jnp.arange(split.tiles + 1)).ravel()
  end = split.tiles * _TILE
  tail = jax.vmap(lambda group, x: _sign_row(roots, x[None], group, 0)[0])(
    groups, shorts[:, : split.remainder]
  ).sum(0)
  rest = jnp.concatenate([tiles[end : end + split.blocks], tail])
  rest = _mix_last(roots, split, rest[None], back=True)[0]
  return jnp.concatenate([tiles[:end], rest])


def _mix_rows(
  roots: _Roots,
  split: _Split,
  group: Int[Array, ''],
  x: Float[Array, 'r rows=16 w'],
  *,
  back: bool,
) -> Float[Array, 'r rows=16 w']:
  """Transforms rows in blocks of B, then signs them; or undoes it."""
  shape = x.shape
  words = _signs.draw_words(roots.second, jnp.int32(0), group[None], _LANES)[0]

  def mix(x: Array) -> Array:
    blocks = x.reshape(-1, split.order)
    return (_walsh.transform(blocks) / math.sqrt(split.order)).reshape(shape)

  def flip(x: Array) -> Array:
    rows = x.reshape(-1, *_ROWS)
    return _signs.apply_signs(rows, words, _signs.ALL_ROWS).reshape(shape)

  return mix(flip(x)) if back else flip(mix(x))


def _sign_row(
  roots: _Roots, x: Float[Array, 'r x'], group: Int[Array, ''], row: int
) -> Float[Array, 'r x']:
  """Gives up to 4096 numbers the signs of a row of tile 1."""
  words = _signs.draw_words(roots.second, jnp.int32(1), group[None], _LANES)[0]
  padded = jnp.pad(x, ((0, 0), (0, _WIDTH - x.shape[1])))
  padded = _signs.apply_signs(padded.reshape(-1, 2, 2, _LANES), words, row)
  return padded.reshape(-1, _WIDTH)[:, : x.shape[1]]


def _rotate(
  x: Float[Array, '*r w'], rotation: Int[Array, '']
) -> Float[Array, '*r w']:
  """Rotates the last axis by 0 to its length, as `jnp.roll` does."""
  both = jnp.concatenate([x, x], -1)
  start = x.shape[-1] - rotation
  return jax.lax.dynamic_slice_in_dim(both, start, x.shape[-1], x.ndim - 1)


def _draw_rotation(
  roots: _Roots, tile: Int[Array, ''], group: Int[Array, '']
) -> Int[Array, '']:
  """Draws the rotation of the rows of a tile, which is 0 in the first tile."""
  word, _ = _threefry.draw_words(
    roots.rotations, tile.astype(jnp.uint32), group.astype(jnp.uint32)
  )
  rotation = (word % jnp.uint32(_WIDTH)).astype(jnp.int32)
  # A block of fewer than 4096 fills no row; then this is the only tile.
  return jnp.where(tile > 0, rotation, 0)
