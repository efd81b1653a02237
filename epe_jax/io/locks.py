"""What one process does at a time: locks that end with it, and files made once."""

from collections.abc import Callable, Iterator
import contextlib
import glob
import os
import pathlib
import time
import types
from typing import BinaryIO, TypeVar

from epe_jax.io import files

T = TypeVar('T')


class Busy(Exception):
  """Another process holds the lock. The message is what it wrote into the file."""


@contextlib.contextmanager
def hold(path: pathlib.Path, *, max_wait: float) -> Iterator[BinaryIO]:
  """Holds a lock file, and removes it at the end.

  Args:
    path: the lock file. Its folder must outlive the lock: if it were removed, others
      would wait for a deleted file.
    max_wait: seconds to wait for another process that holds it; 0 for none.

  Yields:
    The empty file, open for writing the name of its holder.

  Raises:
    Busy: another process holds it, and still does after that time.
    OSError: the system has no such locks.
  """
  fcntl = _import_fcntl(path)
  end, pause = time.monotonic() + max_wait, 0.01
  while True:
    with open(path, 'ab') as file:
      try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError:
        if time.monotonic() >= end:
          raise Busy(_read_holder(path) or 'another process') from None
        time.sleep(pause)
        pause = min(2 * pause, 1.0)
        continue
      # The last holder removed it, and another may have made a new one.
      if _is_same(path, file):
        file.truncate(0)
        try:
          yield file
        finally:
          path.unlink()
        return


def find_holder(path: pathlib.Path) -> str | None:
  """Finds out who holds a lock file.

  Who wants to hold it at this very moment may find it busy.

  Args:
    path: the lock file, which need not exist.

  Returns:
    What the holder wrote into it; None if nobody holds it.

  Raises:
    OSError: the system has no such locks.
  """
  fcntl = _import_fcntl(path)
  try:
    with open(path, 'rb') as file:
      fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
  except BlockingIOError:
    return _read_holder(path) or 'another process'
  except FileNotFoundError:
    pass
  return None


def _import_fcntl(path: pathlib.Path) -> types.ModuleType:
  # Here and not above, because Windows lacks it and estimates need no lock.
  try:
    import fcntl
  except ModuleNotFoundError as error:
    raise OSError(
      f'{path} cannot be locked on this system, which has no fcntl. Make runs on '
      'Linux or macOS; their files are read, and scores estimated, anywhere.'
    ) from error
  return fcntl


def _read_holder(path: pathlib.Path) -> str:
  try:
    return path.read_text(encoding='utf-8', errors='replace')
  except FileNotFoundError:
    return ''


def _is_same(path: pathlib.Path, file: BinaryIO) -> bool:
  try:
    return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
  except FileNotFoundError:
    return False


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
    with hold(path.with_name(f'.{path.name}.lock'), max_wait=max_wait) as lock:
      lock.write(f'process {os.getpid()}'.encode())
      lock.flush()
      # Another process may have made it while this one waited.
      if (value := read_whole()) is not None:
        return value
      for stale in path.parent.glob(f'.{glob.escape(path.name)}.*'):
        if files.DRAFT.fullmatch(stale.name) and stale.is_file():
          stale.unlink()
      draft = files.name_draft(path)
      try:
        make(draft)
        draft.rename(path)
        files.sync_folder(path.parent)
      finally:
        draft.unlink(missing_ok=True)
      return read(path)
  except Busy as error:
    raise TimeoutError(
      f'{path} has been made by {error} for over {max_wait:.0f} s. Wait for it to '
      'end, or end it, and try again.'
    ) from error
