"""TensorFlow Federated's data files, read without TensorFlow.

A file is an SQLite database, often LZMA-compressed, with the tables
`examples(split_name, client_id, serialized_example_proto)`, one
`tf.train.Example` per row, and `client_metadata(client_id, split_name,
num_examples)`. The public files carry no hash, so the schema and the counts
of every client are checked instead.
"""

from collections.abc import Iterator
import contextlib
import itertools
import lzma
import operator
import os
import pathlib
import shutil
import sqlite3
import tempfile
from typing import NamedTuple

import numpy as np

from epe_jax.data import example_proto

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


class File(NamedTuple):
  """An open file.

  Attributes:
    path: where it is, for messages.
    db: a read-only connection to it, or to what it is when decompressed.
  """

  path: pathlib.Path
  db: sqlite3.Connection


@contextlib.contextmanager
def opened(path: str | os.PathLike) -> Iterator[File]:
  """Opens a file for reading and checks that it is whole and one of TFF's.

  A compressed file is first decompressed into the temporary directory
  (`TMPDIR`) and removed at the end; decompress it yourself to read it often.

  Args:
    path: SQLite file, plain or LZMA-compressed (.lzma or .xz).

  Raises:
    FileNotFoundError, ValueError: if the file is missing, not SQLite, damaged,
      or has other tables.
  """
  path = existing(path)
  with tempfile.TemporaryDirectory(prefix='epe_jax-') as folder:
    plain = _plain(path, pathlib.Path(folder, 'plain.sqlite'))
    try:
      uri = f'{plain.absolute().as_uri()}?mode=ro'
      with contextlib.closing(sqlite3.connect(uri, uri=True)) as db:
        for table, expected in _TABLES.items():
          info = db.execute(f'PRAGMA table_info({table})')
          found = sorted(column[1] for column in info)
          if not expected <= set(found):
            raise ValueError(
              f'{path}: table {table!r} should have the columns '
              f'{sorted(expected)} and has {found}. {CURE}'
            )
        yield File(path, db)
    except sqlite3.Error as error:
      raise ValueError(
        f'{path} cannot be read: SQLite says "{error}". {CURE}'
      ) from error


def existing(path: str | os.PathLike) -> pathlib.Path:
  """The path, if there is a file; otherwise an error with a cure."""
  path = pathlib.Path(path)
  if not path.exists():
    raise FileNotFoundError(f'{path} does not exist. {CURE}')
  if path.is_dir():
    raise ValueError(f'{path} is a directory. Give the file in it. {CURE}')
  return path


def splits(file: File) -> dict[str, tuple[int, int]]:
  """The splits of a file: name -> (number of clients, number of examples)."""
  rows = file.db.execute(
    'SELECT split_name, COUNT(*), SUM(num_examples) FROM client_metadata '
    'GROUP BY split_name ORDER BY split_name'
  )
  return {split: (clients, examples) for split, clients, examples in rows}


def read(
  file: File, split: str, features: example_proto.Features
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
  """Reads the clients of a split, one at a time, in order of their id.

  Args:
    file: an open file.
    split: name of a split, e.g. 'train'.
    features: what to read: name -> (dtype, shape of one example). Other
      features of the file are ignored.

  Yields:
    (client id, name -> array [n, *shape]), in the order of ids and, within a
    client, of the file.

  Raises:
    ValueError: if the split is not there, an example lacks a feature or has it
      in another type or length, or a client has another number of examples
      than `client_metadata` says.
  """
  sizes = _sizes(file, split)
  # Without rowid the order of a client's examples would be SQLite's choice.
  rows = file.db.execute(
    'SELECT client_id, serialized_example_proto FROM examples '
    'WHERE split_name = ? ORDER BY client_id, rowid',
    (split,),
  )
  for client_id, group in itertools.groupby(rows, operator.itemgetter(0)):
    where = f'{file.path}, split {split!r}, client {client_id!r}'
    blobs = [blob for _, blob in group]
    expected = sizes.pop(client_id, 0)
    if len(blobs) != expected:
      raise _miscounted(where, len(blobs), expected)
    try:
      columns = example_proto.stack(blobs, features)
    except ValueError as error:
      raise ValueError(f'{where}, {error}. {CURE}') from error
    yield client_id, columns
  for client_id, expected in sizes.items():
    if expected:
      where = f'{file.path}, split {split!r}, client {client_id!r}'
      raise _miscounted(where, 0, expected)


def _miscounted(where: str, found: int, expected: int) -> ValueError:
  return ValueError(
    f'{where}: {found} examples, but client_metadata says {expected}. The file '
    f'is incomplete or was edited: get it again. {CURE}'
  )


def _sizes(file: File, split: str) -> dict[str, int]:
  """Number of examples of each client of a split, by client_metadata."""
  sizes = dict(
    file.db.execute(
      'SELECT client_id, num_examples FROM client_metadata '
      'WHERE split_name = ?',
      (split,),
    )
  )
  if not sizes:
    names = 'SELECT DISTINCT split_name FROM client_metadata ORDER BY 1'
    found = [name for (name,) in file.db.execute(names)]
    raise ValueError(
      f'{file.path} has no split {split!r}, only {found}. Choose one of them, '
      f'or another file. {CURE}'
    )
  for client_id, n in sizes.items():
    if not isinstance(client_id, str) or not isinstance(n, int):
      raise ValueError(
        f'{file.path}, split {split!r}: client_metadata has {n!r} examples for '
        f'the client {client_id!r}, not an integer for a text. {CURE}'
      )
  return sizes


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
        f'{path} is truncated or not LZMA ({error}). Get it again. {CURE}'
      ) from error
  head, size = _head(file), file.stat().st_size
  if head[:16] != _MAGIC:
    raise ValueError(f'{path} is not an SQLite database. {CURE}')
  page_size = int.from_bytes(head[16:18], 'big')
  page_size = 65536 if page_size == 1 else page_size
  whole = int.from_bytes(head[28:32], 'big') * page_size
  # The number of pages in the header is valid where these two fields agree.
  if size < 100 or (head[24:28] == head[92:96] and size < whole):
    raise ValueError(
      f'{path} is truncated: SQLite counts {whole} bytes, {size} are there. '
      f'Get it again. {CURE}'
    )
  return file


def _head(path: pathlib.Path) -> bytes:
  with open(path, 'rb') as f:
    return f.read(100)
