"""TensorFlow Federated's data files, read without TensorFlow.

A file is an SQLite database, often LZMA-compressed, with the tables
`examples(split_name, client_id, serialized_example_proto)`, one
`tf.train.Example` per row, and `client_metadata(client_id, split_name,
num_examples)`. The public files carry no hash, so the schema and the counts
of every client are checked instead.
"""

from collections.abc import Generator, Iterator, Mapping
import contextlib
import hashlib
import itertools
import lzma
import operator
import os
import pathlib
import shutil
import sqlite3
import tempfile
from typing import Any

import numpy as np
from numpy.typing import DTypeLike
import tqdm

from epe_jax.data import federated

Features = Mapping[str, tuple[DTypeLike, tuple[int, ...]]]
"""name -> (dtype, shape of one example); dtype `bytes` for byte strings."""

_TABLES = {
  'examples': {'split_name', 'client_id', 'serialized_example_proto'},
  'client_metadata': {'split_name', 'client_id', 'num_examples'},
}
_MAGIC = b'SQLite format 3\0'
_CURE = (
  "Expected TFF's emnist_all.sqlite or stackoverflow.sqlite, plain or as "
  '.sqlite.lzma. The public files are emnist_all.sqlite.lzma and '
  'stackoverflow.sqlite.lzma in the storage bucket tff-datasets-public '
  '(https://storage.googleapis.com/tff-datasets-public/); any file of the same '
  'schema will do.'
)

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_EMNIST = {'pixels': (np.float32, (28, 28)), 'label': (np.int32, ())}
# Part of a cached import's name: raise it when what is imported changes.
_EMNIST_VERSION = 1


def decode_example(blob: bytes) -> dict[str, np.ndarray | list[bytes]]:
  """Features of a serialized `tf.train.Example`.

  Follows the rules of protocol buffers: fields in any order, numbers packed
  or not, unknown fields skipped, the last of two equal map keys wins, and two
  parts of one message are read as their concatenation.

  Args:
    blob: the serialized message.

  Returns:
    name -> float32 [n], int64 [n] or list of n byte strings; a feature of no
    kind is left out. Arrays are read-only.

  Raises:
    ValueError: if the bytes are truncated or otherwise not a message.

  Source: tensorflow/core/example/{example,feature}.proto.

  >>> decode_example(bytes.fromhex('0a0c0a0a0a016112051a030a0107'))
  {'a': array([7])}
  """
  features = {}
  try:
    for message in _messages(blob, slice(0, len(blob)), 1):
      for entry in _messages(blob, message, 1):
        key, values = '', []
        for number, wire, span in _fields(blob, entry):
          if wire == _BYTES and number == 1:
            key = blob[span].decode()
          elif wire == _BYTES and number == 2:
            values.append(span)
        features[key] = _feature(blob, values)
  except ValueError as error:
    raise ValueError(f'not a tf.train.Example: {error}') from error
  return {key: value for key, value in features.items() if value is not None}


def splits(path: str | os.PathLike) -> dict[str, tuple[int, int]]:
  """The splits of a file: name -> (number of clients, number of examples).

  Raises:
    FileNotFoundError, ValueError: if the file is missing, not SQLite, damaged,
      or has other tables.
  """
  with _database(pathlib.Path(path)) as db:
    rows = db.execute(
      'SELECT split_name, COUNT(*), SUM(num_examples) FROM client_metadata '
      'GROUP BY split_name ORDER BY split_name'
    )
    return {split: (clients, examples) for split, clients, examples in rows}


def read(
  path: str | os.PathLike, split: str, features: Features
) -> Generator[tuple[str, dict[str, np.ndarray]], None, None]:
  """Reads the clients of a split, one at a time, in order of their id.

  A compressed file is first decompressed into the temporary directory
  (`TMPDIR`) and removed at the end; decompress it yourself to read it often.

  Args:
    path: SQLite file, plain or LZMA-compressed (.lzma or .xz).
    split: name of a split, e.g. 'train'.
    features: what to read: name -> (dtype, shape of one example). A float
      dtype reads floats, an integer dtype integers, `bytes` byte strings.
      Other features of the file are ignored.

  Yields:
    (client id, name -> array [n, *shape]), in the order of ids and, within a
    client, of the file. Byte strings are arrays of objects.

  Raises:
    FileNotFoundError, ValueError: as `splits`; if the split is not there, an
      example lacks a feature or has it in another type or length, or a client
      has another number of examples than `client_metadata` says.
  """
  path = pathlib.Path(path)
  with _database(path) as db:
    yield from _clients(db, path, split, features)


