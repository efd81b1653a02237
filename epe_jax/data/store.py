"""Federated data on the disk: one Arrow file, opened as a memory map.

A store is an Arrow IPC file of one record batch with a row for each client: its
`client_id`, and of each column a list of the rows of its examples. So a column of
all clients is contiguous, and the offsets of its lists are those of the clients.
pandas, polars and DuckDB open it too. What it was made from, and the digest of its
contents, are in the metadata of its schema. Its owner alone may read it.

A store is written in parts of `PART_BYTES`, each a small Arrow file in a hidden folder
next to it, which are put together at the end. A process that is killed leaves the
parts that are complete, and the next one goes on after their last client.

References:
  https://arrow.apache.org/docs/format/Columnar.html, IPC File Format.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
import contextlib
import functools
import itertools
import json
import mmap
import os
import pathlib
import reprlib
import shutil
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from epe_jax import extras, io, locks
from epe_jax.data import arrow_columns, federated

with extras.explain_missing():
  import pyarrow as pa

VERSION = 3
"""Version of the format."""

SUFFIX = '.arrow'
"""Of the files of stores."""

CLIENT_ID = 'client_id'
"""The column of a store that no feature can have the name of."""

PART_BYTES = 32 << 20
"""Bytes of columns after which a part is complete."""

Clients = Callable[[str | None], Iterable[tuple[str, Mapping[str, np.ndarray]]]]
"""The clients after an id, or all of them after None, in increasing order."""

_KEY = b'epe_jax'
# Bytes that are written at a time, and columns that are a record batch of a part.
_BLOCK, _BATCH_BYTES = 1 << 24, 1 << 20
_MAX_ID_LENGTH = 1000
# What reading a damaged file ends in.
_DAMAGE = (pa.ArrowException, ValueError, TypeError, KeyError, OSError)
# Seconds to wait for another process that imports the same data.
_MAX_WAIT = 24 * 3600.0


class Header(NamedTuple):
  """The description of a store, from its metadata.

  Attributes:
    version: of the format.
    source: the origin of the rows.
    meta: as given to `write`.
    num_clients: number of clients.
    num_examples: number of examples of all clients.
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
  clients: Clients,
  *,
  source: str,
  meta: Mapping[str, Any] | None = None,
  exist_ok: bool = False,
  report_progress: Callable[[int], object] = lambda _: None,
) -> federated.FederatedData:
  """Streams clients into a new store, holding one client at a time.

  What a process that was killed has written is continued by the next call; the store
  is then the same to the byte. Of two processes that write the same store, the second
  waits for the first.

  Args:
    path: file to create, best with the suffix `SUFFIX`. It appears when it is
      complete and not before.
    clients: id -> the clients after this one, or all clients for None, as
      (id, name -> array [n_i, ...]) in increasing order of id. All have the
      same columns, of the same dtype and shape of a row; n_i >= 1. Arrays are of
      numbers, booleans, or objects that are byte strings.
    source: the origin of the rows, kept in the header.
    meta: more to keep in the header, in JSON types.
    exist_ok: whether to load a store that exists, or that another process completes
      in the meantime.
    report_progress: called with numbers of examples as they are written.

  Returns:
    The store, memory-mapped.

  Raises:
    FileExistsError: if the path exists, unless exist_ok.
    ValueError: if clients fail `federated.check_clients`, a column cannot be
      stored, or the beginning was written from another source or with other
      meta.
    OSError: if the disk is full or may not be written.
    TimeoutError: another process has been writing the store for a day.

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
  folder = path.with_name(f'.{path.name}.staging')
  is_new = False

  def make(draft: pathlib.Path) -> None:
    nonlocal is_new
    is_new = True
    folder.mkdir(mode=0o700, exist_ok=True)
    try:
      _write_parts(folder, clients, identity, report_progress)
      _join_parts(folder, draft, identity)
    finally:
      if not _list_parts(folder):
        shutil.rmtree(folder, ignore_errors=True)

  with io.explain_disk_errors(path):
    data = locks.make_once(
      path, make, load, max_wait=_MAX_WAIT, remake_damaged=False
    )
    if not is_new and not exist_ok:
      raise FileExistsError(
        f'{path} exists. Load it, delete it, or choose another path.'
      )
    shutil.rmtree(folder, ignore_errors=True)
  return data


def load(path: str | os.PathLike) -> federated.FederatedData:
  """Opens a store: columns are read-only views of the memory map.

  Offsets, ids and columns of byte strings are read into memory. A truncated file is
  detected without reading the rest; `verify` also detects flipped bits.

  Raises:
    FileNotFoundError: if the path does not exist.
    ValueError: if the store is damaged, or of another version or form.
  """
  path = pathlib.Path(path)
  reader, described = _open(path)
  header = _make_header(path, described)
  try:
    data = _unpack_batch(reader.get_batch(0), header.digest)
  except _DAMAGE as error:
    raise _make_damage_error(path, error) from error
  counted = (header.num_clients, header.num_examples)
  if (data.num_clients, data.num_examples) != counted:
    raise _make_damage_error(
      path, f'it does not have the {counted} clients and examples'
    )
  return data


def read_header(path: str | os.PathLike) -> Header:
  """Reads the description of a store.

  Raises:
    FileNotFoundError, ValueError: as `load`.
  """
  path = pathlib.Path(path)
  return _make_header(path, _open(path)[1])


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


def _make_header(path: pathlib.Path, described: Mapping[str, Any]) -> Header:
  try:
    return Header(**described)
  except TypeError as error:
    raise _make_damage_error(path, error) from error


def _list_parts(folder: pathlib.Path) -> list[pathlib.Path]:
  return sorted(folder.glob(f'*{SUFFIX}'))


def _write_parts(
  folder: pathlib.Path,
  clients: Clients,
  identity: Mapping[str, Any],
  report_progress: Callable[[int], object],
) -> None:
  """Writes the parts that are missing."""
  parts, num_examples, last, specs = _list_parts(folder), 0, None, None
  for data in _read_parts(folder, identity):
    num_examples += data.num_examples
    last = str(data.client_ids[-1])
    specs = federated.describe_columns(data.columns)
  report_progress(num_examples)
  rest = iter(federated.check_clients(clients(last), after=last, specs=specs))
  for number, first in enumerate(rest, len(parts)):
    io.write_atomically(
      folder / f'{number:08}{SUFFIX}',
      functools.partial(
        _fill_part,
        itertools.chain([first], rest),
        identity,
        report_progress,
      ),
      private=True,
    )


def _fill_part(
  clients: Iterator[tuple[str, Mapping[str, np.ndarray]]],
  identity: Mapping[str, Any],
  report_progress: Callable[[int], object],
  file: BinaryIO,
) -> None:
  """Writes clients into a part until it is complete."""
  size = 0
  with contextlib.ExitStack() as stack:
    writer = None
    while size < PART_BYTES and (group := _take_group(clients)):
      batch = _make_batch(federated.from_clients(group), identity)
      if writer is None:
        writer = stack.enter_context(pa.ipc.new_file(file, batch.schema))
      writer.write_batch(batch)
      size += batch.nbytes
      for columns in group.values():
        report_progress(federated.count_rows(columns))


def _take_group(
  clients: Iterator[tuple[str, Mapping[str, np.ndarray]]],
) -> dict[str, Mapping[str, np.ndarray]]:
  """The next clients, as many as are a record batch."""
  group, size = {}, 0
  for client_id, columns in clients:
    _check_client(client_id, columns)
    group[client_id] = columns
    size += sum(x.nbytes for x in columns.values())
    if size >= min(_BATCH_BYTES, PART_BYTES):
      break
  return group


def _check_client(client_id: str, columns: Mapping[str, np.ndarray]) -> None:
  if len(client_id) > _MAX_ID_LENGTH:
    raise ValueError(
      f'client {client_id[:50]!r}... has an id of {len(client_id)} '
      f'characters. Use {_MAX_ID_LENGTH} or fewer.'
    )
  if CLIENT_ID in columns:
    raise ValueError(
      f'no column can be called {CLIENT_ID!r}, the name of the ids. Give it '
      'another name.'
    )
  for name, column in columns.items():
    try:
      arrow_columns.check_column(column)
    except ValueError as error:
      raise ValueError(
        f'client {client_id!r}, column {name!r} has {error}'
      ) from error


def _make_batch(
  data: federated.FederatedData, described: Mapping[str, Any]
) -> pa.RecordBatch:
  """A row for each client, and what is said of them in the metadata."""
  arrays = {CLIENT_ID: pa.array(data.client_ids.tolist(), pa.large_string())}
  offsets = pa.array(data.offsets)
  for name in sorted(data.columns):
    values = arrow_columns.from_numpy(data.columns[name])
    arrays[name] = pa.LargeListArray.from_arrays(offsets, values)
  return pa.record_batch(
    arrays, metadata={_KEY: json.dumps(described).encode()}
  )


def _unpack_batch(
  batch: pa.RecordBatch, digest: str | None = None
) -> federated.FederatedData:
  """The clients of a record batch; columns of numbers are views of it."""
  # In full, or a damaged offset would have bytes read that are not there.
  batch.validate(full=True)
  offsets, columns = [], {}
  for name in batch.schema.names:
    if name == CLIENT_ID:
      continue
    lists = batch[name]
    if not pa.types.is_large_list(lists.type):
      raise ValueError(f'column {name!r} is of type {lists.type}')
    offsets.append(arrow_columns.to_numpy(lists.offsets))
    columns[name] = arrow_columns.to_numpy(lists.values)
  if not offsets or any((other != offsets[0]).any() for other in offsets):
    raise ValueError('its columns are not of the same clients')
  client_ids = np.array(batch[CLIENT_ID].to_pylist(), np.str_)
  return federated.FederatedData(
    columns, np.array(offsets[0]), client_ids, digest
  )


def _read_parts(
  folder: pathlib.Path, identity: Mapping[str, Any]
) -> Iterator[federated.FederatedData]:
  """The clients of all parts, a record batch at a time."""
  for number, path in enumerate(_list_parts(folder)):
    try:
      reader, before = _open(path)
      batches = map(reader.get_batch, range(reader.num_record_batches))
      if int(path.stem) != number:
        raise ValueError(f'the part {number} before it is missing')
      yield from (_unpack_batch(batch) for batch in batches)
    except (*_DAMAGE, FileNotFoundError) as error:
      raise ValueError(
        f'{path} is damaged ({error}). Delete {folder} and write the store again.'
      ) from error
    _check_identity(folder, before, identity)


def _check_identity(
  folder: pathlib.Path, before: Mapping[str, Any], now: Mapping[str, Any]
) -> None:
  for name in now:
    if before.get(name) != now[name]:
      shown = [reprlib.repr(x.get(name)) for x in (before, now)]
      raise ValueError(
        f'{folder} is the beginning of something else: its {name} is {shown[0]}, '
        f'not {shown[1]}. Finish that first, or delete the folder to start again.'
      )


def _join_parts(
  folder: pathlib.Path, path: pathlib.Path, identity: Mapping[str, Any]
) -> None:
  """Writes the clients of all parts as one store."""
  client_ids, sizes, texts, files = [], [], {}, {}
  with contextlib.ExitStack() as stack:
    for part in _read_parts(folder, identity):
      client_ids.append(part.client_ids)
      sizes.append(part.sizes)
      for name, column in part.columns.items():
        if column.dtype.kind == 'O':
          texts.setdefault(name, []).append(column)
          continue
        if name not in files:
          # Numbers, because a name need not be one of a file.
          path_of_column = folder / f'{len(files)}.values'
          files[name] = stack.enter_context(open(path_of_column, 'w+b')), column
        files[name][0].write(column.data)
    maps, columns = [], {}
    for name, (file, column) in files.items():
      file.flush()
      maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
      columns[name] = np.frombuffer(maps[-1], column.dtype).reshape(
        -1, *column.shape[1:]
      )
  columns |= {name: np.concatenate(parts) for name, parts in texts.items()}

  def release() -> None:
    # What was read of a map no longer counts as memory of this process.
    for map_ in maps:
      map_.madvise(mmap.MADV_DONTNEED)

  data = federated.FederatedData(
    columns,
    federated.compute_offsets(np.concatenate(sizes)),
    np.concatenate(client_ids),
  )
  _write_file(path, data, identity, release)


def _write_file(
  path: pathlib.Path,
  data: federated.FederatedData,
  identity: Mapping[str, Any],
  release: Callable[[], None],
) -> None:
  header = Header(
    **identity,
    num_clients=data.num_clients,
    num_examples=data.num_examples,
    digest=federated.hash_contents(data, release=release),
  )
  batch = _make_batch(data, header._asdict())
  with open(path, 'wb', opener=io.open_private) as file:
    with pa.ipc.new_file(_Sink(file, release), batch.schema) as writer:
      writer.write_batch(batch)
    file.flush()
    os.fsync(file.fileno())


class _Sink:
  """A file to which Arrow writes memory maps without keeping their pages."""

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


def _open(
  path: pathlib.Path,
) -> tuple[pa.ipc.RecordBatchFileReader, dict[str, Any]]:
  """Maps a file into memory and reads its metadata."""
  _check_is_file(path)
  try:
    with open(path, 'rb') as file:
      # Arrow's own memory map makes the system read the whole file ahead.
      map_ = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    reader = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(map_)))
    described = json.loads((reader.schema.metadata or {})[_KEY])
    version = described['version']
    if version == VERSION:
      return reader, described
  except PermissionError:
    raise
  except _DAMAGE as error:
    raise _make_damage_error(path, error) from error
  raise ValueError(
    f'{path} has version {version}; this library reads version {VERSION}. '
    'Write the store again from its source.'
  )


def _check_is_file(path: pathlib.Path) -> None:
  if not path.exists():
    raise FileNotFoundError(
      f'{path} does not exist. Give the file of a store, or make one with '
      'store.write.'
    )
  if not path.is_file():
    raise ValueError(f'{path} is a folder. Give the file of a store.')


def _make_damage_error(path: pathlib.Path, what: object) -> ValueError:
  return ValueError(
    f'{path} is not a whole store: {what}. Delete it and write it again from '
    'its source.'
  )
