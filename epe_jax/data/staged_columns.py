"""The columns of a store on their way, written client by client and resumed.

Every so many bytes the files are forced to the disk, and then `progress.json`
is replaced: it says how long each file was at that moment. To resume, the files
are cut to that length and the source is asked for the clients after the last
one. What was written after that moment is written again, so a staging directory
needs no repair wherever its process was killed.
"""

from collections.abc import Callable, Iterable, Mapping
import contextlib
import json
import mmap
import os
import pathlib
import reprlib
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from epe_jax import extras, io
from epe_jax.data import arrow_columns, federated

with extras.explain_missing():
  import pyarrow as pa

Clients = Callable[[str | None], Iterable[tuple[str, Mapping[str, np.ndarray]]]]
"""The clients after an id, or all of them after None, in increasing order."""

CLIENT_ID = 'client_id'
"""The column of a store that no feature can have the name of."""

PROGRESS = 'progress.json'
"""The file that says what of the others is whole."""

SAVE_EVERY = 32 << 20
"""Bytes of columns after which progress is saved."""

_CLIENTS = 'clients'
_MAX_ID_LENGTH = 1000


class Staged(NamedTuple):
  """What is written.

  Attributes:
    folder: the staging directory.
    client_ids: of all clients so far.
    sizes: their numbers of examples.
    specs: of the columns.
  """

  folder: pathlib.Path
  client_ids: list[str]
  sizes: list[int]
  specs: federated.Specs


def append_clients(
  folder: pathlib.Path,
  clients: Clients,
  identity: Mapping[str, Any],
  report_progress: Callable[[int], object],
) -> Staged:
  """Writes the clients that are missing in a staging directory.

  Args:
    folder: new, or as far as another process came.
    clients: gives the clients after the last one that is written.
    identity: what the store is made from; that of the other process must be
      the same.
    report_progress: told numbers of examples as they are written; first of
      those that were written before.

  Returns:
    All clients.

  Raises:
    ValueError: if the identities differ, clients fail
      `federated.check_clients`, or a column cannot be stored.
  """
  staged = _resume(folder, identity)
  report_progress(sum(staged.sizes))
  last = staged.client_ids[-1] if staged.client_ids else None
  with contextlib.ExitStack() as stack:
    files, unsaved = {}, 0
    for client_id, columns in federated.check_clients(
      clients(last), after=last, specs=staged.specs
    ):
      if not files:
        staged.specs.update(federated.describe_columns(columns))
        files = _open_files(staged, stack)
      unsaved += _write_client(staged, files, client_id, columns)
      if unsaved >= SAVE_EVERY:
        _save(staged, identity, files.values())
        unsaved = 0
      report_progress(staged.sizes[-1])
  return staged


def map_columns(
  staged: Staged,
) -> tuple[dict[str, pa.Array], Callable[[], None]]:
  """Maps the columns of all clients into memory.

  Returns:
    (name -> rows, a function that lets go of their pages, so that what was read
    no longer counts as memory of this process).
  """
  maps = []

  def map_file(path: pathlib.Path) -> pa.Buffer:
    # An empty file cannot be mapped.
    if not path.stat().st_size:
      return pa.py_buffer(b'')
    with open(path, 'rb') as file:
      maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return pa.py_buffer(maps[-1])

  def release() -> None:
    for map_ in maps:
      map_.madvise(mmap.MADV_DONTNEED)

  columns = {
    name: arrow_columns.wrap_buffers(
      *spec, sum(staged.sizes), [*map(map_file, _list_paths(staged, name))]
    )
    for name, spec in staged.specs.items()
  }
  return columns, release


def _list_paths(staged: Staged, name: str) -> list[pathlib.Path]:
  """The files of a column. Numbers, because a name need not be one of a file."""
  number = sorted(staged.specs).index(name)
  values = staged.folder / f'{number}.values'
  if staged.specs[name][0].kind == 'O':
    return [values.with_suffix('.offsets'), values]
  return [values]


