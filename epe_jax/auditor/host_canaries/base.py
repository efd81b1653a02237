"""Canary sets on the host: one linear map, applied to vectors kept in pieces."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from jaxtyping import Float, Int
import numpy as np

Pieces: TypeAlias = Sequence[np.ndarray]
"""A vector [d] as consecutive 1-D arrays, such as the tensors of a model."""


class HostCanaries(NamedTuple):
  """k unit vectors in R^d, held as the linear map C they form.

  Attributes:
    num: k >= 1.
    dim: d >= 2.
    project: vectors v_1 ... v_r -> C v_i, an [r, k] in float64. Canaries are made
      once for all vectors.
    add: (ids [m], weights [m], out) -> None; adds sum_j weights_j c_{ids_j} to the
      pieces of `out`, in place.
  """

  num: int
  dim: int
  project: Callable[[Sequence[Pieces]], Float[np.ndarray, 'r k']]
  add: Callable[[Int[np.ndarray, ' m'], Float[np.ndarray, ' m'], Pieces], None]
