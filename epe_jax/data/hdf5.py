"""TFF's legacy archives: one HDF5 file per split, `/examples/<client>/<feature>`.

The rows of a feature are a client's examples. Links, and datasets whose data are in
another file or missing, are refused. libhdf5 refuses most damaged files, but not all: it
is no sandbox for files from strangers. The published archives have hashes, which
--download compares.
"""

from collections.abc import Iterator, Mapping
import contextlib
import functools
import math
import os
import pathlib
import re
import tempfile
from typing import Any

import numpy as np

from epe_jax import extras
from epe_jax.data import archives, sources

try:
  import h5py
except ImportError as error:
  raise ImportError(
    f'HDF5 files need h5py. Install it: {extras.format_install("hdf5")}'
  ) from error

CURE = (
  "Expected TFF's fed_emnist_train.h5, fed_emnist_test.h5 or the like, a folder "
  'of such files, or fed_emnist.tar.bz2, fed_emnist_digitsonly.tar.bz2 or '
  'stackoverflow.tar.bz2 as published; any file of the same form will do.'
)
"""Ends every message about a file that is not what it should be."""

_SPLITS = {
  'fed_emnist_train': 'all_train',
  'fed_emnist_test': 'all_test',
  'fed_emnist_digitsonly_train': 'digits_only_train',
  'fed_emnist_digitsonly_test': 'digits_only_test',
  'stackoverflow_train': 'train',
  'stackoverflow_held_out': 'heldout',
  'stackoverflow_heldout': 'heldout',
  'stackoverflow_test': 'test',
}
# Of a client's feature, and of a decompressed chunk, which are held in memory.
_MAX_BYTES = 1 << 30
# The errors of h5py for damaged files.
_DAMAGE = (
  KeyError,
  MemoryError,
  OSError,
  OverflowError,
  RuntimeError,
  TypeError,
  ValueError,
)


@contextlib.contextmanager
def open_source(path: str | os.PathLike) -> Iterator[sources.Source]:
  """Opens HDF5 files for reading, one client at a time.

  An archive is first unpacked into the temporary directory (`TMPDIR`) and
  removed at the end; unpack it yourself to read it often.

  Args:
    path: an .h5 file, a folder with such files (hidden and other files are
      ignored), or a .tar.bz2 archive of them.

  Yields:
    A source whose splits are the files, with their names in EMNIST and StackOverflow
    or else the file's name without .h5. The numbers of examples are unknown before
    they are read.

  Raises:
    FileNotFoundError, ValueError: there is no file, or one is truncated, not HDF5,
      without `/examples`, of the same split as another, or, now or while it is
      read, damaged.

  References:
    Caldas et al. 2018, LEAF: A Benchmark for Federated Settings; in the form of
    TensorFlow Federated's first releases.
  """
  path, names, clients = pathlib.Path(path), {}, {}
  with contextlib.ExitStack() as stack:
    for name, file in _find_files(path, stack):
      split = _name_split(name)
      if split in names:
        raise ValueError(
          f'{name} and {names[split]} are both the split {split!r}. Keep one. '
          f'{CURE}'
        )
      names[split] = name
      with _explain_damage(name):
        hdf5 = stack.enter_context(h5py.File(file, 'r'))
        clients[split] = _open_member(hdf5, 'examples', h5py.Group)
    client_ids = {
      split: _list_clients(names[split], clients[split]) for split in names
    }
    yield sources.Source(
      name=str(path),
      splits={
        s: sources.Split(len(ids), None) for s, ids in client_ids.items()
      },
      read=functools.partial(
        _read_clients, str(path), names, clients, client_ids
      ),
      decode=sources.decode_columns,
    )


def _find_files(
  path: pathlib.Path, stack: contextlib.ExitStack
) -> list[tuple[str, pathlib.Path]]:
  """(name for messages, path) of each file."""
  if not path.exists():
    raise FileNotFoundError(f'{path} does not exist. {CURE}')
  if path.is_dir():
    files = [p for p in sorted(path.glob('*.h5')) if p.name[0] != '.']
    if not files:
      raise ValueError(f'{path} has no file *.h5. {CURE}')
    return [(str(file), file) for file in files]
  if not path.name.endswith('.tar.bz2'):
    return [(str(path), path)]
  folder = stack.enter_context(tempfile.TemporaryDirectory(prefix='epe_jax-'))
  members = archives.extract(path, folder, suffix='.h5')
  return [(f'{path}/{member}', file) for member, file in members.items()]


