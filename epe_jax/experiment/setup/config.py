"""Configs: found by name, and checked before any work.

A config in Python may hold anything at all. So types and ranges of single fields are
checked first, by one table of the values that each may have; then contradictions. What
needs data or the model `build` checks.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import contextlib
import difflib
import functools
import importlib.util
import inspect
import math
import numbers
import os
import pathlib
from typing import Any, TypeAlias

import numpy as np

from epe_jax import io, python_path
from epe_jax.data import data_sets, fields

Config: TypeAlias = Any
"""An ml_collections ConfigDict, whose fields type checkers know nothing of."""

GRIDS = 'grids'
"""The file of the package that has the axes of sweeps."""

CLIENTS = (
  'shuffled',
  'one_order',
  'fixed_size',
  'poisson',
  'cyclic',
  'limited',
  'log',
)
"""The values of config.participation.kind."""
KNOWN_IN_ADVANCE = ('shuffled', 'one_order', 'log')
"""Those in which the number of rounds of a client is not random."""
CANARIES = (
  'once_per_period',
  'coin_flip',
  'as_clients',
  'replace',
  'worst_case',
)
"""The values of config.canaries.schedule."""

# Files of the package that are no jobs.
_NO_JOBS = {'__init__', 'common', GRIDS}
# Groups of fields that a user's own task may have.
_OWN_GROUPS = ('data.', 'model.')
# Larger numbers than these are no setting of anything, or no float32.
_MAX_REAL = 1e38
_BELOW_1 = math.nextafter(1.0, 0.0)

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

_NAME = fields.Field(
  'the name of a column', lambda x: isinstance(x, str) and x.strip() != '', str
)
_SELECTION = fields.Field(
  'COLUMN=VALUE',
  lambda x: isinstance(x, str) and all(x.partition('=')[::2]),
  str,
)

# Field, its default, another field, and the values of that with which it has an effect;
# () for all but the one that turns it off.
_EFFECTS = (
  ('participation.separation', 1, 'participation.kind', ('cyclic', 'limited')),
  ('participation.max_rounds', None, 'participation.kind', ('limited',)),
  ('participation.log', None, 'participation.kind', ('log',)),
  ('participation.log_round', 'round', 'participation.log', ()),
  ('participation.log_client', 'client_id', 'participation.log', ()),
  ('participation.log_only', None, 'participation.log', ()),
  ('participation.log_empty_rounds', False, 'participation.log', ()),
  ('noise.bands', 4, 'noise.correlation', ('banded', 'bisr')),
  ('noise.buffers', 3, 'noise.correlation', ('blt',)),
  ('noise.restart', None, 'noise.correlation', ()),
  ('secure_aggregation.granularity', None, 'secure_aggregation.bits', ()),
  ('secure_aggregation.rounding', 'conditional', 'secure_aggregation.bits', ()),
  ('secure_aggregation.noise', 'skellam', 'secure_aggregation.bits', ()),
)


# Configs by name.


def list_configs() -> list[str]:
  """Lists the jobs of configs/ by name."""
  stems = {path.stem for path in _find_folder().glob('*.py')}
  return sorted(stems - _NO_JOBS)


def load_config(name: str | os.PathLike) -> Config:
  """Loads a config.

  Args:
    name: a job that ships with the package, such as 'digits', or the path of a
      file with a function `get_config`; followed by :MODE for its argument, such as
      'emnist:smoke' or 'mine.py:smoke'.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: there is no such job or mode, or the file has no `get_config`.
  """
  text, _, mode = os.fspath(name).partition(':')
  path = _find_file(text)
  module_name = f'epe_jax.configs.{path.stem}'
  if _is_path(text):
    module_name = f'config_{path.stem}'
    # Its fields may name functions of the modules next to it.
    python_path.search_last(path.resolve().parent)
  with _name_file_in_errors(path):
    module = python_path.import_file(path, name=module_name)
    get_config = getattr(module, 'get_config', None)
    if get_config is None:
      raise ValueError(
        f'{text} has no function get_config(); give a file that has, or the name '
        f'of a job that ships: {", ".join(list_configs())}.'
      )
    if mode and not inspect.signature(get_config).parameters:
      raise ValueError(
        f'{text}:{mode}: get_config() of this file takes no mode; leave out '
        f':{mode}.'
      )
    return get_config(mode) if mode else get_config()


def load_grid(name: str) -> Config:
  """Loads the axes of a sweep.

  Args:
    name: a grid that ships with the package, such as 'repetitions', or the path of
      a file as `load_config` takes it, such as 'mine.py:noise'.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: there is no such grid, or the file has no `get_config`.
  """
  return load_config(name if _is_path(name) else f'{GRIDS}:{name}')


def name_run(name: str | os.PathLike) -> str:
  """Names the run of a config, for the folder that it is written into.

  >>> name_run('digits'), name_run('configs/emnist.py:smoke')
  ('digits', 'emnist-smoke')
  """
  text, _, mode = os.fspath(name).partition(':')
  stem = pathlib.PurePath(text).stem
  return f'{stem}-{mode}' if mode else stem


def _is_path(text: str) -> bool:
  file = text.partition(':')[0]
  return file.endswith('.py') or '/' in file or os.sep in file


def _find_file(text: str) -> pathlib.Path:
  """Finds the file of a config, given as the name of a job or as a path."""
  names = ', '.join(list_configs())
  if _is_path(text):
    path = pathlib.Path(text)
    if path.is_file():
      return path
    raise FileNotFoundError(
      f'{text} does not exist in {pathlib.Path.cwd()}. Give the path of a file, or '
      f'the name of a config that ships, which is found from anywhere: {names}.'
    )
  path = _find_folder() / f'{text}.py'
  if text.isidentifier() and path.is_file():
    return path
  raise ValueError(
    f'{text!r} is not a config; {suggest(text, list_configs())} Or give the path of '
    'a file that ends in .py.'
  )


def _find_folder() -> pathlib.Path:
  """Finds the folder of the package's configs; that of a checkout is configs/."""
  spec = importlib.util.find_spec('epe_jax.configs')
  if spec is None or not spec.submodule_search_locations:
    raise ValueError(
      'epe_jax.configs is missing: the package is not installed. Run '
      '`pip install -e .` in the checkout, or give the path of a config and '
      'install its package.'
    )
  return pathlib.Path(spec.submodule_search_locations[0])


