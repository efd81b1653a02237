"""Directories that are filled by one process and seen only when complete.

The draft of a store is a hidden directory beside it, and so is its lock. A
process that ends, however it ends, gives up the lock and leaves what it saved.
"""

from collections.abc import Iterator
import contextlib
import pathlib
import shutil
from typing import NamedTuple

from epe_jax import locks


class Draft(NamedTuple):
  """A store that this process alone is writing.

  Attributes:
    folder: where it is.
    store: what becomes the store.
    clients: a line [id, number of examples] for each client.
    progress: how far it is.
  """

  folder: pathlib.Path
  store: pathlib.Path
  clients: pathlib.Path
  progress: pathlib.Path


def discard(path: pathlib.Path) -> None:
  """Removes a draft that nobody needs: the store is there, or nothing was saved.

  Two processes may do so at once.
  """
  shutil.rmtree(_folder(path), ignore_errors=True)


@contextlib.contextmanager
def opened(path: pathlib.Path) -> Iterator[Draft]:
  """The draft of a store, once no other process has it.

  It is removed at the end. If something else than the end stops the process,
  it is left to be continued, unless nothing was saved.

  Args:
    path: of the store. Its parent exists.
  """
  folder = _folder(path)
  draft = Draft(
    folder, folder / 'store', folder / 'clients', folder / 'progress.json'
  )
  # Beside the draft, not in it: a draft cannot be removed at one blow, and who
  # waits for a lock in it could make it anew in the middle of that.
  with locks.hold(path.with_name(f'.{path.name}.lock'), wait=True):
    folder.mkdir(exist_ok=True)
    try:
      yield draft
      draft.progress.unlink(missing_ok=True)
    finally:
      if not draft.progress.exists():
        discard(path)


def _folder(path: pathlib.Path) -> pathlib.Path:
  return path.with_name(f'.{path.name}.draft')
