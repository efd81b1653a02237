"""The canaries of the paper: uniform points of the unit sphere.

Normals are made from random words by the method of Box and Muller: a radius
sqrt(-2 log u) and an angle make two independent ones from two words. The angle needs
no sine of a general argument: the quadrant is two signs, two bits of the word, and
within a quadrant it is pi/4 + a with |a| <= pi/4, where short Taylor series of sin(a)
and cos(a) are exact to float32.
"""

from collections.abc import Callable
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Complex, Float, Int, UInt32

from epe_jax.canaries import threefry
from epe_jax.canaries.base import Canaries, accept_stacks, derive_root
from epe_jax.parallel import sharding
from epe_jax.parallel.sharding import REPLICATED, SHARDED, fusion_barrier
from epe_jax.types import Array, Key

# Pairs of coordinates that are made at once, 8 KB a canary: a block of canaries
# and the coordinates that they are multiplied with stay in the cache of a core.
_WIDTH = 1024
# Of sin(pi t / 4) / t and cos(pi t / 4) in t^2; what is left out is < 3e-8.
_SIN = [(-1) ** i * (math.pi / 4) ** n / math.factorial(n)
        for i, n in enumerate(range(1, 10, 2))]  # fmt: skip
_COS = [(-1) ** i * (math.pi / 4) ** n / math.factorial(n)
        for i, n in enumerate(range(0, 10, 2))]  # fmt: skip


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

  References:
    One-shot Empirical Privacy Estimation, section 4, Algorithms 1-3.

  >>> canaries = sphere(jax.random.key(0), num=5, dim=100)
  >>> c_3 = canaries.superpose(jnp.array([3]), jnp.ones(1))
  >>> canaries.project(c_3).shape, float(round(canaries.project(c_3)[3], 3))
  ((5,), 1.0)
  """
  threefry.check_sizes(num, dim, block)
  root = derive_root(key, threefry.SPHERE)
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

  project = lambda v: _project(key, v, num, block)
  return Canaries(num, dim, accept_stacks(project, num, dim), superpose)


def shard_sphere(
  key: Key, num: int, dim: int, *, block: int, mesh: sharding.Mesh
) -> Canaries:
  """The canaries of `sphere`, shared out evenly among the devices.

  Vectors stay where they are, equally many on each device. Each device sends
  its own to all others, a piece of their coordinates at a time.
  """
  threefry.check_sizes(num, dim, block)
  share = -(-num // mesh.size)

  def project(vectors: Float[Array, 'r d']) -> Float[Array, 'r k']:
    is_sharded = len(vectors) % mesh.size == 0

    @sharding.concatenate_over_devices(
      mesh, (REPLICATED, SHARDED if is_sharded else REPLICATED)
    )
    def project_own(
      key: Key, v: Float[Array, 'r d']
    ) -> Float[Array, 's all_r']:
      gather = sharding.all_gather if is_sharded else None
      first = share * sharding.device_index()
      return _project(key, v, share, block, first=first, gather=gather).T

    products = sharding.constrain_replicated(mesh, project_own(key, vectors))
    return products[:num].T

  @sharding.sum_over_devices(mesh, (REPLICATED, SHARDED, SHARDED))
  def superpose_own(
    key: Key, ids: Int[Array, ' m'], weights: Float[Array, ' m']
  ) -> Float[Array, ' d']:
    return sphere(key, num, dim, block=block).superpose(ids, weights)

  def superpose(
    ids: Int[Array, ' m'], weights: Float[Array, ' m']
  ) -> Float[Array, ' d']:
    # Padded by canaries of weight 0.
    margin = (0, -len(ids) % mesh.size)
    return superpose_own(key, jnp.pad(ids, margin), jnp.pad(weights, margin))

  return Canaries(num, dim, accept_stacks(project, num, dim), superpose)


def _project(
  key: Key,
  v: Float[Array, 'r d'],
  num: int,
  block: int,
  *,
  first: int | Int[Array, ''] = 0,
  gather: Callable[[Array], Array] | None = None,
) -> Float[Array, 'all_r k']:
  """<c_j, v> of consecutive canaries and all vectors.

  Pieces of coordinates are the outer loop and canaries the inner one, so that the
  vectors are read once, however many canaries there are.

  Args:
    key: the canary key.
    v: the vectors of this device.
    num: k, the number of these canaries.
    block: canaries that are held at once.
    first: id of the first canary; it may be traced.
    gather: a piece of the vectors of this device -> that piece of all vectors.
  """
  root = derive_root(key, threefry.SPHERE)
  split = _split_coordinates(v.shape[1])
  block = min(block, num)
  # The last block is filled up with ids past the last, which are dropped.
  ids = first + jnp.arange(-(-num // block) * block)
  ids = ids.reshape(-1, block)

  def project_piece(i: Int[Array, '']) -> tuple[Array, Array]:
    start = i * split.width
    left = _read_piece(v, start, split.width, split.half)
    right = _read_piece(v, split.half + start, split.width, split.dim)
    piece = jnp.concatenate([left, right], 1)
    if gather is not None:
      piece = gather(piece)

    def project_block(ids: Int[Array, ' b']):
      z = _draw_pairs(root, split, i[None], ids)
      rows = jnp.concatenate([z.real, z.imag], 1)
      dots = jnp.matmul(piece, rows.T, precision='highest').T
      return dots, _sum_squares(split, i[None], z)

    return jax.lax.map(project_block, ids)

  zero = jax.tree.map(
    lambda x: jnp.zeros(x.shape, x.dtype),
    jax.eval_shape(project_piece, jnp.int32(0)),
  )
  sums, _ = jax.lax.scan(
    lambda sums, i: (jax.tree.map(jnp.add, sums, project_piece(i)), None),
    zero,
    jnp.arange(split.pieces),
  )
  dots, squares = (x.reshape(-1, *x.shape[2:])[:num] for x in sums)
  return (dots * (1 / jnp.sqrt(squares))[:, None]).T


def _read_piece(
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


def _split_coordinates(dim: int) -> _Split:
  half = -(-dim // 2)
  # A power of two that depends on d alone, as the order of sums does.
  width = min(_WIDTH, 1 << (half - 1).bit_length())
  return _Split(half, width, -(-half // width), dim)


def _draw_pairs(
  root: threefry.Root,
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
    words = threefry.draw_words(
      root, jnp.broadcast_to(low, shape), jnp.broadcast_to(high, shape)
    )
    # As one array: two would each have both words computed for them.
    return jax.lax.complex(*convert_to_normals(*words))

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


def convert_to_normals(
  first: UInt32[Array, '*s'], second: UInt32[Array, '*s']
) -> tuple[Float[Array, '*s'], Float[Array, '*s']]:
  """Converts two independent uniform words to two independent N(0, 1).

  Magnitudes end at 6.7, beyond which a normal lies once in 5e10 times. The two
  are never both 0, so that even a vector of two entries has a direction.

  Args:
    first: gives the radius.
    second: gives the angle.

  Returns:
    Two arrays of the shape of the words, each entry within 1e-6 of its value in
    exact arithmetic.

  References:
    Box and Muller 1958, "A Note on the Generation of Random Normal Deviates".
  """
  # Conversion of signed integers is one instruction, hence 31 bits of them.
  u = _convert_signed(first >> jnp.uint32(1)) * 2.0**-31 + 2.0**-32
  # cos and sin of pi/4 + a are (cos a -+ sin a) / sqrt 2: its square, 1/2,
  # makes -2 log u to -log u. The small number is there for u = 1.
  radius = jnp.sqrt(2.0**-27 - jnp.log(u))
  t = _convert_signed(second << jnp.uint32(2)) * 2.0**-31
  sin, cos = (
    t * _evaluate_polynomial(_SIN, t * t),
    _evaluate_polynomial(_COS, t * t),
  )
  return (
    _apply_sign(radius * (cos - sin), second),
    _apply_sign(radius * (cos + sin), second << jnp.uint32(1)),
  )


def _convert_signed(word: UInt32[Array, '*s']) -> Float[Array, '*s']:
  return jax.lax.bitcast_convert_type(word, jnp.int32).astype(jnp.float32)


def _evaluate_polynomial(
  coefficients: list[float], x: Float[Array, '*s']
) -> Float[Array, '*s']:
  total = jnp.float32(coefficients[-1])
  for c in coefficients[-2::-1]:
    total = total * x + jnp.float32(c)
  return total


def _apply_sign(
  x: Float[Array, '*s'], word: UInt32[Array, '*s']
) -> Float[Array, '*s']:
  """Negates x where the highest bit of the word is set."""
  pattern = jax.lax.bitcast_convert_type(x, jnp.uint32)
  return jax.lax.bitcast_convert_type(
    pattern ^ (word & jnp.uint32(threefry.SIGN)), jnp.float32
  )
