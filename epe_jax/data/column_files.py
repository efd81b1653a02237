"""The files of a store, written client by client, and gone on with.

Every so many bytes the files are forced to the disk, and then `progress.json`
is replaced: it says how long each file was at that moment. To go on, files are
cut to that length and the source is asked for the clients after the last one.
What was written after that moment is written again, so a draft needs no repair
wherever its process was killed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
import contextlib
import itertools
import json
import os
import pathlib
import shutil
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from epe_jax import io
from epe_jax.data import drafts, federated

Clients = Callable[[str | None], Iterable[tuple[str, Mapping[str, np.ndarray]]]]
"""The clients after an id, or all of them after None, in increasing order."""

SAVE_EVERY = 32 << 20
"""Bytes of columns after which progress is saved."""

_RESERVED = ('offsets', 'client_ids')
_LONGEST_ID = 1000


class _State(NamedTuple):
  """What is written: ids and sizes of clients, specs of columns."""

  client_ids: list[str]
  sizes: list[int]
  specs: dict[str, tuple[np.dtype, tuple[int, ...]]]


def filled(
  draft: drafts.Draft,
  clients: Clients,
  identity: Mapping[str, Any],
  wrote: Callable[[int], object],
) -> dict[str, Any]:
  """Writes what is missing of the files of a store.

  Args:
    draft: new, or as far as another process came.
    clients: gives the clients after the last one that is written.
    identity: what the store is made from; that of the other process must be
      the same.
    wrote: told numbers of examples as they are written; first of those that
      were written before.

  Returns:
    The number of clients and examples and the columns, for the manifest.

  Raises:
    ValueError: if the identities differ, clients fail `federated.checked`, or
      a column cannot be stored.
  """
  state = _resumed(draft, identity)
  wrote(sum(state.sizes))
  with contextlib.ExitStack() as stack:
    for size in _append(draft, state, clients, identity, stack):
      wrote(size)
  total = sum(state.sizes)
  for name, spec_ in state.specs.items():
    with open(draft.store / f'{name}.npy', 'r+b') as file:
      _write_header(file, total, *spec_)
  offsets = federated.offsets_of(state.sizes)
  np.save(draft.store / 'offsets.npy', offsets)
  np.save(draft.store / 'client_ids.npy', np.array(state.client_ids, np.str_))
  return {
    'num_clients': len(state.sizes),
    'num_examples': total,
    'columns': {name: spec(*spec_) for name, spec_ in state.specs.items()},
  }


def spec(dtype: np.dtype, shape: tuple[int, ...]) -> dict[str, Any]:
  """A column's dtype and shape of a row, as JSON has them."""
  return {'dtype': dtype.str, 'shape': list(shape)}


def _resumed(draft: drafts.Draft, identity: Mapping[str, Any]) -> _State:
  """The state of a draft, its files cut to what is known to be whole."""
  if not draft.progress.exists():
    shutil.rmtree(draft.store, ignore_errors=True)
    draft.store.mkdir()
    draft.clients.write_bytes(b'')
    return _State([], [], {})
  progress = json.loads(draft.progress.read_text(encoding='utf-8'))
  _check_identity(draft, progress['identity'], identity)
  for name, size in progress['files'].items():
    file = draft.folder / name
    if not file.exists() or file.stat().st_size < size:
      raise ValueError(
        f'{file} is shorter than the {size} bytes that were written. Delete '
        f'{draft.folder} and write the store again.'
      )
    os.truncate(file, size)
  for file in draft.store.iterdir():
    if f'store/{file.name}' not in progress['files']:
      file.unlink()
  with open(draft.clients, encoding='utf-8') as lines:
    written = [json.loads(line) for line in lines]
  return _State(
    [client_id for client_id, _ in written],
    [size for _, size in written],
    {
      name: (np.dtype(c['dtype']), tuple(c['shape']))
      for name, c in progress['columns'].items()
    },
  )


