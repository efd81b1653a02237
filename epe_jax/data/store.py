"""Federated data on the disk, opened as memory maps.

A store is a directory: one `.npy` file per column, `offsets.npy`,
`client_ids.npy`, and a `manifest.json` that is written last. The directory is
filled under another name and renamed when complete, so a store that exists is
a whole one, and of two processes writing the same store one wins.
"""

from collections.abc import Iterable, Mapping
import contextlib
import hashlib
import json
import os
import pathlib
import secrets
import shutil
from typing import Any

import numpy as np

from epe_jax.data import federated

VERSION = 1
"""Version of the form on the disk."""

_MANIFEST = 'manifest.json'
_RESERVED = ('offsets', 'client_ids')


def write(
  path: str | os.PathLike,
  clients: Iterable[tuple[str, Mapping[str, np.ndarray]]],
  *,
  source: str,
  exist_ok: bool = False,
) -> federated.FederatedData:
  """Streams clients into a new store, holding one client at a time.

  Args:
    path: directory to create. It appears when it is complete and not before;
      after an error nothing is left.
    clients: (id, name -> array [n_i, ...]) in increasing order of id. All have
      the same columns, of the same dtype and shape of a row; n_i >= 1.
    source: where the rows come from, kept in the manifest.
    exist_ok: if the store exists, or another process completes it meanwhile,
      take it as it is.

  Returns:
    The store, memory-mapped.

  Raises:
    FileExistsError: if the path exists, unless exist_ok.
    ValueError: if clients fail `federated.checked`, or a column cannot be
      stored.
  """
  path = pathlib.Path(path)
  if path.exists():
    return _existing(path, exist_ok)
  path.parent.mkdir(parents=True, exist_ok=True)
  draft = path.with_name(f'.{path.name}.{secrets.token_hex(8)}')
  draft.mkdir()
  try:
    manifest = {'version': VERSION, 'source': source}
    manifest |= _write_columns(draft, clients)
    manifest['files'] = {f.name: _seal(f) for f in sorted(draft.iterdir())}
    text = json.dumps(manifest, indent=2) + '\n'
    (draft / _MANIFEST).write_text(text, encoding='utf-8')
    _seal(draft / _MANIFEST)
    try:
      draft.rename(path)
    except OSError:
      # A rename does not replace a store: another process was faster.
      if not path.exists():
        raise
      return _existing(path, exist_ok)
  finally:
    shutil.rmtree(draft, ignore_errors=True)
  return load(path)


def load(path: str | os.PathLike) -> federated.FederatedData:
  """Opens a store: columns as read-only memory maps, offsets and ids read.

  The size of every file is compared with the manifest, which finds a
  truncated store without reading it; `verify` also finds flipped bits.

  Raises:
    FileNotFoundError: if the path does not exist.
    ValueError: if the store is incomplete, damaged, or of another version.
  """
  path = pathlib.Path(path)
  manifest = _manifest(path)
  for name, file in manifest['files'].items():
    size = (path / name).stat().st_size if (path / name).exists() else None
    if size is None:
      raise _damaged(path, f'{name} is missing')
    if size != file['bytes']:
      raise _damaged(path, f'{name} has {size} bytes of {file["bytes"]}')
  try:
    columns = {
      name: np.load(path / f'{name}.npy', mmap_mode='r', allow_pickle=False)
      for name in manifest['columns']
    }
    data = federated.FederatedData(
      columns,
      np.load(path / 'offsets.npy', allow_pickle=False),
      np.load(path / 'client_ids.npy', allow_pickle=False),
    )
  except ValueError as error:
    raise _damaged(path, str(error)) from error
  found = {name: _spec(c.dtype, c.shape[1:]) for name, c in columns.items()}
  if found != manifest['columns']:
    raise _damaged(path, f'columns {found} are not {manifest["columns"]}')
  return data


def verify(path: str | os.PathLike) -> None:
  """Reads every byte of a store and compares it with its SHA-256.

  Raises:
    FileNotFoundError, ValueError: as `load`, and if a hash differs.
  """
  path = pathlib.Path(path)
  load(path)
  for name, file in _manifest(path)['files'].items():
    with open(path / name, 'rb') as f:
      if hashlib.file_digest(f, 'sha256').hexdigest() != file['sha256']:
        raise _damaged(path, f'the SHA-256 of {name} differs')


