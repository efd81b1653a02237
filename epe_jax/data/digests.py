"""Digests of arrays, in memory or on the disk."""

from collections.abc import Callable, Iterable
import hashlib

from jaxtyping import Shaped
import numpy as np

# Bytes that are hashed at a time.
_BLOCK = 1 << 24


def hash_arrays(
  arrays: Iterable[tuple[str, Shaped[np.ndarray, '...']]],
  *,
  release: Callable[[], object] = lambda: None,
) -> str:
  """Computes the SHA-256 of the names, types, shapes and bytes of arrays.

  Args:
    arrays: (name, array), in an order that matters. The items of an array of objects
      are byte strings.
    release: called every few megabytes, to release the pages of a memory map.

  Returns:
    64 hexadecimal digits.

  >>> hash_arrays([('x', np.zeros(2))]) == hash_arrays([('x', np.zeros((2, 1)))])
  False
  """
  digest = hashlib.sha256()
  for name, array in arrays:
    digest.update(repr((name, array.dtype.str, array.shape)).encode())
    if array.dtype.kind == 'O':
      # Lengths tell b'a', b'bc' from b'ab', b'c'.
      ends = np.cumsum([len(x) for x in array.flat], dtype=np.int64)
      digest.update(ends.data)
      array = np.frombuffer(b''.join(array.flat), np.uint8)
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    for start in range(0, len(data), _BLOCK):
      digest.update(data[start : start + _BLOCK].data)
      release()
  return digest.hexdigest()
