"""Builds and checks everything that training needs, from a config."""

from collections.abc import Callable, Mapping
import functools
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
from epe_jax.experiment.setup import (
  config_checks,
  participation,
  randomness,
  servers,
  workloads,
)
from epe_jax.experiment.setup.config_files import Config
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

  Attributes:
    canaries: the key of the canaries.
    rows: the canaries of each round; empty rows in a run without canaries.
    training: the key of the clients, for dropout and the like.
    noise: the key of the privacy noise.
  """

  canaries: Key
  rows: audit_step.CanaryRows
  training: Key
  noise: Key


MakeAlgorithm = Callable[
  [RunKeys], tuple[algorithms.Algorithm, dict[str, Observer]]
]
"""RunKeys, which may be traced -> an audited algorithm and its observers by name."""


class Setup(NamedTuple):
  """Everything that training needs, built and checked before the first round.

  Attributes:
    task: what is trained.
    train: the data of the clients that train.
    test: the data that the model is evaluated on.
    source: where the data come from, as a person would name it.
    baseline: the majority-class baseline, see `workloads.Workload`.
    params: the initial model.
    make_algorithm: makes DP-FedAvg with canaries in it, and its observers; there
      are none without canaries. Programs call it while they are traced.
    draws: the argument of `make_algorithm` in this run.
    state: the shapes of the initial state of the algorithm.
    participants: the participation of clients and canaries.
    plan: the plan of each round's cohort.
    dim: d, the number of parameters.
    delta: the δ of the run, in (0, 1).
    randomness: its keys and seeds.
    aggregation: of integers, by secure aggregation; None if vectors are summed as such.
  """

  task: Task
  train: federated.FederatedData
  test: federated.FederatedData
  source: str
  baseline: float
  params: Params
  make_algorithm: MakeAlgorithm
  draws: RunKeys
  state: audited_algorithm.AuditState
  participants: participation.Participation
  plan: cohort.Plan
  dim: int
  delta: float
  randomness: randomness.Randomness
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
) -> Setup:
  """Builds task, data, canaries, schedules, DP-FedAvg and the audit around it.

  Args:
    secret: what noise and sampling follow from, as `randomness.draw_secret`
      gives it; None for a simulation, where they follow from config.seed.
    observers: further observers, name -> canaries -> observer.

  Raises:
    ValueError: a field has a wrong type, is out of range or contradicts
      another, or jax_enable_x64 is set. The message names it, its value and the
      cure.
    FileNotFoundError: the data file is missing.
  """
  config = check_fields(config)
  draws = randomness.make_randomness(config, secret)
  workload = workloads.load_workload(config)
  # Jitted, because compiling each operation by itself takes seconds. The program is
  # called once, so on a CPU optimizing it would take longer than running it.
  options = None
  if jax.default_backend() == 'cpu':
    options = {'xla_backend_optimization_level': 1}
  params = jax.jit(workload.task.init, compiler_options=options)(
    randomness.derive_key(config.seed, 'init')
  )
  return _build_setup(config, draws, workload, params, mesh, observers)


def check(config: Config, workload: workloads.Workload | None = None) -> None:
  """Checks all that `build` checks, without computing the initial model.

  Raises:
    ValueError, FileNotFoundError: as `build`.
  """
  config = check_fields(config)
  secret = None if config.simulation else randomness.draw_secret()
  draws = randomness.make_randomness(config, secret)
  workload = workload or workloads.load_workload(config)
  params = jax.eval_shape(
    workload.task.init, randomness.derive_key(config.seed, 'init')
  )
  _build_setup(config, draws, workload, params, None, None)


def check_fields(config: Config) -> Config:
  """Checks what can be checked without data and model; gives a plain copy."""
  config = config_checks.check_config(config)
  config_checks.check_conflicts(config)
  return config


def _build_setup(
  config: Config,
  draws: randomness.Randomness,
  workload: workloads.Workload,
  params: Params,
  mesh: sharding.Mesh | None,
  observers: Observe | None,
) -> Setup:
  """Builds and checks the rest, from the shapes of the initial model at least."""
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
  config_checks.check_model(config, participants, dim)
  config_checks.warn_of_canaries(config, participants)
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
  aggregation = _plan_aggregation(config, participants.expected_clients, dim)
  make_algorithm = functools.partial(
    _audit_algorithm,
    *(config, task, participants, dim, mesh, observers or {}, aggregation),
  )

  def init(run_draws: RunKeys, params: Params) -> audited_algorithm.AuditState:
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
    state=jax.eval_shape(init, run_draws, params),
    participants=participants,
    plan=plan._replace(slots=participants.slots),
    dim=dim,
    delta=delta,
    randomness=draws,
    aggregation=aggregation,
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
    strategy=None
    if setup.participants.correlation is None
    else setup.participants.correlation.whitened,
    ring=None
    if setup.aggregation is None
    else setup.aggregation.ring._replace(wrapped=wrapped),
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
  return {
    'final_model': final_model(canary_set, mesh=mesh),
    'rounds': _observe_rounds(config, canary_set, mesh),
  }


def _observe_rounds(
  config: Config, canary_set: canaries.Canaries, mesh: sharding.Mesh | None
) -> Observer:
  if not config.audit.trace:
    return running_maximum(canary_set, views=(config.audit.view,))
  # The residual costs nothing more: canaries are generated once for both.
  views = (config.audit.view, 'residual')
  return all_iterates(
    canary_set,
    rounds=config.rounds,
    views=views,
    buffer=_choose_buffer(config, views=len(views), dim=canary_set.dim),
    mesh=mesh,
  )


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


def _plan_aggregation(
  config: Config, expected_clients: float, dim: int
) -> secure_aggregation.SecureAggregation | None:
  """Plans the ring of a run, which is the same for every seed."""
  fields = config.secure_aggregation
  if fields.bits is None:
    return None
  return secure_aggregation.plan(
    **fields.to_dict(),
    dim=dim,
    noise_multiplier=config.noise_multiplier,
    clients=expected_clients,
  )


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
