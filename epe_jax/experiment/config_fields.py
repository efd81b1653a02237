"""The fields of a config: one table of the values that each may have.

Types and ranges of single fields are checked here, before any work is done; a
config in Python may hold anything at all. A value that contradicts another
field, the data or the model is refused by `config_conflicts`, or where it is
used.
"""

from collections.abc import Iterable
import math
import numbers
from typing import Any

from ml_collections import config_dict
import numpy as np

from epe_jax import canaries, io, python_path
from epe_jax.audit import record_checks
from epe_jax.data import data_sets, fields
from epe_jax.experiment import config_files, participation, servers
from epe_jax.experiment.config_files import Config
from epe_jax.training import (
  clipping,
  correlated_noise,
  local_training,
  secure_aggregation,
)
from epe_jax.training.round_scalars import (
  CLIP_NORMS,
  MAX_CLIP_NORM,
  MIN_CLIP_NORM,
)

# Larger numbers than these are no setting of anything, or no float32.
_MAX_REAL = 1e38
_BELOW_1 = math.nextafter(1.0, 0.0)


def _or_as_clients(field: fields.Field) -> fields.Field:
  return fields.Field(
    f"{field.description}, or 'as_clients' for as many as clients take part in",
    lambda x: x == 'as_clients' or field.is_valid(x),
    lambda x: x if x == 'as_clients' else field.convert(x),
  )


_POSITIVE = fields.real('a finite number > 0', 0, _MAX_REAL, is_open=True)
_NOT_NEGATIVE = fields.real('a finite number >= 0', 0, _MAX_REAL, is_open=False)
_SHARE = fields.real('a number in (0, 1)', 0, 1, is_open=True)

# What JSON and a table of a sweep hold as it is.
_ANYTHING = fields.Field(
  'a number, a text, True, False or None',
  lambda x: (
    x is None
    or isinstance(x, str | bool | np.bool_)
    or (fields.is_number(x, numbers.Real) and math.isfinite(x))
  ),
  lambda x: x.item() if isinstance(x, np.generic) else x,
)
# Groups of fields that a user's own task may have.
_OWN_GROUPS = ('data.', 'model.')

_COMMON_FIELDS = {
  'rounds': fields.integer(1, 10**7),
  'clients_per_round': fields.integer(1),
  'participation.kind': fields.one_of(*participation.CLIENTS),
  'participation.separation': fields.integer(1),
  'participation.max_rounds': fields.or_none(fields.integer(1), 'no limit'),
  'participation.log': fields.or_none(fields.PATH, 'no log'),
  'chunk': fields.or_none(fields.integer(1), 'what fits'),
  'rounds_per_dispatch': fields.integer(1),
  'precision': fields.one_of(*local_training.PRECISIONS),
  'client.learning_rate': _NOT_NEGATIVE,
  'client.batch_size': fields.integer(1),
  'client.epochs': fields.integer(1),
  'client.max_examples': fields.or_none(fields.integer(1), 'all'),
  'server.optimizer': fields.one_of(*servers.SERVERS),
  'server.learning_rate': _POSITIVE,
  'server.momentum': fields.real(
    'a number in [0, 1)', 0, _BELOW_1, is_open=False
  ),
  'clipping.kind': fields.one_of(*clipping.CLIPPINGS),
  'clipping.initial': fields.real(
    f'a number in {CLIP_NORMS}', MIN_CLIP_NORM, MAX_CLIP_NORM, is_open=False
  ),
  'clipping.quantile': _SHARE,
  'clipping.learning_rate': _POSITIVE,
  'clipping.count_noise': _NOT_NEGATIVE,
  'noise.correlation': fields.one_of(*correlated_noise.CORRELATIONS),
  'noise.bands': fields.integer(1),
  'noise.buffers': fields.integer(1),
  'noise.restart': fields.or_none(fields.integer(1), 'never'),
  'secure_aggregation.bits': fields.or_none(
    fields.integer(2, 30), 'no secure aggregation'
  ),
  'secure_aggregation.granularity': fields.or_none(
    _POSITIVE, 'as fine as the ring has room for'
  ),
  'secure_aggregation.rounding': fields.one_of(*secure_aggregation.ROUNDINGS),
  'secure_aggregation.noise': fields.one_of(*secure_aggregation.NOISES),
  'noise_multiplier': fields.Field(
    record_checks.NOISE,
    lambda x: (
      _NOT_NEGATIVE.is_valid(x) and record_checks.is_noise_multiplier(x)
    ),
    float,
  ),
  'canaries.family': fields.one_of(*canaries.FAMILIES),
  'canaries.observed': fields.integer(0),
  'canaries.unobserved': fields.integer(0),
  'canaries.schedule': fields.or_none(
    fields.one_of(*participation.CANARIES), 'what suits the noise'
  ),
  'canaries.repetitions': _or_as_clients(fields.integer(1)),
  'canaries.block': fields.integer(1),
  'audit.view': fields.one_of('aggregate', 'server_update'),
  'audit.trace': fields.FLAG,
  'audit.buffer': fields.or_none(fields.integer(1), 'as many as memory holds'),
  'audit.memory': fields.real(
    'a finite number of bytes > 0', 0, _MAX_REAL, is_open=True
  ),
  'audit.delta': fields.or_none(_SHARE, '(number of clients)^-1.1'),
  'audit.claim': fields.or_none(_NOT_NEGATIVE, 'no claim'),
  'evaluate_every': fields.integer(1),
  'evaluate_examples': fields.or_none(fields.integer(1), 'all'),
  'checkpoint_every': fields.integer(1),
  'tensorboard': fields.FLAG,
  'seed': fields.integer(0, None),
  'simulation': fields.FLAG,
}


