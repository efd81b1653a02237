"""Federated data before it is imported: splits of clients of examples.

The contents of a file, and not its name, choose the module that reads it.
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import importlib
import math
import os
import pathlib
from typing import Any, NamedTuple, TypeVar

from jaxtyping import Shaped
import numpy as np
from numpy.typing import DTypeLike

from epe_jax import python_path

T = TypeVar('T')

Columns = Mapping[str, np.ndarray]

Features = Mapping[str, tuple[DTypeLike, tuple[int, ...]]]
"""name -> (dtype, shape of one example); dtype `bytes` for byte strings."""


class Split(NamedTuple):
  """Numbers of clients and examples; None if unknown before the split is read."""

  clients: int | None
  examples: int | None


class Source(NamedTuple):
  """Splits of clients of examples, one client in memory at a time.

  Attributes:
    name: for messages and the headers of stores.
    splits: name -> numbers of clients and examples.
    read: split -> (client id, raw) in strictly increasing order of ids.
    decode: (raw, features) -> name -> array [n, *shape of the feature]; byte
      strings are arrays of objects. A module-level function, so that other
      processes can run it. A ValueError names the row.
    features: those of the first example; None if unknown.
  """

  name: str
  splits: Mapping[str, Split]
  read: Callable[[str], Iterator[tuple[str, Any]]]
  decode: Callable[[Any, Features], Columns]
  features: Features | None = None


UNDERSTOOD = """Give one of these:
  emnist_all.sqlite or stackoverflow.sqlite of TensorFlow Federated, plain or \
as .lzma or .xz, and any file of that schema;
  the folder of a version of a TFDS data set of array_record files, whose \
examples have a client_id;
  an .npz file of arrays with a client_id for each row;
  an .h5 file of arrays /split/client/array;
  package.module:function, which gives (client id, name -> rows) in any order, \
