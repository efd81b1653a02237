"""Digests of arrays: equal ones have equal numbers, whatever holds them."""

from collections.abc import Iterable
import hashlib

from jaxtyping import Shaped
import numpy as np


def of_arrays(
  arrays: Iterable[tuple[str, Shaped[np.ndarray, '...']]],
) -> str:
  """SHA-256 of the names, types, shapes and bytes of arrays, in their order.

  >>> of_arrays([('x', np.zeros(2))]) == of_arrays([('x', np.zeros((2, 1)))])
  False
  """
  found = hashlib.sha256()
  for name, x in arrays:
    found.update(repr((name, x.dtype.str, x.shape)).encode())
    found.update(np.ascontiguousarray(x).data)
  return found.hexdigest()
