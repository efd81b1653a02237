"""From a config to everything that training needs, checked on the way."""

from typing import Any, NamedTuple
import zlib

import jax
from jaxtyping import Bool
import numpy as np
import optax

from epe_jax import (
  audit,
  canaries,
  clipping,
  fedavg,
  participation,
  randomness,
  sharding,
  workloads,
)
from epe_jax.data import cohort, federated
from epe_jax.types import Key, Params, Task

Config = workloads.Config


class Run(NamedTuple):
  """Everything that training needs, checked before the first round."""

  task: Task
  train: federated.FederatedData
  test: federated.FederatedData
  source: str
  baseline: float
  params: Params
  algorithm: fedavg.Algorithm
  observers: dict[str, audit.Observer]
  who: participation.Participation
  plan: cohort.Plan
  dim: int
  delta: float
  randomness: randomness.Randomness


def build(
  config: Config,
  *,
  secret: bytes | None = None,
  mesh: sharding.Mesh | None = None,
) -> Run:
  """Task, data, canaries, schedule, DP-FedAvg and the audit around it.

  Args:
    config: every field set.
    secret: what noise and sampling follow from, as `randomness.drawn` gives it;
      None in a simulation, where they follow from config.seed.
    mesh: devices that share the work, None for one.

  Raises:
    ValueError: a field is out of range or contradicts another; the message
      names it, its value and the cure.
    FileNotFoundError: the data file is missing.
  """
  _check(config)
  draws = _randomness(config, secret)
  task, train, test, source, baseline = workloads.load(config)
  # Jitted: layer by layer each operation is compiled by itself, for seconds.
  params = jax.jit(task.init)(key(config, 'init'))
  dim = sum(leaf.size for leaf in jax.tree.leaves(params))
  _check_canaries(config, dim)
  who = participation.plan(
    config, train, client_seed=draws.clients, canary_seed=draws.canaries
  )
  algorithm, observers = audited(
    config, task, who, dim, key(config, 'canary'), who.canaries, mesh=mesh
  )
  delta = config.audit.delta
  return Run(
    task=task,
    train=train,
    test=test,
    source=source,
    baseline=baseline,
    params=params,
    algorithm=algorithm,
    observers=observers,
    who=who,
    plan=cohort.Plan(
      batch_size=config.client.batch_size,
      epochs=config.client.epochs,
      max_examples=config.client.max_examples,
      chunk=config.chunk or 1,
      slots=who.slots,
    ),
    dim=dim,
    delta=float(train.num_clients) ** -1.1 if delta is None else delta,
    randomness=draws,
  )


def _randomness(config: Config, secret: bytes | None) -> randomness.Randomness:
  if config.simulation != (secret is None):
    raise ValueError(
      f'simulation={config.simulation}, {"without" if secret is None else "with"}'
      ' a secret; a simulation draws from its seed and has none, any other run '
      'draws from a secret.'
    )
  if secret is not None:
    return randomness.fresh(secret)
  return randomness.Randomness(
    noise=key(config, 'noise'),
    training=key(config, 'training'),
    clients=config.seed,
    canaries=config.seed,
    order=config.seed,
  )


def audited(
  config: Config,
  task: Task,
  who: participation.Participation,
  dim: int,
  canary_key: Key,
  rows: Bool[np.ndarray, 'T k'] | audit.Rows,
  *,
  mesh: sharding.Mesh | None = None,
) -> tuple[fedavg.Algorithm, dict[str, audit.Observer]]:
  """DP-FedAvg with canaries in it, and who watches.

  Of one seed only the key and the rows are, which may be traced: a function of
  them is vmapped over seeds.

  Args:
    config: every field set.
    task: what is trained.
    who: its canaries and clients as numbers; who takes part when is in rows.
    dim: d.
    canary_key: never the key of the privacy noise.
    rows: who takes part when, as `audit.audited` takes it.
    mesh: devices that share the work, None for one.
  """
  algorithm = fedavg.dp_fedavg(
    task,
    client_opt=optax.sgd(config.client.learning_rate),
    server_opt=_server(config),
    clipping=_clipping(config, who.expected),
    noise_multiplier=config.noise_multiplier,
    expected_clients=who.expected,
    divisor=config.divisor,
    precision=config.precision,
    mesh=mesh,
  )
  if who.canaries.shape[1] == 0:
    return audit.unaudited(algorithm), {}
  make = canaries.family(
    config.canaries.family, block=config.canaries.block, mesh=mesh
  )
  set_ = make(canary_key, who.canaries.shape[1], dim)
  # The residual is free: canaries are generated once for both.
  sees = (config.audit.sees, 'residual')
  observers = {
    'final': audit.final_model(set_, mesh=mesh),
    'trace': audit.all_iterates(
      set_,
      rounds=config.rounds,
      sees=sees,
      buffer=_buffer(config, views=len(sees), dim=dim),
      mesh=mesh,
    ),
  }
  return audit.audited(algorithm, set_, rows, observers), observers


