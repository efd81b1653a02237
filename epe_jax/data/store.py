"""Federated data on the disk: one Arrow file, opened as a memory map.

A store is an Arrow IPC file of one record batch with a row for each client: its
`client_id`, and of each column a list of the rows of its examples. So a column of
all clients lies in one piece, and the offsets of its lists are those of the
clients. pandas, polars and DuckDB open it too. What it was made from, and the
digest of its contents, are in the metadata of its schema.

The file is written under another name and renamed when complete, so a store that
exists is a whole one. Its owner alone may read it.

Reference: https://arrow.apache.org/docs/format/Columnar.html, IPC File Format.
"""

from collections.abc import Callable, Mapping
import json
import mmap
import os
import pathlib
from typing import Any, NamedTuple

import numpy as np

from epe_jax import extras, io
from epe_jax.data import (
  arrow_columns,
  federated,
  staged_columns,
  staging,
)

with extras.explain_missing():
  import pyarrow as pa

VERSION = 3
"""Version of the form on the disk."""

SUFFIX = '.arrow'
"""Of the files of stores."""

_KEY = b'epe_jax'
_BLOCK = 1 << 24


class Header(NamedTuple):
  """What a store says of itself.

  Attributes:
    version: of the form on the disk.
    source: where the rows come from.
    meta: what else was given to `write`.
    num_clients: how many there are.
    num_examples: of all clients.
    digest: `federated.hash_contents` of them.
  """

  version: int
  source: str
  meta: Mapping[str, Any]
  num_clients: int
  num_examples: int
  digest: str


def write(
  path: str | os.PathLike,
  clients: staged_columns.Clients,
  *,
  source: str,
  meta: Mapping[str, Any] | None = None,
  exist_ok: bool = False,
  report_progress: Callable[[int], object] = lambda _: None,
) -> federated.FederatedData:
  """Streams clients into a new store, holding one client at a time.

  What a process that was killed has written is kept beside the store and
  continued by the next call; the store is then the same to the byte. Of two
  processes that write the same store, the second waits for the first.

  Args:
    path: file to create, best with the suffix `SUFFIX`. It appears when it is
      complete and not before.
    clients: id -> the clients after this one, or all clients for None, as
      (id, name -> array [n_i, ...]) in increasing order of id. All have the
      same columns, of the same dtype and shape of a row; n_i >= 1. Arrays are of
      numbers, booleans, or objects that are byte strings.
    source: where the rows come from, kept in the header.
    meta: anything else to keep in the header, of which JSON can be made.
    exist_ok: if the store exists, or another process completes it meanwhile,
      take it as it is.
    report_progress: told numbers of examples as they are written, for a
      progress bar.

  Returns:
    The store, memory-mapped.

  Raises:
    FileExistsError: if the path exists, unless exist_ok.
    ValueError: if clients fail `federated.check_clients`, a column cannot be
      stored, or the beginning was written from another source or with other
      meta.
    OSError: if the disk is full or may not be written.

  >>> import tempfile
  >>> rows = {'a': {'x': np.array([5])}, 'b': {'x': np.array([6, 7])}}
  >>> with tempfile.TemporaryDirectory() as folder:
  ...   data = write(
  ...     pathlib.Path(folder, 'train.arrow'),
  ...     lambda after: ((i, rows[i]) for i in rows if not after or i > after),
  ...     source='two clients',
  ...   )
  ...   data.client(1)['x'].tolist()
  [6, 7]
  """
  path = pathlib.Path(path)
  identity = json.loads(
    json.dumps({'version': VERSION, 'source': source, 'meta': dict(meta or {})})
  )
  if path.exists():
    return _load_existing(path, exist_ok)
  with io.explain_disk_errors(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    with staging.open_exclusively(
      path, progress=staged_columns.PROGRESS
    ) as folder:
      # Another process may have finished it while this one waited.
      if not path.exists():
        staged = staged_columns.append_clients(
          folder, clients, identity, report_progress
        )
        _write_file(folder / f'store{SUFFIX}', staged, identity)
        (folder / f'store{SUFFIX}').rename(path)
        io.sync_folder(path.parent)
        return load(path)
    return _load_existing(path, exist_ok)


def load(path: str | os.PathLike) -> federated.FederatedData:
  """Opens a store: columns are read-only views of the memory map.

  Offsets and ids are read, and so are columns of byte strings, which become
  arrays of objects in memory. A truncated file is found without reading the
  rest; `verify` also finds flipped bits.

  Raises:
    FileNotFoundError: if the path does not exist.
    ValueError: if the store is damaged, or of another version or form.
  """
  path = pathlib.Path(path)
  reader, header = _open(path)
  try:
    batch = reader.get_batch(0)
    # In full, or a damaged offset would have bytes read that are not there.
    batch.validate(full=True)
    offsets, columns = _unpack_lists(batch)
    data = federated.FederatedData(
      columns,
      offsets,
      np.array(batch[staged_columns.CLIENT_ID].to_pylist(), np.str_),
      header.digest,
    )
  except (pa.ArrowException, ValueError, TypeError, KeyError, OSError) as error:
    raise _make_damage_error(path, error) from error
  counted = (header.num_clients, header.num_examples)
  if (data.num_clients, data.num_examples) != counted:
    raise _make_damage_error(
      path, f'it has not the {counted} clients and examples'
    )
  return data


def read_header(path: str | os.PathLike) -> Header:
  """Reads what a store says of itself.

  Raises:
    FileNotFoundError, ValueError: as `load`.
  """
  return _open(pathlib.Path(path))[1]


def verify(path: str | os.PathLike) -> None:
  """Reads every byte of a store and compares it with its digest.

  Raises:
    FileNotFoundError, ValueError: as `load`, and if the digest differs.
  """
  data = load(path)
  if federated.hash_contents(data) != data.digest:
    raise _make_damage_error(
      pathlib.Path(path), 'the SHA-256 of its contents differs'
    )


def _write_file(
  path: pathlib.Path, staged: staged_columns.Staged, identity: Mapping[str, Any]
) -> None:
  """Writes the columns of a staging directory as an Arrow file."""
  offsets = federated.compute_offsets(staged.sizes)
  columns, release = staged_columns.map_columns(staged)
  data = federated.FederatedData(
    {name: arrow_columns.to_numpy(x) for name, x in columns.items()},
    offsets,
    np.array(staged.client_ids, np.str_),
  )
  header = Header(
    **identity,
    num_clients=data.num_clients,
    num_examples=data.num_examples,
    digest=federated.hash_contents(data, release=release),
  )
  ids = pa.array(staged.client_ids, pa.large_string())
  arrays = {staged_columns.CLIENT_ID: ids} | {
    name: pa.LargeListArray.from_arrays(pa.array(offsets), columns[name])
    for name in sorted(columns)
  }
  batch = pa.record_batch(
    arrays, metadata={_KEY: json.dumps(header._asdict()).encode()}
  )
  with open(path, 'wb', opener=io.open_private) as file:
    with pa.ipc.new_file(_Sink(file, release), batch.schema) as writer:
      writer.write_batch(batch)
    file.flush()
    os.fsync(file.fileno())


class _Sink:
  """A file that Arrow writes memory maps to, without keeping them in memory."""

  closed = False

  def __init__(self, file: Any, release: Callable[[], None]):
    self.file, self.release = file, release
    self.flush = file.flush

  def write(self, data: Any) -> int:
    view = memoryview(data)
    for start in range(0, len(view), _BLOCK):
      self.file.write(view[start : start + _BLOCK])
      self.release()
    return len(view)


def _open(path: pathlib.Path) -> tuple[pa.ipc.RecordBatchFileReader, Header]:
  """Maps a file into memory and reads its schema."""
  _check_form(path)
  try:
    with open(path, 'rb') as file:
      # Arrow's own memory map has the system read ahead all of the file.
      map_ = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    reader = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(map_)))
    described = json.loads((reader.schema.metadata or {})[_KEY])
    version = described['version']
    if version == VERSION:
      return reader, Header(**described)
  except PermissionError:
    raise
  except (pa.ArrowException, ValueError, TypeError, KeyError, OSError) as error:
    raise _make_damage_error(path, error) from error
  raise ValueError(
    f'{path} has version {version}; this library reads version {VERSION}. '
    'Write the store again from its source.'
  )