def _name_split(name: str) -> str:
  stem = pathlib.PurePosixPath(name.replace(os.sep, '/')).stem
  # A split becomes the name of a file.
  if not re.fullmatch(r'\w[\w.-]*', stem):
    raise ValueError(
      f'{name} would be the split {stem!r}. Rename it to letters, digits, '
      "'_', '-' and '.'."
    )
  return _SPLITS.get(stem, stem)


def _read_clients(
  path: str,
  names: Mapping[str, str],
  clients: Mapping[str, h5py.Group],
  client_ids: Mapping[str, list[str]],
  split: str,
  features: sources.Features,
  after: str | None,
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
  """The clients of a split; see `sources.Source`."""
  name = sources.find_split(names, split, path)
  for client_id in client_ids[split]:
    if after is None or client_id > after:
      with _explain_damage(f'{name}, split {split!r}, client {client_id!r}'):
        client = _open_member(clients[split], client_id, h5py.Group)
        columns = {feature: _read_rows(client, feature) for feature in features}
      yield client_id, columns


@contextlib.contextmanager
def _explain_damage(where: str) -> Iterator[None]:
  """Adds a place and a cure to the errors of h5py."""
  try:
    yield
  except _DAMAGE as error:
    raise ValueError(f'{where}: {error}. {CURE}') from error


def _list_clients(name: str, clients: h5py.Group) -> list[str]:
  with _explain_damage(name):
    for client_id in clients:
      # h5py gives bytes for a name that is not UTF-8.
      if not isinstance(client_id, str):
        raise ValueError(f'client {client_id!r} is not UTF-8')
    return sorted(clients)


def _open_member(group: h5py.Group, name: str, kind: type) -> Any:
  """The member of a group, if it is in this file and of this kind."""
  link = group.get(name, getlink=True)
  if link is None:
    raise ValueError(f'no {name!r} among {sorted(group)[:20]}')
  if not isinstance(link, h5py.HardLink):
    raise ValueError(f'{name!r} is a link ({type(link).__name__}), not data')
  item = group[name]
  if not isinstance(item, kind):
    actual, expected = type(item).__name__, kind.__name__
    raise ValueError(f'{name!r} is a {actual}, not a {expected}')
  return item


def _read_rows(client: h5py.Group, feature: str) -> np.ndarray:
  """The rows of a feature, [n, ...], as they are stored."""
  try:
    dataset = _open_member(client, feature, h5py.Dataset)
    _check_storage(dataset)
    return dataset[()]
  except _DAMAGE as error:
    raise ValueError(f'feature {feature!r}: {error}') from error


def _check_storage(dataset: h5py.Dataset) -> None:
  """Refuses data that are in another file, incomplete, or too large."""
  layout = dataset.id.get_create_plist()
  if layout.get_layout() == h5py.h5d.VIRTUAL or layout.get_external_count():
    raise ValueError('its data are in another file')
  if not dataset.shape:
    raise ValueError(f'it has shape {dataset.shape}')
  # A small file can declare, or decompress to, any size, and NumPy would allocate it.
  chunk = math.prod(dataset.chunks or ()) * dataset.dtype.itemsize
  for what, size in (('', dataset.nbytes), (' a chunk', chunk)):
    if size > _MAX_BYTES:
      raise ValueError(f'it has {size} bytes{what}, over {_MAX_BYTES}')
  # HDF5 reads zeros where nothing was written.
  if dataset.chunks is None:
    complete = not dataset.size or dataset.id.get_storage_size()
  else:
    sides = zip(dataset.shape, dataset.chunks)
    complete = dataset.id.get_num_chunks() == math.prod(
      -(-n // c) for n, c in sides
    )
  if not complete:
    raise ValueError(f'some of its {len(dataset)} rows were never written')
