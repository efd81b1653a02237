"""Python subprocesses with the module search path of this process.

The working directory may be a folder of data from others, so its files must not shadow
packages. By default, Python puts it first for -m and -c.
"""

from collections.abc import Iterator
import contextlib
import os
import sys

_SAFE = 'PYTHONSAFEPATH'


def make_command(*arguments: str) -> list[str]:
  """Makes a command that runs this Python; use it with `make_environment`."""
  return [sys.executable, '-P', *arguments]


def make_environment(**variables: str) -> dict[str, str]:
  """Makes the environment of a subprocess that finds the modules of this one.

  Args:
    **variables: to set in addition to those of this process.
  """
  return {
    **os.environ,
    'PYTHONPATH': os.pathsep.join(sys.path),
    **variables,
  }


@contextlib.contextmanager
def start_safely() -> Iterator[None]:
  """Starts processes of multiprocessing without the working directory on their path.

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
  """Appends a folder to the module search path.

  Args:
    folder: an absolute path.
  """
  if os.fspath(folder) not in sys.path:
    sys.path.append(os.fspath(folder))
