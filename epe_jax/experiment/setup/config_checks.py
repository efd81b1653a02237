"""Checks configs: one table of the values that each field may have, and conflicts.

Types and ranges of single fields are checked before any work is done, as a config in
Python may hold anything at all; then contradictions of fields, and with the model.
"""

from collections.abc import Iterable, Mapping
import math
import numbers
from typing import Any

from absl import logging
import jax
from ml_collections import config_dict
import numpy as np

from epe_jax import canaries, io, python_path
from epe_jax.audit import record_checks
from epe_jax.data import data_sets, fields
from epe_jax.experiment.setup import config_files, participation, servers
from epe_jax.experiment.setup.config_files import Config
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

# Field, its default, another field, and the values of that with which it has an effect;
# () for all but the one that turns it off.
_EFFECTS = (
  ('participation.separation', 1, 'participation.kind', ('cyclic', 'limited')),
  ('participation.max_rounds', None, 'participation.kind', ('limited',)),
  ('participation.log', None, 'participation.kind', ('log',)),
  ('noise.bands', 4, 'noise.correlation', ('banded', 'bisr')),
  ('noise.buffers', 3, 'noise.correlation', ('blt',)),
  ('noise.restart', None, 'noise.correlation', ()),
  ('secure_aggregation.granularity', None, 'secure_aggregation.bits', ()),
  ('secure_aggregation.rounding', 'conditional', 'secure_aggregation.bits', ()),
  ('secure_aggregation.noise', 'skellam', 'secure_aggregation.bits', ()),
)


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


def check_conflicts(config: Config) -> None:
  """Checks fields against each other that need neither data nor model.

  A run without any canaries is not audited. If coins decide which canaries take
  part, `participation` checks the groups that they form.

  Raises:
    ValueError: JAX computes in float64; a group has one canary, whose score has no
      spread; a field has no effect with another; a claim cannot be tested by
      canaries in rounds; or the server's optimizer has a momentum of its own.
  """
  if jax.dtypes.canonicalize_dtype(np.float64) == np.float64:
    raise ValueError(
      'jax_enable_x64=True, but runs are of float32. Unset JAX_ENABLE_X64, or call '
      "jax.config.update('jax_enable_x64', False)."
    )
  c, server, claim = config.canaries, config.server, config.audit.claim
  num_canaries = c.observed + c.unobserved
  if num_canaries and c.schedule != 'coin_flip':
    if c.observed < 2:
      raise ValueError(
        f'canaries.observed={c.observed}; give at least 2, as the spread of '
        'scores takes two. For a run without an audit give 0 of '
        f'canaries.unobserved={c.unobserved} too.'
      )
    if c.unobserved == 1:
      raise ValueError(
        'canaries.unobserved=1 says nothing about the spread of their scores; '
        'give 0, or at least 2.'
      )
  if claim is not None and not num_canaries:
    raise ValueError(
      f'audit.claim={claim} is tested by canaries, but canaries.observed=0; give '
      'at least 2, or leave out the claim.'
    )
  if claim is not None and not config.audit.trace:
    raise ValueError(
      f'audit.claim={claim} is tested by the cosines of rounds, but '
      'audit.trace=False keeps none of them; keep them, or leave out the claim.'
    )
  _check_effects(config)
  _check_correlation(config)
  _check_secure_aggregation(config)
  takes_momentum = servers.SERVERS[server.optimizer].takes_momentum
  if server.momentum and not takes_momentum:
    raise ValueError(
      f'server.optimizer={server.optimizer!r} with server.momentum='
      f"{server.momentum}; give 'sgd', or {server.optimizer!r} with momentum 0, "
      'because it has its own.'
    )


def _check_effects(config: Config) -> None:
  """Checks that no field is set which the value of another leaves without effect."""
  flat = io.flatten(config.to_dict())
  for name, default, other, used in _EFFECTS:
    value = flat[other]
    is_used = value in used if used else value not in ('independent', None)
    if flat[name] != default and not is_used:
      raise ValueError(
        f'{name}={flat[name]!r} has no effect with {other}={value!r}; give '
        f'{name}={default!r}, or another {other}.'
      )


