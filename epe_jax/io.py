"""Files that are written whole or not at all, and read without pickle.

Errors of the disk are explained, because the system says what it refused, not
always where, and never what to do.
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import errno
import json
import math
import os
import pathlib
import re
import secrets
import tempfile
from typing import Any, BinaryIO
import zipfile

from jaxtyping import Shaped
import numpy as np

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
  draft = path.with_name(f'.{path.name}.{secrets.token_hex(4)}')
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
    ValueError: the file is not JSON.
  """
  try:
    return json.loads(pathlib.Path(path).read_text(encoding='utf-8'))
  except (json.JSONDecodeError, UnicodeDecodeError) as error:
    raise ValueError(
      f'{path} is not JSON ({error}); restore it or use another workdir.'
    ) from error


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
    ValueError: the file is damaged or would need pickle.
  """
  # Opened here, because np.load leaves a damaged file open.
  with open(path, 'rb') as f, _explain_damage(path):
    return read_npz(f)


def list_arrays(path: str | os.PathLike) -> set[str]:
  """Lists the names of the arrays of an .npz, none of which is read.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the file is no .npz.
  """
  with (
    open(path, 'rb') as f,
    _explain_damage(path),
    zipfile.ZipFile(f) as archive,
  ):
    return {name.removesuffix('.npy') for name in archive.namelist()}


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


def read_npz(file: BinaryIO) -> dict[str, np.ndarray]:
  """Reads all arrays of an open .npz file, by name.

  Args:
    file: a file that is open for reading; it stays open.

  Raises:
    ValueError: an array is not as large as its header says or would need
      pickle, or all of them need more memory than this machine has.
    EOFError, OSError, zipfile.BadZipFile: the file is damaged, or no .npz file.
  """
  with zipfile.ZipFile(file) as archive:
    _check_members(archive, os.fstat(file.fileno()).st_size)
  file.seek(0)
  with np.load(file, allow_pickle=False) as arrays:
    return {name: arrays[name] for name in arrays.files}


@contextlib.contextmanager
def _explain_damage(path: str | os.PathLike) -> Iterator[None]:
  """Says of an .npz that could not be read which it was, and what to do."""
  try:
    yield
  except (
    ValueError,
    EOFError,
    OSError,
    AttributeError,
    zipfile.BadZipFile,
  ) as error:
    raise ValueError(
      f'{path} is not a readable .npz file ({error}); restore it, or train '
      'again in a new workdir.'
    ) from error


def _check_members(archive: zipfile.ZipFile, size: int) -> None:
  memory = machine_memory()
  total = 0
  for member in archive.infolist():
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
      _check_header(member, raw)


def _check_header(member: zipfile.ZipInfo, raw) -> None:
  """Raises a ValueError unless an array is as large as its header announces."""
  if raw.read(len(np.lib.format.MAGIC_PREFIX)) != np.lib.format.MAGIC_PREFIX:
    return  # Bytes, of which np.load makes no array.
  raw.seek(0)
  version = np.lib.format.read_magic(raw)
  if version == (1, 0):
    shape, _, dtype = np.lib.format.read_array_header_1_0(raw)
  else:
    shape, _, dtype = np.lib.format.read_array_header_2_0(raw)
  announced = math.prod(shape) * dtype.itemsize
  size = member.file_size - raw.tell()
  # Pickled objects have any size; they are refused as such.
  if announced != size and not dtype.hasobject:
    raise ValueError(
      f'{member.filename!r} announces an array of {announced} bytes, but has '
      f'{size}'
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