def list_fields(
  task: object, names: Iterable[str] = ()
) -> dict[str, fields.Field]:
  """Lists all fields of the configs of a task, by their dotted names.

  Args:
    task: the value of config.task.
    names: the fields of a config. A user's own task may have any in the groups
      data and model.

  Raises:
    ValueError: there is no such task.
  """
  is_own = isinstance(task, str) and python_path.is_function(task)
  named = fields.one_of(*data_sets.list_federated())
  tasks = fields.Field(
    f'{named.description}, or package.module:function of your own',
    lambda x: is_own or named.is_valid(x),
    str,
  )
  _check_value('task', task, tasks)
  own = {name: _ANYTHING for name in names if name.startswith(_OWN_GROUPS)}
  of_task = own if is_own else data_sets.find_federated(str(task)).fields
  return {'task': tasks, **_COMMON_FIELDS, **of_task}


def check_config(config: Config) -> Config:
  """Checks every field of a config, and returns a copy in types of Python.

  Numbers of NumPy become those of Python, and an integer is a real number too.
  No other type is converted.

  Args:
    config: every field of its task, as the files in configs/ give them.

  Raises:
    ValueError: a field is missing, unknown or has a value that it may not have.
      The message names the field, its value and the cure.
  """
  values = config_files.complete_fields(io.flatten(config.to_dict()))
  known = list_fields(values.get('task'), values)
  for name, value in values.items():
    if name not in known:
      cure = config_files.suggest_field(
        name, [*known], missing=known.keys() - values.keys()
      )
      raise ValueError(
        f'{name}={value!r} is not a field of the task {values["task"]!r}; {cure}'
      )
  checked = config_dict.ConfigDict({'data': {}, 'model': {}})
  for name, field in known.items():
    if name not in values:
      raise ValueError(
        f'{name} is missing from the config; give {field.description}.'
      )
    _check_value(name, values[name], field)
    group, _, last = name.rpartition('.')
    checked.update(_nest(group, {last: field.convert(values[name])}))
  return checked


def _nest(group: str, nested: dict[str, Any]) -> dict[str, Any]:
  for part in reversed(group.split('.') if group else ()):
    nested = {part: nested}
  return nested


def _check_value(name: str, value: Any, field: fields.Field) -> None:
  if not field.is_valid(value):
    text = repr(value)
    text = text if len(text) < 80 else f'{text[:80]}...'
    raise ValueError(f'{name}={text}; give {field.description}.')
