"""From a config to everything that training needs, checked on the way."""

from typing import NamedTuple
import zlib

import jax
import optax

from epe_jax import (
  audit,
  canaries,
  clipping,
  fedavg,
  participation,
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


def build(config: Config) -> Run:
  """Task, data, canaries, schedule, DP-FedAvg and the audit around it.

  Raises:
    ValueError: a field is out of range or contradicts another; the message
      names it, its value and the cure.
    FileNotFoundError: the data file is missing.
  """
  _check(config)
  task, train, test, source, baseline = workloads.load(config)
  params = task.init(key(config, 'init'))
  dim = sum(leaf.size for leaf in jax.tree.leaves(params))
  _check_canaries(config, dim)
  who = participation.plan(config, train)
  make = canaries.family(config.canaries.family, block=config.canaries.block)
  set_ = make(key(config, 'canary'), who.canaries.shape[1], dim)
  observers = {
    'final': audit.final_model(set_),
    'trace': audit.all_iterates(
      set_,
      rounds=config.rounds,
      # The residual is free: canaries are generated once for both.
      sees=(config.audit.sees, 'residual'),
      buffer=config.audit.buffer,
    ),
  }
  algorithm = fedavg.dp_fedavg(
    task,
    client_opt=optax.sgd(config.client.learning_rate),
    server_opt=optax.sgd(
      config.server.learning_rate, momentum=config.server.momentum or None
    ),
    clipping=_clipping(config, who.expected),
    noise_multiplier=config.noise_multiplier,
    expected_clients=who.expected,
    divisor=config.divisor,
  )
  delta = config.audit.delta
  return Run(
    task=task,
    train=train,
    test=test,
    source=source,
    baseline=baseline,
    params=params,
    algorithm=audit.audited(algorithm, set_, who.canaries, observers),
    observers=observers,
    who=who,
    plan=cohort.Plan(
      batch_size=config.client.batch_size,
      epochs=config.client.epochs,
      max_examples=config.client.max_examples,
      chunk=config.chunk,
      slots=who.slots,
    ),
    dim=dim,
    delta=float(train.num_clients) ** -1.1 if delta is None else delta,
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
    'chunk': (config.chunk, 1),
    'client.batch_size': (config.client.batch_size, 1),
    'client.epochs': (config.client.epochs, 1),
    'canaries.observed': (config.canaries.observed, 2),
    'canaries.unobserved': (config.canaries.unobserved, 0),
    'canaries.repetitions': (config.canaries.repetitions, 1),
    'evaluate_every': (config.evaluate_every, 1),
    'checkpoint_every': (config.checkpoint_every, 1),
    'seed': (config.seed, 0),
  }
  optional = {
    'client.max_examples': (config.client.max_examples, 1),
    'evaluate_examples': (config.evaluate_examples, 1),
  }
  for name, (value, least) in (at_least | optional).items():
    if value is not None and value < least:
      raise ValueError(f'{name}={value}; give at least {least}.')
  if config.canaries.unobserved == 1:
    raise ValueError(
      'canaries.unobserved=1 says nothing about the spread of their scores; '
      'give 0, or at least 2.'
    )
  if config.audit.delta is not None and not 0 < config.audit.delta < 1:
    raise ValueError(
      f'audit.delta={config.audit.delta}; give a delta in (0, 1), or None for '
      '(number of clients)^-1.1.'
    )


def key(config: Config, name: str) -> Key:
  """The key of one purpose: one root, named folds."""
  return jax.random.fold_in(
    jax.random.key(config.seed), zlib.crc32(name.encode())
  )