def _check_identity(
  draft: drafts.Draft, found: Mapping[str, Any], asked: Mapping[str, Any]
) -> None:
  if found == asked:
    return
  name = next(n for n in asked if found.get(n) != asked[n])
  shown = [repr(x.get(name)) for x in (found, asked)]
  first, second = (x if len(x) < 300 else f'{x[:300]}...' for x in shown)
  raise ValueError(
    f'{draft.folder} is the beginning of something else: its {name} is {first}, '
    f'not {second}. Finish that first, or delete the folder to start anew.'
  )


def _append(
  draft: drafts.Draft,
  state: _State,
  clients: Clients,
  identity: Mapping[str, Any],
  stack: contextlib.ExitStack,
) -> Iterator[int]:
  """Appends the clients that are missing; yields their numbers of examples."""

  def appended(path: pathlib.Path) -> BinaryIO:
    return stack.enter_context(open(path, 'ab'))

  lines = appended(draft.clients)
  files = {name: appended(draft.store / f'{name}.npy') for name in state.specs}
  unsaved = 0
  for client_id, columns in _remaining(state, clients):
    if not files:
      _check_storable(columns)
      for name, column in columns.items():
        state.specs[name] = (column.dtype, column.shape[1:])
        files[name] = appended(draft.store / f'{name}.npy')
        _write_header(files[name], 0, *state.specs[name])
    if len(client_id) > _LONGEST_ID:
      raise ValueError(
        f'client {client_id[:50]!r}... has an id of {len(client_id)} '
        f'characters. Use {_LONGEST_ID} or fewer.'
      )
    for name, column in columns.items():
      files[name].write(column.tobytes())
      unsaved += column.nbytes
    size = federated.num_rows(columns)
    lines.write(f'{json.dumps([client_id, size])}\n'.encode())
    state.client_ids.append(client_id)
    state.sizes.append(size)
    if unsaved >= SAVE_EVERY:
      _save(draft, state, identity, lines, files)
      unsaved = 0
    yield size


def _remaining(
  state: _State, clients: Clients
) -> Iterator[tuple[str, Mapping[str, np.ndarray]]]:
  """The clients that are not written yet, checked like those that are."""
  if not state.client_ids:
    yield from federated.checked(clients(None))
    return
  last = state.client_ids[-1]
  rest = iter(clients(last))
  first = next(rest, None)
  if first is None:
    return
  for client_id, columns in federated.checked(itertools.chain([first], rest)):
    found = {name: (c.dtype, c.shape[1:]) for name, c in columns.items()}
    if client_id <= last or found != state.specs:
      raise ValueError(
        f'client {client_id!r} with columns {found} does not follow client '
        f'{last!r} with columns {state.specs}. Give the clients after an id '
        'when asked for them, or delete the folder to start anew.'
      )
    yield client_id, columns


def _save(
  draft: drafts.Draft,
  state: _State,
  identity: Mapping[str, Any],
  lines: BinaryIO,
  files: Mapping[str, BinaryIO],
) -> None:
  for file in (lines, *files.values()):
    file.flush()
    os.fsync(file.fileno())
  progress = {
    'identity': identity,
    'columns': {name: spec(*spec_) for name, spec_ in state.specs.items()},
    'files': {
      str(pathlib.Path(file.name).relative_to(draft.folder)): file.tell()
      for file in (lines, *files.values())
    },
  }
  io.write_text(draft.progress, json.dumps(progress))


def _check_storable(columns: Mapping[str, np.ndarray]) -> None:
  for name, column in columns.items():
    if not name.isidentifier() or name in _RESERVED:
      raise ValueError(
        f'column name {name!r} cannot be a file name here. Use a Python '
        f'identifier other than {" and ".join(_RESERVED)}.'
      )
    if column.dtype.kind not in 'biufSU':
      raise ValueError(
        f'column {name!r} has dtype {column.dtype}. Use numbers, booleans or '
        'strings of a fixed width.'
      )


def _write_header(
  file: BinaryIO, num_rows: int, dtype: np.dtype, shape
) -> None:
  # NumPy pads the header so that the first axis can grow to any int64: the
  # header of 0 rows can be overwritten when the number is known.
  header = {
    'descr': np.lib.format.dtype_to_descr(dtype),
    'fortran_order': False,
    'shape': (num_rows, *shape),
  }
  np.lib.format.write_array_header_1_0(file, header)