@contextlib.contextmanager
def _name_file_in_errors(path: pathlib.Path) -> Iterator[None]:
  """Raises what the code of a file raises as a ValueError with its path."""
  try:
    yield
  except (ImportError, ValueError):
    # It names the extra that is missing, or what is wrong with the mode.
    raise
  except Exception as error:
    raise ValueError(f'{path}: {type(error).__name__}: {error}') from error


# Fields.


def complete_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
  """Fills in what follows from other fields."""
  complete = dict(fields)
  if complete.get('canaries.schedule', '') is None:
    independent = complete.get('noise.correlation') == 'independent'
    complete['canaries.schedule'] = (
      'once_per_period' if independent else 'worst_case'
    )
  return complete


def replace_fields(config: Config, **fields: Any) -> Config:
  """Copies a config with other or new fields at its top level."""
  copy = config.copy_and_resolve_references()
  with copy.unlocked():
    copy.update(fields)
  return copy


def check_field(name: str, names: Sequence[str]) -> None:
  """Refuses a name that is neither of a field nor of a group of fields."""
  if not any(f'{field}.'.startswith(f'{name}.') for field in names):
    raise ValueError(
      f'the config has no field {name!r}; {suggest(name, names)}'
    )


def find_similar(name: str, names: Sequence[str]) -> list[str]:
  """Finds names that somebody may have meant: by their last word, or a typing error."""
  word = name.rpartition('.')[2]
  return (
    [x for x in names if x.rpartition('.')[2] == word]
    or [x for x in names if x.rpartition('.')[2].startswith(f'{word}_')]
    or difflib.get_close_matches(name, names, n=1)
  )


def suggest(name: str, names: Sequence[str]) -> str:
  """Suggests names for one that is none of them, as the end of an error.

  >>> names = ['rounds', 'server.momentum', 'noise_multiplier']
  >>> suggest('momentum', names), suggest('rouns', names)
  ("did you mean 'server.momentum'?", "did you mean 'rounds'?")
  """
  if similar := find_similar(name, names):
    return f'did you mean {" or ".join(map(repr, similar))}?'
  group = name.rpartition('.')[0]
  within = [x for x in names if x.startswith(f'{group}.')]
  tops = dict.fromkeys(x.partition('.')[0] for x in names)
  return f'give one of {", ".join(within or tops)}.'


