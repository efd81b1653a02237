"""The fields of a config: one table of the values that each may have.

Types and ranges of single fields are checked here, before any work is done; a
config in Python may hold anything at all. A value that contradicts another
field, the data or the model is refused by `contradictions`, or where it is
used.
"""

from collections.abc import Callable, Iterable, Mapping
import difflib
import math
import numbers
import os
from typing import Any, NamedTuple

from ml_collections import config_dict
import numpy as np

from epe_jax import canaries, functions, io
from epe_jax.audit import record
from epe_jax.experiment import participation, workdirs
from epe_jax.training import local_training

Config = workdirs.Config

# Larger numbers than these are no setting of anything, or no float32.
_MAX_INTEGER = 10**9
_MAX_REAL = 1e38
_BELOW_1 = math.nextafter(1.0, 0.0)


class Field(NamedTuple):
  """The values that a field may have.

  Attributes:
    description: these values in words, which follow "give" in an error.
    is_valid: says whether a value is one of them.
    convert: converts such a value to a type of Python that JSON has.
  """

  description: str
  is_valid: Callable[[Any], bool]
  convert: Callable[[Any], Any]


def _integer(low: int, high: int | None = _MAX_INTEGER) -> Field:
  description = f'an integer from {low:,}'
  return Field(
    description + (f' to {high:,}' if high is not None else ' on'),
    lambda x: (
      _is_number(x, numbers.Integral)
      and low <= x
      and (high is None or x <= high)
    ),
    int,
  )


def _real(description: str, low: float, high: float, *, is_open: bool) -> Field:
  """A number in the open interval (low, high), or in the closed one."""
  return Field(
    description,
    lambda x: (
      _is_number(x, numbers.Real)
      and (low < x < high if is_open else low <= x <= high)
    ),
    float,
  )


def _is_number(x: Any, kind: type) -> bool:
  return isinstance(x, kind) and not isinstance(x, bool)


def _one_of(*names: str) -> Field:
  return Field(
    f'one of {", ".join(map(repr, names))}',
    lambda x: isinstance(x, str) and x in names,
    str,
  )


def _or_none(field: Field, none: str) -> Field:
  return Field(
    f'{field.description}, or None for {none}',
    lambda x: x is None or field.is_valid(x),
    lambda x: x if x is None else field.convert(x),
  )


def _or_as_clients(field: Field) -> Field:
  return Field(
    f"{field.description}, or 'as_clients' for as many as clients take part in",
    lambda x: x == 'as_clients' or field.is_valid(x),
    lambda x: x if x == 'as_clients' else field.convert(x),
  )


_FLAG = Field('True or False', lambda x: isinstance(x, bool | np.bool_), bool)
_PATH = Field(
  'a path that is not empty',
  lambda x: (
    isinstance(x, str | os.PathLike)
    and bool(os.fspath(x))
    and '\0' not in os.fspath(x)
  ),
  os.fspath,
)
_POSITIVE = _real('a finite number > 0', 0, _MAX_REAL, is_open=True)
_NOT_NEGATIVE = _real('a finite number >= 0', 0, _MAX_REAL, is_open=False)
_SHARE = _real('a number in (0, 1)', 0, 1, is_open=True)

# What JSON and a table of a sweep hold as it is.
_ANYTHING = Field(
  'a number, a text, True, False or None',
  lambda x: (
    x is None
    or isinstance(x, str | bool | np.bool_)
    or (_is_number(x, numbers.Real) and math.isfinite(x))
  ),
  lambda x: x.item() if isinstance(x, np.generic) else x,
)
# Groups of fields that a task of a user's own may have.
_OWN_GROUPS = ('data.', 'model.')

_COMMON_FIELDS = {
  'rounds': _integer(1, 10**7),
  'clients_per_round': _integer(1),
  'participation.kind': _one_of(*participation.CLIENTS),
  'participation.separation': _integer(1),
  'participation.max_rounds': _or_none(_integer(1), 'no limit'),
  'participation.log': _or_none(_PATH, 'no log'),
  'chunk': _or_none(_integer(1), 'what fits'),
  'rounds_per_dispatch': _integer(1),
  'precision': _one_of(*local_training.PRECISIONS),
  'client.learning_rate': _NOT_NEGATIVE,
  'client.batch_size': _integer(1),
  'client.epochs': _integer(1),
  'client.max_examples': _or_none(_integer(1), 'all'),
  'server.optimizer': _one_of('sgd', 'adam'),
  'server.learning_rate': _POSITIVE,
  'server.momentum': _real('a number in [0, 1)', 0, _BELOW_1, is_open=False),
  'clipping.kind': _one_of('fixed', 'adaptive'),
  'clipping.initial': _POSITIVE,
  'clipping.quantile': _SHARE,
  'clipping.learning_rate': _POSITIVE,
  'clipping.count_noise': _NOT_NEGATIVE,
  'noise_multiplier': Field(
    f'a number, {record.NOISE}',
    lambda x: _NOT_NEGATIVE.is_valid(x) and record.is_noise_multiplier(x),
    float,
  ),
  'divisor': _one_of('expected', 'actual'),
  'canaries.family': _one_of(*canaries.FAMILIES),
  'canaries.observed': _integer(0),
  'canaries.unobserved': _integer(0),
  'canaries.schedule': _one_of(*participation.CANARIES),
  'canaries.repetitions': _or_as_clients(_integer(1)),
  'canaries.matrix': _or_none(_PATH, 'no file'),
  'canaries.block': _integer(1),
  'audit.sees': _one_of('aggregate', 'delta'),
  'audit.trace': _FLAG,
  'audit.buffer': _or_none(_integer(1), 'as many as memory holds'),
  'audit.memory': _real(
    'a finite number of bytes > 0', 0, _MAX_REAL, is_open=True
  ),
  'audit.delta': _or_none(_SHARE, '(number of clients)^-1.1'),
  'audit.claim': _or_none(
    _real('a finite number > 0', 0, _MAX_REAL, is_open=True), 'no claim'
  ),
  'evaluate_every': _integer(1),
  'evaluate_examples': _or_none(_integer(1), 'all'),
  'checkpoint_every': _integer(1),
  'tensorboard': _FLAG,
  'seed': _integer(0, None),
  'simulation': _FLAG,
}

