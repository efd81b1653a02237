"""Canary sets: k unit vectors in R^d, held as the linear map C they form."""

from collections.abc import Callable
import functools
from typing import NamedTuple

import jax
from jaxtyping import Float, Int

from epe_jax.types import Array


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
    check_vectors(v, dim)
    return project_stack(v)

  return project


def check_vectors(v: Float[Array, '*r d'], dim: int) -> None:
  """Raises a ValueError unless vectors are of the dimension of the canaries."""
  if not v.ndim or v.shape[-1] != dim:
    raise ValueError(
      f'v has shape {v.shape}, but canaries have dim={dim}; give one vector '
      f'[{dim}] or a stack [..., {dim}].'
    )


def check_sizes(num: int, dim: int, block: int = 1) -> None:
  """Checks the sizes of a set of canaries.

  Args:
    num: k, must be >= 1.
    dim: d, must be >= 2.
    block: canaries that are held at once, must be >= 1.

  Raises:
    ValueError: one of them is out of range.
  """
  if num < 1:
    raise ValueError(f'num={num} canaries; give num >= 1.')
  if dim < 2:
    raise ValueError(
      f'dim={dim}: a cosine needs d >= 2 parameters; audit a larger model.'
    )
  if block < 1:
    raise ValueError(f'block={block} canaries at a time; give block >= 1.')
