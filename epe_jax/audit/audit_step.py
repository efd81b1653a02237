"""The audit step: what an auditor does in a round, in JAX or in NumPy.

The canaries of row t of a 0/1 matrix join the clients of round t,

  ρ = Σ_i CLIP(x_i; S) + S Σ_j c_j,    ρ̄ = (ρ + Z) / m,    Z ~ N(0, (z S)² I_d),

and count in m. So a canary has the norm S/m in the aggregate ρ̄, and the noise on a
coordinate the standard deviation z S/m. Every attacker scores all canaries by their
cosines with one vector v,

  cos(c_j, v) = <c_j, v> / |v|, or 0 if v = 0,

which is ρ̄ itself, or the residual ρ̄ - (Σ_i CLIP(x_i; S) + S Σ_j c_j) / m, or the
server update. A canary in no row is unobserved, and scored like the others.

`audited` takes this step within a jitted program, `Auditor` on the arrays of any
framework.
"""

from typing import Any, NamedTuple, TypeVar

from jaxtyping import Bool, Float, Int
import numpy as np

ArrayT = TypeVar('ArrayT')


class CanaryRows(NamedTuple):
  """The rows of a 0/1 matrix by id, of one width so that they may be traced.

  Attributes:
    ids: [T, m] the canaries of each round, padded with 0.
    weights: [T, m] 1 for a canary of the round, 0 for padding.
  """

  ids: Int[Any, 'T m']
  weights: Float[Any, 'T m']


def canary_rows(
  participation: Bool[np.ndarray, 'T k'], *, width: int | None = None
) -> CanaryRows:
  """Returns the canaries of each round by id.

  Args:
    width: m, at least the largest number of canaries in a round; None for that.

  Raises:
    ValueError: a round has more canaries than width.

  >>> canary_rows(np.array([[False, True, True], [True, False, False]])).ids.tolist()
  [[1, 2], [0, 0]]
  """
  max_canaries = int(participation.sum(axis=1).max(initial=0))
  width = max_canaries if width is None else width
  if width < max_canaries:
    raise ValueError(
      f'width={width}, but a round has {max_canaries} canaries; give at least as many.'
    )
  # A stable sort puts the canaries of a round first, by id.
  ids = np.argsort(~participation, axis=1, kind='stable')[:, :width]
  weights = np.take_along_axis(participation, ids, axis=1)
  return CanaryRows(
    np.where(weights, ids, 0).astype(np.int32), weights.astype(np.float32)
  )


def divide_by_norm(products: ArrayT, norm: Any) -> ArrayT:
  """Returns <c_j, v> / |v|, and 0 for v = 0, which tells an attacker nothing.

  >>> divide_by_norm(np.array([[3.0, 4.0], [0.0, 0.0]]), np.array([[5.0], [0.0]]))
  array([[0.6, 0.8],
         [0. , 0. ]])
  """
  quotient: Any = products / (norm + (norm == 0))
  return quotient


def choose_buffer(memory: float, *, rounds: int, views: int, dim: int) -> int:
  """Returns the number of rounds that memory holds, at least 1 and at most T.

  Args:
    memory: bytes for the buffered vectors, > 0.
    rounds: T >= 1.
    views: vectors per round.

  Raises:
    ValueError: memory is not positive.

  >>> choose_buffer(1e9, rounds=2048, views=2, dim=4_050_748)
  30
  """
  if not memory > 0:
    raise ValueError(f'memory={memory}; give a number of bytes > 0.')
  return int(min(max(memory / (views * 4 * dim), 1), rounds))
