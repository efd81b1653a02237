"""Columns of federated data as Arrow has them, and back as NumPy has them.

A row of shape (28, 28) is a list of fixed size of such lists, so that any
reader of Arrow knows its shape. Booleans are Arrow's `bool8`, of a byte each, as
NumPy's are.
"""

from collections.abc import Sequence
import math

import numpy as np

from epe_jax import extras

with extras.explain_missing():
  import pyarrow as pa


def choose_type(dtype: np.dtype, shape: tuple[int, ...]) -> pa.DataType:
  """Gives the Arrow type of a row.

  Args:
    dtype: of numbers or booleans, in the byte order of the machine; objects
      stand for byte strings.
    shape: of a row, of positive sizes.

  Raises:
    ValueError: there is no such type.
  """
  if dtype.kind not in 'biufO' or not dtype.isnative or 0 in shape:
    raise ValueError(
      f'dtype {dtype} and shape {shape} of a row. Use numbers or booleans in the '
      'byte order of this machine, at least one in each row, or objects that are '
      'byte strings; encode them if they are text.'
    )
  if dtype.kind == 'O':
    type_ = pa.large_binary()
  else:
    type_ = pa.bool8() if dtype.kind == 'b' else pa.from_numpy_dtype(dtype)
  for size in reversed(shape):
    type_ = pa.list_(type_, size)
  return type_


def wrap_buffers(
  dtype: np.dtype,
  shape: tuple[int, ...],
  num_rows: int,
  buffers: Sequence[pa.Buffer],
) -> pa.Array:
  """Makes an array of buffers, without copying them.

  Args:
    dtype: as for `choose_type`.
    shape: of a row.
    num_rows: how many.
    buffers: of the values; of byte strings, the int64 offsets at which each of
      them begins, and then all of them one behind the other.
  """
  items = num_rows * math.prod(shape)
  scalar = choose_type(dtype, ())
  stored = pa.int8() if dtype.kind == 'b' else scalar
  array = pa.Array.from_buffers(stored, items, [None, *buffers])
  if dtype.kind == 'b':
    array = pa.ExtensionArray.from_storage(scalar, array)
  for size in reversed(shape):
    array = pa.FixedSizeListArray.from_arrays(array, size)
  return array


def to_numpy(array: pa.Array) -> np.ndarray:
  """Gives the rows of an array, [n, *shape of a row].

  Returns:
    A read-only view; of byte strings an array of objects in memory.

  Raises:
    ValueError: the array has nulls, or is of a type that `choose_type` never gives.
  """
  shape = []
  while pa.types.is_fixed_size_list(array.type):
    _check_no_nulls(array)
    shape.append(array.type.list_size)
    array = array.values
  _check_no_nulls(array)
  ragged = pa.types.is_large_binary(array.type)
  items = array.to_numpy(zero_copy_only=not ragged)
  return items.reshape(-1, *shape)


def _check_no_nulls(array: pa.Array) -> None:
  if array.null_count:
    raise ValueError(f'{array.null_count} values are missing')