def _check_form(path: pathlib.Path) -> None:
  # Before version 3 a store was a folder, with the name of the split.
  for old in (path, path.with_suffix('')):
    if (old / 'manifest.json').is_file() and not path.is_file():
      raise ValueError(
        f'{old} is a store of .npy files, from an older version of epe_jax; this '
        f'one reads Arrow files. Make {path} with `epe-jax data` from the source '
        f'named in {old / "manifest.json"}, and delete the folder.'
      )
  if not path.exists():
    raise FileNotFoundError(
      f'{path} does not exist. Give the file of a store, or make one with '
      'store.write.'
    )
  if not path.is_file():
    raise ValueError(f'{path} is a folder. Give the file of a store.')


def _unpack_lists(
  batch: pa.RecordBatch,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
  """The offsets that all lists have in common, and what they are of."""
  offsets, columns = [], {}
  for name in batch.schema.names:
    if name == staged_columns.CLIENT_ID:
      continue
    lists = batch[name]
    if not pa.types.is_large_list(lists.type):
      raise ValueError(f'column {name!r} is of type {lists.type}')
    offsets.append(arrow_columns.to_numpy(lists.offsets))
    columns[name] = arrow_columns.to_numpy(lists.values)
  if not offsets or any((other != offsets[0]).any() for other in offsets):
    raise ValueError('its columns are not of the same clients')
  return np.array(offsets[0]), columns


def _load_existing(
  path: pathlib.Path, exist_ok: bool
) -> federated.FederatedData:
  if not exist_ok:
    raise FileExistsError(
      f'{path} exists. Load it, delete it, or choose another path.'
    )
  staging.discard(path)
  return load(path)


def _make_damage_error(path: pathlib.Path, what: object) -> ValueError:
  return ValueError(
    f'{path} is not a whole store: {what}. Delete it and write it again from '
    'its source.'
  )
