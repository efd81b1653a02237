"""Federated data on the disk, opened as memory maps.

A store is a directory: one `.npy` file per column, `offsets.npy`,
`client_ids.npy`, and a `manifest.json` that is written last. The directory is
filled under another name and renamed when complete, so a store
that exists is a whole one.
"""

from collections.abc import Callable, Mapping
import hashlib
import json
import os
import pathlib
from typing import Any

import numpy as np

from epe_jax import io
from epe_jax.data import column_files, drafts, federated

VERSION = 2
"""Version of the form on the disk."""

_MANIFEST = 'manifest.json'


def write(
  path: str | os.PathLike,
  clients: column_files.Clients,
  *,
  source: str,
  meta: Mapping[str, Any] | None = None,
  exist_ok: bool = False,
  wrote: Callable[[int], object] = lambda _: None,
) -> federated.FederatedData:
  """Streams clients into a new store, holding one client at a time.

  What a process that was killed has written is kept beside the store and
  continued by the next call; the store is then the same to the byte. Of two
  processes that write the same store, the second waits for the first.

  Args:
    path: directory to create. It appears when it is complete and not before.
    clients: id -> the clients after this one, or all clients for None, as
      (id, name -> array [n_i, ...]) in increasing order of id. All have the
      same columns, of the same dtype and shape of a row; n_i >= 1.
    source: where the rows come from, kept in the manifest.
    meta: anything else to keep in the manifest, of which JSON can be made.
    exist_ok: if the store exists, or another process completes it meanwhile,
      take it as it is.
    wrote: told numbers of examples as they are written, for a progress bar.

  Returns:
    The store, memory-mapped.

  Raises:
    FileExistsError: if the path exists, unless exist_ok.
    ValueError: if clients fail `federated.checked`, a column cannot be stored,
      or the beginning was written from another source or with other meta.
    OSError: if the disk is full or may not be written.

  >>> import tempfile
  >>> rows = {'a': {'x': np.array([5])}, 'b': {'x': np.array([6, 7])}}
  >>> with tempfile.TemporaryDirectory() as folder:
  ...   data = write(
  ...     pathlib.Path(folder, 'store'),
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
  if path.exists():
    return _existing(path, exist_ok)
  with io.explain_disk_errors(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    return _write(path, clients, identity, exist_ok, wrote)


def _write(
  path: pathlib.Path,
  clients: column_files.Clients,
  identity: Mapping[str, Any],
  exist_ok: bool,
  wrote: Callable[[int], object],
) -> federated.FederatedData:
  with drafts.opened(path) as draft:
    # Another process may have finished it while this one waited.
    if not path.exists():
      described = column_files.filled(draft, clients, identity, wrote)
      files = sorted(draft.store.iterdir())
      sealed = {'files': {file.name: _seal(file) for file in files}}
      io.write_text(
        draft.store / _MANIFEST,
        json.dumps({**identity, **described, **sealed}, indent=2) + '\n',
      )
      draft.store.rename(path)
      io.sync_folder(path.parent)
      return load(path)
  return _existing(path, exist_ok)


def load(path: str | os.PathLike) -> federated.FederatedData:
  """Opens a store: columns as read-only memory maps, offsets and ids read.

  The size of every file is compared with the manifest, which finds a
  truncated store without reading it; `verify` also finds flipped bits.

  Raises:
    FileNotFoundError: if the path does not exist.
    ValueError: if the store is incomplete, damaged, or of another version.
  """
  path, described = pathlib.Path(path), manifest(path)
  for name, file in described['files'].items():
    size = (path / name).stat().st_size if (path / name).exists() else None
    if size is None:
      raise _damaged(path, f'{name} is missing')
    if size != file['bytes']:
      raise _damaged(path, f'{name} has {size} bytes of {file["bytes"]}')

  def mapped(name: str) -> np.ndarray:
    return np.load(path / f'{name}.npy', mmap_mode='r', allow_pickle=False)

  try:
    columns = {name: mapped(name) for name in described['columns']}
    data = federated.FederatedData(
      columns,
      np.array(mapped('offsets')),
      np.array(mapped('client_ids')),
      _digest(described),
    )
  except ValueError as error:
    raise _damaged(path, str(error)) from error
  found = {
    n: column_files.spec(c.dtype, c.shape[1:]) for n, c in columns.items()
  }
  if found != described['columns']:
    raise _damaged(path, f'columns {found} are not {described["columns"]}')
  return data


def manifest(path: str | os.PathLike) -> dict[str, Any]:
  """What a store says of itself.

  Returns:
    version, source, meta (both as given to `write`), num_clients,
    num_examples, columns (name -> dtype and shape of a row) and files (name ->
    bytes and sha256).

  Raises:
    FileNotFoundError: if the path does not exist.
    ValueError: if it is not a store, was never finished, or is of another
      version.
  """
  path = pathlib.Path(path)
  if not path.exists():
    raise FileNotFoundError(
      f'{path} does not exist. Give the directory of a store, or make one '
      'with store.write.'
    )
  if not (path / _MANIFEST).is_file():
    raise ValueError(
      f'{path} has no {_MANIFEST}: it is not a store, or was never finished. '
      'Give a directory that store.write made.'
    )
  try:
    described = json.loads((path / _MANIFEST).read_text(encoding='utf-8'))
    version = described['version']
  except (ValueError, KeyError, TypeError) as error:
    raise _damaged(path, f'{_MANIFEST} cannot be read: {error!r}') from error
  if version != VERSION:
    raise ValueError(
      f'{path} has version {version}; this library reads version {VERSION}. '
      'Write the store again from its source.'
    )
  return described


def verify(path: str | os.PathLike) -> None:
  """Reads every byte of a store and compares it with its SHA-256.

  Raises:
    FileNotFoundError, ValueError: as `load`, and if a hash differs.
  """
  path = pathlib.Path(path)
  load(path)
  for name, file in manifest(path)['files'].items():
    with open(path / name, 'rb') as f:
      if hashlib.file_digest(f, 'sha256').hexdigest() != file['sha256']:
        raise _damaged(path, f'the SHA-256 of {name} differs')


def _existing(path: pathlib.Path, exist_ok: bool) -> federated.FederatedData:
  if not exist_ok:
    raise FileExistsError(
      f'{path} exists. Load it, delete it, or choose another path.'
    )
  drafts.discard(path)
  return load(path)


def _seal(file: pathlib.Path) -> dict[str, Any]:
  """Forces a file to the disk; returns its size and hash."""
  with open(file, 'r+b') as f:
    os.fsync(f.fileno())
    digest = hashlib.file_digest(f, 'sha256').hexdigest()
  return {'bytes': file.stat().st_size, 'sha256': digest}


def _digest(described: Mapping[str, Any]) -> str:
  """Of the hashes of all files, whatever the store was made from."""
  files = {name: file['sha256'] for name, file in described['files'].items()}
  return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def _damaged(path: pathlib.Path, what: str) -> ValueError:
  return ValueError(
    f'{path} is not a whole store: {what}. Delete it and write it again from '
    'its source.'
  )
