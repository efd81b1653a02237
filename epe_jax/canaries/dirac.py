"""Canaries that are single coordinates, drawn without replacement."""

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int, UInt32

from epe_jax.canaries import _threefry
from epe_jax.canaries.base import Canaries, check_sizes
from epe_jax.types import Array, Key

_PURPOSE = 6
_ROUNDS = 12


def dirac(key: Key, num: int, dim: int) -> Canaries:
  """k different unit coordinate vectors e_i, drawn at random.

  The cheapest canaries there are: k numbers to read. Cosines have the law of
  the coordinates of v, so the null law of the sphere holds only where these are
  themselves independent normals, as in a round with much noise and little else.

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
  root = _threefry.root(key, _PURPOSE)

  def project(v: Float[Array, '*r d']) -> Float[Array, '*r k']:
    return v[..., permuted(root, jnp.arange(num), dim)].astype(jnp.float32)

  def superpose(
    ids: Int[Array, ' m'], weights: Float[Array, ' m']
  ) -> Float[Array, ' d']:
    zero = jnp.zeros(dim, jnp.float32)
    return zero.at[permuted(root, ids, dim)].add(weights)

  return Canaries(num, dim, project, superpose)


def permuted(
  root: _threefry.Root, i: Int[Array, ' m'], dim: int
) -> Int[Array, ' m']:
  """Where a random permutation of 0..d-1 takes each i, without the rest of it.

  A Feistel network permutes the numbers of an even count of bits; those that
  it takes past d - 1 are sent through it again until they come back.

  Args:
    root: decides the permutation.
    i: numbers in [0, d).
    dim: d.

  Source: Black and Rogaway, Ciphers with Arbitrary Finite Domains (2002).
  """
  bits = -(-(dim - 1).bit_length() // 2)
  mask = jnp.uint32((1 << bits) - 1)

  def network(x: UInt32[Array, ' m']) -> UInt32[Array, ' m']:
    def swap(n: Array, halves: tuple[Array, Array]) -> tuple[Array, Array]:
      left, right = halves
      counter = jnp.broadcast_to(n.astype(jnp.uint32), right.shape)
      word, _ = _threefry.pair(root, right, counter)
      return right, left ^ (word & mask)

    halves = (x >> jnp.uint32(bits), x & mask)
    left, right = jax.lax.fori_loop(0, _ROUNDS, swap, halves)
    return (left << jnp.uint32(bits)) | right

  outside = lambda x: x >= jnp.uint32(dim)
  found = jax.lax.while_loop(
    lambda x: jnp.any(outside(x)),
    lambda x: jnp.where(outside(x), network(x), x),
    network(i.astype(jnp.uint32)),
  )
  return found.astype(jnp.int32)