or split -> such a stream."""
"""Ends every message about a file that nothing can read."""

# First bytes of a file -> module.
_HEADS = {
  b'SQLite format 3\0': 'tff',
  b'\xfd7zXZ\0': 'tff',
  b']\0\0': 'tff',
  b'\x89HDF\r\n\x1a\n': 'hdf5',
  b'PK\3\4': 'arrays',
}


def open_source(
  path: str | os.PathLike | Source,
) -> contextlib.AbstractContextManager[Source]:
  """Opens data in any supported format.

  Args:
    path: a file, a folder, or 'package.module:function' for a Python function
      without arguments, whose streams `group_by.open_function` groups; or a
      source, which is open already.

  Raises:
    FileNotFoundError, ValueError: there is nothing, or the format is unknown; on
      entering, the errors of the format's module.
  """
  if isinstance(path, Source):
    return contextlib.nullcontext(path)
  if python_path.is_function(path):
    # Imported here, as below, because some need more packages.
    group_by = importlib.import_module('epe_jax.data.formats.group_by')
    function = python_path.import_function(str(path))
    return group_by.open_function(function, str(path))
  path = check_exists(path)
  name = _choose_module(path)
  if name is None:
    raise ValueError(f'{path} has no known format. {UNDERSTOOD}')
  return importlib.import_module(f'epe_jax.data.formats.{name}').open_source(
    path
  )


def check_exists(path: str | os.PathLike) -> pathlib.Path:
  """Gives the path; raises a FileNotFoundError with a cure if nothing is there."""
  path = pathlib.Path(path)
  if not path.exists():
    raise FileNotFoundError(f'{path} does not exist. {UNDERSTOOD}')
  return path


def _choose_module(path: pathlib.Path) -> str | None:
  if path.is_dir():
    return 'tfds' if (path / 'dataset_info.json').is_file() else None
  with open(path, 'rb') as file:
    head = file.read(100)
  for start, name in _HEADS.items():
    if head.startswith(start):
      return name
  return None


def decode_columns(raw: Columns, features: Features) -> Columns:
  """Converts the named features of columns to a dtype and shape.

  No value changes: a conversion to fewer bits that would change one is refused.

  Args:
    raw: name -> array [n, ...]; other columns are ignored.
    features: the features to convert. A float dtype takes floats, an integer dtype
      integers, `bytes` byte strings and strings, which become UTF-8.

  Returns:
    name -> array [n, *shape]; byte strings are arrays of objects.

  Raises:
    ValueError: a feature is missing, of another kind or shape, or does not fit
      the dtype; the message names the row where there is one.

  >>> decode_columns({'x': np.array([[7, 8]])}, {'x': (np.int8, (2, 1))})
  {'x': array([[[7],
          [8]]], dtype=int8)}
  """
  columns = {
    name: _decode_column(raw, name, *spec) for name, spec in features.items()
  }
  lengths = {name: len(column) for name, column in columns.items()}
  if len(set(lengths.values())) > 1:
    raise ValueError(
      f'features have different numbers of rows, {lengths}. Give all of them '
      'one value per example.'
    )
  return columns


def _decode_column(
  raw: Columns, name: str, dtype: DTypeLike, shape: tuple[int, ...]
) -> np.ndarray:
  if name not in raw:
    raise ValueError(f'no feature {name!r} among {sorted(raw)}')
  stored = raw[name]
  if not stored.ndim or math.prod(stored.shape[1:]) != math.prod(shape):
    raise ValueError(
      f'feature {name!r} has shape {stored.shape}, not (n, *{shape})'
    )
  stored = stored.reshape(len(stored), *shape)
  if dtype is bytes:
    return encode_strings(stored, name)
  dtype = np.dtype(dtype)
  kinds = {'i': 'iu', 'u': 'iu'}.get(dtype.kind, dtype.kind)
  if stored.dtype.kind not in kinds:
    raise ValueError(
      f'feature {name!r} is of type {stored.dtype}, which does not become '
      f'{dtype} by itself. Convert it yourself'
    )
  # Overflow is detected below.
  with np.errstate(over='ignore'):
    column = stored.astype(dtype, copy=False)
  if column is stored or stored.dtype == dtype:
    return column
  same = column == stored
  if dtype.kind == 'f':
    same |= np.isnan(stored)
  if not same.all():
    row = np.argwhere(~same)[0]
    raise ValueError(
      f'row {row[0]}: feature {name!r} is {stored[tuple(row)]}, which is not '
      f'a number of {dtype}. Convert it yourself'
    )
  return column


def encode_strings(
  stored: Shaped[np.ndarray, 'n ...'], name: str
) -> Shaped[np.ndarray, 'n ...']:
  """Turns strings into UTF-8 and leaves byte strings as they are.

  Args:
    stored: strings or byte strings, of any dtype.
    name: of the feature, for messages.

  Returns:
    An array of objects that are byte strings.

  Raises:
    ValueError: an item is something else; names the row.
  """
  if stored.dtype.kind not in 'OSU':
    raise ValueError(
      f'feature {name!r} is of type {stored.dtype}, not byte strings'
    )
  if stored.dtype == object and all(type(x) is bytes for x in stored.flat):
    return stored
  column = np.empty(stored.shape, object)
  for index, value in np.ndenumerate(stored):
    if not isinstance(value, bytes | str):
      raise ValueError(
        f'row {index[0]}: feature {name!r} is of type {type(value).__name__}, '
        'not bytes'
      )
    try:
      column[index] = value.encode() if isinstance(value, str) else bytes(value)
    except UnicodeEncodeError as error:
      raise ValueError(f'row {index[0]}: feature {name!r}: {error}') from error
  return column


def find_split(splits: Mapping[str, T], split: str, name: str) -> T:
  """Looks up a split.

  Args:
    splits: split -> anything.
    split: which one.
    name: of the source, for the message.

  Raises:
    ValueError: there is no such split; lists the existing ones.
  """
  if split not in splits:
    raise ValueError(
      f'{name} has no split {split!r}, only {sorted(splits)}. Choose one of '
      'them.'
    )
  return splits[split]
