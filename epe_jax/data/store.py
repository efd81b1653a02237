"""Federated data on the disk: one Arrow file, opened as a memory map.

A store is an Arrow IPC file of one record batch with a row for each client: its
`client_id`, and of each column a list of the rows of its examples. So a column of
all clients is contiguous, and the offsets of its lists are those of the clients.
A row of shape (28, 28) is a list of fixed size of such lists, and a boolean is Arrow's
`bool8`, of a byte. pandas, polars and DuckDB open it too. What it was made from, and
the digest of its contents, are in the metadata of its schema. Its owner alone may read
it.

While a store is written, each column is a plain file in a hidden folder next to it, to
which clients are appended. After every `PART_BYTES` a manifest says how far they are
whole, and a process that goes on for one that was killed starts there.

References:
  https://arrow.apache.org/docs/format/Columnar.html, IPC File Format.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
import contextlib
import itertools
import json
import mmap
import os
import pathlib
import reprlib
import shutil
from typing import Any, NamedTuple

from jaxtyping import Shaped
import numpy as np

from epe_jax import extras, io, locks
from epe_jax.data import federated

with extras.explain_missing():
  import pyarrow as pa

Clients = Iterable[tuple[str, Mapping[str, np.ndarray]]]

VERSION = 3
"""Version of the format."""

SUFFIX = '.arrow'
"""Of the files of stores."""

CLIENT_ID = 'client_id'
"""The column of a store that no feature can have the name of."""

PART_BYTES = 32 << 20
"""Bytes of columns after which what is written is saved."""

_KEY = b'epe_jax'
_MANIFEST, _IDS, _SIZES = 'manifest.json', 'client_ids', 'sizes'
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
  clients: Iterable[tuple[str, Any]],
  *,
  source: str,
  meta: Mapping[str, Any] | None = None,
  decode: Callable[[Iterable[tuple[str, Any]]], Clients] = lambda rest: rest,
  report_progress: Callable[[int], object] = lambda _: None,
) -> federated.FederatedData:
  """Streams clients into a new store, holding one client at a time.

  What a process that was killed has written is continued by the next call; the store
  is then the same to the byte. Of two processes that write the same store, the second
  waits for the first.

  Args:
    path: file to create, best with the suffix `SUFFIX`. It appears when it is
      complete and not before.
    clients: (id, what `decode` takes) in increasing order of id. Those that an earlier
      call has written are skipped.
    source: the origin of the rows, kept in the header.
    meta: more to keep in the header, in JSON types.
    decode: the clients that are not yet written -> (id, name -> array [n_i, ...]) in
      the same order. All have the same columns, of the same dtype and shape of a row;
      n_i >= 1. Arrays are of numbers, booleans, or objects that are byte strings.
      By default, `clients` has them.
    report_progress: called with numbers of examples as they are written.

  Returns:
    The store, memory-mapped; one that exists already, or that another process completes
    in the meantime, as it is.

  Raises:
    ValueError: if clients fail `federated.check_clients`, a column cannot be
      stored, or the beginning was written from another source or with other
      meta.
    OSError: if the disk is full or may not be written.
    TimeoutError: another process has been writing the store for a day.

  >>> import tempfile
  >>> rows = {'a': {'x': np.array([5])}, 'b': {'x': np.array([6, 7])}}
  >>> with tempfile.TemporaryDirectory() as folder:
  ...   path = pathlib.Path(folder, 'train.arrow')
  ...   data = write(path, rows.items(), source='two clients')
  ...   data.client(1)['x'].tolist()
  [6, 7]
  """
  path = pathlib.Path(path)
  identity = json.loads(
    json.dumps({'version': VERSION, 'source': source, 'meta': dict(meta or {})})
  )
  folder = path.with_name(f'.{path.name}.staging')

  def make(draft: pathlib.Path) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    try:
      staged = _go_back(folder, identity)
      client_ids, sizes = _read_clients(folder)
      report_progress(int(sizes.sum()))
      last = client_ids[-1] if client_ids else None
      rest = itertools.dropwhile(
        lambda client: last is not None and client[0] <= last, clients
      )
      checked = federated.check_clients(
        decode(rest), after=last, specs=staged.parse_specs()
      )
      staged = _append(folder, staged, checked, report_progress)
      _write_file(draft, _read_columns(folder, staged), identity)
    finally:
      if not (folder / _MANIFEST).exists():
        shutil.rmtree(folder, ignore_errors=True)

  with io.name_disk_errors(path):
    data = locks.make_once(
      path, make, load, max_wait=_MAX_WAIT, remake_damaged=False
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
  batch, header = _open(pathlib.Path(path))
  with _explain_damage(path):
    data = _unpack_batch(batch, header.digest)
    counted = (header.num_clients, header.num_examples)
    if (data.num_clients, data.num_examples) != counted:
      raise ValueError(f'it does not have the {counted} clients and examples')
  return data


def read_header(path: str | os.PathLike) -> Header:
  """Reads the description of a store.

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
  with _explain_damage(path):
    if federated.hash_contents(data) != data.digest:
      raise ValueError('the SHA-256 of its contents differs')


