"""The workload of a config: its task and data, checked before any work."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from epe_jax import python_path
from epe_jax.data import data_sets, federated, workload
from epe_jax.data.workload import Workload
from epe_jax.experiment.setup.config import Config
from epe_jax.types import Task, Weighted

LABELS = ('label', 'y')
"""Columns whose majority class is the baseline of a task that names none."""

# Examples of the batch whose shapes are tried.
_BATCH = 2


def load_workload(config: Config) -> Workload:
  """Loads the workload of config.task: a data set's, or that of a user's own function.

  A task of a user's own is 'package.module:function', a function config ->
  `Workload`. It is called in every process of a run, and gives the same each time.

  Raises:
    ValueError: a field is out of range or contradicts another.
    FileNotFoundError: the data file is missing.
  """
  name = config.task
  if python_path.is_function(name):
    loaded = python_path.import_function(name)(config)
    if not isinstance(loaded, Workload):
      raise ValueError(
        f'task={name!r} gives a {type(loaded).__name__}; give an '
        'experiment.Workload(task, train, test).'
      )
    check_task(name, loaded.task, loaded.train)
  else:
    loaded = data_sets.find_federated(name).load(config)
  test, baseline = workload.sample_test(config, loaded.test), loaded.baseline
  if baseline is None:
    known = loaded.train if config.simulation else test
    baseline = find_baseline(name, known, test)
  return Workload(
    loaded.task, loaded.train, test, loaded.source or name, baseline
  )


def check_task(name: str, task: Task, train: federated.FederatedData) -> None:
  """Checks that the functions of a task fit each other and its data.

  They are traced with the shapes of a batch, and nothing is computed.

  Raises:
    ValueError: parameters are not float32; a function fails; a loss is not one number
      for each example; or a metric is missing.
  """
  key = jax.eval_shape(lambda: jax.random.key(0))
  params = _trace(name, 'init', task.init, key)
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    if leaf.dtype != jnp.float32:
      raise ValueError(
        f'task={name!r}: init gives {jax.tree_util.keystr(path)} of dtype '
        f'{leaf.dtype}; give float32.'
      )
  batch = {
    column: jax.ShapeDtypeStruct(
      (_BATCH, *x.shape[1:]), _device_dtype(name, column, x)
    )
    for column, x in train.columns.items()
  }
  loss = _trace(name, 'loss', task.loss, params, batch, key)
  metrics = _trace(name, 'metrics', task.metrics, params, batch)
  if missing := {'loss', 'accuracy'} - metrics.keys():
    raise ValueError(
      f'task={name!r}: metrics gives {sorted(metrics)}, without {sorted(missing)}; '
      'give a value of each for each example.'
    )
  for what, values in [('loss', loss), *metrics.items()]:
    shape = (values.total if isinstance(values, Weighted) else values).shape
    if shape != (_BATCH,):
      raise ValueError(
        f'task={name!r}: {what} has shape {shape} for {_BATCH} examples; give one '
        'value for each of them, and no mean.'
      )


def find_baseline(
  name: str, train: federated.FederatedData, test: federated.FederatedData
) -> float:
  """The accuracy on `test` of always answering the most frequent class of `train`.

  Raises:
    ValueError: there is no column of labels, `LABELS`.
  """
  for label in LABELS:
    column = train.columns.get(label)
    if column is not None and column.ndim == 1 and column.dtype.kind in 'iu':
      classes, counts = np.unique(column, return_counts=True)
      return float(np.mean(test.columns[label] == classes[counts.argmax()]))
  raise ValueError(
    f'task={name!r} gives no baseline, and its data have no integers {LABELS} to '
    'take the majority class of; give Workload(..., baseline=...), the accuracy of '
    'a constant answer.'
  )


def _trace(name: str, what: str, function: Any, *args: Any) -> Any:
  try:
    return jax.eval_shape(function, *args)
  except Exception as error:
    raise ValueError(
      f'task={name!r}: {what} fails for the shapes of its data: '
      f'{type(error).__name__}: {error}'
    ) from error


def _device_dtype(name: str, column: str, values: np.ndarray) -> Any:
  if values.dtype.kind not in 'biuf':
    raise ValueError(
      f'task={name!r}: column {column!r} has dtype {values.dtype}, which no device '
      'holds; give numbers.'
    )
  return jax.dtypes.canonicalize_dtype(values.dtype)
