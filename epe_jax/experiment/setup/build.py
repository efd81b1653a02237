"""Builds and checks everything that training needs, from a config."""

from collections.abc import Callable, Mapping
import functools
import math
from typing import NamedTuple

from absl import logging
import jax
from jaxtyping import Float
import numpy as np
import optax

from epe_jax import canaries
from epe_jax.audit import audit_step, audited_algorithm
from epe_jax.audit.observers import (
  Observer,
  all_iterates,
  final_model,
  running_maximum,
)
from epe_jax.audit.record import Record, make_record
from epe_jax.data import cohort, federated
from epe_jax.epsilon import checks
from epe_jax.experiment import run_result
from epe_jax.experiment.setup import config as config_lib
from epe_jax.experiment.setup import (
  participation,
  randomness,
  servers,
  workloads,
)
from epe_jax.experiment.setup.config import Config
from epe_jax.parallel import sharding
from epe_jax.training import aggregation as aggregation_lib
from epe_jax.training import (
  algorithms,
  clipping,
  correlated_noise,
  exact_noise,
  fedavg,
  secure_aggregation,
)
from epe_jax.training.round_scalars import RoundScalars
from epe_jax.types import Key, Params, Task

Observe = Mapping[str, Callable[[canaries.Canaries], Observer]]
"""Observers of a user: name -> (canaries -> observer)."""


class RunKeys(NamedTuple):
  """What the programs of a run draw from, passed to them as arguments.

  None of it is a constant of a program. So a program is the same for every seed,
  and a copy in a cache on the disk reveals neither the canaries nor their rounds.
  Runs that differ by their seed stack their draws along a new first axis.
  """

  canaries: Key
  # The canaries of each round; empty rows in a run without canaries.
  rows: audit_step.CanaryRows
  training: Key  # Of the clients, for dropout and the like.
  noise: Key  # Of the privacy noise.


MakeAlgorithm = Callable[
  [RunKeys], tuple[algorithms.Algorithm, dict[str, Observer]]
]
"""RunKeys, which may be traced -> an audited algorithm and its observers by name."""


class Setup(NamedTuple):
  """Everything that training needs, built and checked before the first round."""

  task: Task
  train: federated.FederatedData  # Of the clients that train.
  test: federated.FederatedData
  source: str  # Where the data come from, as a person would name it.
  baseline: float  # As `workloads.Workload` has it.
  params: Params  # The initial model.
  # Makes DP-FedAvg with canaries in it, and its observers; there are none without
  # canaries. Programs call it while they are traced.
  make_algorithm: MakeAlgorithm
  draws: RunKeys  # The argument of `make_algorithm` in this run.
  # The shapes of the initial state of the algorithm.
  state: audited_algorithm.AuditState
  participants: participation.Participation
  plan: cohort.Plan  # Of each round's cohort.
  dim: int  # d, the number of parameters.
  delta: float  # δ, in (0, 1).
  randomness: randomness.Randomness
  # Of integers; None if vectors are summed as such.
  aggregation: secure_aggregation.SecureAggregation | None = None

  @property
  def is_audited(self) -> bool:
    """Whether there are any canaries."""
    return bool(self.state.observers)


