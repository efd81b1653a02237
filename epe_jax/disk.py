"""What to do about a disk that is full, or that may not be written.

The system says what it refused, not always where, and never what to do.
"""

from collections.abc import Iterator
import contextlib
import errno
import os

_ROOM = 'Make room there, or give a folder on another disk'
_WAY = 'Have its permissions changed, or give another path'
_CURES = {
  errno.ENOSPC: f'the disk is full. {_ROOM}',
  errno.EDQUOT: f'all that you may use of the disk is used. {_ROOM}',
  errno.EROFS: 'the disk can only be read. Give a folder on another one',
  errno.EACCES: f'you may not do that there. {_WAY}',
  errno.EPERM: f'you may not do that there. {_WAY}',
}


@contextlib.contextmanager
def explained(path: str | os.PathLike) -> Iterator[None]:
  """Turns such errors of the system into sentences, with a path and a cure.

  Args:
    path: what is written, where the system does not say it.

  Raises:
    OSError: in place of one of ENOSPC, EDQUOT, EROFS, EACCES or EPERM; all
      others pass.
  """
  try:
    yield
  except OSError as error:
    if error.errno not in _CURES:
      raise
    where = error.filename or os.fspath(path)
    raise OSError(f'{where}: {_CURES[error.errno]}.') from error
