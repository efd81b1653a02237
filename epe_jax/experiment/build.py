"""From a config to everything that training needs, checked on the way."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from absl import logging
import jax
import jax.numpy as jnp
from jaxtyping import Bool
import numpy as np
import optax

from epe_jax import canaries, io, streams
from epe_jax.audit import wrapper
from epe_jax.audit.observers import (
  Observer,
  all_iterates,
  choose_buffer,
  final_model,
  running_maximum,
)
from epe_jax.data import cohort, federated
from epe_jax.experiment import (
  config_fields,
  participation,
  randomness,
  workloads,
)
from epe_jax.parallel import sharding
from epe_jax.training import clipping, fedavg
from epe_jax.types import Key, Params, Task

Config = workloads.Config

Observe = Mapping[str, Callable[[canaries.Canaries], Observer]]

# Servers that take a non-linear function of each coordinate.
_COORDINATE_WISE = ('adam',)


class Run(NamedTuple):
  """Everything that training needs, checked before the first round."""

  task: Task
  train: federated.FederatedData
  test: federated.FederatedData
  source: str
  baseline: float
  params: Params
  algorithm: fedavg.Algorithm
  observers: dict[str, Observer]
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
  observers: Observe | None = None,
) -> Run:
  """Task, data, canaries, schedule, DP-FedAvg and the audit around it.

  Args:
    config: every field set.
    secret: what noise and sampling follow from, as `randomness.draw_secret` gives it;
      None in a simulation, where they follow from config.seed.
    mesh: devices that share the work, None for one.
    observers: who else watches, name -> canaries -> observer.

  Raises:
    ValueError: a field is of a wrong type, out of range, or contradicts
      another; the message names it, its value and the cure.
    FileNotFoundError: the data file is missing.
  """
  config = config_fields.check_config(config)
  _check_groups(config)
  draws = _randomness(config, secret)
  task, train, test, source, baseline = workloads.load_workload(config)
  # Jitted: layer by layer each operation is compiled by itself, for seconds.
  params = jax.jit(task.init)(purpose_key(config, 'init'))
  dim = sum(leaf.size for leaf in jax.tree.leaves(params))
  _check_canaries(config, dim)
  _check_memory(config, train, dim)
  who = participation.plan_participation(
    config, train, client_seed=draws.clients, canary_seed=draws.canaries
  )
  _warn_of_server(config, who, dim)
  algorithm, attackers = audit_algorithm(
    config,
    task,
    who,
    dim,
    purpose_key(config, 'canary'),
    who.canaries,
    mesh=mesh,
    more=observers,
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
    observers=attackers,
    who=who,
    plan=_plan(config, who.slots),
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
    return randomness.derive_randomness(secret)
  return randomness.Randomness(
    noise=purpose_key(config, 'noise'),
    training=purpose_key(config, 'training'),
    clients=config.seed,
    canaries=config.seed,
    order=config.seed,
  )


def audit_algorithm(
  config: Config,
  task: Task,
  who: participation.Participation,
  dim: int,
  canary_key: Key,
  rows: Bool[np.ndarray, 'T k'] | wrapper.CanaryRows,
  *,
  mesh: sharding.Mesh | None = None,
  more: Observe | None = None,
) -> tuple[fedavg.Algorithm, dict[str, Observer]]:
  """DP-FedAvg with canaries in it, and who watches.

  Of one seed only the key and the rows are, which may be traced: a function of
  them is vmapped over seeds.

  Args:
    config: every field set.
    task: what is trained.
    who: its canaries and clients as numbers; who takes part when is in rows.
    dim: d.
    canary_key: never the key of the privacy noise.
    rows: who takes part when, as `wrapper.audited` takes it.
    mesh: devices that share the work, None for one.
    more: who else watches, as `build` takes it.
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
    return wrapper.unaudited(algorithm), {}
  make = canaries.family(
    config.canaries.family, block=config.canaries.block, mesh=mesh
  )
  set_ = make(canary_key, who.canaries.shape[1], dim)
  attackers = {
    'final_model': final_model(set_, mesh=mesh),
    'rounds': _observe_rounds(config, set_, mesh),
    **{name: observe(set_) for name, observe in (more or {}).items()},
  }
  return wrapper.audited(algorithm, set_, rows, attackers), attackers


