"""TensorFlow Federated's data files, read without TensorFlow.

A file is an SQLite database, often LZMA-compressed, with the tables
`examples(split_name, client_id, serialized_example_proto)`, one
`tf.train.Example` per row, and `client_metadata(client_id, split_name,
num_examples)`. The public files have no published hash, so the schema and the counts of
every client are checked instead.
"""

from collections.abc import Iterator, Sequence
import contextlib
import functools
import itertools
import operator
import os
import pathlib
import sqlite3
import tempfile
from typing import NamedTuple

from epe_jax.data import archives, example_proto, sources

CURE = (
  "Expected TFF's emnist_all.sqlite or stackoverflow.sqlite, plain or as "
  '.sqlite.lzma. The public files are emnist_all.sqlite.lzma and '
  'stackoverflow.sqlite.lzma in the storage bucket tff-datasets-public '
  '(https://storage.googleapis.com/tff-datasets-public/); any file of the same '
  'schema will do.'
)
"""Ends every message about a file that is not what it should be."""

_TABLES = {
  'examples': {'split_name', 'client_id', 'serialized_example_proto'},
  'client_metadata': {'split_name', 'client_id', 'num_examples'},
}
_MAGIC = b'SQLite format 3\0'
# Bytes of an example or a text; SQLite refuses longer ones.
_MAX_LENGTH = 64 << 20
# Examples of a client, so that sums do not overflow.
_MAX_EXAMPLES = 1 << 40


class _File(NamedTuple):
  """An open file: its path, for messages, and a read-only connection."""

  path: pathlib.Path
  db: sqlite3.Connection


@contextlib.contextmanager
def open_source(path: str | os.PathLike) -> Iterator[sources.Source]:
  """Opens a file for reading, and checks that it is complete and one of TFF's.

  A compressed file is first decompressed into the temporary directory
  (`TMPDIR`) and removed at the end; decompress it yourself to read it often. A file
  without the index on (split_name, client_id) of the public ones is sorted there too
  whenever a split is read.

  Args:
    path: SQLite file, plain or LZMA-compressed (.lzma or .xz).

  Yields:
    A source with the splits of the file. Clients come in the order of ids, and rows
    in the order of the file; their numbers are compared with `client_metadata`.

  Raises:
    FileNotFoundError, ValueError: if the file is missing, not SQLite, damaged,
      has other tables, or contradicts itself.
  """
  path = _check_exists(path)
  with tempfile.TemporaryDirectory(prefix='epe_jax-') as folder:
    plain = _decompress(path, pathlib.Path(folder, 'plain.sqlite'))
    uri = f'{plain.absolute().as_uri()}?mode=ro'
    with (
      _explain_sqlite(path),
      contextlib.closing(sqlite3.connect(uri, uri=True)) as db,
    ):
      # Triggers and functions that the file names are not run.
      db.execute('PRAGMA trusted_schema = OFF')
      db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_LENGTH)
      file = _File(path, db)
      _check_schema(file)
      _check_metadata(file)
      yield sources.Source(
        name=str(path),
        splits=_count_splits(file),
        read=functools.partial(_read_clients, file),
        decode=decode,
        features=_read_features(file),
      )


def decode(
  blobs: Sequence[object], features: sources.Features
) -> sources.Columns:
  """`example_proto.stack`, with a cure."""
  try:
    return example_proto.stack(blobs, features)
  except ValueError as error:
    raise ValueError(f'{error}. {CURE}') from error


@contextlib.contextmanager
def _explain_sqlite(path: pathlib.Path) -> Iterator[None]:
  """Adds the name of the file and a cure to errors of SQLite."""
  try:
    yield
  except sqlite3.Error as error:
    raise ValueError(
      f'{path} cannot be read: SQLite says "{error}". {CURE}'
    ) from error


def _check_schema(file: _File) -> None:
  for table, expected in _TABLES.items():
    # A view may be endless, and a virtual table is read by other code.
    others = file.db.execute(
      'SELECT type FROM sqlite_master WHERE lower(name) = ? '
      "AND NOT (type = 'table' AND rootpage > 0)",
      (table,),
    )
    for (kind,) in others:
      kind = 'virtual table' if kind == 'table' else kind
      raise ValueError(
        f'{file.path}: {table!r} is a {kind}, which is not followed. Write its '
        f'rows into a table. {CURE}'
      )
    info = file.db.execute(f'PRAGMA table_info({table})')
    columns = sorted(column[1] for column in info)
    if not expected <= set(columns):
      raise ValueError(
        f'{file.path}: table {table!r} should have the columns '
        f'{sorted(expected)} and has {columns}. {CURE}'
      )
  # In UTF-16, SQLite would not sort ids by code points.
  ((encoding,),) = file.db.execute('PRAGMA encoding')
  if encoding != 'UTF-8':
    raise ValueError(f'{file.path} is in {encoding}, not in UTF-8. {CURE}')


