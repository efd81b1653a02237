"""TensorFlow Federated's data files, read without TensorFlow.

A file is an SQLite database, often LZMA-compressed, with the tables
`examples(split_name, client_id, serialized_example_proto)`, one
`tf.train.Example` per row, and `client_metadata(client_id, split_name,
num_examples)`. The public files have no published hash, so the counts of every client
are checked instead.
"""

from collections.abc import Iterator, Mapping
import contextlib
import functools
import itertools
import operator
import os
import pathlib
import sqlite3
import tempfile

from epe_jax.data import archives, sources
from epe_jax.data.formats import example_proto

CURE = (
  "Expected TFF's emnist_all.sqlite or stackoverflow.sqlite, plain or as "
  '.sqlite.lzma. The public files are emnist_all.sqlite.lzma and '
  'stackoverflow.sqlite.lzma in the storage bucket tff-datasets-public '
  '(https://storage.googleapis.com/tff-datasets-public/); any file of the same '
  'schema will do.'
)
"""Ends messages about a file that is not what it should be."""

_MAGIC = b'SQLite format 3\0'


@contextlib.contextmanager
def open_source(path: str | os.PathLike) -> Iterator[sources.Source]:
  """Opens a file for reading.

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
    ValueError: if the file is not SQLite, is damaged or has other tables.
  """
  path = pathlib.Path(path)
  with tempfile.TemporaryDirectory(prefix='epe_jax-') as folder:
    plain = _decompress(path, pathlib.Path(folder, 'plain.sqlite'))
    uri = f'{plain.absolute().as_uri()}?mode=ro'
    with (
      _explain_sqlite(path),
      contextlib.closing(sqlite3.connect(uri, uri=True)) as db,
    ):
      counts = db.execute(
        'SELECT split_name, COUNT(*), SUM(num_examples) FROM client_metadata '
        'GROUP BY split_name ORDER BY split_name'
      )
      splits = {split: sources.Split(*numbers) for split, *numbers in counts}
      yield sources.Source(
        name=str(path),
        splits=splits,
        read=functools.partial(_read_clients, path, db, splits),
        decode=example_proto.stack,
        features=_read_features(db),
      )


@contextlib.contextmanager
def _explain_sqlite(path: pathlib.Path) -> Iterator[None]:
  """Adds the name of the file and a cure to errors of SQLite."""
  try:
    yield
  except sqlite3.Error as error:
    raise ValueError(
      f'{path} cannot be read: SQLite says "{error}". {CURE}'
    ) from error


def _read_features(db: sqlite3.Connection) -> sources.Features | None:
  """The features of the first example, if it can be read."""
  blobs = db.execute('SELECT serialized_example_proto FROM examples LIMIT 1')
  for (blob,) in blobs:
    # Otherwise, the error comes when it is read, with its place.
    with contextlib.suppress(ValueError):
      return example_proto.read_features(blob)
  return None


def _read_clients(
  path: pathlib.Path,
  db: sqlite3.Connection,
  splits: Mapping[str, sources.Split],
  split: str,
) -> Iterator[tuple[str, list[object]]]:
  """The blobs of the clients of a split; see `sources.Source`."""
  sources.find_split(splits, split, str(path))

  def check_count(client_id: str, counted: int, expected: int) -> None:
    if counted != expected:
      raise ValueError(
        f'{path}, split {split!r}, client {client_id!r}: {counted} examples, but '
        f'client_metadata says {expected}. The file is incomplete or was edited: '
        f'get it again. {CURE}'
      )

  with _explain_sqlite(path):
    sizes = dict(
      db.execute(
        'SELECT client_id, num_examples FROM client_metadata '
        'WHERE split_name = ?',
        (split,),
      )
    )
    # Without rowid, SQLite may choose any order of a client's examples.
    rows = db.execute(
      'SELECT client_id, serialized_example_proto FROM examples '
      'WHERE split_name = ? ORDER BY client_id COLLATE BINARY, rowid',
      (split,),
    )
    for client_id, group in itertools.groupby(rows, operator.itemgetter(0)):
      blobs = [blob for _, blob in group]
      check_count(client_id, len(blobs), sizes.pop(client_id, 0))
      yield client_id, blobs
  for client_id, expected in sizes.items():
    check_count(client_id, 0, expected)


def _decompress(path: pathlib.Path, temporary: pathlib.Path) -> pathlib.Path:
  """The SQLite file, which is the path itself unless that is compressed."""
  with open(path, 'rb') as file:
    is_plain = file.read(len(_MAGIC)) == _MAGIC
  if is_plain or path.suffix not in ('.lzma', '.xz'):
    return path
  archives.decompress(path, temporary)
  return temporary
