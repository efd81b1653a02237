"""Files: written whole or not at all, and refused with their path if damaged.

The standard library, NumPy and JSON write in place, name no file in most of their
errors, and read pickle, NaN and truncated arrays. A run is interrupted at any time
and its files are evidence, so all of the package writes and reads through here.
"""

import collections
from collections.abc import Callable, Iterator, Mapping
import contextlib
import glob
import hashlib
import json
import math
import os
import pathlib
import re
import secrets
import sys
import tempfile
import time
from typing import Any, BinaryIO

from jaxtyping import Shaped
import numpy as np

# The end of the name of a file that is being written.
_DRAFT = re.compile(r'\.[0-9a-f]{8}')
# Seconds after which a draft is that of a process that was killed.
_STALE = 86_400.0
# The folders of an absolute path in a text, but not of a fraction or a URL.
_ABSOLUTE_PATH = re.compile(r"""(?<![\w./:~])/(?:[^\s/:;,'"()]+/)+""")


# Files and folders.


def write_atomically(
  path: str | os.PathLike,
  fill: Callable[[BinaryIO], Any],
  *,
  private: bool = False,
) -> None:
  """Writes a file under another name, then renames it to `path`.

  When this function returns, the file survives a loss of power. If it fails, the
  old file is unchanged. Links are followed; a pipe or a device is written into.

  Args:
    path: the file.
    fill: writes the content into an open binary file.
    private: whether only its owner can ever read the file.

  Raises:
    FileNotFoundError: its folder does not exist, or is not a folder.
  """
  with name_disk_errors(path):
    _write_atomically(path, fill, private)


def _write_atomically(
  path: str | os.PathLike, fill: Callable[[BinaryIO], Any], private: bool
) -> None:
  if os.path.exists(path):
    stream = _find_stream(path)
    if stream is not None or not os.path.isfile(path):
      with open(path if stream is None else os.dup(stream), 'wb') as file:
        fill(file)
      return
  path = pathlib.Path(os.path.realpath(path))
  if not path.parent.is_dir():
    raise FileNotFoundError(
      f'{path} cannot be written: {path.parent} is not a folder; '
      'give another path.'
    )
  remove_drafts(path, older_than=_STALE)
  draft = name_draft(path)
  try:
    with open(draft, 'xb', opener=open_private if private else None) as file:
      fill(file)
      file.flush()
      os.fsync(file.fileno())
    os.replace(draft, path)
    sync_folder(path.parent)
  finally:
    draft.unlink(missing_ok=True)


def _find_stream(path: str | os.PathLike) -> int | None:
  """The descriptor of the standard stream that a path leads to, if it leads to one.

  By its own descriptor, or what is printed next would overwrite what is written.
  """
  for stream in (sys.stdout, sys.stderr):
    # A notebook's has no descriptor.
    with contextlib.suppress(OSError, ValueError, AttributeError):
      number = stream.fileno()
      if os.path.samestat(os.stat(path), os.fstat(number)):
        stream.flush()
        return number
  return None


def name_draft(path: pathlib.Path) -> pathlib.Path:
  """A new name in the same folder, for a file until it is whole."""
  return path.with_name(f'.{path.name}.{secrets.token_hex(4)}')


def remove_drafts(path: pathlib.Path, *, older_than: float) -> None:
  """Removes drafts of a file that are older than so many seconds."""
  latest = time.time() - older_than
  for draft in path.parent.glob(f'.{glob.escape(path.name)}.*'):
    # Another process may remove it first.
    with contextlib.suppress(OSError):
      is_draft = draft.stem == f'.{path.name}' and _DRAFT.fullmatch(
        draft.suffix
      )
      if is_draft and draft.stat().st_mtime <= latest:
        draft.unlink()


