"""Checkpoints of a run: an .npz each, which is written in the background.

A checkpoint holds whole arrays, however these are sharded over devices, and only the
first process reads and writes it. So a run resumes with any other number of devices
and processes.
"""

from concurrent import futures
import pathlib
from typing import Any

from absl import logging
import jax
import numpy as np

from epe_jax import io
from epe_jax.parallel import hosts
from epe_jax.types import PyTree

_KEPT = 2
_RUN = 'run'


class Checkpoints:
  """The checkpoints in a folder, of which the two newest are kept.

  Every process calls these functions. What goes wrong while a checkpoint is written
  is raised by the next call.
  """

  def __init__(self, folder: pathlib.Path, *, of: str):
    """Opens a folder.

    Args:
      folder: it need not exist.
      of: a text that no other run has, such as a digest of all that decides this
        one; of the first process alone.
    """
    self._folder, self._of, self._saved = folder, of, 0
    self._pool = futures.ThreadPoolExecutor(1, 'checkpoint')
    self._writing: futures.Future[int] | None = None

  def save(self, rounds: int, state: PyTree) -> None:
    """Saves arrays of JAX or NumPy; they may change when this returns."""
    # A copy, because the next round overwrites the buffers of this one.
    host = hosts.copy_to_host(state)
    # Before the one that is older than it is removed.
    self.find_saved(waits=True)
    if hosts.is_primary():
      self._writing = self._pool.submit(self._write, rounds, host)
    else:
      self._saved = rounds

  def find_saved(self, *, waits: bool = False) -> int:
    """Finds the newest round whose checkpoint is on the disk; 0 if there is none."""
    if self._writing is not None and (waits or self._writing.done()):
      writing, self._writing = self._writing, None
      self._saved = writing.result()
    return self._saved

  def restore(self, like: PyTree) -> tuple[int, PyTree] | None:
    """Reads the newest checkpoint that is not damaged; later ones are removed.

    Args:
      like: arrays of the same shapes, as whose the arrays are laid out.

    Returns:
      Rounds and state; None if there are no checkpoints.

    Raises:
      ValueError: there are checkpoints and none is good, or it is of another run.
    """
    self.find_saved(waits=True)
    read = self._read_newest(like) if hosts.is_primary() else None
    rounds = int(hosts.broadcast_from_primary(read[0] if read else -1))
    if rounds < 0:
      return None
    self._saved = rounds
    empty = lambda: jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), like)
    state = hosts.broadcast_from_primary(read[1] if read else empty())
    return rounds, hosts.shard_like(state, like)

  def close(self) -> None:
    """Waits until all is written."""
    self._pool.shutdown()
    self.find_saved(waits=True)

  def _list_paths(self) -> list[pathlib.Path]:
    """The newest one first."""
    key = lambda path: int(path.stem)
    return sorted(self._folder.glob('[0-9]*.npz'), key=key, reverse=True)

  def _write(self, rounds: int, host: PyTree) -> int:
    self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    leaves = jax.tree_util.tree_leaves_with_path(host)
    arrays = {jax.tree_util.keystr(at): np.asarray(x) for at, x in leaves}
    io.write_arrays(
      self._folder / f'{rounds}.npz',
      {**arrays, _RUN: self._of},
      private=True,
      # The digits of weights cannot be.
      compressed=False,
    )
    for path in self._list_paths()[_KEPT:]:
      path.unlink()
    return rounds

  def _read_newest(self, like: PyTree) -> tuple[int, PyTree] | None:
    paths = self._list_paths()
    for path in paths:
      try:
        run, state = _read(path, like)
      except (KeyError, ValueError) as error:
        logging.warning('%s is damaged, trying an older one: %s', path, error)
        continue
      if run != self._of:
        raise ValueError(
          f'{path} is a checkpoint of another run, whose secret, data or config '
          'differ. Remove the folder to train from the start, or put back the one '
          'of this run.'
        )
      for newer in paths[: paths.index(path)]:
        newer.unlink()
      return int(path.stem), state
    if paths:
      raise ValueError(
        f'none of the checkpoints in {self._folder} is good; they are damaged or of '
        'another version. Remove the folder to train from the start.'
      )
    return None


def _read(path: pathlib.Path, like: PyTree) -> tuple[str, PyTree]:
  """Reads the name of a run, and a state of given shapes."""
  arrays = io.read_arrays(path)

  def find(at: tuple[Any, ...], x: Any) -> np.ndarray:
    found = arrays[jax.tree_util.keystr(at)]
    if found.dtype.kind == 'V':
      # NumPy reads a dtype of JAX's own, such as bfloat16, as bytes.
      found = found.view(x.dtype)
    if (found.shape, found.dtype) != (x.shape, x.dtype):
      raise ValueError(f'{jax.tree_util.keystr(at)} has another shape or dtype')
    return found

  return str(arrays[_RUN]), jax.tree_util.tree_map_with_path(find, like)
