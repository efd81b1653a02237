"""The fields of a config: one table of what each may hold.

A field is checked here by its type and range, and what contradicts another field,
the data or the model is checked where that is known. A config in Python may hold
anything at all, and what it holds comes to where it hurts only after minutes.
"""

from collections.abc import Callable
import difflib
import math
import numbers
import os
from typing import Any, NamedTuple

from ml_collections import config_dict
import numpy as np

from epe_jax import canaries, io
from epe_jax.experiment import participation
from epe_jax.training import local_training

# A ConfigDict, whose fields type checkers know nothing of.
Config = Any

# Larger numbers than these are no setting of anything, or no float32.
_MOST = 10**9
_LARGEST = 1e38
_BELOW_1 = math.nextafter(1.0, 0.0)


class Field(NamedTuple):
  """What a field may hold.

  Attributes:
    what: that, in words, after "give".
    holds: whether a value is such.
    plain: such a value, as Python has it and JSON can.
  """

  what: str
  holds: Callable[[Any], bool]
  plain: Callable[[Any], Any]


def _whole(least: int, most: int | None = _MOST) -> Field:
  what = f'an integer from {least:,}'
  return Field(
    what + (f' to {most:,}' if most is not None else ' on'),
    lambda x: (
      _is_number(x, numbers.Integral)
      and least <= x
      and (most is None or x <= most)
    ),
    int,
  )


def _real(what: str, least: float, most: float, *, within: bool) -> Field:
  """A number from least to most, or within them."""
  return Field(
    what,
    lambda x: (
      _is_number(x, numbers.Real)
      and (least < x < most if within else least <= x <= most)
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
    f'{field.what}, or None for {none}',
    lambda x: x is None or field.holds(x),
    lambda x: x if x is None else field.plain(x),
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
_POSITIVE = _real('a finite number > 0', 0, _LARGEST, within=True)
_NOT_NEGATIVE = _real('a finite number >= 0', 0, _LARGEST, within=False)
_SHARE = _real('a number in (0, 1)', 0, 1, within=True)

_COMMON = {
  'rounds': _whole(1, 10**7),
  'clients_per_round': _whole(1),
  'participation.kind': _one_of(*participation.CLIENTS),
  'participation.separation': _whole(1),
  'participation.most': _or_none(_whole(1), 'no limit'),
  'participation.log': _or_none(_PATH, 'no log'),
  'chunk': _or_none(_whole(1), 'what fits'),
  'rounds_per_dispatch': _whole(1),
  'precision': _one_of(*local_training.PRECISIONS),
  'client.learning_rate': _NOT_NEGATIVE,
  'client.batch_size': _whole(1),
  'client.epochs': _whole(1),
  'client.max_examples': _or_none(_whole(1), 'all'),
  'server.optimizer': _one_of('sgd', 'adam'),
  'server.learning_rate': _POSITIVE,
  'server.momentum': _real('a number in [0, 1)', 0, _BELOW_1, within=False),
  'clipping.kind': _one_of('fixed', 'adaptive'),
  'clipping.initial': _POSITIVE,
  'clipping.quantile': _SHARE,
  'clipping.learning_rate': _POSITIVE,
  'clipping.count_noise': _NOT_NEGATIVE,
  'noise_multiplier': _NOT_NEGATIVE,
  'divisor': _one_of('expected', 'actual'),
  'canaries.family': _one_of(*canaries.FAMILIES),
  'canaries.observed': _whole(0),
  'canaries.unobserved': _whole(0),
  'canaries.schedule': _one_of(*participation.CANARIES),
  'canaries.repetitions': _whole(1),
  'canaries.matrix': _or_none(_PATH, 'no file'),
  'canaries.block': _whole(1),
  'audit.sees': _one_of('aggregate', 'delta'),
  'audit.trace': _FLAG,
  'audit.buffer': _or_none(_whole(1), 'as many as memory holds'),
  'audit.memory': _real(
    'a finite number of bytes > 0', 0, _LARGEST, within=True
  ),
  'audit.delta': _or_none(_SHARE, '(number of clients)^-1.1'),
  'evaluate_every': _whole(1),
  'evaluate_examples': _or_none(_whole(1), 'all'),
  'checkpoint_every': _whole(1),
  'seed': _whole(0, None),
  'simulation': _FLAG,
}

_OF_FILES = {
  'data.path': _or_none(_PATH, 'data.synthetic=True'),
  'data.cache': _or_none(_PATH, "a folder in the user's cache"),
  'data.synthetic': _FLAG,
}

_OF_TASK = {
  'digits': {
    'data.num_clients': _whole(1),
    'data.concentration': _real(
      'a number in [0.001, 1e6]', 1e-3, 1e6, within=False
    ),
    'model.width': _whole(1, 4096),
  },
  'emnist': {
    **_OF_FILES,
    'data.only_digits': _FLAG,
    'data.num_clients': _or_none(_whole(1), 'as many as EMNIST has'),
    'data.num_examples': _or_none(_whole(1), 'as many as EMNIST has'),
    'model.width': _whole(1, 4096),
  },
  'stackoverflow': {
    **_OF_FILES,
    'data.word_count': _or_none(_PATH, "the words of the split 'train'"),
    'data.vocabulary_size': _whole(1, 32_000),
    'data.max_words': _whole(1, 10_000),
    'data.test_split': _one_of('heldout', 'test'),
    'data.num_clients': _or_none(_whole(1), 'as many as StackOverflow has'),
    'data.max_sentences': _whole(1),
    'model.embedding_size': _whole(1, 65_536),
    'model.hidden_size': _whole(1, 65_536),
  },
}


def fields_of_task(task: object) -> dict[str, Field]:
  """name -> what it may hold, of all fields of the configs of a task.

  Raises:
    ValueError: there is no such task.
  """
  tasks = _one_of(*_OF_TASK)
  _check('task', task, tasks)
  return {'task': tasks, **_COMMON, **_OF_TASK[str(task)]}


def check_config(config: Config) -> Config:
  """A copy of a config, all of whose fields hold what they may.

  Numbers of NumPy are taken and become those of Python, an integer is a real
  number too, and no other type is taken for another.

  Args:
    config: every field of its task, as the files in configs/ give them.

  Raises:
    ValueError: a field is missing or unknown, or holds something else; the
      message names it, its value and the cure.
  """
  found = io.flatten(config.to_dict())
  fields = fields_of_task(found.get('task'))
  for name in found:
    if name not in fields:
      near = difflib.get_close_matches(name, fields, n=1)
      raise ValueError(
        f'{name}={found[name]!r} is no field of the task {found["task"]!r}. '
        + (f'Is {near[0]} meant?' if near else 'Leave it out.')
      )
  nested: dict[str, Any] = {}
  for name, field in fields.items():
    if name not in found:
      raise ValueError(f'{name} is missing from the config; give {field.what}.')
    _check(name, found[name], field)
    *groups, last = name.split('.')
    place = nested
    for group in groups:
      place = place.setdefault(group, {})
    place[last] = field.plain(found[name])
  return config_dict.ConfigDict(nested)


def _check(name: str, value: Any, field: Field) -> None:
  if not field.holds(value):
    shown = repr(value)
    shown = shown if len(shown) < 80 else f'{shown[:80]}...'
    raise ValueError(f'{name}={shown}; give {field.what}.')
