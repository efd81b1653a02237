"""Contradictions of a config with itself, its data, model or machine."""

from collections.abc import Callable, Mapping
import math
from typing import Any

from absl import logging
import jax
import numpy as np

from epe_jax import io
from epe_jax.data import cohort, federated
from epe_jax.experiment import participation, servers
from epe_jax.experiment.config_files import Config

# Defaults of fields that have an effect only with some values of another.
_EFFECTS: Mapping[str, tuple[Any, str, Callable[[Any], bool]]] = {
  'participation.separation': (
    1,
    'participation.kind',
    lambda kind: kind in ('cyclic', 'limited'),
  ),
  'participation.max_rounds': (
    None,
    'participation.kind',
    lambda kind: kind == 'limited',
  ),
  'participation.log': (
    None,
    'participation.kind',
    lambda kind: kind == 'log',
  ),
  'noise.bands': (
    4,
    'noise.correlation',
    lambda kind: kind in ('banded', 'bisr'),
  ),
  'noise.buffers': (
    3,
    'noise.correlation',
    lambda kind: kind == 'blt',
  ),
  'noise.restart': (
    None,
    'noise.correlation',
    lambda kind: kind != 'independent',
  ),
  **{
    f'secure_aggregation.{name}': (
      default,
      'secure_aggregation.bits',
      lambda bits: bits is not None,
    )
    for name, default in (
      ('granularity', None),
      ('rounding', 'conditional'),
      ('noise', 'skellam'),
    )
  },
}


def check_fields(config: Config) -> None:
  """Checks fields against each other that need neither data nor model.

  A run without any canaries is not audited. If coins decide which canaries take
  part, `participation` checks the groups that they form.

  Args:
    config: the config of the run, with every field set.

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
  for name, (default, other, is_used) in _EFFECTS.items():
    if flat[name] != default and not is_used(flat[other]):
      raise ValueError(
        f'{name}={flat[name]!r} has no effect with {other}={flat[other]!r}; give '
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


def check_sizes(
  config: Config, train: federated.FederatedData, plan: cohort.Plan, dim: int
) -> None:
  """Checks that the model has room for the canaries, and this machine for the run.

  A run takes more memory than these arrays, which are those that would end it
  without a message.

  Args:
    config: the config of the run, with every field set.
    train: the data of the clients that train.
    plan: the plan of its cohorts.
    dim: d, the number of parameters of the model.

  Raises:
    ValueError: there are more canaries than d, or an array takes more bytes than
      the machine has memory.
  """
  c = config.canaries
  num_canaries = c.observed + c.unobserved
  if num_canaries > dim:
    raise ValueError(
      f'canaries.observed={c.observed} and canaries.unobserved={c.unobserved}, '
      f'but the model has dim={dim} parameters; random directions are nearly '
      f'orthogonal only if they are far fewer. Ask for less than {dim} in all.'
    )
  rounds, clients = config.rounds, config.clients_per_round
  dispatched = min(
    config.rounds_per_dispatch,
    config.evaluate_every,
    config.checkpoint_every,
    rounds,
  )
  examples = cohort.count_steps(train.sizes, plan) * plan.batch_size
  examples *= -(-clients // plan.chunk) * plan.chunk * dispatched
  example_bytes = sum(x[:1].nbytes for x in train.columns.values())
  fields: dict[tuple[str, ...], int] = {
    # Two scores of each canary in each round, and whether it takes part.
    ('rounds', 'canaries.observed', 'canaries.unobserved'): (
      (9 if config.audit.trace else 1) * rounds * num_canaries
    ),
    ('rounds', 'clients_per_round'): 8 * rounds * clients,
    (
      'clients_per_round',
      'rounds_per_dispatch',
      'chunk',
      'client.batch_size',
      'client.epochs',
      'client.max_examples',
    ): examples * example_bytes,
    ('audit.buffer',): 8 * min(config.audit.buffer or 1, rounds) * dim,
  }
  memory = io.machine_memory()
  flat = io.flatten(config.to_dict())
  for names, size in fields.items():
    if size > memory:
      settings = ', '.join(f'{name}={flat[name]}' for name in names)
      raise ValueError(
        f'{settings} take {size:.2g} bytes, but this machine has {memory:.2g} '
        f'of memory; give less of {" or ".join(names)}.'
      )


def check_server(
  config: Config, participants: participation.Participation, dim: int
) -> None:
  """Checks that the server keeps the null law of Hadamard canaries.

  Adam takes a non-linear function of each coordinate of a sum of canaries. Of
  rows of a Hadamard matrix that is, without noise, a sum of other rows of it,
  those of unobserved canaries among them. Noise makes the function linear where
  it is four times what the n canaries of a round add up to in one coordinate:
  n/√d in `hadamard`, whose rows all agree in column 0, and √(n/d) in
  `hadamard2`, whose entries are like normal ones.

  Args:
    config: the config of the run, with every field set.
    participants: the participation of its clients and canaries.
    dim: d, the number of parameters of the model.

  Raises:
    ValueError: there is less noise than that.
  """
  optimizer, family = config.server.optimizer, config.canaries.family
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
  """Logs a warning if rounds have more canaries than clients.

  Args:
    config: the config of the run, with every field set.
    participants: the participation of its clients and canaries.
  """
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