def emnist(
  path: str | os.PathLike,
  *,
  only_digits: bool,
  cache: str | os.PathLike | None = None,
) -> tuple[federated.FederatedData, federated.FederatedData]:
  """Federated EMNIST: handwritten characters by the people who wrote them.

  The first call imports the file into a columnar store, later calls map it
  into memory; a file of another path, size or time is imported anew.

  Args:
    path: emnist_all.sqlite, plain or LZMA-compressed.
    only_digits: True for the splits with 10 classes (3,383 users), False for
      those with 62 (3,400 users).
    cache: directory of the imports; $XDG_CACHE_HOME/epe_jax or
      ~/.cache/epe_jax if None.

  Returns:
    (train, test) with columns pixels, float32 [n, 28, 28], as stored:
    background 1.0, ink 0.0; and label, int32 [n].

  Raises:
    FileNotFoundError, ValueError: as `read`, or if a label is out of range.
  """
  path = _existing(pathlib.Path(path)).resolve()
  kind, num_classes = ('digits_only', 10) if only_digits else ('all', 62)
  names = [f'{kind}_{part}' for part in ('train', 'test')]
  stores = [_cached(path, name, cache) for name in names]
  if not all(store.exists() for store in stores):
    with _database(path) as db:
      for name, store in zip(names, stores, strict=True):
        if not store.exists():
          _import_emnist(db, path, name, num_classes, store)
  train, test = map(federated.load, stores)
  return train, test


def _import_emnist(
  db: sqlite3.Connection,
  path: pathlib.Path,
  split: str,
  num_classes: int,
  store: pathlib.Path,
) -> None:
  clients = _emnist_clients(db, path, split, num_classes)
  try:
    federated.write(store, clients, source=f'{path}, split {split!r}')
  except FileExistsError:
    # Another process finished first; it imported the same rows.
    if not store.exists():
      raise


def _cached(
  path: pathlib.Path, split: str, cache: str | os.PathLike | None
) -> pathlib.Path:
  """Where the import of a split of this very file is kept."""
  if cache is None:
    home = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
    cache = pathlib.Path(home, 'epe_jax')
  stat = path.stat()
  versions = (federated.VERSION, _EMNIST_VERSION)
  key = repr((str(path), stat.st_size, stat.st_mtime_ns, split, versions))
  digest = hashlib.sha256(key.encode()).hexdigest()[:16]
  return pathlib.Path(cache, f'{path.name.split(".")[0]}-{split}-{digest}')


