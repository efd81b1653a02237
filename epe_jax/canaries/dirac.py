"""Canaries that are single coordinates, drawn without replacement."""

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int, UInt32

from epe_jax.canaries import _threefry
from epe_jax.canaries.base import Canaries, check_vectors
from epe_jax.canaries.registry import check_sizes
from epe_jax.types import Array, Key

_PURPOSE = 6
_ROUNDS = 12


def dirac(key: Key, num: int, dim: int) -> Canaries:
  """k different unit coordinate vectors e_i, drawn at random.

  These are the cheapest canaries, as a projection reads k numbers. Cosines have
  the law of the coordinates of v, so the null law of the sphere holds only
  where these are independent normals, as in a round with much noise and little
  else.

  Args:
    key: the canary key; never the key of the privacy noise.
    num: k, 1 <= k <= d.
    dim: d >= 2.

  Raises:
    ValueError: num or dim is out of range.

  >>> c = dirac(jax.random.key(0), num=3, dim=3)
  >>> c.superpose(jnp.arange(3), jnp.ones(3)).tolist()
  [1.0, 1.0, 1.0]
  """
  check_sizes(num, dim)
  if num > dim:
    raise ValueError(
      f'num={num} canaries, but there are only dim={dim} coordinates; give '
      f'num <= {dim}.'
    )
  root = _threefry.derive_root(key, _PURPOSE)

  def project(v: Float[Array, '*r d']) -> Float[Array, '*r k']:
    check_vectors(v, dim)
    return v[..., permute(root, jnp.arange(num), dim)].astype(jnp.float32)

  def superpose(
    ids: Int[Array, ' m'], weights: Float[Array, ' m']
  ) -> Float[Array, ' d']:
    zero = jnp.zeros(dim, jnp.float32)
    return zero.at[permute(root, ids, dim)].add(weights)

  return Canaries(num, dim, project, superpose)


def permute(
  root: _threefry.Root, i: Int[Array, ' m'], dim: int
) -> Int[Array, ' m']:
  """Returns the images of i under a random permutation of 0..d-1.

  A Feistel network permutes the numbers of an even count of bits. Images past
  d - 1 are sent through it again until they are in range.

  Args:
    root: generator that determines the permutation.
    i: numbers in [0, d).
    dim: d.

  References:
    Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains".
  """
  bits = -(-(dim - 1).bit_length() // 2)
  mask = jnp.uint32((1 << bits) - 1)

  def network(x: UInt32[Array, ' m']) -> UInt32[Array, ' m']:
    def swap(n: Array, halves: tuple[Array, Array]) -> tuple[Array, Array]:
      left, right = halves
      counter = jnp.broadcast_to(n.astype(jnp.uint32), right.shape)
      word, _ = _threefry.draw_words(root, right, counter)
      return right, left ^ (word & mask)

    halves = (x >> jnp.uint32(bits), x & mask)
    left, right = jax.lax.fori_loop(0, _ROUNDS, swap, halves)
    return (left << jnp.uint32(bits)) | right

  is_outside = lambda x: x >= jnp.uint32(dim)
  images = jax.lax.while_loop(
    lambda x: jnp.any(is_outside(x)),
    lambda x: jnp.where(is_outside(x), network(x), x),
    network(i.astype(jnp.uint32)),
  )
  return images.astype(jnp.int32)