_FILE_FIELDS = {
  'data.path': _or_none(_PATH, 'data.synthetic=True'),
  'data.cache': _or_none(_PATH, "a folder in the user's cache"),
  'data.synthetic': _FLAG,
}

_TASK_FIELDS = {
  'digits': {
    'data.num_clients': _integer(1),
    'data.concentration': _real(
      'a number in [0.001, 1e6]', 1e-3, 1e6, is_open=False
    ),
    'model.width': _integer(1, 4096),
  },
  'emnist': {
    **_FILE_FIELDS,
    'data.only_digits': _FLAG,
    'data.num_clients': _or_none(_integer(1), 'as many as EMNIST has'),
    'data.num_examples': _or_none(_integer(1), 'as many as EMNIST has'),
    'model.width': _integer(1, 4096),
  },
  'stackoverflow': {
    **_FILE_FIELDS,
    'data.word_count': _or_none(_PATH, "the words of the split 'train'"),
    'data.vocabulary_size': _or_none(
      _integer(1, 32_000), 'that of a prepared folder'
    ),
    'data.max_words': _integer(1, 10_000),
    'data.test_split': _one_of('heldout', 'test'),
    'data.num_clients': _or_none(_integer(1), 'as many as StackOverflow has'),
    'data.max_sentences': _integer(1),
    'model.embedding_size': _integer(1, 65_536),
    'model.hidden_size': _integer(1, 65_536),
  },
}


def list_fields(task: object, names: Iterable[str] = ()) -> dict[str, Field]:
  """Lists all fields of the configs of a task, by their dotted names.

  Args:
    task: the value of config.task.
    names: of the fields of a config. Those of the groups data and model of a task
      of a user's own are what its function takes.

  Raises:
    ValueError: there is no such task.
  """
  named = _one_of(*_TASK_FIELDS)
  tasks = named._replace(
    description=f'{named.description}, or package.module:function of your own',
    is_valid=lambda x: named.is_valid(x) or _is_own(x),
  )
  _check_value('task', task, tasks)
  own = {name: _ANYTHING for name in names if name.startswith(_OWN_GROUPS)}
  return {
    'task': tasks,
    **_COMMON_FIELDS,
    **(own if _is_own(task) else _TASK_FIELDS[str(task)]),
  }


def _is_own(task: object) -> bool:
  return isinstance(task, str) and functions.is_function(task)


def check_config(config: Config) -> Config:
  """Checks every field of a config, and gives a copy in types of Python.

  Numbers of NumPy become those of Python, and an integer is a real number too.
  No other type is taken for another.

  Args:
    config: every field of its task, as the files in configs/ give them.

  Raises:
    ValueError: a field is missing, unknown or has a value that it may not have.
      The message names the field, its value and the cure.
  """
  values = io.flatten(config.to_dict())
  fields = list_fields(values.get('task'), values)
  for name, value in values.items():
    if name not in fields:
      raise ValueError(
        f'{name}={value!r} is no field of the task {values["task"]!r}. '
        f'{_suggest_name(name, fields, values)}'
      )
  nested: dict[str, Any] = {'data': {}, 'model': {}}
  for name, field in fields.items():
    if name not in values:
      raise ValueError(
        f'{name} is missing from the config; give {field.description}.'
      )
    _check_value(name, values[name], field)
    *groups, last = name.split('.')
    group = nested
    for part in groups:
      group = group.setdefault(part, {})
    group[last] = field.convert(values[name])
  return config_dict.ConfigDict(nested)


def _suggest_name(
  name: str, fields: Mapping[str, Field], values: Mapping[str, Any]
) -> str:
  """Says which field may be meant by a name that is none."""
  # A renamed or misspelled field has mostly left its own name without a value.
  similar = difflib.get_close_matches(name, fields.keys() - values.keys(), n=1)
  if not similar:
    group, dot, last = name.rpartition('.')
    siblings = [
      x.removeprefix(group + dot) for x in fields if x.startswith(group)
    ]
    similar = difflib.get_close_matches(last, siblings, n=1)
    similar = [f'{group}{dot}{x}' for x in similar]
  if similar:
    return f'Is {similar[0]} meant?'
  return 'Leave it out.'


def _check_value(name: str, value: Any, field: Field) -> None:
  if not field.is_valid(value):
    text = repr(value)
    text = text if len(text) < 80 else f'{text[:80]}...'
    raise ValueError(f'{name}={text}; give {field.description}.')
