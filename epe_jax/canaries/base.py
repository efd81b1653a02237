"""Canary sets: k unit vectors in R^d, held as the linear map C they form."""

from collections.abc import Callable
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from epe_jax.canaries import threefry
from epe_jax.parallel import sharding
from epe_jax.types import Array, Key


class Canaries(NamedTuple):
  """k unit vectors in R^d, held as the linear map C they form.

  Attributes:
    num: k, the number of canaries, >= 1.
    dim: d, the number of model parameters, >= 2.
    project: v -> C v, for one vector [d] or a stack [..., d]; gives [..., k].
      Canaries are made once for the whole stack.
    superpose: (ids [m], weights [m]) -> sum_j weights_j c_{ids_j}, a [d].
  """

  num: int
  dim: int
  project: Callable[[Float[Array, '*r d']], Float[Array, '*r k']]
  superpose: Callable[
    [Int[Array, ' m'], Float[Array, ' m']], Float[Array, ' d']
  ]


def derive_root(key: Key, purpose: int) -> threefry.Root:
  """Derives the generator of one purpose from a key.

  Args:
    key: the canary key, of any implementation; may be traced.
    purpose: a number that each family of canaries has for itself, so that two
      families with one key share no words.

  Raises:
    ValueError: key is not a key of JAX.
  """
  if not isinstance(key, jax.Array):
    raise ValueError(
      f'key={key!r} is not a key; give one of JAX, such as jax.random.key(0).'
    )
  folded = jax.random.fold_in(key, purpose)
  words = jax.random.bits(folded, (2,), jnp.uint32)
  return threefry.Root(words[0], words[1])


def accept_stacks(
  project_rows: Callable[[Float[Array, 'r d']], Float[Array, 'r k']],
  num: int,
  dim: int,
) -> Callable[[Float[Array, '*r d']], Float[Array, '*r k']]:
  """Makes a projection of rows [r, d] take one vector or any stack of them.

  It is compiled once for each shape where it is called outside of a program.

  Args:
    project_rows: the projection.
    num: k.
    dim: d.

  Returns:
    `Canaries.project`, which raises a ValueError if vectors are not of dimension d.
  """

  # Inlined, so that a program that projects is the one it is without this.
  @functools.partial(jax.jit, inline=True)
  def project_stack(v: Float[Array, '*r d']) -> Float[Array, '*r k']:
    return project_rows(v.reshape(-1, dim)).reshape(*v.shape[:-1], num)

  def project(v: Float[Array, '*r d']) -> Float[Array, '*r k']:
    if not v.ndim or v.shape[-1] != dim:
      raise ValueError(
        f'v has shape {v.shape}, but canaries have dim={dim}; give one vector '
        f'[{dim}] or a stack [..., {dim}].'
      )
    return project_stack(v)

  return project


def from_matrix(matrix: Float[Array, 'k d']) -> Canaries:
  """k unit vectors in R^d that are the rows of a given matrix.

  This is for small d, for crafted canaries, and a plain oracle of other
  families.

  Args:
    matrix: k unit rows, float; norms within 1e-4 of 1.

  Raises:
    ValueError: not a k x d matrix, or a row does not have norm 1.
  """
  matrix = jnp.asarray(matrix, jnp.float32)
  if matrix.ndim != 2 or len(matrix) < 1 or matrix.shape[1] < 2:
    raise ValueError(
      f'matrix has shape {matrix.shape}; give k x d, a row each, of k >= 1 '
      'canaries and d >= 2.'
    )
  norms = jnp.linalg.norm(matrix, axis=1)
  worst = int(jnp.argmax(jnp.abs(norms - 1)))
  if not abs(float(norms[worst]) - 1) < 1e-4:
    raise ValueError(
      f'matrix row {worst} has norm {float(norms[worst]):.6g}; canaries are '
      'unit vectors: divide each row by its norm.'
    )
  multiply = functools.partial(jnp.matmul, precision='highest')
  return Canaries(
    *matrix.shape,
    project=lambda v: multiply(v, matrix.T),
    superpose=lambda ids, weights: multiply(weights, matrix[ids]),
  )


def replicate(
  make: Callable[[Key, int, int], Canaries], mesh: sharding.Mesh
) -> Callable[[Key, int, int], Canaries]:
  """Makes every device make all canaries, where they are too cheap to share."""

  def make_replicated(key: Key, num: int, dim: int) -> Canaries:
    inner = make(key, num, dim)
    same = functools.partial(sharding.constrain_replicated, mesh)
    return inner._replace(
      project=lambda v: inner.project(same(v)),
      superpose=lambda ids, weights: same(inner.superpose(ids, weights)),
    )

  return make_replicated


def effective_dimension(v: Float[Array, '*r d']) -> Float[Array, '*r']:
  """Returns d_eff = (Σ x²)² / Σ x⁴, the number of coordinates with mass of v.

  It is d if all entries are ±1, d/3 if they are normal, 1 if one alone is not
  0, and 0 for v = 0. With canaries of signs, as of `hadamard`, a cosine with v
  is 1/sqrt(d) times a number of excess kurtosis -2 / d_eff: close to normal
  if d_eff is in the thousands, and not if it is in the hundreds.

  Args:
    v: one vector or a stack of them.

  >>> v = jnp.array([[1.0, -1.0, 1.0], [0.0, 2.0, 0.0]])
  >>> effective_dimension(v).tolist()
  [3.0, 1.0]
  """
  # Fourth powers of small numbers would vanish in float32.
  largest = jnp.max(jnp.abs(v), axis=-1, keepdims=True)
  square = (v / jnp.where(largest > 0, largest, 1)) ** 2
  fourth = jnp.sum(square**2, axis=-1)
  return jnp.sum(square, axis=-1) ** 2 / jnp.where(fourth > 0, fourth, 1)