def _resume(folder: pathlib.Path, identity: Mapping[str, Any]) -> Staged:
  """What is written, with the files cut to what is known to be whole."""
  if not (folder / PROGRESS).exists():
    for file in folder.iterdir():
      file.unlink()
    return Staged(folder, [], [], {})
  progress = json.loads((folder / PROGRESS).read_text(encoding='utf-8'))
  _check_identity(folder, progress['identity'], identity)
  for name, size in progress['files'].items():
    file = folder / name
    if not file.exists() or file.stat().st_size < size:
      raise ValueError(
        f'{file} is shorter than the {size} bytes that were written. Delete '
        f'{folder} and write the store again.'
      )
    os.truncate(file, size)
  with open(folder / _CLIENTS, encoding='utf-8') as lines:
    written = [json.loads(line) for line in lines]
  return Staged(
    folder,
    [client_id for client_id, _ in written],
    [size for _, size in written],
    {
      name: (np.dtype(dtype), tuple(shape))
      for name, (dtype, shape) in progress['columns'].items()
    },
  )


def _check_identity(
  folder: pathlib.Path, before: Mapping[str, Any], now: Mapping[str, Any]
) -> None:
  for name in now:
    if before.get(name) != now[name]:
      shown = [reprlib.repr(x.get(name)) for x in (before, now)]
      raise ValueError(
        f'{folder} is the beginning of something else: its {name} is {shown[0]}, '
        f'not {shown[1]}. Finish that first, or delete the folder to start anew.'
      )


def _open_files(
  staged: Staged, stack: contextlib.ExitStack
) -> dict[pathlib.Path, BinaryIO]:
  """The files of clients and columns, to be appended to."""
  paths = [staged.folder / _CLIENTS]
  for name, spec in staged.specs.items():
    if name == CLIENT_ID:
      raise ValueError(
        f'no column can be called {name!r}, which is what the ids are called '
        'here. Give it another name.'
      )
    try:
      arrow_columns.choose_type(*spec)
    except ValueError as error:
      raise ValueError(f'column {name!r} has {error}') from error
    paths += _list_paths(staged, name)
  return {path: stack.enter_context(open(path, 'ab')) for path in paths}


def _write_client(
  staged: Staged,
  files: Mapping[pathlib.Path, BinaryIO],
  client_id: str,
  columns: Mapping[str, np.ndarray],
) -> int:
  """Appends a client; returns how many bytes its columns are."""
  if len(client_id) > _MAX_ID_LENGTH:
    raise ValueError(
      f'client {client_id[:50]!r}... has an id of {len(client_id)} '
      f'characters. Use {_MAX_ID_LENGTH} or fewer.'
    )
  size = 0
  for name, column in columns.items():
    *ragged, values = (files[path] for path in _list_paths(staged, name))
    if not ragged:
      size += values.write(column.tobytes())
      continue
    (offsets,) = ragged
    if not staged.sizes:
      offsets.write(bytes(8))  # The first byte string begins at 0.
    try:
      joined = b''.join(column.flat)
    except TypeError as error:
      raise ValueError(
        f'client {client_id!r}, column {name!r}: {error}. Use byte strings.'
      ) from error
    ends = values.tell() + np.cumsum([len(x) for x in column.flat], dtype='i8')
    size += offsets.write(ends.tobytes()) + values.write(joined)
  staged.client_ids.append(client_id)
  staged.sizes.append(federated.count_rows(columns))
  line = json.dumps([client_id, staged.sizes[-1]])
  files[staged.folder / _CLIENTS].write(f'{line}\n'.encode())
  return size


def _save(
  staged: Staged, identity: Mapping[str, Any], files: Iterable[BinaryIO]
) -> None:
  sizes = {}
  for file in files:
    file.flush()
    os.fsync(file.fileno())
    sizes[pathlib.Path(file.name).name] = file.tell()
  specs = {n: (dtype.str, shape) for n, (dtype, shape) in staged.specs.items()}
  progress = {'identity': identity, 'columns': specs, 'files': sizes}
  io.write_text(staged.folder / PROGRESS, json.dumps(progress))