def _observe_rounds(
  config: Config, canary_set: canaries.Canaries, mesh: sharding.Mesh | None
) -> Observer:
  if not config.audit.trace:
    return running_maximum(canary_set, sees=(config.audit.sees,))
  # The residual is free: canaries are generated once for both.
  sees = (config.audit.sees, 'residual')
  return all_iterates(
    canary_set,
    rounds=config.rounds,
    sees=sees,
    buffer=_buffer(config, views=len(sees), dim=canary_set.dim),
    mesh=mesh,
  )


def _buffer(config: Config, *, views: int, dim: int) -> int:
  """Rounds that are scored together.

  All that wait are scored when a checkpoint is written.
  """
  between = min(config.checkpoint_every, config.rounds)
  if config.audit.buffer is not None:
    return min(config.audit.buffer, between)
  if config.canaries.family not in canaries.ONE_BY_ONE:
    return 1
  most = choose_buffer(
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


def _warn_of_server(
  config: Config, who: participation.Participation, dim: int
) -> None:
  """Logs if the server may make canaries of a Hadamard family dependent."""
  if config.server.optimizer not in _COORDINATE_WISE:
    return
  family = config.canaries.family
  together = int(who.canaries.sum(axis=1).max(initial=0))
  needed = canaries.min_noise_multiplier(family, dim, together)
  if config.noise_multiplier < needed:
    logging.warning(
      'server.optimizer=%r works coordinate by coordinate, and '
      'noise_multiplier=%s is less than the %.3g at which the cosines of '
      'unobserved canaries of canaries.family=%r follow their null law behind '
      'it, with up to %d canaries in a round. Take what is estimated from the '
      "final model, or with audit.sees='delta', for doubtful, or train with "
      "canaries.family='sphere' or 'sign'.",
      config.server.optimizer,
      config.noise_multiplier,
      needed,
      family,
      together,
    )


def _plan(config: Config, slots: int) -> cohort.Plan:
  return cohort.Plan(
    batch_size=config.client.batch_size,
    epochs=config.client.epochs,
    max_examples=config.client.max_examples,
    chunk=config.chunk or 1,
    slots=slots,
  )


def _check_memory(
  config: Config, train: federated.FederatedData, dim: int
) -> None:
  """Refuses what the memory of this machine cannot hold in any way.

  That is less than a run takes; it is what otherwise ends it without a word.
  """
  rounds, clients = config.rounds, config.clients_per_round
  together = min(
    config.rounds_per_dispatch,
    config.evaluate_every,
    config.checkpoint_every,
    rounds,
  )
  plan = _plan(config, clients)
  examples = cohort.count_steps(train.sizes, plan) * plan.batch_size
  examples *= -(-clients // plan.chunk) * plan.chunk * together
  row = sum(x[:1].nbytes for x in train.columns.values())
  num = config.canaries.observed + config.canaries.unobserved
  fields: dict[tuple[str, ...], int] = {
    # Two scores of each canary in each round, and whether it takes part.
    ('rounds', 'canaries.observed', 'canaries.unobserved'): (
      (9 if config.audit.trace else 1) * rounds * num
    ),
    ('rounds', 'clients_per_round'): 8 * rounds * clients,
    (
      'clients_per_round',
      'rounds_per_dispatch',
      'chunk',
      'client.batch_size',
      'client.epochs',
      'client.max_examples',
    ): examples * row,
    ('audit.buffer',): 8 * min(config.audit.buffer or 1, rounds) * dim,
  }
  memory = io.machine_memory()
  flat = io.flatten(config.to_dict())
  for names, needed in fields.items():
    if needed > memory:
      given = ', '.join(f'{name}={flat[name]}' for name in names)
      raise ValueError(
        f'{given} take {needed:.2g} bytes, but this machine has {memory:.2g} of '
        f'memory; give less of {" or ".join(names)}.'
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


def replace_fields(config: Config, **fields: Any) -> Config:
  """A copy with other values at its top, or with fields that it did not have."""
  copy = config.copy_and_resolve_references()
  with copy.unlocked():
    copy.update(fields)
  return copy


def purpose_key(config: Config, name: str) -> Key:
  """The key of one purpose, of which all bits of the seed decide.

  `jax.random.key` would take the seed modulo 2^32.
  """
  words = streams.sequence(config.seed, f'{name} key').generate_state(2)
  return jax.random.wrap_key_data(jnp.asarray(words), impl='threefry2x32')
