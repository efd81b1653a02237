"""Columns of many `tf.train.Example` messages that are all alike.

What nearly all examples look like: every message in them has one field, or two
in order, and reaches to the end of what it lies in. The bytes between a key and
its value then follow from the number of bytes that are left, so that an example
is checked and read in a few look-ups. Any other is left to `example_proto`,
which reads all that is legal and says what is wrong with the rest.
"""

from collections.abc import Mapping, Sequence
import functools
import itertools
import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from epe_jax.data import example_proto

_USUAL_KINDS = {'bytes': 1, 'float': 2, 'int64': 3}
_LONGEST_ENTRY = 1 << 16


def stack(
  blobs: Sequence[object], features: example_proto.Features
) -> dict[str, np.ndarray]:
  """Columns of the named features of some examples, all alike.

  Args:
    blobs: n >= 1 serialized examples.
    features: what to take. A float dtype takes floats, an integer dtype
      integers, `bytes` byte strings. Other features are ignored.

  Returns:
    name -> array [n, *shape]; byte strings are arrays of objects.

  Raises:
    ValueError: if an example is damaged, or lacks a feature, or has it in
      another type or length; the message names the row.
    TypeError: if no example can hold a dtype.
  """
  specs = {
    name: (_kind(dtype), math.prod(shape))
    for name, (dtype, shape) in features.items()
  }
  wanted = {
    name.encode(): (slot, *spec)
    for slot, (name, spec) in enumerate(specs.items())
  }
  # Of each feature and example: byte strings, float32 as bytes, or integers.
  values = [[] for _ in specs]
  for row, blob in enumerate(blobs):
    found = _usual(blob, wanted)
    if found is None:
      try:
        found = _any(blob, specs)
      except ValueError as error:
        raise ValueError(f'row {row}: {error}') from error
    for column, value in zip(values, found):
      column.append(value)
  return {
    name: _stacked(name, column, *spec)
    for column, (name, spec) in zip(values, features.items())
  }


def _kind(dtype: DTypeLike) -> str:
  kind = 'bytes' if dtype is bytes else np.dtype(dtype).kind
  names = {'bytes': 'bytes', 'f': 'float', 'i': 'int64', 'u': 'int64'}
  if kind not in names:
    raise TypeError(f'dtype {dtype!r}: use a float, an integer, or bytes.')
  return names[kind]


def _any(blob: object, specs: Mapping[str, tuple[str, int]]) -> list[Any]:
  """The features of any example, or an error that says what is wrong."""
  if not isinstance(blob, bytes):
    raise ValueError(f'{type(blob).__name__} where a BLOB should be')
  example = example_proto.decode(blob)
  found = []
  for name, (kind, length) in specs.items():
    value = _checked(example, name, kind, length)
    is_float = kind == 'float'
    found.append(np.asarray(value, '<f4').tobytes() if is_float else [*value])
  return found


def _checked(example: Mapping[str, Any], name: str, kind: str, length: int):
  """The named feature, if it is of this kind and length."""
  if name not in example:
    raise ValueError(f'no feature {name!r} among {sorted(example)}')
  value = example[name]
  found = 'bytes' if isinstance(value, list) else value.dtype.name
  if not found.startswith(kind):
    raise ValueError(f'feature {name!r} is of type {found}, not {kind}')
  if len(value) != length:
    raise ValueError(f'feature {name!r} has {len(value)} values, not {length}')
  return value


def _stacked(
  name: str, values: list, dtype: DTypeLike, shape: tuple[int, ...]
) -> np.ndarray:
  """[n, *shape] of this dtype, refusing integers that do not fit."""
  if _kind(dtype) == 'float':
    stored = np.frombuffer(b''.join(values), '<f4')
    return stored.astype(dtype, copy=False).reshape(-1, *shape)
  flat = list(itertools.chain.from_iterable(values))
  if dtype is bytes:
    column = np.empty(len(flat), object)
    column[:] = flat
    return column.reshape(-1, *shape)
  stored = np.array(flat, np.int64)
  column = stored.astype(dtype, copy=False)
  wrong = np.flatnonzero(column != stored)
  if wrong.size:
    raise ValueError(
      f'row {wrong[0] // math.prod(shape)}: feature {name!r} has the integer '
      f'{stored[wrong[0]]}, beyond {np.dtype(dtype)}'
    )
  return column.reshape(-1, *shape)


def _usual(
  blob: object, wanted: Mapping[bytes, tuple[int, str, int]]
) -> list[Any] | None:
  """What `_any` returns, or None where it is the one to say."""
  if type(blob) is not bytes:
    return None
  found: list[Any] = [None] * len(wanted)
  stop = len(blob)
  try:
    size, at = example_proto.varint(blob, 1, stop)
    if blob[0] != 10 or at + size != stop:
      return None
    while at < stop:
      size = blob[at + 1]
      if size < 128:
        key = at + 4
      else:
        size, key = example_proto.varint(blob, at + 1, stop)
        key += 2
      end = key + size - 2
      # Tag of an entry, tag and length of its key.
      if blob[at] != 10 or blob[key - 2] != 10 or blob[key - 1] > 127:
        return None
      at = key + blob[key - 1]
      if not 0 < end - at < _LONGEST_ENTRY:
        return None
      offset, kinds = _heads(end - at)
      kind = kinds.get(blob[at : at + offset])
      if kind is None or end > stop:
        return None
      name, value = blob[key:at], blob[at + offset : end]
      spec = wanted.get(name)
      if spec is not None:
        slot, expected, length = spec
        found[slot] = _usual_value(kind, value, expected, length)
      elif not name.isascii() or (kind != 1 and not _whole(kind, value)):
        return None
      at = end
  except (IndexError, ValueError):
    return None
  return None if None in found else found


def _usual_value(
  kind: int, value: bytes, expected: str, length: int
) -> bytes | list[Any] | None:
  if kind != _USUAL_KINDS[expected]:
    return None
  if kind == 1:
    return [value] if length == 1 else None
  if kind == 2:
    return value if len(value) == 4 * length else None
  numbers = example_proto.packed_integers(value).tolist()
  return numbers if len(numbers) == length else None


def _whole(kind: int, value: bytes) -> bool:
  """Whether packed numbers are surely whole: floats, or 10 bytes of varints."""
  if kind == 2:
    return len(value) % 4 == 0
  return len(value) <= 10 and value[-1] < 128


@functools.lru_cache(4096)
def _heads(left: int) -> tuple[int, dict[bytes, int]]:
  """The bytes between a key and its value, if both and no others follow.

  Args:
    left: bytes of the map entry behind the key.

  Returns:
    (number of bytes before the value, those bytes -> kind of the feature).
  """
  for size in range(max(0, left - 15), left):
    heads = {_head(kind, size): kind for kind in (1, 2, 3)}
    offset = len(next(iter(heads)))
    if offset + size == left:
      return offset, heads
  return 0, {}


def _head(kind: int, size: int) -> bytes:
  """Value of the entry { list of the kind { value of this size."""
  head = b''
  for number in (1, kind, 2):
    head = bytes([8 * number + 2]) + _as_varint(size + len(head)) + head
  return head


def _as_varint(number: int) -> bytes:
  digits = []
  while number > 127:
    digits.append(number & 127 | 128)
    number >>= 7
  return bytes([*digits, number])