def place_of_import(
  file: pathlib.Path,
  part: str,
  *,
  version: int,
  cache: str | os.PathLike | None = None,
) -> pathlib.Path:
  """Where to keep what was imported from part of a file, to import it once.

  Args:
    file: what is imported; a file of another path, size or time has another
      place.
    part: which part of the file, e.g. a split.
    version: raise it when the importing code gives other rows.
    cache: directory of the imports; $XDG_CACHE_HOME/epe_jax or
      ~/.cache/epe_jax if None.

  Returns:
    Path of a store that may or may not exist yet.
  """
  if cache is None:
    home = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
    cache = pathlib.Path(home, 'epe_jax')
  file, stat = file.resolve(), file.stat()
  key = (str(file), stat.st_size, stat.st_mtime_ns, part, version, VERSION)
  digest = hashlib.sha256(repr(key).encode()).hexdigest()[:16]
  return pathlib.Path(cache, f'{file.name.split(".")[0]}-{part}-{digest}')


def _existing(path: pathlib.Path, exist_ok: bool) -> federated.FederatedData:
  if not exist_ok:
    raise FileExistsError(
      f'{path} exists. Load it, delete it, or choose another path.'
    )
  return load(path)


def _write_columns(
  draft: pathlib.Path, clients: Iterable[tuple[str, Mapping[str, np.ndarray]]]
) -> dict[str, Any]:
  """Appends every client to the column files; returns the manifest's part."""
  files, specs, client_ids, sizes = {}, {}, [], []
  with contextlib.ExitStack() as stack:
    for client_id, columns in federated.checked(clients):
      if not files:
        _check_storable(columns)
        specs = {n: (c.dtype, c.shape[1:]) for n, c in columns.items()}
        for name, spec in specs.items():
          files[name] = stack.enter_context(open(draft / f'{name}.npy', 'wb'))
          _write_header(files[name], 0, *spec)
      client_ids.append(client_id)
      sizes.append(federated.num_rows(columns))
      for name, column in columns.items():
        files[name].write(column.tobytes())
    for name, file in files.items():
      file.seek(0)
      _write_header(file, sum(sizes), *specs[name])
  np.save(draft / 'offsets.npy', federated.offsets_of(sizes))
  np.save(draft / 'client_ids.npy', np.array(client_ids, np.str_))
  return {
    'num_clients': len(sizes),
    'num_examples': sum(sizes),
    'columns': {name: _spec(*spec) for name, spec in specs.items()},
  }


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


def _write_header(file, num_rows: int, dtype: np.dtype, shape: tuple) -> None:
  # NumPy pads the header so that the first axis can grow to any int64: the
  # header of 0 rows can be overwritten when the number is known.
  header = {
    'descr': np.lib.format.dtype_to_descr(dtype),
    'fortran_order': False,
    'shape': (num_rows, *shape),
  }
  np.lib.format.write_array_header_1_0(file, header)


def _seal(file: pathlib.Path) -> dict[str, Any]:
  """Forces a file to the disk; returns its size and hash."""
  with open(file, 'r+b') as f:
    os.fsync(f.fileno())
    digest = hashlib.file_digest(f, 'sha256').hexdigest()
  return {'bytes': file.stat().st_size, 'sha256': digest}


def _spec(dtype: np.dtype, shape: tuple[int, ...]) -> dict[str, Any]:
  return {'dtype': dtype.str, 'shape': list(shape)}


def _manifest(path: pathlib.Path) -> dict[str, Any]:
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
    manifest = json.loads((path / _MANIFEST).read_text(encoding='utf-8'))
    version = manifest['version']
  except (ValueError, KeyError, TypeError) as error:
    raise _damaged(path, f'{_MANIFEST} cannot be read: {error!r}') from error
  if version != VERSION:
    raise ValueError(
      f'{path} has version {version}; this library reads version {VERSION}. '
      'Write the store again from its source.'
    )
  return manifest


def _damaged(path: pathlib.Path, what: str) -> ValueError:
  return ValueError(
    f'{path} is not a whole store: {what}. Delete it and write it again from '
    'its source.'
  )