class _Manifest(NamedTuple):
  """How far the files of a store that is written are whole.

  Attributes:
    identity: what the store is made from.
    specs: name -> (dtype, shape of a row), sorted by name.
    lengths: name of a file -> its bytes; more are of clients that are written again.
  """

  identity: Mapping[str, Any]
  specs: Mapping[str, tuple[str, list[int]]] = {}
  lengths: Mapping[str, int] = {}

  def parse_specs(self) -> federated.Specs:
    return {
      name: (np.dtype(dtype), tuple(shape))
      for name, (dtype, shape) in self.specs.items()
    }


def _go_back(folder: pathlib.Path, identity: Mapping[str, Any]) -> _Manifest:
  """Cuts the files to what the manifest says, if it has this identity."""
  staged = _Manifest(identity)
  if (folder / _MANIFEST).exists():
    staged = _Manifest(**io.read_json(folder / _MANIFEST))
  for name, now in identity.items():
    if (before := staged.identity.get(name)) != now:
      raise ValueError(
        f'{folder} is the beginning of something else: its {name} is '
        f'{reprlib.repr(before)}, not {reprlib.repr(now)}. Finish that first, or '
        'delete the folder to start again.'
      )
  for name in {x.name for x in folder.iterdir()} - {_MANIFEST} | {
    *staged.lengths
  }:
    path, length = folder / name, staged.lengths.get(name, 0)
    if not path.exists() or path.stat().st_size < length:
      raise ValueError(
        f'{path} is damaged. Delete {folder} and write the store again.'
      )
    os.truncate(path, length)
  return staged


def _read_clients(folder: pathlib.Path) -> tuple[list[str], np.ndarray]:
  """The ids and numbers of examples of the clients that are written."""
  if not (folder / _IDS).exists():
    return [], np.zeros(0, np.int64)
  lines = (folder / _IDS).read_bytes().splitlines()
  return [*map(json.loads, lines)], np.fromfile(folder / _SIZES, np.int64)


def _append(
  folder: pathlib.Path,
  staged: _Manifest,
  clients: Clients,
  report_progress: Callable[[int], object],
) -> _Manifest:
  """Appends clients to the files of their columns."""
  with contextlib.ExitStack() as stack:
    files, unsaved = {}, 0

    def append(name: str, data: Any) -> None:
      if name not in files:
        files[name] = stack.enter_context(open(folder / name, 'ab'))
      files[name].write(data)

    def save(manifest: _Manifest) -> _Manifest:
      for file in files.values():
        file.flush()
        os.fsync(file.fileno())
      lengths = {name: file.tell() for name, file in files.items()}
      manifest = manifest._replace(lengths={**manifest.lengths, **lengths})
      io.write_json(folder / _MANIFEST, manifest._asdict(), private=True)
      return manifest

    for client_id, columns in clients:
      _check_client(client_id, columns)
      append(_IDS, json.dumps(client_id).encode() + b'\n')
      append(_SIZES, np.int64(federated.count_rows(columns)))
      # Numbers, because a name need not be one of a file.
      for number, column in enumerate(columns.values()):
        if column.dtype.kind == 'O':
          sizes = np.array([len(item) for item in column.flat], np.int64)
          append(f'{number}.sizes', sizes)
          column = np.frombuffer(b''.join(column.flat), np.uint8)
        append(f'{number}.values', np.ascontiguousarray(column))
        unsaved += column.nbytes
      specs = {n: (x.dtype.str, x.shape[1:]) for n, x in columns.items()}
      staged = staged._replace(specs=specs)
      report_progress(federated.count_rows(columns))
      if unsaved >= PART_BYTES:
        staged, unsaved = save(staged), 0
    return save(staged)


