"""The final model of a run as a file: arrays by name, without pickle."""

import os
from typing import Any

import jax
import numpy as np

from epe_jax import io
from epe_jax.experiment import workdirs
from epe_jax.types import Params


def write_params(path: str | os.PathLike, params: Params) -> None:
  """Writes each array under its path in the tree, as 'params/Dense_0/kernel'."""
  leaves = jax.tree_util.tree_leaves_with_path(params)
  arrays: Any = {_name(at): np.asarray(x) for at, x in leaves}
  # Plainly, as the digits of weights cannot be compressed.
  io.write_atomically(path, lambda f: np.savez(f, **arrays))


def load_params(workdir: str | os.PathLike, like: Params) -> Params:
  """The final model of a finished run, in NumPy.

  Args:
    workdir: of the run.
    like: parameters of the same model, as `task.init` or
      `jax.eval_shape(task.init, key)` gives them; their values are not read.

  Raises:
    FileNotFoundError: the run has not finished.
    ValueError: the file is damaged, or of a model of other names or shapes.
  """
  path = workdirs.workdir_at(workdir).model
  arrays = io.read_arrays(path)
  wanted = {
    _name(at): x.shape for at, x in jax.tree_util.tree_leaves_with_path(like)
  }
  found = {name: x.shape for name, x in arrays.items()}
  if found != wanted:
    differ = sorted(dict(found.items() ^ wanted.items()))
    raise ValueError(
      f'{path} has another model: {", ".join(differ)} differ in name or shape. '
      'Give parameters of the model that the run trained.'
    )
  return jax.tree_util.tree_map_with_path(lambda at, _: arrays[_name(at)], like)


def _name(path: tuple[object, ...]) -> str:
  return jax.tree_util.keystr(path, simple=True, separator='/')
