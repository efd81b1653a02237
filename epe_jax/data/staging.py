"""Staging directories: filled by one process, and moved into place when complete.

The staging directory of a store is a hidden one beside it, and so is its lock. A
process that ends, however it ends, gives up the lock and leaves what it saved, which
its owner alone may read.
"""

from collections.abc import Iterator
import contextlib
import pathlib
import shutil

from epe_jax import locks


def discard(path: pathlib.Path) -> None:
  """Removes the staging directory of a store, if there is one.

  Two processes may do so at once.

  Args:
    path: of the store.
  """
  shutil.rmtree(_name_folder(path), ignore_errors=True)


@contextlib.contextmanager
def open_exclusively(
  path: pathlib.Path, *, progress: str
) -> Iterator[pathlib.Path]:
  """Opens the staging directory of a store, once no other process has it.

  The directory is removed at the end. If something else than the end stops the
  process, the directory is left to be continued, unless nothing was saved.

  Args:
    path: of the store. Its parent exists.
    progress: name of the file in the directory that says how far the store is;
      without that file nothing was saved.

  Yields:
    The directory.
  """
  folder = _name_folder(path)
  # The lock lies beside the directory, not in it: a directory cannot be removed
  # at one blow, and who waits for a lock in it could make it anew meanwhile.
  with locks.hold(path.with_name(f'.{path.name}.lock'), wait=True):
    folder.mkdir(mode=0o700, exist_ok=True)
    try:
      yield folder
      (folder / progress).unlink(missing_ok=True)
    finally:
      if not (folder / progress).exists():
        discard(path)


def _name_folder(path: pathlib.Path) -> pathlib.Path:
  return path.with_name(f'.{path.name}.staging')