@functools.cache
def _common_fields() -> dict[str, fields.Field]:
  """The fields of all configs, with the values that each may have."""
  # Late, as JAX takes most of a second, and a finished run is shown without it.
  from epe_jax import canaries
  from epe_jax.audit import record
  from epe_jax.experiment.setup import servers
  from epe_jax.training import (
    clipping,
    correlated_noise,
    local_training,
    round_scalars,
    secure_aggregation,
  )

  repetitions = fields.integer(1)
  return {
    'rounds': fields.integer(1, 10**7),
    'clients_per_round': fields.integer(1),
    'participation.kind': fields.one_of(*CLIENTS),
    'participation.separation': fields.integer(1),
    'participation.max_rounds': fields.or_none(fields.integer(1), 'no limit'),
    'participation.log': fields.or_none(fields.PATH, 'no log'),
    'participation.log_round': _NAME,
    'participation.log_client': _NAME,
    'participation.log_only': fields.or_none(_SELECTION, 'all'),
    'participation.log_empty_rounds': fields.FLAG,
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
      f'a number in {round_scalars.CLIP_NORMS}',
      round_scalars.MIN_CLIP_NORM,
      round_scalars.MAX_CLIP_NORM,
      is_open=False,
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
      record.NOISE,
      lambda x: _NOT_NEGATIVE.is_valid(x) and record.is_noise_multiplier(x),
      float,
    ),
    'canaries.family': fields.one_of(*canaries.FAMILIES),
    'canaries.observed': fields.integer(0),
    'canaries.unobserved': fields.integer(0),
    'canaries.schedule': fields.or_none(
      fields.one_of(*CANARIES), 'what suits the noise'
    ),
    'canaries.repetitions': fields.Field(
      f"{repetitions.description}, or 'as_clients' for as many as clients take "
      'part in',
      lambda x: x == 'as_clients' or repetitions.is_valid(x),
      lambda x: x if x == 'as_clients' else int(x),
    ),
    'canaries.block': fields.integer(1),
    'audit.view': fields.one_of('aggregate', 'server_update'),
    'audit.trace': fields.FLAG,
    'audit.buffer': fields.or_none(
      fields.integer(1), 'as many as memory holds'
    ),
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
  return {'task': tasks, **_common_fields(), **of_task}


def check_config(config: Config) -> Config:
  """Checks every field of a config, and returns a copy in types of Python.

  Numbers of NumPy become those of Python, and an integer is a real number too.
  No other type is converted.

  Raises:
    ValueError: a field is missing, unknown or has a value that it may not have.
      The message names the field, its value and the cure.
  """
  values = complete_fields(io.flatten(config.to_dict()))
  known = list_fields(values.get('task'), values)
  for name, value in values.items():
    if name not in known:
      # One that was renamed or misspelled has mostly left its own name without a value.
      missing = [field for field in known if field not in values]
      raise ValueError(
        f'{name}={value!r} is not a field of the task {values["task"]!r}; '
        f'{suggest(name, missing or [*known])}'
      )
  checked = type(config)({'data': {}, 'model': {}})
  for name, field in known.items():
    if name not in values:
      raise ValueError(
        f'{name} is missing from the config; give {field.description}.'
      )
    _check_value(name, values[name], field)
    *groups, last = name.split('.')
    nested: dict[str, Any] = {last: field.convert(values[name])}
    for group in reversed(groups):
      nested = {group: nested}
    checked.update(nested)
  return checked


def _check_value(name: str, value: Any, field: fields.Field) -> None:
  if not field.is_valid(value):
    text = repr(value)
    text = text if len(text) < 80 else f'{text[:80]}...'
    raise ValueError(f'{name}={text}; give {field.description}.')


# Fields against each other.


