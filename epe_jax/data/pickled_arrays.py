"""Pickles of plain values and byte arrays, read without running what they say.

A pickle names functions and calls them, so that a plain `pickle.load` runs
whatever its author wanted. Here the three names with which NumPy writes an
array stand for records of this module, which only keep what they are given;
every other name is refused. Arrays are made of these records at the end.
"""

import io
import math
import pickle
import pickletools
from typing import Any

import numpy as np


class _Dtype:
  """What a pickle says of a dtype; only bytes without a sign are accepted."""

  def __init__(self, *args: Any):
    self.name = args[0] if args else None

  def __setstate__(self, state: Any) -> None:
    """Byte order and alignment, which a byte has not."""


class _Ndarray:
  """What a pickle says of an array: version, shape, dtype, order and bytes."""

  def __init__(self, *args: Any):
    self.state: Any = None

  def __setstate__(self, state: Any) -> None:
    self.state = state


def _reconstruct(*args: Any) -> _Ndarray:
  return _Ndarray()


_NAMES = {
  ('numpy', 'dtype'): _Dtype,
  ('numpy', 'ndarray'): _Ndarray,
  # NumPy 1 and 2 name it differently.
  ('numpy.core.multiarray', '_reconstruct'): _reconstruct,
  ('numpy._core.multiarray', '_reconstruct'): _reconstruct,
}


# A list of all values up to the number of one that is kept is made for it.
_PUTS = ('PUT', 'BINPUT', 'LONG_BINPUT')


class _Unpickler(pickle.Unpickler):
  def find_class(self, module: str, name: str) -> Any:
    if (module, name) not in _NAMES:
      raise ValueError(f'it asks for {module}.{name}, which is not allowed')
    return _NAMES[module, name]


def loads(data: bytes) -> dict[bytes, Any]:
  """Reads a pickled dict of plain values and uint8 arrays.

  Nothing that the pickle names is imported or called.

  Args:
    data: as Python 2 or 3 pickles it, up to protocol 4.

  Returns:
    The dict. Texts of Python 2 are bytes, and so are all keys.

  Raises:
    ValueError: it asks for anything but arrays of bytes, is damaged, or is no
      dict of names.

  >>> loads(pickle.dumps({'labels': [3, 1]}, protocol=2))
  {b'labels': [3, 1]}
  >>> loads(pickle.dumps(print))
  Traceback (most recent call last):
  ValueError: this pickle is not read: it asks for builtins.print, which is not allowed
  """
  try:
    _check_memo(data)
    value = _Unpickler(io.BytesIO(data), encoding='bytes').load()
    if not isinstance(value, dict):
      raise ValueError(f'it holds a {type(value).__name__}, not a dict')
    return {_encode(name): _make_array(item) for name, item in value.items()}
  # A damaged pickle ends in any of these.
  except (
    AttributeError,
    EOFError,
    ImportError,
    IndexError,
    KeyError,
    MemoryError,
    OverflowError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
  ) as error:
    raise ValueError(f'this pickle is not read: {error}') from error


def _check_memo(data: bytes) -> None:
  """Refuses numbers of values kept that are not in the data: each takes memory."""
  for code, argument, _ in pickletools.genops(data):
    if code.name in _PUTS and not 0 <= int(argument) <= len(data):
      raise ValueError(f'it keeps a value under the number {argument}')


def _encode(name: Any) -> bytes:
  if not isinstance(name, bytes | str):
    raise ValueError(f'a key is a {type(name).__name__}, not a name')
  return name.encode() if isinstance(name, str) else name


def _make_array(item: Any) -> Any:
  if not isinstance(item, _Ndarray):
    return item
  _, shape, dtype, is_fortran, data = item.state
  name = dtype.name.decode() if isinstance(dtype.name, bytes) else dtype.name
  if name != 'u1':
    raise ValueError(f'an array has dtype {name!r}, not uint8')
  whole = all(isinstance(n, int) and n >= 0 for n in shape)
  if not whole or math.prod(shape) != len(data):
    raise ValueError(f'an array of shape {shape} has {len(data)} bytes')
  order = 'F' if is_fortran else 'C'
  return np.frombuffer(data, np.uint8).reshape(shape, order=order)
