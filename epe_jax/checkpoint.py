"""Checkpoints of a run, by orbax: atomic, written in the background.

They hold whole arrays, however these are split over devices, and the first
process alone reads and writes them. So a run goes on with any other number of
devices and processes.
"""

from collections.abc import Callable
import pathlib
from typing import Any, NamedTuple

from absl import logging
import jax
import numpy as np
import orbax.checkpoint as ocp

from epe_jax import sharding
from epe_jax.types import PyTree


class Checkpoints(NamedTuple):
  """The checkpoints in a folder; every process calls these.

  Attributes:
    save: (rounds, state) -> None; returns when the state may change again.
    restore: state of the right shapes -> (rounds, state) of the newest
      checkpoint that can be read, laid out as the given one is, or None if
      there are no checkpoints. Raises a ValueError if there are and none can
      be read.
    close: waits for what is being written.
  """

  save: Callable[[int, PyTree], None]
  restore: Callable[[PyTree], tuple[int, PyTree] | None]
  close: Callable[[], None]


def checkpoints(folder: pathlib.Path) -> Checkpoints:
  """The two newest checkpoints, kept in `folder` by the first process."""
  manager = _manager(folder) if sharding.first() else None

  def save(rounds: int, state: PyTree) -> None:
    # A copy: the next round is given the buffers of this one to write over.
    host = sharding.on_host(state)
    if manager is not None:
      manager.save(rounds, args=ocp.args.StandardSave(host))

  def restore(like: PyTree) -> tuple[int, PyTree] | None:
    host = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), like)
    found = None if manager is None else _newest(manager, folder, host)
    rounds = int(sharding.from_first(found[0] if found else -1))
    if rounds < 0:
      return None
    state = sharding.from_first(found[1] if found else host)
    return rounds, sharding.like(state, like)

  def close() -> None:
    if manager is not None:
      manager.wait_until_finished()
      manager.close()

  return Checkpoints(save, restore, close)


def _manager(folder: pathlib.Path) -> ocp.CheckpointManager:
  # Alone, or it would wait for the other processes.
  alone = ocp.options.MultiprocessingOptions(
    primary_host=0, active_processes={0}, barrier_sync_key_prefix='first'
  )
  folder.mkdir(parents=True, exist_ok=True)
  return ocp.CheckpointManager(
    folder.absolute(),
    options=ocp.CheckpointManagerOptions(
      max_to_keep=2, create=False, multiprocessing_options=alone
    ),
  )


def _newest(
  manager: ocp.CheckpointManager, folder: pathlib.Path, host: PyTree
) -> tuple[int, PyTree] | None:
  """The newest checkpoint that can be read, in NumPy."""
  for rounds in sorted(manager.all_steps(), reverse=True):
    try:
      args: Any = ocp.args.StandardRestore(host)
      return rounds, manager.restore(rounds, args=args)
    except Exception as error:
      logging.warning(
        'Checkpoint %d cannot be read, trying an older one: %s', rounds, error
      )
  if manager.all_steps():
    raise ValueError(
      f'none of the checkpoints in {folder} can be read; they are damaged or '
      'of another version. Remove the folder to train from the start.'
    )
  return None
