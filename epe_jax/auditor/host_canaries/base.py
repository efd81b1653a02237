"""Canary sets on the host: one linear map, applied to vectors kept in pieces."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from jaxtyping import Float, Int
import numpy as np

from epe_jax.canaries import threefry

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


def derive_root(key: threefry.Root, purpose: int) -> threefry.Root:
  """Derives the generator of one purpose from a key, as JAX does from its own.

  Args:
    key: the two words of a key, those of `jax.random.wrap_key_data`.
    purpose: as for `epe_jax.canaries.base.derive_root`.
  """
  zero, one = np.zeros(1, np.uint32), np.ones(1, np.uint32)
  # jax.random.fold_in encrypts the purpose; of jax.random.bits word i is both
  # words of counter i, in one.
  words = threefry.draw_words(key, zero, purpose * one)
  folded = threefry.Root(words[0][0], words[1][0])
  a, b = threefry.draw_words(folded, zero, np.arange(2, dtype=np.uint32))
  return threefry.Root(*(a ^ b))
