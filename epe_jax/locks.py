"""A file that one process at a time has, and gives up however it ends."""

from collections.abc import Iterator
import contextlib
import fcntl
import os
import pathlib
from typing import BinaryIO


class Busy(Exception):
  """Another process has the lock; says what that wrote into its file."""


@contextlib.contextmanager
def hold(path: pathlib.Path, *, wait: bool) -> Iterator[BinaryIO]:
  """Has a lock file, and removes it at the end.

  Args:
    path: of the lock file. Its folder must outlive the lock: who removed it
      while others wait would have them lock a file that is gone.
    wait: for another process that has it, however long that takes.

  Yields:
    The file, empty, to write into who has it.

  Raises:
    Busy: another process has it, and wait is False.
  """
  how = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
  while True:
    with open(path, 'ab') as file:
      try:
        fcntl.flock(file, how)
      except BlockingIOError:
        raise Busy(_said(path) or 'another process') from None
      # Who had it has removed it, and another may have made a new one.
      if _same(path, file):
        file.truncate(0)
        try:
          yield file
        finally:
          path.unlink()
        return


def _said(path: pathlib.Path) -> str:
  try:
    return path.read_text(encoding='utf-8', errors='replace')
  except FileNotFoundError:
    return ''


def _same(path: pathlib.Path, file: BinaryIO) -> bool:
  try:
    return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
  except FileNotFoundError:
    return False
