"""Checkpoints of a run, by orbax: atomic, written in the background."""

from collections.abc import Callable
import pathlib
from typing import Any, NamedTuple

from absl import logging
import jax
import numpy as np
import orbax.checkpoint as ocp

from epe_jax.types import PyTree


class Checkpoints(NamedTuple):
  """The checkpoints in a folder.

  Attributes:
    save: (rounds, state) -> None; returns when the state may change again.
    restore: state of the right shapes -> (rounds, state) of the newest
      checkpoint that can be read, or None if there are no checkpoints.
      Raises a ValueError if there are and none can be read.
    close: waits for what is being written.
  """

  save: Callable[[int, PyTree], None]
  restore: Callable[[PyTree], tuple[int, PyTree] | None]
  close: Callable[[], None]


def checkpoints(folder: pathlib.Path) -> Checkpoints:
  """The two newest checkpoints, kept in `folder`."""
  manager = ocp.CheckpointManager(
    folder.absolute(), options=ocp.CheckpointManagerOptions(max_to_keep=2)
  )

  def save(rounds: int, state: PyTree) -> None:
    # A copy: the next round is given the buffers of this one to write over.
    host = jax.tree.map(lambda x: np.array(x, copy=True), state)
    manager.save(rounds, args=ocp.args.StandardSave(host))

  def restore(like: PyTree) -> tuple[int, PyTree] | None:
    abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
    for rounds in sorted(manager.all_steps(), reverse=True):
      try:
        args: Any = ocp.args.StandardRestore(abstract)
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

  def close() -> None:
    manager.wait_until_finished()
    manager.close()

  return Checkpoints(save, restore, close)
