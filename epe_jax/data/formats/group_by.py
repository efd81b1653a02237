"""Out-of-core group-by: rows in any order of clients, grouped in bounded memory.

A store needs clients sorted by id; a stream has them in any order. Its pieces are
written to a temporary SQLite file and read back through an index of the ids, whose
byte order in UTF-8 is the order of Python strings.

DuckDB sorts streams of single rows in a third of the time. Images take it eight times
as long and gigabytes of memory, because it sorts rows and not an index.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
import contextlib
import functools
import itertools
import marshal
import operator
import pathlib
import sqlite3
import tempfile
from typing import Any, NamedTuple

import numpy as np

from epe_jax import progress
from epe_jax.data import federated, sources

Stream = Iterable[tuple[str, Mapping[str, Any]]]
"""(client id, name -> rows [n, ...]) in any order, clients any number of times.

Rows are arrays, or anything that NumPy converts to one. Text becomes UTF-8."""

# SQLite takes no blob over 10^9 bytes.
_MAX_BYTES = 10**9 - 1
# KiB that SQLite keeps in memory and sorts at a time.
_CACHE = 65536


class Groups(NamedTuple):
  """A stream, grouped by client.

  Attributes:
    clients: number of clients.
    examples: number of examples of all clients.
    features: features of each example.
    read: () -> (client id, name -> array [n, ...]) in increasing order of ids. The
      rows of a client keep their order. Byte strings are arrays of objects; other
      arrays are read-only.
  """

  clients: int
  examples: int
  features: sources.Features
  read: Callable[[], Iterator[tuple[str, sources.Columns]]]


@contextlib.contextmanager
def group_by_client(
  stream: Stream, *, name: str = 'the stream'
) -> Iterator[Groups]:
  """Groups a stream by client, holding one piece of it in memory.

  The stream and its index are kept in a file in the temporary directory (`TMPDIR`).

  Args:
    stream: is read once, to its end. All pieces have the same columns, of the
      same dtype and shape of a row, and at least one row.
    name: of the stream, for messages.

  Yields:
    The clients, until the end of the context, which removes the file.

  Raises:
    ValueError: the stream is empty, a piece differs from the first, or an id or a
      column cannot be stored; the message names the client.
    OSError: the disk has no room for the file.

  >>> rows = [('b', {'x': [1, 2]}), ('a', {'x': [3]}), ('b', {'x': [4]})]
  >>> with group_by_client(rows) as groups:
  ...   [(client_id, c['x'].tolist()) for client_id, c in groups.read()]
  [('a', [3]), ('b', [1, 2, 4])]
  """
  with tempfile.TemporaryDirectory(prefix='epe_jax-') as temporary:
    file = pathlib.Path(temporary, 'pieces.sqlite')
    with contextlib.closing(sqlite3.connect(file)) as db:
      specs, clients, examples = _write_pieces(db, stream, name)
    features = {
      column: (bytes if dtype.kind == 'O' else dtype, shape)
      for column, (dtype, shape) in specs.items()
    }
    read = functools.partial(_read_clients, file, specs)
    yield Groups(clients, examples, features, read)


@contextlib.contextmanager
def open_function(
  function: Callable[[], Stream | Mapping[str, Stream]],
  name: str,
) -> Iterator[sources.Source]:
  """Opens the streams that a function returns as a source.

  Args:
    function: called once; returns split -> stream, or one stream, which is the
      split 'train'. See `Stream`.
    name: for messages and the headers of stores.

  Raises:
    ValueError, OSError: as `group_by_client`.
  """
  streams = function()
  if not isinstance(streams, Mapping):
    streams = {'train': streams}
  if not streams:
    raise ValueError(f'{name} returns no splits. Give one or more.')
  with contextlib.ExitStack() as stack:
    splits = {}
    for split, stream in streams.items():
      bar = progress.bar(
        stream, desc=f'grouping {name}, {split}', unit=' pieces'
      )
      with bar:
        splits[split] = stack.enter_context(
          group_by_client(iter(bar), name=f'{name}, split {split!r}')
        )
    yield sources.Source(
      name=name,
      splits={
        split: sources.Split(groups.clients, groups.examples)
        for split, groups in splits.items()
      },
      read=lambda split: sources.find_split(splits, split, name).read(),
      decode=sources.decode_columns,
      features=next(iter(splits.values())).features,
    )


def _write_pieces(
  db: sqlite3.Connection, stream: Stream, name: str
) -> tuple[federated.Specs, int, int]:
  """Writes and indexes a stream; (specs, number of clients, of examples)."""
  # The file is temporary, so it need not survive a crash.
  db.executescript(
    "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA encoding='UTF-8';"
    f'PRAGMA locking_mode=EXCLUSIVE; PRAGMA cache_size=-{_CACHE};'
    'CREATE TABLE pieces (client TEXT, payload BLOB);'
  )
  specs, examples = {}, 0
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
      columns = _convert(rows)
      specs = specs or federated.describe_columns(columns)
      federated.check_columns(columns, specs)
      payload = _pack(columns)
    except (TypeError, ValueError) as error:
      raise ValueError(f'{name}, client {client_id!r}: {error}') from error
    # SQLite refuses subclasses of str, such as np.str_.
    _run(db, name, 'INSERT INTO pieces VALUES (?, ?)', str(client_id), payload)
    examples += federated.count_rows(columns)
  if not specs:
    raise ValueError(f'{name} has no examples. Give at least one.')
  _run(db, name, 'CREATE INDEX by_client ON pieces (client)')
  db.commit()
  ((clients,),) = _run(db, name, 'SELECT COUNT(DISTINCT client) FROM pieces')
  return specs, clients, examples


def _run(
  db: sqlite3.Connection, name: str, command: str, *row: Any
) -> sqlite3.Cursor:
  # Not around the stream, which may read a database of its own.
  try:
    return db.execute(command, row)
  except sqlite3.Error as error:
    raise OSError(
      f'{name} cannot be grouped: SQLite says "{error}" of its temporary file. '
      'Make room for it, or set TMPDIR to a folder on another disk.'
    ) from error


def _read_clients(
  file: pathlib.Path, specs: federated.Specs
) -> Iterator[tuple[str, sources.Columns]]:
  """The clients of a file; see `Groups`."""
  query = 'SELECT client, payload FROM pieces ORDER BY client, rowid'
  uri = f'{file.absolute().as_uri()}?mode=ro'
  with contextlib.closing(sqlite3.connect(uri, uri=True)) as db:
    db.execute(f'PRAGMA cache_size=-{_CACHE}')
    rows = db.execute(query)
    for client_id, pieces in itertools.groupby(rows, operator.itemgetter(0)):
      yield client_id, _unpack(specs, [payload for _, payload in pieces])


def _check_id(client_id: Any) -> None:
  if not isinstance(client_id, str):
    raise ValueError(
      f'the id is of type {type(client_id).__name__}. Use text, e.g. str(id).'
    )
  client_id.encode()  # Raises for lone surrogates, which have no UTF-8.
  if '\0' in client_id:
    raise ValueError('the id contains a NUL. Use another character.')


def _convert(rows: Any) -> dict[str, np.ndarray]:
  """Converts text to byte strings; numbers and booleans are kept."""
  if not isinstance(rows, Mapping):
    raise ValueError(
      f'{type(rows).__name__} of no columns. Give a dictionary: name -> rows.'
    )
  columns = {}
  for name in sorted(rows):
    array = np.asarray(rows[name])
    if array.dtype.kind in 'SUO':
      # From the rows: NumPy's strings lose trailing NULs.
      array = sources.encode_strings(np.array(rows[name], object), name)
    elif array.dtype.kind not in 'biuf':
      raise ValueError(f'dtype {array.dtype}: use numbers, booleans or bytes.')
    if 0 in array.shape[1:]:
      raise ValueError(
        f'rows of shape {array.shape[1:]}, which have no values.'
      )
    columns[name] = array.astype(array.dtype.newbyteorder('='), copy=False)
  return columns


def _pack(columns: Mapping[str, np.ndarray]) -> bytes:
  payload = marshal.dumps(
    [
      x.ravel().tolist() if x.dtype.kind == 'O' else x.tobytes()
      for x in columns.values()
    ]
  )
  if len(payload) > _MAX_BYTES:
    raise ValueError(
      f'{len(payload)} bytes at once. Give at most {_MAX_BYTES}, and the rest of '
      'the client after it.'
    )
  return payload


def _unpack(
  specs: federated.Specs, payloads: list[bytes]
) -> dict[str, np.ndarray]:
  """The columns of a client from its pieces."""
  columns = {}
  # Written by this process: marshal is unsafe for other data.
  parts = zip(*map(marshal.loads, payloads))
  for (name, (dtype, shape)), part in zip(specs.items(), parts):
    if dtype.kind == 'O':
      column = np.array([*itertools.chain.from_iterable(part)], object)
    else:
      column = np.frombuffer(b''.join(part), dtype)
    columns[name] = column.reshape(-1, *shape)
  return columns