def _buffer(config: Config, *, views: int, dim: int) -> int:
  """Rounds that are scored together.

  All that wait are scored when a checkpoint is written.
  """
  between = min(config.checkpoint_every, config.rounds)
  if config.audit.buffer is not None:
    return min(config.audit.buffer, between)
  if config.canaries.family not in canaries.ONE_BY_ONE:
    return 1
  most = audit.buffer_for(
    config.audit.memory, rounds=between, views=views, dim=dim
  )
  # In equal parts, as the room of a buffer is scored whether it is full or not.
  return -(-between // -(-between // most))


def _server(config: Config) -> optax.GradientTransformation:
  s = config.server
  if s.optimizer == 'sgd':
    return optax.sgd(s.learning_rate, momentum=s.momentum or None)
  if s.optimizer == 'adam' and not s.momentum:
    # beta_1, beta_2 and tau of Reddi et al. 2020, "Adaptive Federated
    # Optimization", appendix D.
    return optax.adam(s.learning_rate, b1=0.9, b2=0.99, eps=1e-3)
  raise ValueError(
    f'server.optimizer={s.optimizer!r} with server.momentum={s.momentum}; give '
    "'sgd', or 'adam' with momentum 0, because it has its own."
  )


def _clipping(config: Config, expected: float) -> clipping.Clipping:
  c = config.clipping
  if c.kind == 'fixed':
    return clipping.fixed(c.initial)
  if c.kind == 'adaptive':
    return clipping.adaptive(
      c.initial,
      quantile=c.quantile,
      learning_rate=c.learning_rate,
      count_noise=c.count_noise * expected,
      expected_clients=expected,
    )
  raise ValueError(
    f"clipping.kind={c.kind!r}; give 'adaptive', or 'fixed' for a clip norm "
    'of clipping.initial in every round.'
  )


def _check_canaries(config: Config, dim: int) -> None:
  c = config.canaries
  if c.observed + c.unobserved > dim:
    raise ValueError(
      f'canaries.observed={c.observed} and canaries.unobserved={c.unobserved}, '
      f'but the model has dim={dim} parameters; random directions are nearly '
      f'orthogonal only if they are far fewer. Ask for less than {dim} in all.'
    )


def _check(config: Config) -> None:
  """The ranges that no function further down checks under the field's name."""
  at_least = {
    'rounds': (config.rounds, 1),
    'clients_per_round': (config.clients_per_round, 1),
    'rounds_per_dispatch': (config.rounds_per_dispatch, 1),
    'client.batch_size': (config.client.batch_size, 1),
    'client.epochs': (config.client.epochs, 1),
    'canaries.observed': (config.canaries.observed, 0),
    'canaries.unobserved': (config.canaries.unobserved, 0),
    'canaries.repetitions': (config.canaries.repetitions, 1),
    'evaluate_every': (config.evaluate_every, 1),
    'checkpoint_every': (config.checkpoint_every, 1),
    'seed': (config.seed, 0),
  }
  optional = {
    'chunk': (config.chunk, 1),
    'audit.buffer': (config.audit.buffer, 1),
    'client.max_examples': (config.client.max_examples, 1),
    'evaluate_examples': (config.evaluate_examples, 1),
  }
  for name, (value, least) in (at_least | optional).items():
    if value is not None and value < least:
      raise ValueError(f'{name}={value}; give at least {least}.')
  _check_groups(config)
  if not config.audit.memory > 0:
    raise ValueError(
      f'audit.memory={config.audit.memory}; give a number of bytes > 0, or '
      'audit.buffer=1 to score every round at once.'
    )
  if config.audit.delta is not None and not 0 < config.audit.delta < 1:
    raise ValueError(
      f'audit.delta={config.audit.delta}; give a delta in (0, 1), or None for '
      '(number of clients)^-1.1.'
    )


def _check_groups(config: Config) -> None:
  """A spread takes two canaries; none at all are a run without an audit."""
  c = config.canaries
  # By coin flips it is the coins that tell who is in which group.
  if c.observed + c.unobserved == 0 or c.schedule == 'coin_flips':
    return
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


def changed(config: Config, **fields: Any) -> Config:
  """A copy with other values at its top, or with fields that it did not have."""
  copy = config.copy_and_resolve_references()
  with copy.unlocked():
    copy.update(fields)
  return copy


def key(config: Config, name: str) -> Key:
  """The key of one purpose: one root, named folds."""
  return jax.random.fold_in(
    jax.random.key(config.seed), zlib.crc32(name.encode())
  )
