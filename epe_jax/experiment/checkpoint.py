"""Checkpoints of a run, by Orbax: atomic, written in the background.

A checkpoint holds replicated arrays, however these are sharded over devices, and
only the first process reads and writes it. So a run resumes with any other
number of devices and processes. With the arrays it has their digest, which
detects a flipped bit, and the name of their run.
"""

from collections.abc import Callable, Iterator
import contextlib
import errno
import os
import pathlib
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import logging
import jax
import numpy as np

from epe_jax.data import federated
from epe_jax.parallel import hosts
from epe_jax.types import PyTree

if TYPE_CHECKING:
  import orbax.checkpoint as ocp


class Checkpoints(NamedTuple):
  """The checkpoints in a folder. Every process calls these functions.

  Attributes:
    save: (rounds, state) -> None. It returns when the state may change again.
      The leaves of a state are arrays of JAX or of NumPy.
    find_saved: the newest round whose checkpoint is on the disk, and whose arrays
      were found in it; 0 if there is none. All three raise a ValueError if they
      were not found.
    restore: state of the right shapes -> (rounds, state) of the newest
      checkpoint whose digest agrees, laid out as the given one is; None if
      there are no checkpoints. Newer ones are removed. It raises a ValueError
      if there are checkpoints and none is good, or that one is of another run.
    close: waits until all is written.
  """

  save: Callable[[int, PyTree], None]
  find_saved: Callable[[], int]
  restore: Callable[[PyTree], tuple[int, PyTree] | None]
  close: Callable[[], None]


def checkpoints(folder: pathlib.Path, *, of: str) -> Checkpoints:
  """Opens the checkpoints in a folder; the two newest are kept.

  Args:
    folder: the folder, in which the first process reads and writes.
    of: a text that no other run has, such as a digest of all that decides this
      one; of the first process alone.
  """
  # Imported late, because it takes longer than to show a finished run.
  import orbax.checkpoint as ocp

  manager = _make_manager(folder) if hosts.is_primary() else None
  # Rounds of the newest checkpoint, and of the newest that was found on the disk.
  newest = saved = 0

  def find_saved(*, waits: bool = False) -> int:
    nonlocal saved
    if manager is not None and saved != newest:
      if not waits and manager.is_saving_in_progress():
        return saved
      with _explain_full_disk(folder):
        manager.wait_until_finished()
      _check_saved(manager, folder, newest)
    saved = newest
    return saved

  def save(rounds: int, state: PyTree) -> None:
    nonlocal newest
    # A copy, because the next round overwrites the buffers of this one.
    host = hosts.copy_to_host(state)
    if manager is not None:
      args = ocp.args.Composite(
        state=ocp.args.StandardSave(host),
        digest=ocp.args.JsonSave({'sha256': _compute_digest(host), 'of': of}),
      )
      # Before the one that is older than it is removed.
      find_saved(waits=True)
      with _explain_full_disk(folder):
        manager.save(rounds, args=args)
    newest = rounds

  def restore(like: PyTree) -> tuple[int, PyTree] | None:
    nonlocal newest, saved
    host = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), like)
    read = None
    if manager is not None:
      read = _read_newest(manager, folder, host, of)
    rounds = int(hosts.broadcast_from_primary(read[0] if read else -1))
    if rounds < 0:
      return None
    newest = saved = rounds
    state = hosts.broadcast_from_primary(read[1] if read else host)
    return rounds, hosts.shard_like(state, like)

  def close() -> None:
    if manager is not None:
      find_saved(waits=True)
      manager.close()
      _make_private(folder)

  return Checkpoints(save, find_saved, restore, close)


@contextlib.contextmanager
def _explain_full_disk(folder: pathlib.Path) -> Iterator[None]:
  """Raises an OSError for an error of TensorStore that has only its text."""
  try:
    yield
  except Exception as error:
    for code in (errno.ENOSPC, errno.EDQUOT):
      if not isinstance(error, OSError) and os.strerror(code) in str(error):
        raise OSError(code, os.strerror(code), str(folder)) from error
    raise


def _make_manager(folder: pathlib.Path) -> 'ocp.CheckpointManager':
  import orbax.checkpoint as ocp

  # Alone in its process group, or it would wait for the others.
  one_process = ocp.options.MultiprocessingOptions(
    primary_host=0, active_processes={0}, barrier_sync_key_prefix='first'
  )
  folder.mkdir(mode=0o700, parents=True, exist_ok=True)
  return ocp.CheckpointManager(
    folder.absolute(),
    options=ocp.CheckpointManagerOptions(
      max_to_keep=2,
      create=False,
      multiprocessing_options=one_process,
      file_options=ocp.options.FileOptions(path_permission_mode=0o700),
      async_options=ocp.options.AsyncOptions(
        post_finalization_callback=lambda: _make_private(folder)
      ),
    ),
  )


def _make_private(folder: pathlib.Path) -> None:
  """Makes the files, whose mode Orbax does not set, readable by the owner alone.

  Until then the mode of their folder protects them.
  """
  for path in folder.rglob('*'):
    # The oldest checkpoint may be removed at the same time.
    with contextlib.suppress(FileNotFoundError):
      path.chmod(0o700 if path.is_dir() else 0o600)


def _check_saved(
  manager: 'ocp.CheckpointManager', folder: pathlib.Path, rounds: int
) -> None:
  """Checks that the arrays of a checkpoint are found, by their headers alone.

  It takes milliseconds for any number of bytes. Those have a digest, which is
  compared when they are read.
  """
  try:
    manager.item_metadata(rounds)
  except Exception as error:
    raise ValueError(
      f'checkpoint {rounds} was written to {folder} and cannot be read back: '
      f'{error}. Give a workdir on another disk.'
    ) from error


def _read_newest(
  manager: 'ocp.CheckpointManager', folder: pathlib.Path, host: PyTree, of: str
) -> tuple[int, PyTree] | None:
  """Reads the newest checkpoint whose digest agrees, into NumPy."""
  damaged = []
  for rounds in sorted(manager.all_steps(), reverse=True):
    try:
      state, run = _read(manager, rounds, host)
    except Exception as error:
      logging.warning(
        'Checkpoint %d is damaged, trying an older one: %s', rounds, error
      )
      damaged.append(rounds)
      continue
    if run != of:
      raise ValueError(
        f'checkpoint {rounds} in {folder} is of another run, whose secret, data or '
        'config differ. Remove the folder to train from the start, or put back the '
        'one of this run.'
      )
    # Otherwise these rounds could not be saved when they are repeated.
    for newer in damaged:
      manager.delete(newer)
    return rounds, state
  if damaged:
    raise ValueError(
      f'none of the checkpoints in {folder} is good; they are damaged or of '
      'another version. Remove the folder to train from the start.'
    )
  return None


def _read(
  manager: 'ocp.CheckpointManager', rounds: int, host: PyTree
) -> tuple[PyTree, str]:
  """Reads a checkpoint, and the name of its run."""
  import orbax.checkpoint as ocp

  args: Any = ocp.args.Composite(
    state=ocp.args.StandardRestore(host), digest=ocp.args.JsonRestore()
  )
  items = manager.restore(rounds, args=args)
  if items['digest']['sha256'] != _compute_digest(items['state']):
    raise ValueError('its numbers are not those that were saved')
  return items['state'], items['digest']['of']


def _compute_digest(host: PyTree) -> str:
  """Computes SHA-256 of the names, types, shapes and bytes of all arrays."""
  leaves = jax.tree_util.tree_leaves_with_path(host)
  return federated.hash_arrays(
    (jax.tree_util.keystr(path), np.asarray(leaf)) for path, leaf in leaves
  )
