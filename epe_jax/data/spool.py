"""Rows in any order of clients, grouped by client in bounded memory.

A store wants one client after the other, sorted by id; a stream has them as
they come. What comes is written to a temporary SQLite file, one piece after
the other, and read back through an index of the ids: their order in UTF-8,
byte by byte, is the order of Python's strings.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
import contextlib
import functools
import itertools
import math
import operator
import os
import pathlib
import sqlite3
import tempfile
from typing import Any, NamedTuple

import numpy as np
import tqdm

from epe_jax.data import sources

Stream = Iterable[tuple[str, Mapping[str, Any]]]
"""(client id, name -> rows [n, ...]) in any order, clients any number of times.

Rows are arrays, or what NumPy makes an array of. Text becomes UTF-8."""

# SQLite takes no blob over 10^9 bytes.
_LARGEST = 10**9 - 1
# In KiB: what SQLite keeps in memory, and what it sorts at a time.
_CACHE = 65536


class Spool(NamedTuple):
  """A stream, grouped.

  Attributes:
    clients: how many there are.
    examples: of all clients.
    features: what each example has.
    read: after -> (client id, name -> array [n, ...]) in increasing order of
      ids, only of ids > after; all clients if after is None. The rows of a
      client are in the order in which they came. Byte strings are arrays of
      objects; other arrays are read-only.
  """

  clients: int
  examples: int
  features: sources.Features
  read: Callable[[str | None], Iterator[tuple[str, sources.Columns]]]


class _Spec(NamedTuple):
  """What a column holds in every piece of every client."""

  name: str
  dtype: np.dtype
  shape: tuple[int, ...]


@contextlib.contextmanager
def grouped(
  stream: Stream,
  *,
  name: str = 'the stream',
  folder: str | os.PathLike | None = None,
) -> Iterator[Spool]:
  """Groups a stream by client, holding one piece of it in memory.

  Args:
    stream: read once, to its end. All pieces have the same columns, of the
      same dtype and shape of a row, and at least one row.
    name: what the stream is, for messages.
    folder: where to keep the temporary file, as large as the stream; the
      temporary directory (`TMPDIR`) if None. The index is sorted in `TMPDIR`.

  Yields:
    The clients, until the end of the context, which removes the file.

  Raises:
    ValueError: there is nothing in the stream, a piece differs from the first,
      or an id or a column cannot be stored; the message names the client.
    OSError: there is no room for the file.

  >>> rows = [('b', {'x': [1, 2]}), ('a', {'x': [3]}), ('b', {'x': [4]})]
  >>> with grouped(rows) as spool:
  ...   [(client_id, c['x'].tolist()) for client_id, c in spool.read(None)]
  [('a', [3]), ('b', [1, 2, 4])]
  """
  with tempfile.TemporaryDirectory(prefix='epe_jax-', dir=folder) as temporary:
    file = pathlib.Path(temporary, 'spool.sqlite')
    with contextlib.closing(sqlite3.connect(file)) as db:
      specs, clients, examples = _write(db, stream, name)
    features = {
      name: (bytes if dtype.kind == 'O' else dtype, shape)
      for name, dtype, shape in specs
    }
    read = functools.partial(_read, file, specs)
    yield Spool(clients, examples, features, read)


@contextlib.contextmanager
def opened(
  function: Callable[[], Stream | Mapping[str, Stream]],
  name: str,
  *,
  folder: str | os.PathLike | None = None,
) -> Iterator[sources.Source]:
  """Opens what a function returns as a source.

  Args:
    function: called once; returns split -> stream, or one stream, which is the
      split 'train'. See `grouped` for what a stream is.
    name: what it is, for messages and manifests.
    folder: see `grouped`.

  Raises:
    ValueError, OSError: as `grouped`.
  """
  streams = function()
  if not isinstance(streams, Mapping):
    streams = {'train': streams}
  if not streams:
    raise ValueError(f'{name} returns no splits. Give one or more.')
  with contextlib.ExitStack() as stack:
    spools = {}
    for split, stream in streams.items():
      # disable=None: no bar where stderr is not a terminal.
      bar = tqdm.tqdm(
        stream, desc=f'grouping {name}, {split}', unit=' pieces', disable=None
      )
      with bar:
        spools[split] = stack.enter_context(
          grouped(iter(bar), name=f'{name}, split {split!r}', folder=folder)
        )
    yield sources.Source(
      name=name,
      splits={
        split: sources.Split(spool.clients, spool.examples)
        for split, spool in spools.items()
      },
      read=functools.partial(_read_split, name, spools),
      decode=sources.decode_columns,
      features=next(iter(spools.values())).features,
    )


def _read_split(
  name: str,
  spools: Mapping[str, Spool],
  split: str,
  features: sources.Features,
  after: str | None,
) -> Iterator[tuple[str, sources.Columns]]:
  del features  # `decode_columns` takes those it needs.
  if split not in spools:
    raise ValueError(
      f'{name} has no split {split!r}, only {sorted(spools)}. Choose one of '
      'them.'
    )
  return spools[split].read(after)


def _write(
  db: sqlite3.Connection, stream: Stream, name: str
) -> tuple[list[_Spec], int, int]:
  """Writes and indexes a stream; (specs, number of clients, of examples)."""
  # What is lost in a crash is of no use: the file is temporary.
  db.executescript(
    "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA encoding='UTF-8';"
    f'PRAGMA locking_mode=EXCLUSIVE; PRAGMA cache_size=-{_CACHE};'
    'CREATE TABLE pieces (client TEXT, num_rows INTEGER, payload BLOB);'
  )
  specs, examples = [], 0
  for number, piece in enumerate(stream):
    try:
      client_id, rows = piece
    except (TypeError, ValueError) as error:
      raise ValueError(
        f'{name}, piece {number}: {type(piece).__name__} that is not a pair. '
        'Give (client id, columns).'
      ) from error
    try:
      _check_id(client_id)
      found, num_rows, payload = _packed_piece(rows)
      specs = specs or found
      if found != specs:
        raise ValueError(
          f'columns {_words(found)}, but of the first client {_words(specs)}. '
          'Give all clients the same.'
        )
    except (TypeError, ValueError) as error:
      raise ValueError(f'{name}, client {client_id!r}: {error}') from error
    # A subclass of str, as NumPy has one, is none to SQLite.
    row = (str(client_id), num_rows, payload)
    _run(db, name, 'INSERT INTO pieces VALUES (?, ?, ?)', row)
    examples += num_rows
  if not specs:
    raise ValueError(f'{name} has no examples. Give at least one.')
  _run(db, name, 'CREATE INDEX by_client ON pieces (client)')
  db.commit()
  ((clients,),) = _run(db, name, 'SELECT COUNT(DISTINCT client) FROM pieces')
  return specs, clients, examples


def _run(
  db: sqlite3.Connection, name: str, command: str, row: tuple = ()
) -> sqlite3.Cursor:
  # Not around the stream, which may read a database of its own.
  try:
    return db.execute(command, row)
  except sqlite3.Error as error:
    raise OSError(
      f'{name} cannot be grouped: SQLite says "{error}" of its temporary file. '
      'Make room for it, or have TMPDIR name a folder on another disk.'
    ) from error


def _read(
  file: pathlib.Path, specs: list[_Spec], after: str | None
) -> Iterator[tuple[str, sources.Columns]]:
  """The clients of a file; see `Spool`."""
  where = '' if after is None else 'WHERE client > ?'
  query = (
    f'SELECT client, num_rows, payload FROM pieces {where} '
    'ORDER BY client, rowid'
  )
  uri = f'{file.absolute().as_uri()}?mode=ro'
  with contextlib.closing(sqlite3.connect(uri, uri=True)) as db:
    db.execute(f'PRAGMA cache_size=-{_CACHE}')
    found = db.execute(query, () if after is None else (after,))
    for client_id, pieces in itertools.groupby(found, operator.itemgetter(0)):
      yield client_id, _unpacked(specs, pieces)


def _check_id(client_id: Any) -> None:
  if not isinstance(client_id, str):
    raise ValueError(
      f'the id is of type {type(client_id).__name__}. Use text, e.g. str(id).'
    )
  client_id.encode()  # Lone surrogates are not text: they have no UTF-8.
  if '\0' in client_id:
    raise ValueError('the id contains a NUL. Use another character.')


def _packed_piece(rows: Any) -> tuple[list[_Spec], int, bytes]:
  """(specs, number of rows, bytes) of some rows of a client."""
  if not isinstance(rows, Mapping) or not rows:
    raise ValueError(
      f'{type(rows).__name__} of no columns. Give a dictionary: name -> rows.'
    )
  arrays = {key: _array(rows[key]) for key in sorted(rows)}
  lengths = {key: a.shape[0] if a.ndim else None for key, a in arrays.items()}
  (length, *others) = set(lengths.values())
  if others or length is None:
    raise ValueError(f'columns of {lengths} rows. Give all the same number.')
  if not length:
    raise ValueError('no rows. Give at least one, or leave the client out.')
  payload = b''.join(map(_packed, arrays.values()))
  if len(payload) > _LARGEST:
    raise ValueError(
      f'{len(payload)} bytes at once. Give at most {_LARGEST}, and the rest of '
      'the client after it.'
    )
  specs = [_Spec(key, a.dtype, a.shape[1:]) for key, a in arrays.items()]
  return specs, length, payload


def _array(value: Any) -> np.ndarray:
  """Numbers and booleans as they are; text and byte strings as objects."""
  array = np.asarray(value)
  if array.dtype.kind in 'biuf':
    return array
  if array.dtype.kind not in 'SUO':
    raise ValueError(f'dtype {array.dtype}: use numbers, booleans or bytes.')
  # NumPy pads byte strings with zeros, and so forgets zeros at their end.
  array = np.array(value, object)
  for i, item in enumerate(array.flat):
    if isinstance(item, str):
      array.flat[i] = item.encode()
    elif not isinstance(item, bytes):
      raise ValueError(
        f'row {i // max(1, math.prod(array.shape[1:]))}: '
        f'{type(item).__name__} where text or bytes should be.'
      )
  return array


def _packed(array: np.ndarray) -> bytes:
  if array.dtype != object:
    return array.tobytes()
  lengths = np.array([len(item) for item in array.flat], np.int64)
  return lengths.tobytes() + b''.join(array.flat)


def _unpacked(
  specs: list[_Spec], pieces: Iterable[tuple[str, int, bytes]]
) -> dict[str, np.ndarray]:
  """The columns of a client from its pieces."""
  parts, total = [[] for _ in specs], 0
  # Items of a row, bytes of an item: 0 where it says so itself.
  sizes = [
    (math.prod(shape), 0 if dtype.kind == 'O' else dtype.itemsize)
    for _, dtype, shape in specs
  ]
  for _, num_rows, payload in pieces:
    at, total = 0, total + num_rows
    for part, (items, width) in zip(parts, sizes):
      items *= num_rows
      if width:
        part.append(payload[at : at + items * width])
        at += items * width
      else:
        lengths = np.frombuffer(payload, np.int64, items, at).tolist()
        at += 8 * items
        for length in lengths:
          part.append(payload[at : at + length])
          at += length
  columns = {}
  for part, (name, dtype, shape) in zip(parts, specs):
    if dtype.kind == 'O':
      column = np.array(part, object)
    else:
      column = np.frombuffer(b''.join(part), dtype)
    columns[name] = column.reshape(total, *shape)
  return columns


def _words(specs: list[_Spec]) -> str:
  words = [
    f'{spec.name}: {"bytes" if spec.dtype == object else spec.dtype} '
    f'{list(spec.shape)}'
    for spec in specs
  ]
  return f'({", ".join(words)})'
