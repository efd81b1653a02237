"""Columns as Arrow has them, and back as NumPy has them.

A row of shape (28, 28) is a list of fixed size of such lists, so that any
reader of Arrow knows its shape. Booleans are Arrow's `bool8`, of a byte each, as
NumPy's are.
"""

from jaxtyping import Shaped
import numpy as np

from epe_jax import extras

with extras.explain_missing():
  import pyarrow as pa


def check_column(column: Shaped[np.ndarray, 'n ...']) -> None:
  """Checks that Arrow can hold a column.

  Args:
    column: should be of numbers or booleans in the byte order of the machine, or
      of objects that are byte strings, with a value or more in each row.

  Raises:
    ValueError: it is something else.
  """
  dtype, shape = column.dtype, column.shape[1:]
  if dtype.kind not in 'biufO' or not dtype.isnative or 0 in shape:
    raise ValueError(
      f'dtype {dtype} and shape {shape} of a row. Use numbers or booleans in the '
      'byte order of this machine, at least one in each row, or objects that are '
      'byte strings; encode them if they are text.'
    )
  types = (
    {type(x).__name__ for x in column.flat} if dtype.kind == 'O' else set()
  )
  if types - {'bytes'}:
    raise ValueError(f'objects of type {sorted(types)}. Use byte strings.')


def from_numpy(column: Shaped[np.ndarray, 'n ...']) -> pa.Array:
  """Makes an Arrow array of a column that passes `check_column`.

  Numbers are not copied if they are contiguous.
  """
  flat = np.ascontiguousarray(column).reshape(-1)
  if flat.dtype.kind == 'O':
    array = pa.array(flat.tolist(), pa.large_binary())
  elif flat.dtype.kind == 'b':
    array = pa.ExtensionArray.from_storage(
      pa.bool8(), pa.array(flat.view(np.int8))
    )
  else:
    array = pa.Array.from_buffers(
      pa.from_numpy_dtype(flat.dtype), flat.size, [None, pa.py_buffer(flat)]
    )
  for size in reversed(column.shape[1:]):
    array = pa.FixedSizeListArray.from_arrays(array, size)
  return array


def to_numpy(array: pa.Array) -> np.ndarray:
  """Gives the rows of an array, [n, *shape of a row].

  Returns:
    A read-only view; of byte strings an array of objects in memory.

  Raises:
    ValueError: the array has nulls, or is of a type that `from_numpy` never gives.
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