def build(
  config: Config,
  *,
  secret: bytes | None = None,
  mesh: sharding.Mesh | None = None,
  observers: Observe | None = None,
  workload: workloads.Workload | None = None,
  init: Callable[..., Params] | None = None,
) -> Setup:
  """Builds task, data, canaries, schedules, DP-FedAvg and the audit around it.

  Args:
    secret: what noise and sampling follow from, as `randomness.draw_secret`
      gives it; None for a simulation, where they follow from config.seed.
    observers: further observers, name -> canaries -> observer.
    workload: of the config, if it is loaded already.
    init: (task.init, key) -> the initial model; None for a jitted call.

  Raises:
    ValueError: a field has a wrong type, is out of range or contradicts another.
    FileNotFoundError: the data file is missing.
  """
  config = check_fields(config)
  draws = randomness.make_randomness(config, secret)
  workload = workload or workloads.load_workload(config)
  params = (init or _init_model)(
    workload.task.init, randomness.derive_key(config.seed, 'init')
  )
  task, train, test, source, baseline = workload
  assert baseline is not None, 'a workload that was loaded has one'
  dim = sum(leaf.size for leaf in jax.tree.leaves(params))
  plan = cohort.Plan(
    batch_size=config.client.batch_size,
    epochs=config.client.epochs,
    max_examples=config.client.max_examples,
    chunk=config.chunk or 1,
    slots=config.clients_per_round,
  )
  participants = participation.plan_participation(
    config, train, client_seed=draws.clients, canary_seed=draws.canaries
  )
  _check_model(config, participants, dim)
  _warn_of_canaries(config, participants)
  delta = config.audit.delta
  if delta is None:
    delta = float(train.num_clients) ** run_result.DELTA_EXPONENT
  elif warning := checks.warn_of_delta(delta, train.num_clients):
    logging.warning('audit.delta: %s.', warning)
  run_draws = RunKeys(
    canaries=randomness.derive_key(config.seed, 'canary'),
    rows=audit_step.canary_rows(
      participants.canaries, width=participants.max_canaries
    ),
    training=draws.training,
    noise=draws.noise,
  )
  aggregation = None
  if config.secure_aggregation.bits is not None:
    # Its ring is the same for every seed.
    aggregation = secure_aggregation.plan(
      **config.secure_aggregation.to_dict(),
      dim=dim,
      noise_multiplier=config.noise_multiplier,
      clients=participants.expected_clients,
    )
  make_algorithm = functools.partial(
    _audit_algorithm,
    *(config, task, participants, dim, mesh, observers or {}, aggregation),
  )

  def init_state(
    run_draws: RunKeys, params: Params
  ) -> audited_algorithm.AuditState:
    return make_algorithm(run_draws)[0].init(params)

  if not config.simulation:
    # Programs are kept on the disk and have the shapes of cohorts, which must not
    # reveal who was drawn.
    plan = plan._replace(steps=cohort.count_steps(train.sizes, plan))
  return Setup(
    task=task,
    train=train,
    test=test,
    source=source,
    baseline=baseline,
    params=params,
    make_algorithm=make_algorithm,
    draws=run_draws,
    # Observers that contradict each other are refused here.
    state=jax.eval_shape(init_state, run_draws, params),
    participants=participants,
    plan=plan._replace(slots=participants.slots),
    dim=dim,
    delta=delta,
    randomness=draws,
    aggregation=aggregation,
  )


def check(config: Config, workload: workloads.Workload | None = None) -> None:
  """Checks all that `build` checks, without computing the initial model."""
  secret = None if config.simulation else randomness.draw_secret()
  build(config, secret=secret, workload=workload, init=jax.eval_shape)


def check_fields(config: Config) -> Config:
  """Checks what can be checked without data and model; gives a plain copy."""
  config = config_lib.check_config(config)
  config_lib.check_conflicts(config)
  return config


def _init_model(init: Callable[[Key], Params], key: Key) -> Params:
  # Jitted, because compiling each operation by itself takes seconds. The program is
  # called once, so on a CPU optimizing it would take longer than running it.
  options = None
  if jax.default_backend() == 'cpu':
    options = {'xla_backend_optimization_level': 1}
  return jax.jit(init, compiler_options=options)(key)