def _emnist_clients(
  db: sqlite3.Connection, path: pathlib.Path, split: str, num_classes: int
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
  total = sum(_sizes(db, path, split).values())
  # disable=None: no bar where stderr is not a terminal.
  with tqdm.tqdm(
    total=total, desc=f'importing {split}', unit=' examples', disable=None
  ) as bar:
    for client_id, columns in _clients(db, path, split, _EMNIST):
      labels = columns['label']
      wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
      if wrong.size:
        raise ValueError(
          f'{path}, split {split!r}, client {client_id!r}, row {wrong[0]}: '
          f'label {labels[wrong[0]]} is not in [0, {num_classes}). {_CURE}'
        )
      yield client_id, columns
      bar.update(len(labels))


def _clients(
  db: sqlite3.Connection, path: pathlib.Path, split: str, features: Features
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
  sizes = _sizes(db, path, split)
  # Without rowid the order of a client's examples would be SQLite's choice.
  rows = db.execute(
    'SELECT client_id, serialized_example_proto FROM examples '
    'WHERE split_name = ? ORDER BY client_id, rowid',
    (split,),
  )
  for client_id, group in itertools.groupby(rows, operator.itemgetter(0)):
    where = f'{path}, split {split!r}, client {client_id!r}'
    blobs = [blob for _, blob in group]
    expected = sizes.pop(client_id, 0)
    if len(blobs) != expected:
      raise _miscounted(where, len(blobs), expected)
    yield client_id, _columns(where, blobs, features)
  for client_id, expected in sizes.items():
    if expected:
      where = f'{path}, split {split!r}, client {client_id!r}'
      raise _miscounted(where, 0, expected)


def _miscounted(where: str, found: int, expected: int) -> ValueError:
  return ValueError(
    f'{where}: {found} examples, but client_metadata says {expected}. The file '
    f'is incomplete or was edited: get it again. {_CURE}'
  )


def _sizes(
  db: sqlite3.Connection, path: pathlib.Path, split: str
) -> dict[str, int]:
  """Number of examples of each client of a split, by client_metadata."""
  sizes = dict(
    db.execute(
      'SELECT client_id, num_examples FROM client_metadata '
      'WHERE split_name = ?',
      (split,),
    )
  )
  if not sizes:
    names = 'SELECT DISTINCT split_name FROM client_metadata ORDER BY 1'
    found = [name for (name,) in db.execute(names)]
    raise ValueError(
      f'{path} has no split {split!r}, only {found}. Choose one of them, or '
      f'another file. {_CURE}'
    )
  for client_id, n in sizes.items():
    if not isinstance(client_id, str) or not isinstance(n, int):
      raise ValueError(
        f'{path}, split {split!r}: client_metadata has {n!r} examples for the '
        f'client {client_id!r}, not an integer for a text. {_CURE}'
      )
  return sizes


def _columns(
  where: str, blobs: list[bytes], features: Features
) -> dict[str, np.ndarray]:
  """Stacks the features of a client's examples, checking each."""
  specs = {
    name: (_kind(dtype), int(np.prod(shape)))
    for name, (dtype, shape) in features.items()
  }
  values = {name: [] for name in features}
  for row, blob in enumerate(blobs):
    try:
      if not isinstance(blob, bytes):
        raise ValueError(f'{type(blob).__name__} where a BLOB should be')
      example = decode_example(blob)
      for name, spec in specs.items():
        values[name].append(_checked(example, name, *spec))
    except ValueError as error:
      raise ValueError(f'{where}, row {row}: {error}. {_CURE}') from error
  return {
    name: _stacked(f'{where}: feature {name!r}', values[name], dtype, shape)
    for name, (dtype, shape) in features.items()
  }


def _kind(dtype: DTypeLike) -> str:
  kind = 'bytes' if dtype is bytes else np.dtype(dtype).kind
  names = {'bytes': 'bytes', 'f': 'float', 'i': 'int64', 'u': 'int64'}
  if kind not in names:
    raise ValueError(f'dtype {dtype!r}: use a float, an integer, or bytes.')
  return names[kind]


def _checked(example: Mapping[str, Any], name: str, kind: str, length: int):
  """The named feature, if it is of this kind and length."""
  if name not in example:
    raise ValueError(f'no feature {name!r} among {sorted(example)}')
  value = example[name]
  found = 'bytes' if isinstance(value, list) else value.dtype.name
  if not found.startswith(kind):
    raise ValueError(f'feature {name!r} is of type {found}, not {kind}')
  if len(value) != length:
    raise ValueError(f'feature {name!r} has {len(value)} values, not {length}')
  return value


def _stacked(
  where: str, values: list, dtype: DTypeLike, shape: tuple[int, ...]
) -> np.ndarray:
  """[n, *shape] of this dtype, refusing integers that do not fit."""
  if dtype is bytes:
    column = np.empty(len(values) * len(values[0]), object)
    column[:] = list(itertools.chain.from_iterable(values))
    return column.reshape(-1, *shape)
  stored = np.concatenate(values)
  column = stored.astype(dtype, copy=False)
  if stored.dtype.kind == 'i' and not np.array_equal(column, stored):
    raise ValueError(f'{where} has integers beyond {np.dtype(dtype)}. {_CURE}')
  return column.reshape(-1, *shape)


@contextlib.contextmanager
def _database(path: pathlib.Path) -> Iterator[sqlite3.Connection]:
  """Opens a file for reading and checks that it is one of TFF's."""
  with tempfile.TemporaryDirectory(prefix='epe_jax-') as folder:
    file = _plain(_existing(path), pathlib.Path(folder, 'plain.sqlite'))
    try:
      uri = f'{file.absolute().as_uri()}?mode=ro'
      with contextlib.closing(sqlite3.connect(uri, uri=True)) as db:
        for table, expected in _TABLES.items():
          info = db.execute(f'PRAGMA table_info({table})')
          found = sorted(column[1] for column in info)
          if not expected <= set(found):
            raise ValueError(
              f'{path}: table {table!r} should have the columns '
              f'{sorted(expected)} and has {found}. {_CURE}'
            )
        yield db
    except sqlite3.Error as error:
      raise ValueError(
        f'{path} cannot be read: SQLite says "{error}". {_CURE}'
      ) from error


def _existing(path: pathlib.Path) -> pathlib.Path:
  if not path.exists():
    raise FileNotFoundError(f'{path} does not exist. {_CURE}')
  if path.is_dir():
    raise ValueError(f'{path} is a directory. Give the file in it. {_CURE}')
  return path


def _plain(path: pathlib.Path, temporary: pathlib.Path) -> pathlib.Path:
  """A whole SQLite file: the one given, or what it is when decompressed."""
  file = path
  if path.suffix in ('.lzma', '.xz') and _head(path)[:16] != _MAGIC:
    file = temporary
    try:
      with lzma.open(path) as source, open(file, 'wb') as target:
        shutil.copyfileobj(source, target, 1 << 20)
    except (lzma.LZMAError, EOFError) as error:
      raise ValueError(
        f'{path} is truncated or not LZMA ({error}). Get it again. {_CURE}'
      ) from error
  head, size = _head(file), file.stat().st_size
  if head[:16] != _MAGIC:
    raise ValueError(f'{path} is not an SQLite database. {_CURE}')
  page_size = int.from_bytes(head[16:18], 'big')
  page_size = 65536 if page_size == 1 else page_size
  whole = int.from_bytes(head[28:32], 'big') * page_size
  # The number of pages in the header is valid where these two fields agree.
  if size < 100 or (head[24:28] == head[92:96] and size < whole):
    raise ValueError(
      f'{path} is truncated: SQLite counts {whole} bytes, {size} are there. '
      f'Get it again. {_CURE}'
    )
  return file


def _head(path: pathlib.Path) -> bytes:
  with open(path, 'rb') as f:
    return f.read(100)


def _feature(
  blob: bytes, spans: list[slice]
) -> np.ndarray | list[bytes] | None:
  """Feature { oneof { BytesList = 1; FloatList = 2; Int64List = 3 } }."""
  kind, lists = None, []
  for span in spans:
    for number, wire, value in _fields(blob, span):
      if wire == _BYTES and number in (1, 2, 3):
        if number != kind:
          kind, lists = number, []
        lists.append(value)
  if kind is None:
    return None
  values = [
    (wire, value)
    for span in lists
    for number, wire, value in _fields(blob, span)
    if number == 1
  ]
  if kind == 1:
    return [blob[value] for wire, value in values if wire == _BYTES]
  return (_floats if kind == 2 else _integers)(blob, values)


def _floats(blob: bytes, values: list[tuple[int, Any]]) -> np.ndarray:
  parts = [blob[span] for wire, span in values if wire in (_BYTES, _FIXED32)]
  if any(len(part) % 4 for part in parts):
    raise ValueError('a list of floats ends within one')
  return np.frombuffer(b''.join(parts), '<f4').astype(np.float32, copy=False)


def _integers(blob: bytes, values: list[tuple[int, Any]]) -> np.ndarray:
  numbers = []
  for wire, value in values:
    if wire == _VARINT:
      numbers.append(value)
    elif wire == _BYTES:
      at = value.start
      while at < value.stop:
        number, at = _varint(blob, at, value.stop)
        numbers.append(number)
  # Negative numbers are stored as their two's complement.
  return np.array(numbers, np.uint64).view(np.int64)


def _messages(blob: bytes, span: slice, number: int) -> Iterator[slice]:
  """Where the messages (or strings) with this field number lie."""
  for found, wire, value in _fields(blob, span):
    if found == number and wire == _BYTES:
      yield value


def _fields(blob: bytes, span: slice) -> Iterator[tuple[int, int, Any]]:
  """(number, wire type, value) of each field; the value is an integer for a
  varint and otherwise the slice of the blob where it lies."""
  at, end = span.start, span.stop
  while at < end:
    tag = blob[at]
    at += 1
    # Nearly all tags are one byte: the call is worth avoiding.
    if tag >= 0x80:
      tag, at = _varint(blob, at - 1, end)
    number, wire = tag >> 3, tag & 7
    if not 0 < number < 1 << 29:
      raise ValueError(f'field number {number} does not exist')
    if wire == _VARINT:
      value, at = _varint(blob, at, end)
    elif wire in (_BYTES, _FIXED64, _FIXED32):
      size = 8 if wire == _FIXED64 else 4
      if wire == _BYTES:
        size, at = _varint(blob, at, end)
      if size > end - at:
        raise ValueError(f'field of {size} bytes where {end - at} are left')
      value = slice(at, at + size)
      at += size
    else:
      raise ValueError(f'wire type {wire} is not used in examples')
    yield number, wire, value


def _varint(blob: bytes, at: int, end: int) -> tuple[int, int]:
  """(number, position behind it): 7 bits a byte, lowest first."""
  value = 0
  for shift in range(0, 70, 7):
    if at >= end:
      raise ValueError('the bytes end within a number')
    byte = blob[at]
    at += 1
    value |= (byte & 0x7F) << shift
    if byte < 0x80:
      return value & 0xFFFFFFFFFFFFFFFF, at
  raise ValueError('a number is longer than 10 bytes')
