"""Canary sets: k unit vectors in R^d, held as the linear map C they form."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from epe_jax.types import Array, Key


class Canaries(NamedTuple):
  """k unit vectors in R^d, held as the linear map C they form.

  Attributes:
    num: k, the number of canaries, >= 1.
    dim: d, the number of model parameters, >= 2.
    project: v -> C v, for one vector [d] or a stack [..., d]; gives [..., k].
    superpose: (ids [m], weights [m]) -> sum_j weights_j c_{ids_j}, a [d].
  """

  num: int
  dim: int
  project: Callable[[Float[Array, '*r d']], Float[Array, '*r k']]
  superpose: Callable[
    [Int[Array, ' m'], Float[Array, ' m']], Float[Array, ' d']
  ]


def sphere(key: Key, num: int, dim: int, *, block: int = 16) -> Canaries:
  """k independent uniform points of the unit sphere S^{d-1}.

  Canary j is N(0, I_d) drawn from fold_in(key, j) and scaled to norm 1. It is
  drawn again whenever it is looked at, `block` canaries at a time, so memory is
  block x d and not k x d. Its bits depend on (key, j, d) alone.

  Args:
    key: the canary key; never the key of the privacy noise.
    num: k >= 1.
    dim: d >= 2.
    block: canaries held at once, >= 1.

  Raises:
    ValueError: num, dim or block is out of range.

  Source: One-shot Empirical Privacy Estimation, section 4, Algorithms 1-3.

  >>> canaries = sphere(jax.random.key(0), num=5, dim=100)
  >>> c_3 = canaries.superpose(jnp.array([3]), jnp.ones(1))
  >>> canaries.project(c_3).shape, float(round(canaries.project(c_3)[3], 3))
  ((5,), 1.0)
  """
  _check(num, dim)
  if block < 1:
    raise ValueError(f'block={block} canaries at a time; give block >= 1.')
  # XLA simplifies a block of one into other bits, see rows.
  block = max(2, min(block, num))

  def rows(ids: Int[Array, ' b']) -> Float[Array, 'b d']:
    keys = jax.vmap(lambda j: jax.random.fold_in(key, j))(ids)
    x = jax.vmap(lambda k: jax.random.normal(k, (dim,), jnp.float32))(keys)
    # A canary's bits must not depend on the block, but XLA adds up the squares
    # of one row and of many in different orders. So norms are taken row by row.
    return x * (1 / jax.lax.map(jnp.linalg.norm, x))[:, None]

  def project(v: Float[Array, '*r d']) -> Float[Array, '*r k']:
    flat = v.reshape(-1, dim)
    # The last block is filled up with ids past k - 1, whose rows are dropped.
    ids = jnp.arange(-(-num // block) * block).reshape(-1, block)
    dots = jax.lax.map(lambda i: rows(i) @ flat.T, ids)
    return dots.reshape(-1, flat.shape[0])[:num].T.reshape(*v.shape[:-1], num)

  def superpose(
    ids: Int[Array, ' m'], weights: Float[Array, ' m']
  ) -> Float[Array, ' d']:
    # In pairs, the smallest block; an odd one out is paired with weight 0.
    pad = (0, ids.shape[0] % 2)
    pairs = jnp.pad(ids, pad).reshape(-1, 2)
    weight_pairs = jnp.pad(weights.astype(jnp.float32), pad).reshape(-1, 2)

    def add(total: Float[Array, ' d'], pair: tuple[Array, Array]):
      ids, weights = pair
      return total + weights @ rows(ids), None

    zero = jnp.zeros(dim, jnp.float32)
    return jax.lax.scan(add, zero, (pairs, weight_pairs))[0]

  return Canaries(num, dim, project, superpose)


def from_matrix(matrix: Float[Array, 'k d']) -> Canaries:
  """The canaries that are the rows of a given k x d matrix.

  For small d, for crafted canaries and as the plain oracle of the other maps.

  Args:
    matrix: k unit rows, float; norms within 1e-4 of 1.

  Raises:
    ValueError: not a k x d matrix, or a row does not have norm 1.
  """
  matrix = jnp.asarray(matrix, jnp.float32)
  if matrix.ndim != 2:
    raise ValueError(
      f'matrix has shape {matrix.shape}; give k x d, a row each.'
    )
  _check(*matrix.shape)
  norms = jnp.linalg.norm(matrix, axis=1)
  worst = int(jnp.argmax(jnp.abs(norms - 1)))
  if not abs(float(norms[worst]) - 1) < 1e-4:
    raise ValueError(
      f'matrix row {worst} has norm {float(norms[worst]):.6g}; canaries are '
      'unit vectors: divide each row by its norm.'
    )
  return Canaries(
    num=matrix.shape[0],
    dim=matrix.shape[1],
    project=lambda v: v @ matrix.T,
    superpose=lambda ids, weights: weights @ matrix[ids],
  )


def _check(num: int, dim: int) -> None:
  if num < 1:
    raise ValueError(f'num={num} canaries; give num >= 1.')
  if dim < 2:
    raise ValueError(
      f'dim={dim}: a cosine needs d >= 2 parameters; audit a larger model.'
    )
