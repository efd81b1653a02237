"""A file of NumPy arrays with one row per example, and the client of each row."""

from collections.abc import Iterator, Mapping
import contextlib
import functools
import os
import pathlib

import numpy as np

from epe_jax import io
from epe_jax.data import sources

CURE = (
  'Expected an .npz file of arrays with equally many rows: client_id (strings or '
  "integers), optionally split (strings; 'train' without it), and features. "
  'np.savez(FILE, client_id=..., pixels=..., label=...) makes one.'
)
"""Ends every message about a file that is not what it should be."""


@contextlib.contextmanager
def open_source(path: str | os.PathLike) -> Iterator[sources.Source]:
  """Opens an .npz file, which is held in memory.

  Args:
    path: made by `np.savez`, without objects. Rows may come in any order of
      clients and splits; those of a client keep theirs.

  Raises:
    FileNotFoundError, ValueError: if it is missing, damaged, or not as above.
  """
  path = pathlib.Path(path)
  try:
    arrays = io.read_arrays(path)
  except FileNotFoundError as error:
    raise FileNotFoundError(f'{path} does not exist. {CURE}') from error
  except ValueError as error:
    raise ValueError(f'{error} {CURE}') from error
  client_ids = _check_strings(path, 'client_id', arrays.pop('client_id', None))
  every = np.full(len(client_ids), 'train')
  split_of = _check_strings(path, 'split', arrays.pop('split', every))
  lengths = {'client_id': len(client_ids), 'split': len(split_of)} | {
    name: column.shape[0] if column.ndim else 0
    for name, column in arrays.items()
  }
  if len(set(lengths.values())) > 1 or not arrays or not len(client_ids):
    raise ValueError(f'{path} has arrays of lengths {lengths}. {CURE}')
  # Stable, so that the rows of a client keep their order.
  order = np.lexsort((client_ids, split_of))
  splits = {
    str(split): order[split_of[order] == split] for split in np.unique(split_of)
  }
  yield sources.Source(
    name=str(path),
    splits={
      split: sources.Split(len(np.unique(client_ids[rows])), len(rows))
      for split, rows in splits.items()
    },
    read=functools.partial(
      _read_clients, str(path), arrays, client_ids, splits
    ),
    decode=sources.decode_columns,
    features={
      name: (
        bytes if x.dtype.kind in 'SU' else x.dtype.newbyteorder('='),
        x.shape[1:],
      )
      for name, x in arrays.items()
    },
  )


def _check_strings(
  path: pathlib.Path, name: str, values: np.ndarray | None
) -> np.ndarray:
  if values is None or values.ndim != 1 or values.dtype.kind not in 'Uiu':
    what = 'missing' if values is None else f'{values.dtype} {values.shape}'
    raise ValueError(f'{path}: array {name!r} is {what}. {CURE}')
  return values.astype(np.str_)


def _read_clients(
  name: str,
  arrays: sources.Columns,
  client_ids: np.ndarray,
  splits: Mapping[str, np.ndarray],
  split: str,
  features: sources.Features,
  after: str | None,
) -> Iterator[tuple[str, sources.Columns]]:
  """The clients of a split; see `sources.Source`."""
  rows = sources.find_split(splits, split, name)
  owners, starts = np.unique(client_ids[rows], return_index=True)
  for owner, its_rows in zip(owners.tolist(), np.split(rows, starts[1:])):
    if after is None or owner > after:
      yield (
        owner,
        {n: column[its_rows] for n, column in arrays.items() if n in features},
      )
