"""Processes of Python that look for modules where this one does, in the same order.

The working directory may be a folder of data that others wrote. So no file of it
comes before a package: Python puts it first for -m and -c, unless it is told not to.
"""

from collections.abc import Iterator
import contextlib
import os
import sys

_SAFE = 'PYTHONSAFEPATH'


def make_command(*arguments: str) -> list[str]:
  """The command that runs this Python, with `make_environment`."""
  return [sys.executable, '-P', *arguments]


def make_environment(**variables: str) -> dict[str, str]:
  """The environment of a process that finds the modules that this one finds.

  Args:
    **variables: to set, beside those of this process.
  """
  return {
    **os.environ,
    'PYTHONPATH': os.pathsep.join(sys.path),
    **variables,
  }


@contextlib.contextmanager
def start_safely() -> Iterator[None]:
  """Has processes that multiprocessing starts within not search here first.

  Their path is that of this process once they run, but not while they start.
  """
  before = os.environ.get(_SAFE)
  os.environ[_SAFE] = '1'
  try:
    yield
  finally:
    if before is None:
      del os.environ[_SAFE]
    else:
      os.environ[_SAFE] = before


def search_last(folder: str | os.PathLike) -> None:
  """Has modules of a folder found, behind all others.

  Args:
    folder: an absolute path.
  """
  if os.fspath(folder) not in sys.path:
    sys.path.append(os.fspath(folder))