def _check_correlation(config: Config) -> None:
  """Checks the fields that do not go with noise that is correlated over rounds."""
  kind, rounds = config.noise.correlation, config.rounds
  if kind == 'independent':
    return
  clipping = config.clipping.kind
  _refuse(
    f'noise.correlation={kind!r}',
    {
      f'clipping.kind={clipping!r}: what later rounds take back must have the clip '
      "norm of what it was; give clipping.kind='fixed'": clipping != 'fixed',
      'simulation=False: its noise is float32, which hides sums but for their last '
      "bits. Give noise.correlation='independent', or simulation=True if nobody will "
      'see the model': not config.simulation,
    },
  )
  # Of what holds C, C⁻¹ and CᵀC meanwhile, measured; a tree has 2 T nodes.
  is_whole_tree = kind == 'tree' and config.noise.restart is None
  size, memory = (105 if is_whole_tree else 60) * rounds**2, io.machine_memory()
  if size > memory:
    raise ValueError(
      f'noise.correlation={kind!r} with rounds={rounds} takes matrices of {size:.2g} '
      f'bytes, but this machine has {memory:.2g} of memory; give fewer rounds, or '
      "noise.correlation='independent'."
    )
  span = rounds if config.noise.restart is None else config.noise.restart
  names = {'banded': 'bands', 'bisr': 'bands', 'blt': 'buffers'}
  size = {name: config.noise[name] for k, name in names.items() if k == kind}
  for name, value in {'restart': span, **size}.items():
    if value > (rounds if name == 'restart' else span):
      raise ValueError(
        f'noise.{name}={value}, but of rounds={rounds} the mechanism runs for '
        f'{min(span, rounds)} without a restart; give no more.'
      )


def _check_secure_aggregation(config: Config) -> None:
  """Checks the fields that do not go with secure aggregation of integers."""
  bits = config.secure_aggregation.bits
  if bits is None:
    return
  z, kind, correlation = (
    config.noise_multiplier,
    config.clipping.kind,
    config.noise.correlation,
  )
  _refuse(
    f'secure_aggregation.bits={bits}',
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
  )


def _refuse(given: str, faults: Mapping[str, bool]) -> None:
  """Raises a ValueError by the first setting that does not go with what is given."""
  for fault, is_fault in faults.items():
    if is_fault:
      raise ValueError(f'{given} with {fault}.')


def check_model(
  config: Config, participants: participation.Participation, dim: int
) -> None:
  """Checks that canaries have room in a model of d parameters and its server.

  Adam takes a non-linear function of each coordinate of a sum of canaries. Of
  rows of a Hadamard matrix that is, without noise, a sum of other rows of it,
  those of unobserved canaries among them. Noise makes the function linear where
  it is four times what the n canaries of a round add up to in one coordinate:
  n/√d in `hadamard`, whose rows all agree in column 0, and √(n/d) in
  `hadamard2`, whose entries are like normal ones.

  Raises:
    ValueError: there are more canaries than d, or there is less noise than that.
  """
  c = config.canaries
  if c.observed + c.unobserved > dim:
    raise ValueError(
      f'canaries.observed={c.observed} and canaries.unobserved={c.unobserved}, '
      f'but the model has dim={dim} parameters; random directions are nearly '
      f'orthogonal only if they are far fewer. Ask for less than {dim} in all.'
    )
  optimizer, family = config.server.optimizer, c.family
  if not servers.SERVERS[optimizer].is_coordinate_wise:
    return
  together = int(participants.canaries.sum(axis=1).max(initial=0))
  sums = {'hadamard': together, 'hadamard2': math.sqrt(together)}
  min_noise = 4 * sums.get(family, 0) / math.sqrt(dim)
  if config.noise_multiplier < min_noise:
    raise ValueError(
      f'server.optimizer={optimizer!r} with canaries.family={family!r} and '
      f'noise_multiplier={config.noise_multiplier}: behind a server that works '
      'coordinate by coordinate, unobserved canaries follow their null law from '
      f'{min_noise:.3g} on, with up to {together} canaries in a round. Give '
      "canaries.family='sphere', more noise, or server.optimizer='sgd'."
    )


def warn_of_canaries(
  config: Config, participants: participation.Participation
) -> None:
  """Logs a warning if rounds have more canaries than clients."""
  canaries_per_round = participants.canaries.sum() / config.rounds
  if 2 * canaries_per_round > participants.expected_clients:
    logging.warning(
      'canaries.observed=%d in rounds=%d of clients_per_round=%d: the rounds have '
      'more canaries than clients, so that the model learns less from its clients '
      'than random directions move it. Expect a lower accuracy than without an '
      'audit, or give fewer canaries or more rounds.',
      config.canaries.observed,
      config.rounds,
      config.clients_per_round,
    )
