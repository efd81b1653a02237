"""The file model.npz of the final model: arrays by name, without pickle."""

import os
from typing import Any

import jax
import numpy as np

from epe_jax import io
from epe_jax.experiment import workdirs
from epe_jax.types import Params


def write_params(path: str | os.PathLike, params: Params) -> None:
  """Writes a model.

  Args:
    path: the file.
    params: the model. Each array is written under its path in the tree, such as
      'params/Dense_0/kernel'.
  """
  leaves = jax.tree_util.tree_leaves_with_path(params)
  arrays: Any = {_format_path(at): np.asarray(x) for at, x in leaves}
  # Not compressed, as the digits of weights cannot be.
  io.write_atomically(path, lambda f: np.savez(f, **arrays))


def load_params(
  workdir: str | os.PathLike, like: Params | None = None
) -> Params:
  """Loads the final model of a finished run.

  Args:
    workdir: the workdir of the run.
    like: parameters of the same model, as `task.init` or
      `jax.eval_shape(task.init, key)` gives them. Their values are not read. None
      for a flat dict, which needs no code of the model.

  Returns:
    The parameters in NumPy, float32: in the tree of `like`, or each by its path
    in the tree, such as 'params/Dense_0/kernel'.

  Raises:
    FileNotFoundError: the run has not finished.
    ValueError: the file is damaged, or has a model of other names or shapes.
  """
  path = workdirs.workdir_at(workdir).model
  arrays = io.read_arrays(path)
  if like is None:
    return arrays
  expected_shapes = {
    _format_path(at): x.shape
    for at, x in jax.tree_util.tree_leaves_with_path(like)
  }
  shapes = {name: x.shape for name, x in arrays.items()}
  if shapes != expected_shapes:
    names = sorted(dict(shapes.items() ^ expected_shapes.items()))
    raise ValueError(
      f'{path} has another model: {", ".join(names)} differ in name or shape. '
      'Give parameters of the model that the run trained.'
    )
  return jax.tree_util.tree_map_with_path(
    lambda at, _: arrays[_format_path(at)], like
  )


def _format_path(path: tuple[object, ...]) -> str:
  return jax.tree_util.keystr(path, simple=True, separator='/')
