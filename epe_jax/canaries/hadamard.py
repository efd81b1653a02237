"""Canaries that are rows of a Hadamard matrix, tiled over d with random signs.

c_j = s ∘ (H_j, H_j, ..., H_j) / sqrt(d) with random signs s and row j of the
Hadamard matrix of order B. All k inner products <c_j, x> are then one pass over
x, which adds s ∘ x up into B numbers, and one Walsh-Hadamard transform of
these.
"""

from collections.abc import Callable
import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int, UInt32
import numpy as np

from epe_jax.canaries import threefry
from epe_jax.canaries.base import Canaries, accept_stacks, derive_root
from epe_jax.canaries.threefry import ALL_ROWS, LANES, ORDER, ROWS, TILE
from epe_jax.parallel import sharding
from epe_jax.parallel.sharding import REPLICATED, fusion_barrier
from epe_jax.types import Array, Key


def hadamard(key: Key, num: int, dim: int) -> Canaries:
  """Rows of a Hadamard matrix, folded: k cosines for a few passes over v.

  Canary j has entries ±1/sqrt(d), so norm 1. B is 4096, or the largest power of
  two <= d; canaries j with the same j // B are a group, with signs of its own.
  Within a group <c_i, c_j> is 0 if B divides d, and else at most min(L, B - L)
  / d in magnitude, L = d mod B; between groups it is N(0, 1/d), as on the
  sphere. Memory is B floats a group, time one pass over v for each group.

  For each pair of v and j, cos(c_j, v) has mean 0 and variance 1/d exactly. It
  is normal if the mass of v lies on many coordinates: see
  `effective_dimension`, and `hadamard2` for those v that are sparse. A v that
  is a non-linear function of sums of canaries, coordinate by coordinate, as
  after Adam with little noise, depends on rows that are not in the sums, and is
  for `sphere`.

  >>> canaries = hadamard(jax.random.key(0), num=5, dim=4096)
  >>> two = canaries.superpose(jnp.array([3, 4]), jnp.array([1.0, 2.0]))
  >>> canaries.project(two).round(3).tolist()
  [0.0, 0.0, 0.0, 1.0, 2.0]
  """
  return _make_canaries(
    key, num, dim, dim, _fold, functools.partial(_unfold, length=dim)
  )


