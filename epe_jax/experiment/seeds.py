"""Runs of one config that differ only by their seed, made at once.

Data, clients, canaries, noise and the initial model follow from the seed; the
program does not. It is compiled once for all seeds and vmapped over a group of
them. Nothing is written, as these are runs of small models, up to a thousand.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from epe_jax import progress as progress_bars
from epe_jax.audit import audited_algorithm
from epe_jax.audit.observers import Trace
from epe_jax.audit.record import Record, RoundScalars
from epe_jax.data import cohort
from epe_jax.experiment import (
  build,
  config_fields,
  dispatch,
  model_evaluation,
  randomness,
)
from epe_jax.training import fedavg
from epe_jax.types import Array, Key, Params

Progress: TypeAlias = Callable[..., Any]
"""Makes a progress bar from `total` and `unit`, as `tqdm.tqdm` does."""


class Outcome(NamedTuple):
  """The outcome of a run.

  Attributes:
    seed: the seed of the run.
    record: what attackers saw.
    accuracy: the accuracy of the final model on the test data, in [0, 1].
  """

  seed: int
  record: Record
  accuracy: float


class Draws(NamedTuple):
  """What the program of a round takes from its seed, one along each first axis.

  Attributes:
    canary_key: the key of the canaries.
    rows: the canaries of each round.
    training_key: the key of the clients.
    noise_key: the key of the privacy noise.
  """

  canary_key: Key
  rows: audited_algorithm.CanaryRows
  training_key: Key
  noise_key: Key


class _Sizes(NamedTuple):
  """The sizes of the arrays of all seeds, which grow and never shrink.

  Attributes:
    canaries: the largest number of canaries in a round.
    slots: the largest number of real clients in a round.
    steps: the local steps of the largest client.
  """

  canaries: int
  slots: int
  steps: int


class _Program(NamedTuple):
  """The jitted programs of a group of seeds, the first axis of all arrays."""

  init: Callable[[Params], audited_algorithm.AuditState]
  step: Callable[..., tuple[audited_algorithm.AuditState, dict[str, Array]]]
  score: Callable[[Draws, audited_algorithm.AuditState], dict[str, Array]]
  evaluate: Callable[..., dict[str, float]]


def run_seeds(
  config: build.Config,
  seeds: Sequence[int],
  *,
  at_once: int | None = None,
  progress: Progress = progress_bars.bar,
) -> list[Outcome]:
  """Makes the runs of a config that differ only by their seed.

  They agree with those of `audited_run.run` to float32 rounding. Nothing is
  written and no run can be resumed, so take `run_each` where there are many to
  lose.

  Args:
    config: the config of the runs, with every field set. Its own seed is
      ignored.
    seeds: the seeds, each >= 0 and given once.
    at_once: the number of runs that are vmapped, >= 1. They take that many
      times 4 (3 + views x buffer) d bytes of memory, and their cohorts. None
      chooses what is fast: 1 on a CPU, where models share no weights and
      vmapping wins nothing, and 16 elsewhere.
    progress: makes the bar that counts rounds, as `tqdm.tqdm` does.

  Returns:
    One outcome for each seed, in the order of the seeds.

  Raises:
    ValueError: as `build.build`; config.simulation is False; or one program
      cannot serve all seeds.
    FloatingPointError: a run has diverged.
  """
  return list(run_each(config, seeds, at_once=at_once, progress=progress))


def run_each(
  config: build.Config,
  seeds: Sequence[int],
  *,
  at_once: int | None = None,
  progress: Progress = progress_bars.bar,
) -> Iterator[Outcome]:
  """Makes the same runs as `run_seeds`, and yields outcomes group by group."""
  if at_once is None:
    at_once = 1 if jax.default_backend() == 'cpu' else 16
  config = config_fields.check_config(config)
  check_seeds(config, seeds, at_once=at_once)
  # No checkpoint is written, so that nothing has to be scored early for one.
  config = build.replace_fields(config, checkpoint_every=config.rounds)
  first, program = None, None
  sizes = _Sizes(0, 1, 1)
  with progress(total=len(seeds) * config.rounds, unit='round') as bar:
    for start in range(0, len(seeds), at_once):
      group = list(seeds[start : start + at_once])
      setups = [
        build.build(build.replace_fields(config, seed=seed)) for seed in group
      ]
      if first is None or program is None:
        first = setups[0]
        program = _make_program(config, first)
      for seed, setup in zip(group, setups):
        _check_same_program(first, setup, seed)
        sizes = _Sizes(*map(max, sizes, _measure_sizes(setup)))
      yield from _run_group(config, group, setups, sizes, program, bar)


def check_seeds(
  config: build.Config, seeds: Sequence[int], *, at_once: int = 1
) -> None:
  """Checks that `run_each` can make these runs.

  Args:
    config: the config of the runs, with every field set.
    seeds: the seeds.
    at_once: the number of runs that are vmapped.

  Raises:
    ValueError: at_once is less than 1, there are no seeds or two are equal, or
      config.simulation is False.
  """
  if at_once < 1:
    raise ValueError(f'at_once={at_once}; give 1 or more.')
  if not seeds or len(set(seeds)) < len(seeds):
    raise ValueError(f'seeds={list(seeds)}; give one or more, each once.')
  if not config.simulation:
    raise ValueError(
      'simulation=False, but runs that differ by their seed have noise that '
      'follows from it. Set simulation=True, and release none of the models.'
    )


def _run_group(
  config: build.Config,
  seeds: Sequence[int],
  setups: Sequence[build.Setup],
  sizes: _Sizes,
  program: _Program,
  bar: Any,
) -> list[Outcome]:
  """Makes a group of runs at once, from the first round to the last."""
  draws = _stack_trees(
    [
      Draws(
        canary_key=randomness.derive_key(seed, 'canary'),
        rows=audited_algorithm.canary_rows(
          setup.participants.canaries, width=sizes.canaries
        ),
        training_key=setup.randomness.training,
        noise_key=setup.randomness.noise,
      )
      for seed, setup in zip(seeds, setups)
    ]
  )
  state = program.init(_stack_trees([setup.params for setup in setups]))
  gather = lambda t: jax.device_put(_gather_cohorts(seeds, setups, sizes, t))
  for t, cohorts in cohort.prefetch(gather, range(config.rounds)):
    state, metrics = program.step(draws, state, cohorts)
    norms = jax.device_get(metrics)
    for i, seed in enumerate(seeds):
      of_seed = {name: float(norm[i]) for name, norm in norms.items()}
      dispatch.check_finite(config, of_seed, f'round {t} of seed {seed}')
    bar.update(len(seeds))
  cosines = jax.device_get(program.score(draws, state))
  scalars = jax.device_get(state.rounds)
  outcomes = []
  for i, (seed, setup) in enumerate(zip(seeds, setups)):
    params = jax.tree.map(lambda x, i=i: x[i], state.algorithm.params)
    record = build.make_run_record(
      config,
      setup,
      {name: x[i] for name, x in cosines.items()},
      RoundScalars(*(x[i] for x in scalars)),
    )
    accuracy = program.evaluate(params, setup.test)['test_accuracy']
    outcomes.append(Outcome(seed, record, accuracy))
  return outcomes


def _make_program(config: build.Config, like: build.Setup) -> _Program:
  """Makes the programs of a group of seeds.

  Rounds have no axis of seeds: the condition on which canaries are scored would
  be one of each seed, and then every round would pay for scoring.
  """

  def audit_algorithm(draws: Draws):
    return build.audit_algorithm(
      config,
      like.task,
      like.participants,
      like.dim,
      draws.canary_key,
      draws.rows,
    )

  def step(
    draws: Draws, state: audited_algorithm.AuditState, clients: fedavg.Cohort
  ):
    algorithm, _ = audit_algorithm(draws)
    t = state.algorithm.round
    state, made = algorithm.step(
      state,
      clients,
      jax.random.fold_in(draws.training_key, t),
      jax.random.fold_in(draws.noise_key, t),
    )
    return state, {name: getattr(made.metrics, name) for name in dispatch.NORMS}

  def score(
    draws: Draws, state: audited_algorithm.AuditState
  ) -> dict[str, Array]:
    _, observers = audit_algorithm(draws)
    return audited_algorithm.score_observers(state, observers)

  # The initial state is the same function of the model for all seeds.
  init = like.algorithm.init
  axes = _choose_axes(jax.eval_shape(init, like.params))
  return _Program(
    init=jax.jit(jax.vmap(init, out_axes=axes)),
    step=jax.jit(
      jax.vmap(step, in_axes=(0, axes, 0), out_axes=(axes, 0)),
      donate_argnums=1,
    ),
    score=jax.jit(jax.vmap(score, in_axes=(0, axes))),
    evaluate=model_evaluation.evaluator(like.task),
  )


def _choose_axes(state: audited_algorithm.AuditState) -> Any:
  """Chooses the axis of seeds in each array: the first, but none in rounds."""
  axes = jax.tree.map(lambda _: 0, state)
  observers = {
    name: x._replace(round=None, pending=None, skipped=None)
    if isinstance(x, Trace)
    else x
    for name, x in axes.observers.items()
  }
  return audited_algorithm.AuditState(
    algorithm=axes.algorithm._replace(round=None),
    observers=observers,
    rounds=axes.rounds,
  )


def _gather_cohorts(
  seeds: Sequence[int], setups: Sequence[build.Setup], sizes: _Sizes, t: int
) -> fedavg.Cohort:
  """Gathers the cohorts of a round, which have one shape for all seeds."""
  cohorts, max_steps = [], 1
  for seed, setup in zip(seeds, setups):
    clients = setup.participants.clients(t)
    plan = setup.plan._replace(slots=sizes.slots)
    cohorts.append(
      cohort.gather(setup.train, clients, plan, seed=seed, round=t)
    )
    if len(clients):
      steps = cohort.count_steps(setup.train.sizes[clients], plan)
      max_steps = max(max_steps, steps)
  steps = cohort.choose_room(max_steps, sizes.steps)
  return _stack_trees([cohort.resize_steps(x, steps) for x in cohorts])


def _stack_trees(trees: Sequence[Any]) -> Any:
  """Stacks trees of one shape along a new first axis."""
  return jax.tree.map(
    lambda *x: (np if isinstance(x[0], np.ndarray) else jnp).stack(x), *trees
  )


def _measure_sizes(setup: build.Setup) -> _Sizes:
  participants = setup.participants
  return _Sizes(
    canaries=int(participants.canaries.sum(axis=1).max()),
    slots=participants.slots,
    steps=cohort.count_steps(setup.train.sizes, setup.plan),
  )


def _check_same_program(
  first: build.Setup, setup: build.Setup, seed: int
) -> None:
  """Raises a ValueError unless one program serves both runs."""
  a, b = first.participants, setup.participants
  for name, of_first, of_seed in (
    ('parameters', first.dim, setup.dim),
    ('canaries', a.canaries.shape[1], b.canaries.shape[1]),
    ('expected clients', a.expected_clients, b.expected_clients),
  ):
    if of_first != of_seed:
      raise ValueError(
        f'seed={seed} has {name}: {of_seed}, but the first seed {of_first}; '
        'such runs cannot be one program. Run each with `epe-jax run`.'
      )
