"""Files that are written atomically, folders, and errors of the disk explained.

The system says what it refused, but not always where, and never what to do.
"""

from collections.abc import Callable, Iterator
import contextlib
import errno
import glob
import hashlib
import os
import pathlib
import re
import secrets
import stat
import sys
import tempfile
from typing import Any, BinaryIO

DRAFT = re.compile(r'\..+\.[0-9a-f]{8}')
"""The name of a file that is being written, as `name_draft` makes it."""

_CURE_OF_SPACE = 'Make room there, or give a folder on another disk'
_CURE_OF_PERMISSIONS = 'Change its permissions, or give another path'
_CURES = {
  errno.ENOSPC: f'the disk is full. {_CURE_OF_SPACE}',
  errno.EDQUOT: f'your quota of the disk is used up. {_CURE_OF_SPACE}',
  errno.EROFS: 'the disk is read-only. Give a folder on another one',
  errno.EACCES: f'permission denied. {_CURE_OF_PERMISSIONS}',
  errno.EPERM: f'permission denied. {_CURE_OF_PERMISSIONS}',
}
# Bytes of a line that `read_last_lines` makes room for.
_LONGEST_LINE = 4096


def write_atomically(
  path: str | os.PathLike,
  fill: Callable[[BinaryIO], Any],
  *,
  private: bool = False,
) -> None:
  """Writes a file under another name, then renames it to `path`.

  When this function returns, the file survives a loss of power. If it fails, the old
  file is unchanged. Links are followed, and what exists and is not a regular file, such
  as /dev/null, a pipe or /dev/stdout wherever that leads, is written into as it is.

  Args:
    path: the file.
    fill: writes the content into an open binary file.
    private: whether only its owner can ever read the file.

  Raises:
    FileNotFoundError: its folder does not exist, or is not a folder.
  """
  with _open_special(path) as file:
    if file is not None:
      fill(file)
      return
  path = pathlib.Path(os.path.realpath(path))
  _remove_drafts(path)
  draft, file = _open_draft(path, private=private)
  try:
    with file:
      fill(file)
      file.flush()
      os.fsync(file.fileno())
      if os.name == 'nt':
        # Windows renames no open file; elsewhere it is locked until it has its name.
        file.close()
      os.replace(draft, path)
    sync_folder(path.parent)
  finally:
    draft.unlink(missing_ok=True)


def _open_special(
  path: str | os.PathLike,
) -> contextlib.AbstractContextManager[BinaryIO | None]:
  """Opens what cannot be replaced by a file; gives None for all other paths."""
  try:
    status = os.stat(path)
  except FileNotFoundError:
    return contextlib.nullcontext()
  for stream in (sys.stdout, sys.stderr):
    try:
      number = stream.fileno()
      is_stream = os.path.samestat(status, os.fstat(number))
    except (OSError, ValueError, AttributeError):
      # A notebook's has no descriptor.
      continue
    if is_stream:
      # By its own descriptor, or what is printed next would overwrite this.
      stream.flush()
      return open(os.dup(number), 'wb')
  if stat.S_ISREG(status.st_mode):
    return contextlib.nullcontext()
  return open(path, 'wb')


def _open_draft(
  path: pathlib.Path, *, private: bool
) -> tuple[pathlib.Path, BinaryIO]:
  """Makes a draft, which its process has locked until it ends, however it ends."""
  while True:
    draft = name_draft(path)
    try:
      opener = open_private if private else None
      file = open(draft, 'xb', opener=opener)  # noqa: SIM115
    except FileNotFoundError as error:
      # The error names the draft, which the caller does not know.
      raise FileNotFoundError(
        f'{path} cannot be written: {path.parent} is not a folder; '
        'give another path.'
      ) from error
    # On a disk without locks drafts of dead processes stay.
    with contextlib.suppress(OSError):
      _lock(file, waits=True)
    # Before it was locked, another process may have taken it for such a one.
    if draft.exists():
      return draft, file
    file.close()


def name_draft(path: pathlib.Path) -> pathlib.Path:
  """Gives a new name in the same folder to write a file under, before it is whole."""
  return path.with_name(f'.{path.name}.{secrets.token_hex(4)}')


def _remove_drafts(path: pathlib.Path) -> None:
  """Removes drafts of a file whose processes were killed while they wrote it."""
  for draft in path.parent.glob(f'.{glob.escape(path.name)}.*'):
    if not DRAFT.fullmatch(draft.name):
      continue
    # One that another process writes is locked, and another may remove it first.
    with contextlib.suppress(OSError), open(draft, 'r+b') as file:
      if _lock(file, waits=False):
        draft.unlink()


def _lock(file: BinaryIO, *, waits: bool) -> bool:
  """Locks a file until it is closed; says whether the system has such locks.

  Raises:
    OSError: another process has the lock, or the disk has no locks.
  """
  try:
    import fcntl
  except ModuleNotFoundError:
    return False
  fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
  return True


def write_text(
  path: str | os.PathLike, text: str, *, private: bool = False
) -> None:
  """Writes text in UTF-8 with `write_atomically`."""
  write_atomically(path, lambda f: f.write(text.encode()), private=private)


def read_last_lines(path: str | os.PathLike, count: int) -> list[str]:
  """Reads the last lines of a file of any length, which may still grow.

  Args:
    path: the file, which may be missing.
    count: number of lines, >= 1.

  Returns:
    So many lines or fewer, without their ends; lines that are empty are left out.
    Of one that is longer than 4 KiB the beginning may be missing.
  """
  try:
    with open(path, 'rb') as file:
      length = file.seek(0, os.SEEK_END)
      file.seek(max(length - count * _LONGEST_LINE, 0))
      text = file.read().decode(errors='replace')
  except FileNotFoundError:
    return []
  return [line for line in text.splitlines() if line.strip()][-count:]


def open_private(path: str, flags: int) -> int:
  """An opener for `open`: a new file can be read only by its owner."""
  return os.open(path, flags, 0o600)


def hash_file(path: str | os.PathLike) -> str:
  """The SHA-256 of a file, in hexadecimal digits."""
  with open(path, 'rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


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


def sync_folder(folder: pathlib.Path) -> None:
  """Writes the entries of a folder to the disk, as fsync does for a file."""
  if os.name == 'nt':
    return  # Windows opens no folders.
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
