"""File locks, released at process exit, and files that are made once."""

from collections.abc import Callable, Iterator
import contextlib
import os
import pathlib
import socket
from typing import BinaryIO, TypeVar

from epe_jax import io

T = TypeVar('T')


class LockHeld(Exception):
  """Another process holds the lock; the message names it."""


@contextlib.contextmanager
def hold(path: pathlib.Path, *, max_wait: float) -> Iterator[None]:
  """Holds a lock file, which has the name of its holder, and removes it.

  Args:
    path: the lock file, in a folder that outlives it.
    max_wait: seconds to wait for another process that holds it; 0 for none.

  Raises:
    LockHeld: another process holds it, and still does after that time.
  """
  # Here and not above, because estimates need no lock.
  import filelock

  with contextlib.ExitStack() as stack:
    try:
      stack.enter_context(filelock.FileLock(path, timeout=max_wait))
    except filelock.Timeout as error:
      raise LockHeld(_read_holder(path)) from error
    # Windows neither writes nor removes a locked file, and a disk may be full.
    with contextlib.suppress(OSError):
      path.write_text(f'process {os.getpid()} on {socket.gethostname()}')
    try:
      yield
    finally:
      with contextlib.suppress(PermissionError):
        path.unlink()


def find_holder(path: pathlib.Path) -> str | None:
  """Who holds a lock file, which need not exist; None if nobody does."""
  try:
    # Read and shared, so that it may be another user's, and two may ask at once.
    with open(path, 'rb') as file:
      return None if _can_share(file) else _read_holder(path)
  except FileNotFoundError:
    return None
  except PermissionError:
    return _read_holder(path)


def _can_share(file: BinaryIO) -> bool:
  # Here, because estimates, which import this module, need none on Windows.
  import fcntl

  try:
    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
  except BlockingIOError:
    return False
  return True


def _read_holder(path: pathlib.Path) -> str:
  with contextlib.suppress(FileNotFoundError, PermissionError):
    if name := path.read_text(encoding='utf-8', errors='replace'):
      return name
  return 'another process'


def make_once(
  path: str | os.PathLike,
  make: Callable[[pathlib.Path], object],
  read: Callable[[pathlib.Path], T],
  *,
  max_wait: float = 3600.0,
  remake_damaged: bool = True,
) -> T:
  """Reads a file, which is made first if it is missing or damaged.

  Of processes that want the same file, one makes it and the others wait. A file
  that is there is whole, whatever ends a process.

  Args:
    path: the file. Its folder is made if it is missing.
    make: writes the file to the path that it is given, in the same folder.
    read: path -> value, not None; raises a ValueError if the file is damaged.
    max_wait: seconds to wait for another process that makes the file.
    remake_damaged: whether a damaged file is made again, as in a cache; otherwise
      the error of `read` is raised.

  Raises:
    TimeoutError: another process is still making it.

  >>> import tempfile
  >>> read = pathlib.Path.read_text
  >>> with tempfile.TemporaryDirectory() as folder:
  ...   path = pathlib.Path(folder, 'answer')
  ...   for text in ('42', '43'):
  ...     print(make_once(path, lambda draft: draft.write_text(text), read))
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
    with hold(path.with_name(f'.{path.name}.lock'), max_wait=max_wait):
      # Another process may have made it while this one waited.
      if (value := read_whole()) is not None:
        return value
      io.remove_drafts(path, older_than=0)
      draft = io.name_draft(path)
      try:
        make(draft)
        draft.rename(path)
        io.sync_folder(path.parent)
      finally:
        draft.unlink(missing_ok=True)
      return read(path)
  except LockHeld as error:
    raise TimeoutError(
      f'{path} has been made by {error} for over {max_wait:.0f} s. Wait for it to '
      'end, or end it, and try again.'
    ) from error