def _check_model(
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


def _warn_of_canaries(
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


def make_run_record(
  config: Config,
  setup: Setup,
  cosines: Mapping[str, Float[np.ndarray, '... k']],
  rounds: RoundScalars,
  *,
  wrapped: int = 0,
) -> Record:
  """Makes the record of a run, from which all estimates are made.

  Args:
    cosines: the cosines that its observers scored, by name: [T, k] or [k].
    rounds: the scalars of its rounds, [T] each, in NumPy.
    wrapped: coordinates that wrapped around the ring of secure aggregation.
  """
  is_linear = servers.SERVERS[config.server.optimizer].is_linear
  correlation, aggregation = setup.participants.correlation, setup.aggregation
  return make_record(
    cosines,
    rounds,
    included=setup.participants.canaries,
    assigned=setup.participants.assigned,
    design=setup.participants.design,
    momentum=float(config.server.momentum) if is_linear else None,
    dim=setup.dim,
    delta=setup.delta,
    noise_multiplier=float(config.noise_multiplier),
    periods=setup.participants.periods,
    strategy=correlation and correlation.whitened,
    ring=aggregation and aggregation.ring._replace(wrapped=wrapped),
  )


def _audit_algorithm(
  config: Config,
  task: Task,
  participants: participation.Participation,
  dim: int,
  mesh: sharding.Mesh | None,
  observers: Observe,
  aggregation: secure_aggregation.SecureAggregation | None,
  draws: RunKeys,
) -> tuple[algorithms.Algorithm, dict[str, Observer]]:
  """Makes DP-FedAvg with canaries in it, and its observers by name.

  Of the participants only the numbers of clients and canaries matter, so that one
  algorithm serves all seeds.
  """
  clip, make_aggregation = make_clipping(
    config, participants, aggregation, mesh
  )
  algorithm = fedavg.dp_fedavg(
    task,
    client_opt=optax.sgd(config.client.learning_rate),
    server_opt=servers.SERVERS[config.server.optimizer].make(
      config.server.learning_rate, config.server.momentum
    ),
    clipping=clip,
    noise_multiplier=config.noise_multiplier,
    expected_clients=participants.expected_clients,
    aggregation=make_aggregation,
    precision=config.precision,
    mesh=mesh,
  )
  num_canaries = participants.canaries.shape[1]
  if num_canaries == 0:
    return audited_algorithm.unaudited(algorithm), {}
  make_canaries = canaries.family(
    config.canaries.family, block=config.canaries.block, mesh=mesh
  )
  canary_set = make_canaries(draws.canaries, num_canaries, dim)
  all_observers = {
    **make_observers(config, canary_set, mesh),
    **{name: observe(canary_set) for name, observe in observers.items()},
  }
  audited = audited_algorithm.audited(
    algorithm, canary_set, draws.rows, all_observers
  )
  return audited, all_observers


def make_observers(
  config: Config, canary_set: canaries.Canaries, mesh: sharding.Mesh | None
) -> dict[str, Observer]:
  """Makes the observers of the package, by name."""
  if config.audit.trace:
    # The residual costs nothing more: canaries are generated once for both.
    views = (config.audit.view, 'residual')
    rounds = all_iterates(
      canary_set,
      rounds=config.rounds,
      views=views,
      buffer=_choose_buffer(config, views=len(views), dim=canary_set.dim),
      mesh=mesh,
    )
  else:
    rounds = running_maximum(canary_set, views=(config.audit.view,))
  return {'final_model': final_model(canary_set, mesh=mesh), 'rounds': rounds}


def _choose_buffer(config: Config, *, views: int, dim: int) -> int:
  """Chooses how many rounds are scored together.

  All that wait are scored when a checkpoint is written.
  """
  max_rounds = min(config.checkpoint_every, config.rounds)
  if config.audit.buffer is not None:
    return min(config.audit.buffer, max_rounds)
  if not canaries.FAMILIES[config.canaries.family].one_by_one:
    return 1
  buffer = audit_step.choose_buffer(
    config.audit.memory, rounds=max_rounds, views=views, dim=dim
  )
  # In equal parts, because a buffer is scored in full even if it is not full.
  return -(-max_rounds // -(-max_rounds // buffer))


def make_clipping(
  config: Config,
  participants: participation.Participation,
  aggregation: secure_aggregation.SecureAggregation | None,
  mesh: sharding.Mesh | None,
) -> tuple[clipping.Clipping, aggregation_lib.MakeAggregation]:
  """Makes the clipping rule of a run, and the aggregation of its rounds.

  Raises:
    ValueError: adaptive clipping leaves nothing of the privacy budget.
  """
  make_aggregation = aggregation_lib.float32
  if aggregation is not None:
    make_aggregation = aggregation.make_aggregation
  elif participants.correlation is not None:
    make_aggregation = correlated_noise.correlated(
      participants.correlation.stream
    )
  elif not config.simulation and config.noise_multiplier:
    most = participants.slots + participants.max_canaries
    make_aggregation = exact_noise.exact(most, mesh=mesh)
  c, z = config.clipping, config.noise_multiplier
  expected_clients = participants.expected_clients
  smallest = z / 2 / expected_clients
  if c.kind == 'adaptive' and z > 0 and c.count_noise <= smallest:
    raise ValueError(
      f'clipping.count_noise={c.count_noise}, a share of the {expected_clients:.3g} '
      'clients and canaries expected in a round, leaves nothing of the budget of '
      f'noise_multiplier={z} to the updates; give more than {smallest:.4g}, or '
      "clipping.kind='fixed'."
    )
  rule = clipping.CLIPPINGS[c.kind](
    c.initial,
    quantile=c.quantile,
    learning_rate=c.learning_rate,
    count_noise=c.count_noise * expected_clients,
    expected_clients=expected_clients,
    aggregation=make_aggregation,
  )
  return rule, make_aggregation