def check_conflicts(config: Config) -> None:
  """Checks fields against each other that need neither data nor model.

  A run without any canaries is not audited. If coins decide which canaries take
  part, `participation` checks the groups that they form.

  Raises:
    ValueError: JAX computes in float64; a group has one canary, whose score has no
      spread; a field has no effect with another; a claim cannot be tested by
      canaries in rounds; or the server's optimizer has a momentum of its own.
  """
  import jax

  from epe_jax.experiment.setup import servers

  if jax.dtypes.canonicalize_dtype(np.float64) == np.float64:
    raise ValueError(
      'jax_enable_x64=True, but runs are of float32. Unset JAX_ENABLE_X64, or call '
      "jax.config.update('jax_enable_x64', False)."
    )
  c, server, claim = config.canaries, config.server, config.audit.claim
  num_canaries = c.observed + c.unobserved
  in_known_groups = bool(num_canaries) and c.schedule != 'coin_flip'
  optimizer = server.optimizer
  _refuse(
    {
      f'canaries.observed={c.observed}; give at least 2, as the spread of '
      'scores takes two. For a run without an audit give 0 of '
      f'canaries.unobserved={c.unobserved} too.': in_known_groups
      and c.observed < 2,
      'canaries.unobserved=1 says nothing about the spread of their scores; '
      'give 0, or at least 2.': in_known_groups and c.unobserved == 1,
      f'canaries.repetitions={c.repetitions} has no effect with canaries.schedule='
      f'{c.schedule!r}, which decides the rounds of canaries; give 1.': bool(
        num_canaries
      )
      and c.repetitions not in (1, 'as_clients')
      and c.schedule in ('as_clients', 'replace', 'worst_case'),
      f'audit.claim={claim} is tested by canaries, but canaries.observed=0; give '
      'at least 2, or leave out the claim.': claim is not None
      and not num_canaries,
      f'audit.claim={claim} is tested by the cosines of rounds, but '
      'audit.trace=False keeps none of them; keep them, or leave out the '
      'claim.': claim is not None and not config.audit.trace,
    }
  )
  flat = io.flatten(config.to_dict())
  for name, default, other, used in _EFFECTS:
    value = flat[other]
    is_used = value in used if used else value not in ('independent', None)
    if flat[name] != default and not is_used:
      raise ValueError(
        f'{name}={flat[name]!r} has no effect with {other}={value!r}; give '
        f'{name}={default!r}, or another {other}.'
      )
  if config.noise.correlation != 'independent':
    _check_correlation(config)
  if config.secure_aggregation.bits is not None:
    _check_secure_aggregation(config)
  if server.momentum and not servers.SERVERS[optimizer].takes_momentum:
    raise ValueError(
      f'server.optimizer={optimizer!r} with server.momentum={server.momentum}; give '
      f"'sgd', or {optimizer!r} with momentum 0, because it has its own."
    )


def _refuse(faults: Mapping[str, bool], given: str = '') -> None:
  """Raises a ValueError by the first fault, or setting that what is given excludes."""
  for fault, is_fault in faults.items():
    if is_fault:
      raise ValueError(f'{given} with {fault}.' if given else fault)


def _check_correlation(config: Config) -> None:
  """Checks the fields that do not go with noise that is correlated over rounds."""
  noise, rounds, kind = config.noise, config.rounds, config.clipping.kind
  _refuse(
    {
      f'clipping.kind={kind!r}: what later rounds take back must have the clip '
      "norm of what it was; give clipping.kind='fixed'": kind != 'fixed',
      'simulation=False: its noise is float32, which hides sums but for their last '
      "bits. Give noise.correlation='independent', or simulation=True if nobody will "
      'see the model': not config.simulation,
    },
    f'noise.correlation={noise.correlation!r}',
  )
  # Of what holds C, C⁻¹ and CᵀC meanwhile, measured; a tree has 2 T nodes. Without a
  # refusal the system kills the process, or another one.
  is_whole_tree = noise.correlation == 'tree' and noise.restart is None
  size, memory = (105 if is_whole_tree else 60) * rounds**2, io.machine_memory()
  if size > memory:
    raise ValueError(
      f'noise.correlation={noise.correlation!r} with rounds={rounds} takes matrices of '
      f'{size:.2g} bytes, but this machine has {memory:.2g} of memory; give fewer '
      "rounds, or noise.correlation='independent'."
    )
  span = rounds if noise.restart is None else noise.restart
  sizes = {'banded': 'bands', 'bisr': 'bands', 'blt': 'buffers'}
  limits = {'restart': rounds}
  if (name := sizes.get(noise.correlation)) is not None:
    limits[name] = span
  for name, limit in limits.items():
    value = noise[name]
    if value is not None and value > limit:
      raise ValueError(
        f'noise.{name}={value}, but of rounds={rounds} the mechanism runs for '
        f'{min(span, rounds)} without a restart; give no more.'
      )


def _check_secure_aggregation(config: Config) -> None:
  """Checks the fields that do not go with secure aggregation of integers."""
  z, kind, correlation = (
    config.noise_multiplier,
    config.clipping.kind,
    config.noise.correlation,
  )
  _refuse(
    {
      f'noise_multiplier={z}: clients add shares of noise; give more than 0': not z,
      f'clipping.kind={kind!r}: the grid is made for one clip norm; give '
      "clipping.kind='fixed'": kind != 'fixed',
      f'noise.correlation={correlation!r}: clients do not know the noise of other '
      "rounds; give noise.correlation='independent'": correlation
      != 'independent',
      'simulation=False: its noise has 64 random bits for a coordinate, which is for '
      'simulations. Give secure_aggregation.bits=None, or simulation=True if nobody '
      'will see the model': not config.simulation,
      f'audit.claim={config.audit.claim}: a claim is tested as one of Gaussian noise; '
      'leave it out': config.audit.claim is not None,
    },
    f'secure_aggregation.bits={config.secure_aggregation.bits}',
  )
