"""Files that are written atomically, made once, and read without pickle.

Errors of the disk are explained: the system says what it refused, but not always where,
and never what to do.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
import contextlib
import errno
import glob
import json
import math
import os
import pathlib
import re
import secrets
import struct
import tempfile
import tokenize
from typing import Any, BinaryIO, TypeVar
import zipfile
import zlib

from jaxtyping import Shaped
import numpy as np

from epe_jax import locks

T = TypeVar('T')

# The name of a file that is being written, as `write_atomically` makes it.
_DRAFT = re.compile(r'\..+\.[0-9a-f]{8}')
_CURE_OF_SPACE = 'Make room there, or give a folder on another disk'
_CURE_OF_PERMISSIONS = 'Change its permissions, or give another path'
_CURES = {
  errno.ENOSPC: f'the disk is full. {_CURE_OF_SPACE}',
  errno.EDQUOT: f'your quota of the disk is used up. {_CURE_OF_SPACE}',
  errno.EROFS: 'the disk is read-only. Give a folder on another one',
  errno.EACCES: f'permission denied. {_CURE_OF_PERMISSIONS}',
  errno.EPERM: f'permission denied. {_CURE_OF_PERMISSIONS}',
}

# The largest number of bytes that one byte of a .zip can become.
_MAX_INFLATION = 1032
# The errors of damaged .npz and .npy files, from zipfile, zlib and NumPy.
_DAMAGE = (
  ValueError,
  EOFError,
  OSError,
  AttributeError,
  KeyError,
  OverflowError,
  RuntimeError,
  TypeError,
  MemoryError,
  SyntaxError,
  struct.error,
  zipfile.BadZipFile,
  zlib.error,
  tokenize.TokenError,
)
# Bytes, depth, and digits of an integer of the JSON that is read.
_MAX_JSON, _MAX_DEPTH, _MAX_DIGITS = 2**28, 100, 300
# Ends of lines, and control characters of terminals.
_CONTROLS = dict.fromkeys(
  [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029], ' '
)
_TOO_DEEP = f'it is nested more than {_MAX_DEPTH} deep'
# The folders of an absolute path within a text, but not of a fraction or an address.
_ABSOLUTE_PATH = re.compile(r"""(?<![\w./:~])/(?:[^\s/:;,'"()]+/)+""")


def write_atomically(
  path: str | os.PathLike,
  fill: Callable[[BinaryIO], Any],
  *,
  private: bool = False,
) -> None:
  """Writes a file under another name, then renames it to `path`.

  When this function returns, the file survives a loss of power. If it fails, the old
  file is unchanged.

  Args:
    path: the file.
    fill: writes the content into an open binary file.
    private: whether only its owner can ever read the file.

  Raises:
    FileNotFoundError: its folder does not exist, or is not a folder.
  """
  path = pathlib.Path(path)
  draft = _name_draft(path)
  try:
    with _open_draft(draft, path, private=private) as f:
      fill(f)
      f.flush()
      os.fsync(f.fileno())
    os.replace(draft, path)
    sync_folder(path.parent)
  finally:
    draft.unlink(missing_ok=True)


def _open_draft(
  draft: pathlib.Path, path: pathlib.Path, *, private: bool
) -> BinaryIO:
  try:
    return open(draft, 'xb', opener=open_private if private else None)
  except FileNotFoundError as error:
    # The error names the draft, which the caller does not know.
    raise FileNotFoundError(
      f'{path} cannot be written: {path.parent} is not a folder; '
      'give another path.'
    ) from error


def make_once(
  path: str | os.PathLike,
  make: Callable[[pathlib.Path], object],
  read: Callable[[pathlib.Path], T],
  *,
  max_wait: float = 3600.0,
  remake_damaged: bool = True,
) -> T:
  """Reads a file, which is made first if it is missing or damaged.

  Of processes that want the same file, one makes it and the others wait. The file
  appears under its name when it is complete, so whatever ends a process, a file that
  is there is whole.

  Args:
    path: the file. Its folder is made if it is missing.
    make: writes the file to the path that it is given, in the same folder.
    read: path -> value, not None; raises a ValueError if the file is damaged.
    max_wait: seconds to wait for another process that makes the file.
    remake_damaged: whether a damaged file is made again, as in a cache; otherwise
      the error of `read` is raised.

  Raises:
    TimeoutError: another process is still making it.

  >>> with tempfile.TemporaryDirectory() as folder:
  ...   path = pathlib.Path(folder, 'answer')
  ...   for text in ('42', '43'):
  ...     print(make_once(path, lambda draft: draft.write_text(text), read_json))
  42
  42
  """
  path = pathlib.Path(path)

  def read_whole() -> T | None:
    if not path.exists():
      return None
    try:
      return read(path)
    except ValueError:
      if not remake_damaged:
        raise
      return None

  if (value := read_whole()) is not None:
    return value
  path.parent.mkdir(parents=True, exist_ok=True)
  try:
    with locks.hold(
      path.with_name(f'.{path.name}.lock'), max_wait=max_wait
    ) as lock:
      lock.write(f'process {os.getpid()}'.encode())
      lock.flush()
      # Another process may have made it while this one waited.
      if (value := read_whole()) is not None:
        return value
      for stale in path.parent.glob(f'.{glob.escape(path.name)}.*'):
        if _DRAFT.fullmatch(stale.name) and stale.is_file():
          stale.unlink()
      draft = _name_draft(path)
      try:
        make(draft)
        draft.rename(path)
        sync_folder(path.parent)
      finally:
        draft.unlink(missing_ok=True)
      return read(path)
  except locks.Busy as error:
    raise TimeoutError(
      f'{path} has been made by {error} for over {max_wait:.0f} s. Wait for it to '
      'end, or end it, and try again.'
    ) from error


def _name_draft(path: pathlib.Path) -> pathlib.Path:
  return path.with_name(f'.{path.name}.{secrets.token_hex(4)}')


def remove_drafts(folder: pathlib.Path) -> None:
  """Removes files that `write_atomically` did not finish.

  Args:
    folder: a folder in which no process writes now; it need not exist.
  """
  for path in folder.glob('.*'):
    if _DRAFT.fullmatch(path.name) and path.is_file():
      path.unlink(missing_ok=True)


def write_text(
  path: str | os.PathLike, text: str, *, private: bool = False
) -> None:
  """Writes text in UTF-8 with `write_atomically`."""
  write_atomically(path, lambda f: f.write(text.encode()), private=private)


def open_private(path: str, flags: int) -> int:
  """An opener for `open`: a new file can be read only by its owner."""
  return os.open(path, flags, 0o600)


def user_cache() -> pathlib.Path:
  """Gives the user's cache folder, which only its owner can open.

  It is $XDG_CACHE_HOME/epe_jax, or ~/.cache/epe_jax without that variable. It is made if
  it is missing and can be made; otherwise writing into it raises the error.
  """
  home = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
  folder = pathlib.Path(home, 'epe_jax')
  with contextlib.suppress(OSError):
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
  return folder


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


def read_json(path: str | os.PathLike) -> Any:
  """Reads a JSON file.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the file is not JSON, or is too large or too deeply nested.
  """
  path = pathlib.Path(path)
  try:
    if path.exists() and not path.is_file():
      raise ValueError('it is not a file')
    if (size := path.stat().st_size) > _MAX_JSON:
      raise ValueError(
        f'it has {size:,} bytes, and at most {_MAX_JSON:,} are read'
      )
    return parse_json(path.read_text(encoding='utf-8'))
  except ValueError as error:
    raise ValueError(
      f'{path} is not JSON ({error}); restore it, or make it again.'
    ) from error


def parse_json(text: str) -> Any:
  """Parses JSON from an untrusted file.

  Args:
    text: with finite numbers, as `write_json` writes them.

  Raises:
    ValueError: it is not JSON, is nested more than 100 deep, or has a number that is
      not finite.

  >>> parse_json('[1, NaN]')
  Traceback (most recent call last):
  ValueError: NaN is no number of JSON; write the string "NaN"
  """
  try:
    value = json.loads(
      text,
      parse_constant=_refuse_constant,
      parse_float=_parse_float,
      parse_int=_parse_int,
    )
  except RecursionError as error:
    raise ValueError(_TOO_DEEP) from error
  level, depth = [value], 0
  while level := [x for part in level for x in _list_parts(part)]:
    depth += 1
    if depth > _MAX_DEPTH:
      raise ValueError(_TOO_DEEP)
  return value


def _list_parts(value: Any) -> Iterable[Any]:
  if isinstance(value, dict):
    return value.values()
  return value if isinstance(value, list) else ()


def _refuse_constant(name: str) -> None:
  raise ValueError(f'{name} is no number of JSON; write the string "{name}"')


def _parse_float(text: str) -> float:
  if not math.isfinite(value := float(text)):
    raise ValueError(f'{text[:20]} is more than a float holds')
  return value


def _parse_int(text: str) -> int:
  if len(text) > _MAX_DIGITS:
    raise ValueError(f'an integer has {len(text):,} digits')
  return int(text)


def join_lines(value: Any) -> Any:
  r"""Replaces line ends and other control characters in JSON-like values by spaces.

  Text that is read from a file and printed must not look like lines of the program.

  >>> join_lines({'task': 'digits\n# All is well'})
  {'task': 'digits # All is well'}
  """
  if isinstance(value, Mapping):
    return {join_lines(k): join_lines(v) for k, v in value.items()}
  if isinstance(value, list | tuple):
    return [join_lines(v) for v in value]
  return value.translate(_CONTROLS) if isinstance(value, str) else value


def write_arrays(
  path: str | os.PathLike, arrays: Mapping[str, Any], *, private: bool = False
) -> None:
  """Writes arrays and numbers to a compressed .npz with `write_atomically`."""
  write_atomically(
    path, lambda f: np.savez_compressed(f, **arrays), private=private
  )


def read_arrays(
  path: str | os.PathLike,
) -> dict[str, Shaped[np.ndarray, '...']]:
  """Reads all arrays of an .npz, by name.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the file is damaged, would need pickle, or declares more bytes than it
      has or than this machine's memory.
  """
  with _open_arrays(path) as archive:
    return {
      _name_array(member): _read_member(archive, member)
      for member in archive.infolist()
    }


def list_arrays(path: str | os.PathLike) -> set[str]:
  """Lists the names of the arrays of an .npz without reading them.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the file is not an .npz.
  """
  with _open_arrays(path) as archive:
    return {_name_array(member) for member in archive.infolist()}


def read_array(path: str | os.PathLike) -> Shaped[np.ndarray, '...']:
  """Reads the array of an .npy.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the file is damaged, would need pickle, or does not have the size that
      it declares.
  """
  with open(path, 'rb') as file, _explain_damage(path, '.npy'):
    _check_header('it', file, os.fstat(file.fileno()).st_size)
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)


def check_schema(path: str | os.PathLike, schema: int, *, reads: int) -> None:
  """Checks the version of a file.

  Args:
    path: the file, for the error.
    schema: the version that the file has.
    reads: the version that this library reads.

  Raises:
    ValueError: they differ.
  """
  if schema != reads:
    raise ValueError(
      f'{path} has schema={schema}, but this version of epe_jax reads {reads}. '
      'Read it with the version that wrote it.'
    )


def spell_non_finite(value: Any) -> Any:
  """Replaces non-finite numbers in JSON-like values by strings."""
  if isinstance(value, Mapping):
    return {k: spell_non_finite(v) for k, v in value.items()}
  if isinstance(value, list | tuple):
    return [spell_non_finite(v) for v in value]
  if isinstance(value, float) and not math.isfinite(value):
    return {math.inf: 'Infinity', -math.inf: '-Infinity'}.get(value, 'NaN')
  return value


def hide_paths(value: Any) -> Any:
  """Removes the folders of absolute paths in JSON-like values.

  A published file should reveal neither the user's name nor where data are stored.

  >>> hide_paths({'path': '/home/ada/data/emnist', 'noise': 0.2})
  {'path': 'PATH_TO/emnist', 'noise': 0.2}
  >>> hide_paths('see /tmp/a b/log.txt, N(0, 1/d) and https://x.org/y')
  'see PATH_TO/a b/log.txt, N(0, 1/d) and https://x.org/y'
  """
  if isinstance(value, Mapping):
    return {k: hide_paths(v) for k, v in value.items()}
  if isinstance(value, list | tuple):
    return [hide_paths(v) for v in value]
  if isinstance(value, str):
    if os.path.isabs(value):
      return f'PATH_TO/{os.path.basename(value.rstrip("/"))}'
    return _ABSOLUTE_PATH.sub('PATH_TO/', value)
  return value


@contextlib.contextmanager
def _open_arrays(path: str | os.PathLike) -> Iterator[zipfile.ZipFile]:
  """Opens an .npz, and checks that its members have the sizes that they declare."""
  with (
    open(path, 'rb') as file,
    _explain_damage(path, '.npz'),
    zipfile.ZipFile(file) as archive,
  ):
    _check_members(archive, os.fstat(file.fileno()).st_size)
    yield archive


@contextlib.contextmanager
def _explain_damage(path: str | os.PathLike, kind: str) -> Iterator[None]:
  """Names the file that could not be read, and a cure."""
  try:
    yield
  except _DAMAGE as error:
    raise ValueError(
      f'{path} is not a readable {kind} file ({error}); restore it, or make it '
      'again.'
    ) from error


def _name_array(member: zipfile.ZipInfo) -> str:
  return member.filename.removesuffix('.npy')


def _read_member(
  archive: zipfile.ZipFile, member: zipfile.ZipInfo
) -> np.ndarray:
  with archive.open(member) as raw:
    array = np.lib.format.read_array(raw, allow_pickle=False)
    # Its checksum is compared at the end.
    raw.read()
    return array


def _check_members(archive: zipfile.ZipFile, size: int) -> None:
  memory = machine_memory()
  total, names = 0, set()
  for member in archive.infolist():
    if member.filename in names:
      raise ValueError(f'{member.filename!r} is in it twice')
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
      raise ValueError(f'{member.filename!r} is compressed as by no NumPy')
    names.add(member.filename)
    compressed = min(member.compress_size, size)
    if member.file_size > _MAX_INFLATION * (compressed + 1):
      raise ValueError(
        f'{member.filename!r} announces {member.file_size} bytes, which are '
        f'not in the {size} of the file'
      )
    total += member.file_size
    if total > memory:
      raise ValueError(
        f'its arrays have over {total} bytes, but this machine has {memory} of '
        'memory'
      )
    with archive.open(member) as raw:
      _check_header(repr(member.filename), raw, member.file_size)


def _check_header(name: str, raw: Any, size: int) -> None:
  """Raises a ValueError unless an array has the size that its header declares."""
  version = np.lib.format.read_magic(raw)
  if version == (1, 0):
    shape, _, dtype = np.lib.format.read_array_header_1_0(raw)
  else:
    shape, _, dtype = np.lib.format.read_array_header_2_0(raw)
  if dtype.hasobject:
    raise ValueError(f'{name} has Python objects, which are not read')
  announced, size = math.prod(shape) * dtype.itemsize, size - raw.tell()
  # Any number of empty items has the declared size.
  if announced != size or (shape and min(shape) < 0) or not dtype.itemsize:
    raise ValueError(
      f'{name} announces an array of {announced} bytes, but has {size}'
    )


def machine_memory() -> int:
  """Gives the memory of this machine in bytes."""
  return os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')


def sync_folder(folder: pathlib.Path) -> None:
  """Writes the entries of a folder to the disk, as fsync does for a file."""
  descriptor = os.open(folder, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


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
  for parent in (path, *path.parents):
    if not os.path.lexists(parent):
      continue
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
def explain_disk_errors(path: str | os.PathLike) -> Iterator[None]:
  """Explains errors of the disk by a sentence with a path and a cure.

  Args:
    path: the path to name if the system names none.

  Raises:
    OSError: explains ENOSPC, EDQUOT, EROFS, EACCES and EPERM. Other errors pass.
  """
  try:
    yield
  except OSError as error:
    if error.errno not in _CURES:
      raise
    where = error.filename or os.fspath(path)
    raise OSError(f'{where}: {_CURES[error.errno]}.') from error
