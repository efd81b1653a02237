"""Runs of one config that differ by their seed alone, made at once.

Data, clients, canaries, noise and the initial model follow from the seed; the
program does not. It is compiled once for all seeds and vmapped over some of
them. Nothing is written: these are runs of small models, a thousand of them.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import tqdm

from epe_jax.audit import wrapper
from epe_jax.audit.observers import Trace
from epe_jax.audit.record import Record
from epe_jax.audit.round_scalars import RoundScalars
from epe_jax.data import cohort
from epe_jax.experiment import audited_run, build, config_fields, evaluation
from epe_jax.training import fedavg
from epe_jax.types import Array, Key, Params

# Called with number and unit of what will be done; its update() counts.
Progress: TypeAlias = Callable[..., Any]


class Outcome(NamedTuple):
  """What is left of a run.

  Attributes:
    seed: of the run.
    record: what attackers saw.
    accuracy: of the final model on the test data, in [0, 1].
  """

  seed: int
  record: Record
  accuracy: float


class Seed(NamedTuple):
  """What a seed decides of the program of a round, one along each first axis.

  Attributes:
    canary_key: of the canaries.
    rows: who takes part when.
    training_key: of the clients.
    noise_key: of the privacy noise.
  """

  canary_key: Key
  rows: wrapper.CanaryRows
  training_key: Key
  noise_key: Key


class _Room(NamedTuple):
  """Room that the arrays of all seeds have; it grows and never shrinks.

  Attributes:
    canaries: of a round at most.
    slots: real clients of a round at most.
    steps: local steps of the largest client of all.
  """

  canaries: int
  slots: int
  steps: int


class _Program(NamedTuple):
  """Functions of several seeds, jitted; arrays have the seeds in front."""

  init: Callable[[Params], wrapper.AuditState]
  step: Callable[..., tuple[wrapper.AuditState, dict[str, Array]]]
  score: Callable[[Seed, wrapper.AuditState], dict[str, Array]]
  evaluate: Callable[..., dict[str, float]]


def run_seeds(
  config: build.Config,
  seeds: Sequence[int],
  *,
  at_once: int | None = None,
  progress: Progress = tqdm.tqdm,
) -> list[Outcome]:
  """The runs that `audited_run.run` would make of a config with these seeds.

  They agree with it to float32 rounding. Nothing is written and no run
  continues, so take `run_each` where there are many to lose.

  Args:
    config: every field set; its own seed is ignored.
    seeds: each >= 0 and once.
    at_once: runs that are vmapped, >= 1. The memory is that many times
      4 (3 + views x buffer) d bytes, and their cohorts. None for what is fast:
      1 on a CPU, where models share no weights and vmapping wins nothing, and
      16 elsewhere.
    progress: makes the bar that counts rounds, as `tqdm.tqdm` does.

  Returns:
    One outcome for each seed, in order.

  Raises:
    ValueError: as `build.build`; config.simulation is False; the seeds differ
      by more than what they draw.
    FloatingPointError: a run has diverged.
  """
  return list(run_each(config, seeds, at_once=at_once, progress=progress))


def run_each(
  config: build.Config,
  seeds: Sequence[int],
  *,
  at_once: int | None = None,
  progress: Progress = tqdm.tqdm,
) -> Iterator[Outcome]:
  """The same, one by one: as many are made ahead as are made at once."""
  if at_once is None:
    at_once = 1 if jax.default_backend() == 'cpu' else 16
  config = config_fields.check_config(config)
  check_seeds(config, seeds, at_once=at_once)
  # None are written, so that nothing has to be scored before its time.
  config = build.replace_fields(config, checkpoint_every=config.rounds)
  first, program = None, None
  room = _Room(0, 1, 1)
  with progress(total=len(seeds) * config.rounds, unit='round') as bar:
    for start in range(0, len(seeds), at_once):
      group = list(seeds[start : start + at_once])
      runs = [
        build.build(build.replace_fields(config, seed=seed)) for seed in group
      ]
      if first is None or program is None:
        first = runs[0]
        program = _program(config, first)
      for seed, this in zip(group, runs):
        _check_alike(first, this, seed)
        room = _Room(*map(max, room, _needed(this)))
      yield from _finished(config, group, runs, room, program, bar)


def check_seeds(
  config: build.Config, seeds: Sequence[int], *, at_once: int = 1
) -> None:
  """Raises a ValueError unless `run_each` can be asked for these runs."""
  if at_once < 1:
    raise ValueError(f'at_once={at_once}; give 1 or more.')
  if not seeds or len(set(seeds)) < len(seeds):
    raise ValueError(f'seeds={list(seeds)}; give one or more, each once.')
  if not config.simulation:
    raise ValueError(
      'simulation=False, but runs that differ by their seed have noise that '
      'follows from it. Set simulation=True, and release none of the models.'
    )


def _finished(
  config: build.Config,
  seeds: Sequence[int],
  runs: Sequence[build.Run],
  room: _Room,
  program: _Program,
  bar: Any,
) -> list[Outcome]:
  """Some runs at once, from the first round to the last."""
  drawn = _stacked(
    [
      Seed(
        canary_key=build.purpose_key(
          build.replace_fields(config, seed=seed), 'canary'
        ),
        rows=wrapper.canary_rows(this.who.canaries, width=room.canaries),
        training_key=build.purpose_key(
          build.replace_fields(config, seed=seed), 'training'
        ),
        noise_key=build.purpose_key(
          build.replace_fields(config, seed=seed), 'noise'
        ),
      )
      for seed, this in zip(seeds, runs)
    ]
  )
  state = program.init(_stacked([this.params for this in runs]))
  make = lambda t: jax.device_put(_cohorts(seeds, runs, room, t))
  for t, batch in cohort.prefetch(make, range(config.rounds)):
    state, seen = program.step(drawn, state, batch)
    seen = jax.device_get(seen)
    if not np.isfinite(seen['aggregate_norm']).all():
      diverged = seeds[int(np.argmin(np.isfinite(seen['aggregate_norm'])))]
      raise FloatingPointError(
        f'round {t} of seed {diverged}: the aggregate is not finite, training '
        'has diverged. Lower client.learning_rate='
        f'{config.client.learning_rate} or server.learning_rate='
        f'{config.server.learning_rate}.'
      )
    bar.update(len(seeds))
  scores = jax.device_get(program.score(drawn, state))
  rounds = jax.device_get(state.rounds)
  outcomes = []
  for i, (seed, this) in enumerate(zip(seeds, runs)):
    params = jax.tree.map(lambda x, i=i: x[i], state.algorithm.params)
    record = audited_run.record_run(
      config,
      this,
      {name: x[i] for name, x in scores.items()},
      RoundScalars(*(x[i] for x in rounds)),
    )
    accuracy = program.evaluate(params, this.test)['test_accuracy']
    outcomes.append(Outcome(seed, record, accuracy))
  return outcomes


def _program(config: build.Config, like: build.Run) -> _Program:
  """Init, step and last look of several seeds.

  Rounds have no axis of seeds: they would make the condition on which canaries
  are looked at one of each seed, and then every round pays for a look.
  """

  def audited(seed: Seed):
    return build.audit_algorithm(
      config, like.task, like.who, like.dim, seed.canary_key, seed.rows
    )

  def step(seed: Seed, state: wrapper.AuditState, batch: fedavg.Cohort):
    algorithm, _ = audited(seed)
    t = state.algorithm.round
    state, info = algorithm.step(
      state,
      batch,
      jax.random.fold_in(seed.training_key, t),
      jax.random.fold_in(seed.noise_key, t),
    )
    return state, {'aggregate_norm': info.metrics['aggregate_norm']}

  def score(seed: Seed, state: wrapper.AuditState) -> dict[str, Array]:
    _, observers = audited(seed)
    return wrapper.score_observers(state, observers)

  # The state at the start is the same function of the model for all seeds.
  init = like.algorithm.init
  axes = _axes(jax.eval_shape(init, like.params))
  return _Program(
    init=jax.jit(jax.vmap(init, out_axes=axes)),
    step=jax.jit(
      jax.vmap(step, in_axes=(0, axes, 0), out_axes=(axes, 0)),
      donate_argnums=1,
    ),
    score=jax.jit(jax.vmap(score, in_axes=(0, axes))),
    evaluate=evaluation.evaluator(like.task),
  )


def _axes(state: wrapper.AuditState) -> Any:
  """Where a state has its axis of seeds: in front, but none in rounds."""
  axes = jax.tree.map(lambda _: 0, state)
  watched = {
    name: x._replace(round=None, pending=None) if isinstance(x, Trace) else x
    for name, x in axes.observers.items()
  }
  return wrapper.AuditState(
    algorithm=axes.algorithm._replace(round=None),
    observers=watched,
    rounds=axes.rounds,
  )


def _cohorts(
  seeds: Sequence[int], runs: Sequence[build.Run], room: _Room, t: int
) -> fedavg.Cohort:
  """The cohorts of a round, of one shape for all seeds."""
  made, need = [], 1
  for seed, this in zip(seeds, runs):
    clients = this.who.clients(t)
    plan = this.plan._replace(slots=room.slots)
    made.append(cohort.gather(this.train, clients, plan, seed=seed, round=t))
    if len(clients):
      need = max(need, cohort.count_steps(this.train.sizes[clients], plan))
  steps = cohort.choose_room(need, room.steps)
  return _stacked([cohort.resize_steps(one, steps) for one in made])


def _stacked(trees: Sequence[Any]) -> Any:
  """Trees of one shape as one, with a new first axis."""
  return jax.tree.map(
    lambda *x: (np if isinstance(x[0], np.ndarray) else jnp).stack(x), *trees
  )


def _needed(this: build.Run) -> _Room:
  return _Room(
    canaries=int(this.who.canaries.sum(axis=1).max()),
    slots=this.who.slots,
    steps=cohort.count_steps(this.train.sizes, this.plan),
  )


def _check_alike(first: build.Run, this: build.Run, seed: int) -> None:
  """Raises a ValueError unless one program serves both runs."""
  for name, a, b in (
    ('parameters', first.dim, this.dim),
    ('canaries', first.who.canaries.shape[1], this.who.canaries.shape[1]),
    ('expected clients', first.who.expected, this.who.expected),
  ):
    if a != b:
      raise ValueError(
        f'seed={seed} has {name}: {b}, but the first seed {a}; such runs '
        'cannot be made at once. Make each with scripts/train.py.'
      )
