"""Canaries given as a matrix."""

import jax.numpy as jnp
from jaxtyping import Float

from epe_jax.canaries.base import Canaries
from epe_jax.canaries.registry import check_sizes
from epe_jax.types import Array


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
  if matrix.ndim != 2:
    raise ValueError(
      f'matrix has shape {matrix.shape}; give k x d, a row each.'
    )
  check_sizes(*matrix.shape)
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
    project=lambda v: jnp.matmul(v, matrix.T, precision='highest'),
    superpose=lambda ids, weights: jnp.matmul(
      weights, matrix[ids], precision='highest'
    ),
  )
