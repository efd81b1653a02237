"""`tf.train.Example` messages, decoded without TensorFlow.

  Example { Features features = 1 }
  Features { map<string, Feature> feature = 1 }
  Feature { oneof { BytesList = 1; FloatList = 2; Int64List = 3 } }
  each list { repeated value = 1 }

A message is a row of fields: a tag (field number and wire type), then a
number, or a length and so many bytes.
"""

from collections.abc import Iterable, Iterator, Mapping
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


def features_of(blob: bytes) -> dict[str, tuple[DTypeLike, tuple[int, ...]]]:
  """What an example has; a feature of one value is a scalar.

  >>> features_of(bytes.fromhex('0a0c0a0a0a016112051a030a0107'))
  {'a': (dtype('int64'), ())}
  """
  return {
    name: (
      bytes if isinstance(value, list) else value.dtype,
      () if len(value) == 1 else (len(value),),
    )
    for name, value in sorted(decode(blob).items())
  }


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
      numbers.extend(_packed(blob, value))
  return _signed(numbers)


def packed_integers(blob: bytes) -> np.ndarray:
  """int64 [n], of nothing but varints.

  >>> packed_integers(bytes.fromhex('01ac02'))
  array([  1, 300])
  """
  return _signed(_packed(blob, slice(0, len(blob))))


def _packed(blob: bytes, span: slice) -> Iterator[int]:
  at = span.start
  while at < span.stop:
    number, at = varint(blob, at, span.stop)
    yield number


def _signed(numbers: Iterable[int]) -> np.ndarray:
  # Negative numbers are stored as their two's complement.
  return np.array([*numbers], np.uint64).view(np.int64)


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
      tag, at = varint(blob, at - 1, end)
    number, wire = tag >> 3, tag & 7
    if not 0 < number < 1 << 29:
      raise ValueError(f'field number {number} does not exist')
    if wire == _VARINT:
      value, at = varint(blob, at, end)
    elif wire in (_BYTES, _FIXED64, _FIXED32):
      size = 8 if wire == _FIXED64 else 4
      if wire == _BYTES:
        size, at = varint(blob, at, end)
      if size > end - at:
        raise ValueError(f'field of {size} bytes where {end - at} are left')
      value = slice(at, at + size)
      at += size
    else:
      raise ValueError(f'wire type {wire} is not used in examples')
    yield number, wire, value


def varint(blob: bytes, at: int, end: int) -> tuple[int, int]:
  """(number, position behind it): 7 bits a byte, lowest first.

  Args:
    blob: where it lies.
    at: of its first byte.
    end: of the message that it is in.

  Raises:
    ValueError: if it does not end there, or is longer than 10 bytes.
  """
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
