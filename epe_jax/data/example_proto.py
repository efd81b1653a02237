"""`tf.train.Example` messages, decoded without TensorFlow.

  Example { Features features = 1 }
  Features { map<string, Feature> feature = 1 }
  Feature { oneof { BytesList = 1; FloatList = 2; Int64List = 3 } }
  each list { repeated value = 1 }

A message is a row of fields: a tag (field number and wire type), then a
number, or a length and so many bytes.
"""

from collections.abc import Iterator, Mapping, Sequence
import itertools
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

Features = Mapping[str, tuple[DTypeLike, tuple[int, ...]]]
"""name -> (dtype, shape of one example); dtype `bytes` for byte strings."""

# Wire types: what follows the tag of a field.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def decode(blob: bytes) -> dict[str, np.ndarray | list[bytes]]:
  """Features of a serialized `tf.train.Example`.

  Follows the rules of protocol buffers: fields in any order, numbers packed
  or not, unknown fields skipped, the last of two equal map keys wins, and two
  parts of one message are read as their concatenation.

  Args:
    blob: the serialized message.

  Returns:
    name -> float32 [n], int64 [n] or list of n byte strings; a feature of no
    kind is left out. Arrays are read-only.

  Raises:
    ValueError: if the bytes are truncated or otherwise not a message.

  Source: tensorflow/core/example/{example,feature}.proto.

  >>> decode(bytes.fromhex('0a0c0a0a0a016112051a030a0107'))
  {'a': array([7])}
  """
  features = {}
  try:
    for message in _messages(blob, slice(0, len(blob)), 1):
      for entry in _messages(blob, message, 1):
        key, values = '', []
        for number, wire, span in _fields(blob, entry):
          if wire == _BYTES and number == 1:
            key = blob[span].decode()
          elif wire == _BYTES and number == 2:
            values.append(span)
        features[key] = _feature(blob, values)
  except ValueError as error:
    raise ValueError(f'not a tf.train.Example: {error}') from error
  return {key: value for key, value in features.items() if value is not None}


def stack(blobs: Sequence[object], features: Features) -> dict[str, np.ndarray]:
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
    name: (_kind(dtype), int(np.prod(shape)))
    for name, (dtype, shape) in features.items()
  }
  values = {name: [] for name in features}
  for row, blob in enumerate(blobs):
    try:
      if not isinstance(blob, bytes):
        raise ValueError(f'{type(blob).__name__} where a BLOB should be')
      example = decode(blob)
      for name, spec in specs.items():
        values[name].append(_checked(example, name, *spec))
    except ValueError as error:
      raise ValueError(f'row {row}: {error}') from error
  return {
    name: _stacked(name, values[name], *spec) for name, spec in features.items()
  }


def _kind(dtype: DTypeLike) -> str:
  kind = 'bytes' if dtype is bytes else np.dtype(dtype).kind
  names = {'bytes': 'bytes', 'f': 'float', 'i': 'int64', 'u': 'int64'}
  if kind not in names:
    raise TypeError(f'dtype {dtype!r}: use a float, an integer, or bytes.')
  return names[kind]


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
  if dtype is bytes:
    column = np.empty(len(values) * len(values[0]), object)
    column[:] = list(itertools.chain.from_iterable(values))
    return column.reshape(-1, *shape)
  stored = np.concatenate(values)
  column = stored.astype(dtype, copy=False)
  if stored.dtype.kind == 'i' and not np.array_equal(column, stored):
    raise ValueError(f'feature {name!r} has integers beyond {np.dtype(dtype)}')
  return column.reshape(-1, *shape)


def _feature(
  blob: bytes, spans: list[slice]
) -> np.ndarray | list[bytes] | None:
  """Feature { oneof { BytesList = 1; FloatList = 2; Int64List = 3 } }."""
  kind, lists = None, []
  for span in spans:
    for number, wire, value in _fields(blob, span):
      if wire == _BYTES and number in (1, 2, 3):
        if number != kind:
          kind, lists = number, []
        lists.append(value)
  if kind is None:
    return None
  values = [
    (wire, value)
    for span in lists
    for number, wire, value in _fields(blob, span)
    if number == 1
  ]
  if kind == 1:
    return [blob[value] for wire, value in values if wire == _BYTES]
  return (_floats if kind == 2 else _integers)(blob, values)


def _floats(blob: bytes, values: list[tuple[int, Any]]) -> np.ndarray:
  parts = [blob[span] for wire, span in values if wire in (_BYTES, _FIXED32)]
  if any(len(part) % 4 for part in parts):
    raise ValueError('a list of floats ends within one')
  return np.frombuffer(b''.join(parts), '<f4').astype(np.float32, copy=False)


def _integers(blob: bytes, values: list[tuple[int, Any]]) -> np.ndarray:
  numbers = []
  for wire, value in values:
    if wire == _VARINT:
      numbers.append(value)
    elif wire == _BYTES:
      at = value.start
      while at < value.stop:
        number, at = _varint(blob, at, value.stop)
        numbers.append(number)
  # Negative numbers are stored as their two's complement.
  return np.array(numbers, np.uint64).view(np.int64)


def _messages(blob: bytes, span: slice, number: int) -> Iterator[slice]:
  """Where the messages (or strings) with this field number lie."""
  for found, wire, value in _fields(blob, span):
    if found == number and wire == _BYTES:
      yield value


def _fields(blob: bytes, span: slice) -> Iterator[tuple[int, int, Any]]:
  """(number, wire type, value) of each field; the value is an integer for a
  varint and otherwise the slice of the blob where it lies."""
  at, end = span.start, span.stop
  while at < end:
    tag = blob[at]
    at += 1
    # Nearly all tags are one byte: the call is worth avoiding.
    if tag >= 0x80:
      tag, at = _varint(blob, at - 1, end)
    number, wire = tag >> 3, tag & 7
    if not 0 < number < 1 << 29:
      raise ValueError(f'field number {number} does not exist')
    if wire == _VARINT:
      value, at = _varint(blob, at, end)
    elif wire in (_BYTES, _FIXED64, _FIXED32):
      size = 8 if wire == _FIXED64 else 4
      if wire == _BYTES:
        size, at = _varint(blob, at, end)
      if size > end - at:
        raise ValueError(f'field of {size} bytes where {end - at} are left')
      value = slice(at, at + size)
      at += size
    else:
      raise ValueError(f'wire type {wire} is not used in examples')
    yield number, wire, value


def _varint(blob: bytes, at: int, end: int) -> tuple[int, int]:
  """(number, position behind it): 7 bits a byte, lowest first."""
  value = 0
  for shift in range(0, 70, 7):
    if at >= end:
      raise ValueError('the bytes end within a number')
    byte = blob[at]
    at += 1
    value |= (byte & 0x7F) << shift
    if byte < 0x80:
      return value & 0xFFFFFFFFFFFFFFFF, at
  raise ValueError('a number is longer than 10 bytes')
