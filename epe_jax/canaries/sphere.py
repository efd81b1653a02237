"""The canaries of the paper: uniform points of the unit sphere."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Complex, Float, Int

from epe_jax.canaries import _blocks, _normals, _threefry, sharded
from epe_jax.canaries.base import Canaries, accept_stacks
from epe_jax.canaries.registry import check_sizes
from epe_jax.parallel import sharding
from epe_jax.parallel.barrier import fusion_barrier
from epe_jax.types import Array, Key

_PURPOSE = 1
# Pairs of coordinates that are made at once, 8 KB a canary: a block of canaries
# and the coordinates that they are multiplied with stay in the cache of a core.
_WIDTH = 1024


class _Split(NamedTuple):
  """The pairs of coordinates i < half and half + i, cut into pieces."""

  half: int
  width: int
  pieces: int
  dim: int


def sphere(
  key: Key,
  num: int,
  dim: int,
  *,
  block: int = 64,
) -> Canaries:
  """k independent uniform points of the unit sphere S^{d-1}.

  Canary j is N(0, I_d) scaled to norm 1; its coordinates i and i + d/2 follow
  from the counter (i, j). Canaries are generated whenever they are needed, a
  few coordinates of `block` of them at a time, so memory is neither k x d nor
  block x d. The bits of a canary depend on (key, j, d) alone.

  Args:
    key: the canary key; never the key of the privacy noise.
    num: k >= 1.
    dim: d >= 2.
    block: canaries held at once, >= 1.

  Raises:
    ValueError: num, dim or block is out of range.

  References:
    One-shot Empirical Privacy Estimation, section 4, Algorithms 1-3.

  >>> canaries = sphere(jax.random.key(0), num=5, dim=100)
  >>> c_3 = canaries.superpose(jnp.array([3]), jnp.ones(1))
  >>> canaries.project(c_3).shape, float(round(canaries.project(c_3)[3], 3))
  ((5,), 1.0)
  """
  check_sizes(num, dim, block)
  root = _threefry.derive_root(key, _PURPOSE)
  split = _split_coordinates(dim)

  def superpose(
    ids: Int[Array, ' m'], weights: Float[Array, ' m']
  ) -> Float[Array, ' d']:
    all_pieces = jnp.arange(split.pieces)

    def add(total: tuple[Array, Array], canary: tuple[Array, Array]):
      j, weight = canary
      z = _draw_pairs(root, split, all_pieces, j[None])
      # One by one, as project adds them, or the last bit may differ.
      square, _ = jax.lax.scan(
        lambda s, x: (s + x, None),
        jnp.float32(0),
        _sum_squares(split, all_pieces, z),
      )
      scale = weight * (1 / jnp.sqrt(square))
      return (total[0] + scale * z.real, total[1] + scale * z.imag), None

    zero = jnp.zeros((split.pieces, split.width), jnp.float32)
    weights = weights.astype(jnp.float32)
    (left, right), _ = jax.lax.scan(add, (zero, zero), (ids, weights))
    return jnp.concatenate(
      [left.ravel()[: split.half], right.ravel()[: dim - split.half]]
    )

  project = lambda v: project_sphere(key, v, _blocks.Shard(num, block))
  return Canaries(num, dim, accept_stacks(project, num, dim), superpose)


def shard_sphere(
  key: Key, num: int, dim: int, *, block: int, mesh: sharding.Mesh
) -> Canaries:
  """The canaries of `sphere`; each device makes an equal share of them."""
  make = functools.partial(sphere, block=block)
  return sharded.shard_by_canary(
    make, project_sphere, key, num, dim, block=block, mesh=mesh
  )


def project_sphere(
  key: Key, v: Float[Array, 'r d'], shard: _blocks.Shard
) -> Float[Array, 'all_r k']:
  """Returns <c_j, v> of a shard of canaries and all vectors that it gathers."""
  root, split = (
    _threefry.derive_root(key, _PURPOSE),
    _split_coordinates(v.shape[1]),
  )

  def project_piece(i: Int[Array, '']) -> _blocks.Projection:
    start = i * split.width
    left = _blocks.read_piece(v, start, split.width, split.half)
    right = _blocks.read_piece(v, split.half + start, split.width, split.dim)
    piece = shard.gather(jnp.concatenate([left, right], 1))

    def project_ids(ids: Int[Array, ' b']):
      z = _draw_pairs(root, split, i[None], ids)
      rows = jnp.concatenate([z.real, z.imag], 1)
      dots = jnp.matmul(piece, rows.T, precision='highest').T
      return dots, _sum_squares(split, i[None], z)

    return project_ids

  dots, squares = _blocks.sum_over_pieces(project_piece, split.pieces, shard)
  return (dots * (1 / jnp.sqrt(squares))[:, None]).T


def _split_coordinates(dim: int) -> _Split:
  half = -(-dim // 2)
  # A power of two that depends on d alone, as the order of sums does.
  width = min(_WIDTH, 1 << (half - 1).bit_length())
  return _Split(half, width, -(-half // width), dim)


def _draw_pairs(
  root: _threefry.Root,
  split: _Split,
  pieces: Int[Array, ' a'],
  ids: Int[Array, ' b'],
) -> Complex[Array, 'c w']:
  """Draws coordinates of canaries, before they are scaled, as x + iy.

  Args:
    root: generator of the words.
    split: how coordinates are paired.
    pieces: the piece of each row; there is one of them, or one id.
    ids: the canary of each row.
  """
  within = jnp.arange(split.width, dtype=jnp.uint32)
  low = (pieces * split.width).astype(jnp.uint32)[:, None] + within
  high = ids.astype(jnp.uint32)[:, None]
  shape = jnp.broadcast_shapes(low.shape, high.shape)

  def make() -> Complex[Array, 'c w']:
    words = _threefry.draw_words(
      root, jnp.broadcast_to(low, shape), jnp.broadcast_to(high, shape)
    )
    # As one array: two would each have both words computed for them.
    return jax.lax.complex(*_normals.convert_to_normals(*words))

  return fusion_barrier(ids[0] >= 0, make)


def _sum_squares(
  split: _Split, pieces: Int[Array, ' a'], z: Complex[Array, 'c w']
) -> Float[Array, ' c']:
  """Sums squares, in an order that is not left to the compiler."""
  at = (pieces * split.width)[:, None] + jnp.arange(split.width)
  x = jnp.where(at < split.half, z.real, 0)
  y = jnp.where(at < split.dim - split.half, z.imag, 0)
  # Rounded, or the compiler may fuse either product with the sum.
  exact = lambda x: jax.lax.reduce_precision(x * x, 8, 22)
  total = exact(x) + exact(y)
  while total.shape[1] > 1:
    middle = total.shape[1] // 2
    total = total[:, :middle] + total[:, middle:]
  return total[:, 0]
