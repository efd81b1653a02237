"""Files that are written whole or not at all, and read without pickle.

Errors of the disk are explained, because the system says what it refused, not
always where, and never what to do.
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
  errno.EDQUOT: f'all that you may use of the disk is used. {_CURE_OF_SPACE}',
  errno.EROFS: 'the disk can only be read. Give a folder on another one',
  errno.EACCES: f'permission denied. {_CURE_OF_PERMISSIONS}',
  errno.EPERM: f'permission denied. {_CURE_OF_PERMISSIONS}',
}

# The largest number of bytes that one byte of a .zip can become.
_MAX_INFLATION = 1032
# What a damaged .npz or .npy ends in: of zipfile, zlib and NumPy's reader of headers.
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
# Ends of lines, and what a terminal takes for a command.
_CONTROLS = dict.fromkeys(
  [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029], ' '
)
_TOO_DEEP = f'it is nested more than {_MAX_DEPTH} deep'
# The folders of an absolute path within a text; no fraction, and no address.
_ABSOLUTE_PATH = re.compile(r"""(?<![\w./:~])/(?:[^\s/:;,'"()]+/)+""")


def write_atomically(
  path: str | os.PathLike,
  fill: Callable[[BinaryIO], Any],
  *,
  private: bool = False,
) -> None:
  """Writes a file under another name, then puts it in place of `path`.

  When this function returns, the file is on the disk, whatever happens to the
  power. If it fails, the old file stays as it was.

  Args:
    path: the file.
    fill: writes its content into an open binary file.
    private: whether only its owner may read the file, from the first byte on.

  Raises:
    FileNotFoundError: its folder does not exist, or takes no files.
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
    # Of the draft, of which nobody has heard.
    raise FileNotFoundError(
      f'{path} cannot be written: {path.parent} is no folder that takes files; '
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
    read: path -> value; raises a ValueError if the file is damaged.
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
  """Removes the files that `write_atomically` began and did not finish.

  Args:
    folder: a folder in which nobody writes now; it need not exist.
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
  """Opens a file, which only its owner may read if it is new; for `open`."""
  return os.open(path, flags, 0o600)


def user_cache() -> pathlib.Path:
  """Gives the folder of what runs keep for later ones, which its owner alone may open.

  It is $XDG_CACHE_HOME/epe_jax, or ~/.cache/epe_jax if there is no such variable. It is
  made if it is missing; whoever writes into it meets the error where that is impossible.
  """
  home = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
  folder = pathlib.Path(home, 'epe_jax')
  with contextlib.suppress(OSError):
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
  return folder


def format_json(value: Any) -> str:
  """JSON for a person or a pipe, as the command line prints it.

  Numbers that are not finite are strings, as in `write_json`; letters are printed as
  they are.

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

  Numbers that are not finite are written as the strings 'Infinity', '-Infinity'
  and 'NaN', which JSON has no numbers for and `float` reads back.
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
    ValueError: the file is not JSON, or none of this size or depth is read.
  """
  path = pathlib.Path(path)
  try:
    if path.exists() and not path.is_file():
      raise ValueError('it is no file')
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
  """Parses JSON that somebody else may have written.

  Args:
    text: as `write_json` writes it: numbers are finite.

  Raises:
    ValueError: it is not JSON, it is nested more than 100 deep, or a number of it is
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
  r"""JSON-like values whose texts have no line ends or other control characters.

  What is read from a file and printed must not look like lines that the program wrote.

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
  """Writes arrays and numbers as a compressed .npz with `write_atomically`."""
  write_atomically(
    path, lambda f: np.savez_compressed(f, **arrays), private=private
  )


def read_arrays(
  path: str | os.PathLike,
) -> dict[str, Shaped[np.ndarray, '...']]:
  """Reads all arrays of an .npz, by name.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the file is damaged, would need pickle, or announces more than it or
      this machine's memory has.
  """
  with _open_arrays(path) as archive:
    return {
      _name_array(member): _read_member(archive, member)
      for member in archive.infolist()
    }


def list_arrays(path: str | os.PathLike) -> set[str]:
  """Lists the names of the arrays of an .npz, none of which is read.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the file is no .npz.
  """
  with _open_arrays(path) as archive:
    return {_name_array(member) for member in archive.infolist()}


def read_array(path: str | os.PathLike) -> Shaped[np.ndarray, '...']:
  """Reads the array of an .npy.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the file is damaged, would need pickle, or is not as large as it
      announces.
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
  """Replaces numbers that are not finite by strings, in JSON-like values."""
  if isinstance(value, Mapping):
    return {k: spell_non_finite(v) for k, v in value.items()}
  if isinstance(value, list | tuple):
    return [spell_non_finite(v) for v in value]
  if isinstance(value, float) and not math.isfinite(value):
    return {math.inf: 'Infinity', -math.inf: '-Infinity'}.get(value, 'NaN')
  return value


def hide_paths(value: Any) -> Any:
  """JSON-like values whose absolute paths have lost the folders of this machine.

  What is published should not tell how a user is called and where data lie.

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
  """Opens an .npz whose members are arrays as large as they announce."""
  with (
    open(path, 'rb') as file,
    _explain_damage(path, '.npz'),
    zipfile.ZipFile(file) as archive,
  ):
    _check_members(archive, os.fstat(file.fileno()).st_size)
    yield archive


@contextlib.contextmanager
def _explain_damage(path: str | os.PathLike, kind: str) -> Iterator[None]:
  """Says of a file that could not be read which it was, and what to do."""
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
    # Its check sum is compared where it ends.
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
  """Raises a ValueError unless an array is as large as its header announces."""
  version = np.lib.format.read_magic(raw)
  if version == (1, 0):
    shape, _, dtype = np.lib.format.read_array_header_1_0(raw)
  else:
    shape, _, dtype = np.lib.format.read_array_header_2_0(raw)
  if dtype.hasobject:
    raise ValueError(f'{name} has Python objects, which are not read')
  announced, size = math.prod(shape) * dtype.itemsize, size - raw.tell()
  # Of nothing, any number would be as large.
  if announced != size or (shape and min(shape) < 0) or not dtype.itemsize:
    raise ValueError(
      f'{name} announces an array of {announced} bytes, but has {size}'
    )


def machine_memory() -> int:
  """Gives the memory of this machine in bytes, for all processes together."""
  return os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')


def sync_folder(folder: pathlib.Path) -> None:
  """Writes the names in a folder to the disk, as fsync does for a file."""
  descriptor = os.open(folder, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def check_folder(name: str, folder: str | os.PathLike) -> None:
  """Checks that a folder is there and writable, or can be made; leaves nothing.

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
      # Permissions do not tell: of some file systems, root's are not what they say.
      with tempfile.TemporaryDirectory(dir=parent):
        return
    except OSError as error:
      raise ValueError(
        f'{name}={folder}: {parent} cannot be written ({error.strerror}); give '
        'another folder, or have its permissions changed.'
      ) from error


@contextlib.contextmanager
def explain_disk_errors(path: str | os.PathLike) -> Iterator[None]:
  """Explains errors of the disk within, by a sentence with a path and a cure.

  Args:
    path: the path to name where the system names none.

  Raises:
    OSError: explains one of ENOSPC, EDQUOT, EROFS, EACCES and EPERM. All other
      errors pass.
  """
  try:
    yield
  except OSError as error:
    if error.errno not in _CURES:
      raise
    where = error.filename or os.fspath(path)
    raise OSError(f'{where}: {_CURES[error.errno]}.') from error
