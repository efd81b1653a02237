"""Lock files, held by one process at a time and released however it ends."""

from collections.abc import Iterator
import contextlib
import os
import pathlib
import time
from typing import BinaryIO


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
  # Imported here, because Windows lacks it and estimates need no lock.
  try:
    import fcntl
  except ModuleNotFoundError as error:
    raise OSError(
      f'{path} cannot be locked on this system, which has no fcntl. Make runs on '
      'Linux or macOS; their files are read, and scores estimated, anywhere.'
    ) from error
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