def sync_folder(folder: pathlib.Path) -> None:
  """Writes the entries of a folder to the disk, as fsync does for a file."""
  if os.name == 'nt':
    return  # Windows opens no folders.
  descriptor = os.open(folder, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def open_private(path: str, flags: int) -> int:
  """An opener for `open`: a new file can be read only by its owner."""
  return os.open(path, flags, 0o600)


def write_text(
  path: str | os.PathLike, text: str, *, private: bool = False
) -> None:
  """Writes text in UTF-8 with `write_atomically`."""
  write_atomically(path, lambda f: f.write(text.encode()), private=private)


def read_last_lines(path: str | os.PathLike, count: int) -> list[str]:
  """Reads the last lines that are not empty of a file, which may be missing."""
  try:
    with open(path, encoding='utf-8', errors='replace') as file:
      lines = (line.rstrip() for line in file)
      return [*collections.deque(filter(None, lines), maxlen=count)]
  except FileNotFoundError:
    return []


def hash_file(path: str | os.PathLike) -> str:
  """The SHA-256 of a file, in hexadecimal digits."""
  with open(path, 'rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def user_cache() -> pathlib.Path:
  """The user's cache folder, which only its owner can open.

  It is $XDG_CACHE_HOME/epe_jax, or ~/.cache/epe_jax without that variable. It is
  made if it can be; otherwise writing into it raises the error.
  """
  home = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
  folder = pathlib.Path(home, 'epe_jax')
  with contextlib.suppress(OSError):
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
  return folder


def check_folder(name: str, folder: str | os.PathLike) -> None:
  """Checks that a folder is writable or can be made, without changing anything.

  Args:
    name: of the argument, for messages.
    folder: its path.

  Raises:
    ValueError: it, or the folder in which it would be made, is a file or cannot
      be written.
  """
  path = pathlib.Path(folder)
  parent = next(p for p in (path, *path.parents) if os.path.lexists(p))
  if not parent.is_dir():
    raise ValueError(
      f'{name}={folder}: {parent} is a file; give the path of a folder, which '
      'need not exist.'
    )
  try:
    # Permissions are not reliable: on some file systems root's do not hold.
    with tempfile.TemporaryDirectory(dir=parent):
      return
  except OSError as error:
    raise ValueError(
      f'{name}={folder}: {parent} cannot be written ({error.strerror}); give '
      'another folder, or have its permissions changed.'
    ) from error


@contextlib.contextmanager
def name_disk_errors(path: str | os.PathLike) -> Iterator[None]:
  """Names a path in errors of the system that name none, such as of a full disk."""
  try:
    yield
  except OSError as error:
    if error.errno is not None and error.filename is None:
      error.filename = os.fspath(path)
    raise


def machine_memory() -> int:
  """Bytes of memory of this machine; training needs it, and so not Windows."""
  return os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')


# Arrays.


def write_arrays(
  path: str | os.PathLike,
  arrays: Mapping[str, Any],
  *,
  private: bool = False,
  compressed: bool = True,
) -> None:
  """Writes arrays and numbers to an .npz with `write_atomically`."""
  save = np.savez_compressed if compressed else np.savez
  write_atomically(path, lambda f: save(f, **arrays), private=private)


def read_arrays(
  path: str | os.PathLike,
) -> dict[str, Shaped[np.ndarray, '...']]:
  """Reads all arrays of an .npz, by name.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the file is damaged, or would need pickle.
  """
  with open(path, 'rb') as file, explain_damage(path, '.npz'):
    archive = _open_archive(file)
    # Of an array whose shape is damaged NumPy may not read the checksum.
    assert archive.zip is not None, 'it is open'
    if (member := archive.zip.testzip()) is not None:
      raise ValueError(f'{member} is damaged')
    return dict(archive)


def list_arrays(path: str | os.PathLike) -> set[str]:
  """Lists the arrays of an .npz without reading them; raises as `read_arrays`."""
  with open(path, 'rb') as file, explain_damage(path, '.npz'):
    return {*_open_archive(file).files}


def _open_archive(file: BinaryIO) -> np.lib.npyio.NpzFile:
  archive = np.load(file, allow_pickle=False)
  if not isinstance(archive, np.lib.npyio.NpzFile):
    raise ValueError('it is an array and no archive')
  return archive


def read_array(path: str | os.PathLike) -> Shaped[np.ndarray, '...']:
  """Reads the array of an .npy; raises as `read_arrays`."""
  with open(path, 'rb') as file, explain_damage(path, '.npy'):
    return np.lib.format.read_array(file, allow_pickle=False)


@contextlib.contextmanager
def explain_damage(path: str | os.PathLike, kind: str) -> Iterator[None]:
  """Names the file that could not be read, and a cure."""
  try:
    yield
  # zipfile, zlib and NumPy raise a dozen kinds of errors.
  except Exception as error:
    cure = 'restore it, or make it again'
    if 'Object arrays' in str(error):
      cure = 'save words by astype(str)'
    raise ValueError(
      f'{path} is not a readable {kind} file ({error}); {cure}.'
    ) from error


# JSON.


def format_json(value: Any) -> str:
  """Formats JSON as the command line prints it.

  Non-finite numbers become strings, as in `write_json`; letters are not escaped.

  >>> print(format_json({'ε': float('inf')}))
  {
    "ε": "Infinity"
  }
  """
  return json.dumps(
    spell_non_finite(value), indent=2, allow_nan=False, ensure_ascii=False
  )


def write_json(
  path: str | os.PathLike, value: Any, *, private: bool = False
) -> None:
  """Writes JSON with `write_atomically`.

  Non-finite numbers, which JSON lacks, are written as the strings 'Infinity',
  '-Infinity' and 'NaN', which `float` reads back.
  """
  text = json.dumps(spell_non_finite(value), indent=2, allow_nan=False) + '\n'
  write_text(path, text, private=private)


def read_json(path: str | os.PathLike) -> Any:
  """Reads a JSON file.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the file is not JSON.
  """
  try:
    return parse_json(pathlib.Path(path).read_text(encoding='utf-8'))
  except (ValueError, IsADirectoryError, RecursionError) as error:
    raise ValueError(
      f'{path} is not JSON ({error}); restore it, or make it again.'
    ) from error


def read_fields(path: str | os.PathLike) -> dict[str, Any]:
  """Reads a JSON file of fields by name.

  Raises:
    FileNotFoundError, ValueError: as `read_json`, or it holds something else.
  """
  values = read_json(path)
  if not isinstance(values, dict):
    raise ValueError(
      f'{path} is damaged: it has no fields; restore it, or make the run again.'
    )
  return values


def write_sealed(path: str | os.PathLike, fields: Mapping[str, Any]) -> None:
  """Writes JSON with 'sha256', the digest of all its other fields."""
  write_json(path, {**fields, 'sha256': _hash_fields(fields)})


def read_sealed(path: str | os.PathLike) -> dict[str, Any]:
  """Reads the fields that `write_sealed` wrote, without their digest.

  Raises:
    FileNotFoundError, ValueError: as `read_fields`, or the digest is missing or
      that of other fields.
  """
  fields = read_fields(path)
  digest = fields.pop('sha256', None)
  if digest != _hash_fields(fields):
    raise ValueError(
      f"{path} is damaged: its fields are not those of its 'sha256'; restore "
      'it, or make it again.'
    )
  return fields


def _hash_fields(fields: Mapping[str, Any]) -> str:
  text = json.dumps(spell_non_finite(fields), sort_keys=True, allow_nan=False)
  return hashlib.sha256(text.encode()).hexdigest()


def parse_json(text: str) -> Any:
  """Parses JSON as `write_json` writes it, so without NaN and Infinity.

  Raises:
    ValueError: it is not JSON.

  >>> parse_json('[1, NaN]')
  Traceback (most recent call last):
  ValueError: NaN is not a number of JSON; write the string "NaN"
  """
  return json.loads(
    text, parse_constant=_refuse_constant, parse_float=_parse_float
  )


def _parse_float(text: str) -> float:
  if math.isinf(number := float(text)):
    raise ValueError(f'{text} is more than float64 holds')
  return number


def _refuse_constant(name: str) -> None:
  raise ValueError(f'{name} is not a number of JSON; write the string "{name}"')


def check_schema(path: str | os.PathLike, schema: int, *, reads: int) -> None:
  """Checks that a file has the version that this library reads.

  Raises:
    ValueError: it has another.
  """
  if schema != reads:
    raise ValueError(
      f'{path} has schema={schema}, but this version of epe_jax reads {reads}. '
      'Read it with the version that wrote it.'
    )


# Values of JSON.


def flatten(nested: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
  """Flattens nested groups of fields to dotted names.

  >>> flatten({'rounds': 3, 'client': {'epochs': 1}})
  {'rounds': 3, 'client.epochs': 1}
  """
  flat = {}
  for name, value in nested.items():
    if isinstance(value, Mapping):
      flat |= flatten(value, f'{prefix}{name}.')
    else:
      flat[prefix + name] = value
  return flat


def spell_non_finite(value: Any) -> Any:
  """Replaces non-finite numbers in JSON-like values by strings."""

  def spell(x: Any) -> Any:
    if isinstance(x, float) and not math.isfinite(x):
      return {math.inf: 'Infinity', -math.inf: '-Infinity'}.get(x, 'NaN')
    return x

  return _map_leaves(spell, value)


def hide_paths(value: Any) -> Any:
  """Removes the folders of absolute paths in JSON-like values.

  A published file should reveal neither the user's name nor where data are stored.

  >>> hide_paths({'path': '/home/ada/data/emnist', 'noise': 0.2})
  {'path': 'PATH_TO/emnist', 'noise': 0.2}
  >>> hide_paths('see /tmp/a b/log.txt, N(0, 1/d) and https://x.org/y')
  'see PATH_TO/a b/log.txt, N(0, 1/d) and https://x.org/y'
  """

  def hide(x: Any) -> Any:
    if not isinstance(x, str):
      return x
    if os.path.isabs(x):
      return f'PATH_TO/{os.path.basename(x.rstrip("/"))}'
    return _ABSOLUTE_PATH.sub('PATH_TO/', x)

  return _map_leaves(hide, value)


def hide_word(word: str) -> str:
  """A word of a command line without the folders of its path.

  >>> hide_word('--data=/home/ada l/emnist'), hide_word('~/job.py'), hide_word('-x=a/b')
  ('--data=PATH_TO/emnist', 'PATH_TO/job.py', '-x=a/b')
  """
  name, equals, value = word.rpartition('=')
  if not value.startswith(('/', '~', 'file:')):
    return hide_paths(word)
  return f'{name}{equals}PATH_TO/{os.path.basename(value.rstrip("/"))}'


def _map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
  if isinstance(value, Mapping):
    return {k: _map_leaves(function, v) for k, v in value.items()}
  if isinstance(value, list | tuple):
    return [_map_leaves(function, v) for v in value]
  return function(value)
