"""A file of NumPy arrays with one row per example, and the client of each row."""

from collections.abc import Iterator
import contextlib
import os

import numpy as np

from epe_jax import io
from epe_jax.data import federated, sources

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
    ValueError: if it is damaged, or not as above.
  """
  try:
    arrays = io.read_arrays(path)
  except ValueError as error:
    raise ValueError(f'{error} {CURE}') from error
  splits = _group_rows(arrays, str(path))
  yield sources.Source(
    name=str(path),
    splits={
      split: sources.Split(data.num_clients, data.num_examples)
      for split, data in splits.items()
    },
    read=lambda split: sources.find_split(splits, split, str(path)).clients(),
    decode=sources.decode_columns,
    features={
      name: (
        bytes if x.dtype.kind in 'SU' else x.dtype.newbyteorder('='),
        x.shape[1:],
      )
      for name, x in arrays.items()
    },
  )


def _group_rows(
  arrays: dict[str, np.ndarray], path: str
) -> dict[str, federated.FederatedData]:
  """The clients of each split; takes the two arrays that name them."""
  client_ids = _check_strings(path, 'client_id', arrays.pop('client_id', None))
  every = np.full(len(client_ids), 'train')
  split_of = _check_strings(path, 'split', arrays.pop('split', every))
  lengths = {'client_id': len(client_ids), 'split': len(split_of)} | {
    name: column.shape[0] if column.ndim else 0
    for name, column in arrays.items()
  }
  if len(set(lengths.values())) > 1 or not arrays or not len(client_ids):
    raise ValueError(f'{path} has arrays of lengths {lengths}. {CURE}')
  splits = {}
  for split in np.unique(split_of):
    rows = split_of == split
    columns = {name: column[rows] for name, column in arrays.items()}
    splits[str(split)] = federated.from_arrays(columns, client_ids[rows])
  return splits


def _check_strings(
  path: str, name: str, values: np.ndarray | None
) -> np.ndarray:
  if values is None or values.ndim != 1 or values.dtype.kind not in 'Uiu':
    what = 'missing' if values is None else f'{values.dtype} {values.shape}'
    raise ValueError(f'{path}: array {name!r} is {what}. {CURE}')
  return values.astype(np.str_)