def _read_columns(
  folder: pathlib.Path, staged: _Manifest
) -> federated.FederatedData:
  """The clients of all files; columns of numbers are mapped."""
  columns = {}
  for number, (name, (dtype, shape)) in enumerate(staged.parse_specs().items()):
    path = folder / f'{number}.values'
    if dtype.kind == 'O':
      ends = np.cumsum(np.fromfile(path.with_suffix('.sizes'), np.int64))
      data = path.read_bytes()
      column = np.empty(len(ends), object)
      column[:] = [data[i:j] for i, j in zip([0, *ends], ends)]
    else:
      column = np.memmap(path, dtype, 'r')
    columns[name] = column.reshape(-1, *shape)
  client_ids, sizes = _read_clients(folder)
  return federated.FederatedData(
    columns, federated.compute_offsets(sizes), np.array(client_ids, np.str_)
  )


def _check_client(client_id: str, columns: Mapping[str, np.ndarray]) -> None:
  if CLIENT_ID in columns:
    raise ValueError(
      f'no column can be called {CLIENT_ID!r}, the name of the ids. Give it '
      'another name.'
    )
  for name, column in columns.items():
    dtype, shape = column.dtype, column.shape[1:]
    what = ''
    if dtype.kind == 'O':
      types = {type(x).__name__ for x in column.flat}
      what = f'objects of type {sorted(types)}' if types - {'bytes'} else ''
    if dtype.kind not in 'biufO' or not dtype.isnative or 0 in shape:
      what = f'dtype {dtype} and shape {shape} of a row'
    if what:
      raise ValueError(
        f'client {client_id!r}, column {name!r} has {what}. Use numbers or booleans '
        'in the byte order of this machine, at least one in each row, or objects '
        'that are byte strings; encode them if they are text.'
      )


def _write_file(
  path: pathlib.Path,
  data: federated.FederatedData,
  identity: Mapping[str, Any],
) -> None:
  header = Header(
    **identity,
    num_clients=data.num_clients,
    num_examples=data.num_examples,
    digest=federated.hash_contents(data),
  )
  arrays = {CLIENT_ID: pa.array(data.client_ids.tolist(), pa.large_string())}
  for name in sorted(data.columns):
    values = _to_arrow(data.columns[name])
    arrays[name] = pa.LargeListArray.from_arrays(pa.array(data.offsets), values)
  batch = pa.record_batch(
    arrays, metadata={_KEY: json.dumps(header._asdict()).encode()}
  )
  with open(path, 'wb', opener=io.open_private) as file:
    with pa.ipc.new_file(file, batch.schema) as writer:
      writer.write_batch(batch)
    file.flush()
    os.fsync(file.fileno())


def _unpack_batch(
  batch: pa.RecordBatch, digest: str
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
    offsets.append(_to_numpy(lists.offsets))
    columns[name] = _to_numpy(lists.values)
  if not offsets or any((other != offsets[0]).any() for other in offsets):
    raise ValueError('its columns are not of the same clients')
  client_ids = np.array(batch[CLIENT_ID].to_pylist(), np.str_)
  return federated.FederatedData(
    columns, np.array(offsets[0]), client_ids, digest
  )


def _to_arrow(column: Shaped[np.ndarray, 'n ...']) -> pa.Array:
  """Makes an Arrow array; contiguous numbers are not copied."""
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


def _to_numpy(array: pa.Array) -> np.ndarray:
  """Gives the rows of an array, [n, ...], as a view; byte strings as objects."""
  shape = []
  while True:
    if array.null_count:
      raise ValueError(f'{array.null_count} values are missing')
    if not pa.types.is_fixed_size_list(array.type):
      break
    shape.append(array.type.list_size)
    array = array.values
  ragged = pa.types.is_large_binary(array.type)
  return array.to_numpy(zero_copy_only=not ragged).reshape(-1, *shape)


def _open(path: pathlib.Path) -> tuple[pa.RecordBatch, Header]:
  """Maps a file into memory and reads its metadata."""
  if not path.exists():
    raise FileNotFoundError(
      f'{path} does not exist. Give the file of a store, or make one with '
      'store.write.'
    )
  with _explain_damage(path):
    with open(path, 'rb') as file:
      # Arrow's own memory map makes the system read the whole file ahead.
      map_ = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    reader = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(map_)))
    described = json.loads((reader.schema.metadata or {})[_KEY])
    version = described['version']
    if version == VERSION:
      return reader.get_batch(0), Header(**described)
  raise ValueError(
    f'{path} has version {version}; this library reads version {VERSION}. '
    'Write the store again from its source.'
  )


@contextlib.contextmanager
def _explain_damage(path: str | os.PathLike) -> Iterator[None]:
  try:
    yield
  except PermissionError:
    raise
  except _DAMAGE as error:
    raise ValueError(
      f'{path} is not a whole store: {error}. Delete it and write it again from '
      'its source.'
    ) from error