def hadamard_of_parts(
  key: Key, num: int, dim: int, *, mesh: sharding.Mesh
) -> Canaries:
  """The canaries of `hadamard`, for vectors that are sharded over devices.

  They audit a model that is larger than the memory of a device. Each device
  folds its own shard of v; the devices add up 4096 floats for each group and
  vector, and send nothing else. `superpose` sends nothing at all.

  Returns:
    Canaries whose vectors have `padded_width(dim, mesh)` entries,
    sharded evenly over the devices. Those past d are 0, and must be 0 in
    vectors that are projected.

  >>> mesh = sharding.make_mesh()
  >>> c = hadamard_of_parts(jax.random.key(0), num=5, dim=8192, mesh=mesh)
  >>> v = c.superpose(jnp.array([3, 4]), jnp.array([1.0, 2.0]))
  >>> v.shape, abs(c.project(v)).round(3).tolist()
  ((65536,), [0.0, 0.0, 0.0, 1.0, 2.0])
  """
  length = padded_width(dim, mesh)
  part = length // mesh.size
  columns = sharding.sharding_over(mesh, 1).spec

  @sharding.sum_over_devices(mesh, (REPLICATED, REPLICATED, columns))
  def fold(
    root: threefry.Root, stream: Int[Array, ''], x: Float[Array, 'r d']
  ) -> Float[Array, 'r b']:
    return _fold(root, stream, x, sharding.device_index() * (part // TILE))

  @sharding.concatenate_over_devices(mesh, [REPLICATED] * 3)
  def unfold(
    root: threefry.Root, streams: Int[Array, ' g'], shorts: Float[Array, 'g b']
  ) -> Float[Array, ' d']:
    p = sharding.device_index()
    v = _unfold(root, streams, shorts, part, p * (part // TILE))
    return jnp.where(jnp.arange(part) < dim - p * part, v, 0)

  return _make_canaries(key, num, dim, length, fold, unfold)


def padded_width(dim: int, mesh: sharding.Mesh) -> int:
  """Returns d rounded up to whole tiles, equally many on each device.

  This is at most 65536 more than d for each device.
  """
  tiles = -(-dim // TILE)
  return -(-tiles // mesh.size) * mesh.size * TILE


def shard_hadamard(
  key: Key, num: int, dim: int, *, mesh: sharding.Mesh
) -> Canaries:
  """The canaries of `hadamard` for vectors [d], replicated or sharded."""
  padded = hadamard_of_parts(key, num, dim, mesh=mesh)
  margin = padded_width(dim, mesh) - dim
  project = lambda v: padded.project(jnp.pad(v, ((0, 0), (0, margin))))
  return Canaries(
    num,
    dim,
    accept_stacks(project, num, dim),
    lambda ids, w: padded.superpose(ids, w)[:dim],
  )


def _make_canaries(
  key: Key,
  num: int,
  dim: int,
  length: int,
  fold: Callable[..., Float[Array, 'r b']],
  unfold: Callable[..., Float[Array, ' d']],
) -> Canaries:
  """Makes canaries from the two passes over v, which are each other's transpose.

  Args:
    length: entries of the vectors, d unless they are padded.
    fold: (root, stream, x [r, length]) -> [r, 4096].
    unfold: (root, streams [g], shorts [g, 4096]) -> [length].
  """
  root = derive_root(key, threefry.HADAMARD)
  threefry.check_sizes(num, dim)
  order = threefry.compute_order(dim)
  groups = -(-num // order)

  def project(v: Float[Array, 'r d']) -> Float[Array, 'r k']:
    v = v.astype(jnp.float32)

    def project_group(group: Int[Array, '']) -> Float[Array, 'r b']:
      short = fold(root, group, v).reshape(-1, ORDER // order, order)
      return transform(short.sum(1))

    products = jax.lax.map(project_group, jnp.arange(groups)) / math.sqrt(dim)
    return jnp.moveaxis(products, 0, 1).reshape(-1, groups * order)[:, :num]

  def superpose(
    ids: Int[Array, ' m'], weights: Float[Array, ' m']
  ) -> Float[Array, ' d']:
    weights = weights.astype(jnp.float32) / math.sqrt(dim)
    which, rows = group_weights(ids, weights, groups, order)
    shorts = jnp.tile(transform(rows), ORDER // order)
    return unfold(root, which, shorts)

  return Canaries(num, dim, accept_stacks(project, num, length), superpose)


def _fold(
  root: threefry.Root,
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
    words = draw_sign_words(root, first + tile, stream)
    rows = []
    for i in range(ROWS):
      row = jax.lax.dynamic_slice_in_dim(x, start + i * ORDER, ORDER, 1)
      rows.append(apply_signs(row.reshape(total.shape), words, i))
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


def _unfold(
  root: threefry.Root,
  streams: Int[Array, ' g'],
  shorts: Float[Array, 'g b=4096'],
  length: int,
  first: int | Int[Array, ''] = 0,
) -> Float[Array, ' d']:
  """Sums s ∘ (short, short, ...) over streams: the transpose of `_fold`."""

  def make_signed(
    i: Int[Array, ''], stream: Int[Array, ''], short: Float[Array, ' b=4096']
  ) -> Float[Array, 'rows=16 w=2 h=2 n']:
    words = draw_sign_words(root, i, stream)
    return apply_signs(short.reshape(1, 2, 2, LANES), words, ALL_ROWS)

  # Flattened after the loop; within it XLA:CPU would divide at each entry.
  tiles = first + jnp.arange(-(-length // TILE))
  make_tile = lambda i: sum_over_groups(
    functools.partial(make_signed, i), streams, shorts, (ROWS, 2, 2, LANES)
  )
  return jax.lax.map(make_tile, tiles).ravel()[:length]


def sum_over_groups(
  make: Callable[[Int[Array, ''], Array], Array],
  groups: Int[Array, ' g'],
  x: Float[Array, 'g *s'],
  shape: tuple[int, ...],
) -> Float[Array, '*t']:
  """Sums make(group, x), arrays of some shape, over groups one after another."""
  if groups.shape[0] == 1:
    return make(groups[0], x[0])
  zero = jnp.zeros(shape, jnp.float32)
  total, _ = jax.lax.scan(
    lambda total, each: (total + make(*each), None), zero, (groups, x)
  )
  return total


def group_weights(
  ids: Int[Array, ' m'],
  weights: Float[Array, ' m'],
  groups: int,
  order: int,
) -> tuple[Int[Array, ' g'], Float[Array, 'g b']]:
  """Turns weights of canaries into weights of the B rows of groups.

  A group may occur more than once.
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
  n = x.shape[-1].bit_length() - 1
  left, right = _make_matrix(n // 2), _make_matrix(n - n // 2)
  square = x.reshape(*x.shape[:-1], left.shape[0], right.shape[0])
  # In full float32 on every device.
  product = jnp.einsum(
    'pa,...ab,bq->...pq', left, square, right, precision='highest'
  )
  return product.reshape(x.shape)


def _make_matrix(n: int) -> Float[np.ndarray, 'b b']:
  """The Hadamard matrix of order 2^n in the order of Sylvester."""
  i = np.arange(1 << n)
  shared = np.bitwise_count(i[:, None] & i)
  return np.where(shared % 2, -1, 1).astype(np.float32)


def draw_sign_words(
  root: threefry.Root, tile: Int[Array, ''], stream: Int[Array, '']
) -> UInt32[Array, 'w=2 h=1 n']:
  """Draws the words of the signs of a tile.

  Args:
    root: generator of the words.
    tile: index of the tile, >= 0; traced, such as the index of a loop.
    stream: number of an independent sequence of tiles.
  """
  low = (tile * LANES).astype(jnp.uint32) + jnp.arange(LANES, dtype=jnp.uint32)
  high = jnp.broadcast_to(stream.astype(jnp.uint32), LANES)
  make = lambda: jnp.stack(threefry.draw_words(root, low, high))[:, None]
  return fusion_barrier(tile >= 0, make)


def apply_signs(
  x: Float[Array, '*r w=2 h=2 n'],
  words: UInt32[Array, '*b w=2 h=1 n'],
  row: int | Int[np.ndarray, 'rows=16 1 1 1'],
) -> Float[Array, '*s w=2 h=2 n']:
  """Gives one row of a tile, or all 16, the signs that it has there."""
  signs = (words << threefry.count_shifts(row)) & jnp.uint32(threefry.SIGN)
  pattern = jax.lax.bitcast_convert_type(x, jnp.uint32)
  return jax.lax.bitcast_convert_type(pattern ^ signs, jnp.float32)