def _check_metadata(file: _File) -> None:
  """Checks that the rows of client_metadata are valid and cover all examples."""
  wrong = file.db.execute(
    'SELECT rowid, split_name, client_id, num_examples FROM client_metadata '
    "WHERE typeof(split_name) <> 'text' OR typeof(client_id) <> 'text' "
    "OR typeof(num_examples) <> 'integer' "
    'OR num_examples NOT BETWEEN 0 AND ? LIMIT 1',
    (_MAX_EXAMPLES,),
  )
  for row, split, client_id, n in wrong:
    raise ValueError(
      f'{file.path}: row {row} of client_metadata has {n!r} examples for the '
      f'client {client_id!r} of the split {split!r}, not a number for texts. '
      f'{CURE}'
    )
  twice = file.db.execute(
    'SELECT split_name, client_id, MAX(rowid) FROM client_metadata '
    'GROUP BY split_name, client_id HAVING COUNT(*) > 1 LIMIT 1'
  )
  for split, client_id, row in twice:
    raise ValueError(
      f'{file.path}: row {row} of client_metadata is not the first for the '
      f'client {client_id!r} of the split {split!r}. {CURE}'
    )
  known = _count_splits(file).keys()
  for split in _list_split_names(file):
    if split not in known:
      raise ValueError(
        f'{file.path}: examples are of the split {split!r}, which '
        f'client_metadata does not list. {CURE}'
      )


def _list_split_names(file: _File) -> Iterator[object]:
  """The distinct values of split_name in examples, of any type."""
  # One step of an index each, or a pass over the table without one.
  first = 'SELECT split_name FROM examples ORDER BY split_name LIMIT 1'
  after = (
    'SELECT split_name FROM examples WHERE split_name > ? '
    'ORDER BY split_name LIMIT 1'
  )
  rows = file.db.execute(first).fetchall()
  while rows:
    ((split,),) = rows
    yield split
    rows = file.db.execute(after, (split,)).fetchall()


def _count_splits(file: _File) -> dict[str, sources.Split]:
  rows = file.db.execute(
    'SELECT split_name, COUNT(*), SUM(num_examples) FROM client_metadata '
    'GROUP BY split_name ORDER BY split_name'
  )
  return {split: sources.Split(*numbers) for split, *numbers in rows}


def _read_features(file: _File) -> sources.Features | None:
  """The features of the first example, if it can be read."""
  first = file.db.execute(
    'SELECT split_name, client_id, serialized_example_proto FROM examples LIMIT 1'
  )
  for split, client_id, blob in first:
    if not isinstance(blob, bytes):
      raise ValueError(
        f'{file.path}, split {split!r}, client {client_id!r}, row 0: '
        f'{type(blob).__name__} where a BLOB should be. {CURE}'
      )
    try:
      return example_proto.read_features(blob)
    except ValueError:
      # The error comes when it is read, with its place.
      break
  return None


def _read_clients(
  file: _File, split: str, features: sources.Features, after: str | None
) -> Iterator[tuple[str, list[object]]]:
  """The blobs of the clients of a split; see `sources.Source`."""
  del features
  sizes = _read_sizes(file, split, after)
  # Without rowid, SQLite may choose any order of a client's examples.
  query = (
    'SELECT client_id, serialized_example_proto FROM examples '
    f'WHERE split_name = ? {"AND client_id > ? " if after is not None else ""}'
    'ORDER BY client_id COLLATE BINARY, rowid'
  )
  with _explain_sqlite(file.path):
    rows = file.db.execute(query, [x for x in (split, after) if x is not None])
    for client_id, group in itertools.groupby(rows, operator.itemgetter(0)):
      where = f'{file.path}, split {split!r}, client {client_id!r}'
      if not isinstance(client_id, str):
        raise ValueError(f'{where}: the id is not a text. {CURE}')
      expected = sizes.pop(client_id, 0)
      # Bounds the memory.
      blobs = [blob for _, blob in itertools.islice(group, expected + 1)]
      if len(blobs) != expected:
        more = 'or more ' if len(blobs) > expected else ''
        raise _make_count_error(where, f'{len(blobs)} {more}', expected)
      yield client_id, blobs
  for client_id, expected in sizes.items():
    if expected:
      where = f'{file.path}, split {split!r}, client {client_id!r}'
      raise _make_count_error(where, '0 ', expected)


def _make_count_error(where: str, counted: str, expected: int) -> ValueError:
  return ValueError(
    f'{where}: {counted}examples, but client_metadata says {expected}. The file '
    f'is incomplete or was edited: get it again. {CURE}'
  )


def _read_sizes(file: _File, split: str, after: str | None) -> dict[str, int]:
  """Number of examples of each client of a split, from client_metadata."""
  sources.find_split(_count_splits(file), split, str(file.path))
  rows = file.db.execute(
    'SELECT client_id, num_examples FROM client_metadata WHERE split_name = ?',
    (split,),
  )
  return {i: n for i, n in rows if after is None or i > after}


def _check_exists(path: str | os.PathLike) -> pathlib.Path:
  path = pathlib.Path(path)
  if not path.exists():
    raise FileNotFoundError(f'{path} does not exist. {CURE}')
  if path.is_dir():
    raise ValueError(f'{path} is a directory. Give the file in it. {CURE}')
  return path


def _decompress(path: pathlib.Path, temporary: pathlib.Path) -> pathlib.Path:
  """The SQLite file, which is the path itself unless that is compressed."""
  with open(path, 'rb') as file:
    is_plain = file.read(len(_MAGIC)) == _MAGIC
  if is_plain or path.suffix not in ('.lzma', '.xz'):
    return path
  try:
    return archives.decompress(path, temporary)
  except ValueError as error:
    raise ValueError(f'{error} {CURE}') from error
