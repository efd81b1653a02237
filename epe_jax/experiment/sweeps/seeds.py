"""Runs of one config that differ only by their seed, as replicates of one program.

Data, clients, canaries, noise and the initial model follow from the seed; the
program does not. It is compiled once for all seeds and vmapped over a group of
them. Nothing is written, as these are runs of small models, up to a thousand.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import operator
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from epe_jax import progress as progress_bars
from epe_jax.audit import audit_step, audited_algorithm
from epe_jax.audit.record import Record
from epe_jax.data import cohort
from epe_jax.experiment import (
  arithmetic,
  loop,
  model_evaluation,
  programs,
)
from epe_jax.experiment.setup import build
from epe_jax.experiment.setup import config as config_lib
from epe_jax.experiment.setup.config import Config
from epe_jax.training import fedavg

Progress: TypeAlias = Callable[..., Any]
"""Makes a progress bar from `total` and `unit`, as `tqdm.tqdm` does."""


class SeedRun(NamedTuple):
  """What the run of a seed leaves."""

  seed: int
  record: Record | None  # What attackers saw; None without canaries.
  accuracy: float  # Of the final model on the test data, in [0, 1].
  delta: float  # Of the run.


class Sizes(NamedTuple):
  """The sizes of the arrays of all seeds, which grow and never shrink."""

  canaries: int  # Most in a round.
  slots: int  # Most real clients in a round.
  steps: int  # Of the largest client.


def run_seeds(
  config: Config,
  seeds: Sequence[int],
  *,
  at_once: int | None = None,
  progress: Progress = progress_bars.bar,
) -> Iterator[SeedRun]:
  """Makes the runs of a config that differ only by their seed.

  They agree with those of `audited_run.run` to float32 rounding. Nothing is
  written and no run can be resumed: a caller keeps each one as it comes.

  Args:
    config: of the runs. Its own seed is ignored.
    seeds: each >= 0 and given once.
    at_once: the number of runs that are vmapped, >= 1. They take that many
      times 4 (3 + views x buffer) d bytes of memory, and their cohorts. None
      chooses what is fast: 1 on a CPU, where models share no weights and
      vmapping wins nothing, and 16 elsewhere.
    progress: makes the bar that counts rounds, as `tqdm.tqdm` does.

  Yields:
    A run for each seed, in the order of the seeds.

  Raises:
    ValueError: a field is wrong, see `build.build`; config.simulation is False; or
      one program cannot serve all seeds.
    FloatingPointError: a run has diverged, or `arithmetic.Miscomputed`.
  """
  if at_once is None:
    at_once = 1 if jax.default_backend() == 'cpu' else 16
  config = config_lib.check_config(config)
  check_seeds(config, seeds, at_once=at_once)
  # No checkpoint is written, so no round has to be scored early for one.
  config = config_lib.replace_fields(config, checkpoint_every=config.rounds)
  first, sizes = None, Sizes(0, 1, 1)
  with progress(total=len(seeds) * config.rounds, unit='round') as bar:
    for start in range(0, len(seeds), at_once):
      setups = {
        seed: build.build(config_lib.replace_fields(config, seed=seed))
        for seed in seeds[start : start + at_once]
      }
      if first is None:
        first = next(iter(setups.values()))
        arithmetic.check_arithmetic(config, first)
        init = programs.make_init(first, replicates=True)
        jitted = programs.make_programs(first, first.state, replicates=True)
        evaluate = model_evaluation.evaluator(first.task)
      for seed, setup in setups.items():
        _check_same_program(first, setup, seed)
        sizes = Sizes(*map(max, sizes, measure_sizes(setup)))
      draws = stack_draws([*setups.values()], sizes)
      state = init(draws, _stack_trees([x.params for x in setups.values()]))
      # No program is in flight when rounds begin.
      jax.block_until_ready(state)
      state = _train(config, setups, sizes, jitted, draws, state, bar)
      cosines = jax.device_get(jitted.score(draws, state))
      scalars = jax.device_get(state.rounds)
      for i, (seed, setup) in enumerate(setups.items()):
        of_seed = operator.itemgetter(i)
        record = None
        if setup.is_audited:
          record = build.make_run_record(
            config,
            setup,
            jax.tree.map(of_seed, cosines),
            jax.tree.map(of_seed, scalars),
            wrapped=int(state.algorithm.noise_state[i])
            if setup.aggregation
            else 0,
          )
        params = jax.tree.map(of_seed, state.algorithm.params)
        metrics = evaluate(params, setup.test)
        yield SeedRun(seed, record, metrics['test_accuracy'], setup.delta)


def check_seeds(
  config: Config, seeds: Sequence[int], *, at_once: int = 1
) -> None:
  """Refuses what `run_seeds` cannot make."""
  if at_once < 1:
    raise ValueError(f'at_once={at_once}; give 1 or more.')
  if not seeds or len(set(seeds)) < len(seeds):
    raise ValueError(f'seeds={list(seeds)}; give one or more, each once.')
  if not config.simulation:
    raise ValueError(
      'simulation=False, but runs that differ by their seed have noise that '
      'follows from it. Set simulation=True, and release none of the models.'
    )


def _train(
  config: Config,
  setups: Mapping[int, build.Setup],
  sizes: Sizes,
  jitted: programs.Programs,
  draws: build.RunKeys,
  state: audited_algorithm.AuditState,
  bar: Any,
) -> audited_algorithm.AuditState:
  """Trains the runs of a group of seeds; no vector waits in the final state."""

  def advance_rounds() -> Iterator[programs.Metrics]:
    nonlocal state
    gather = lambda t: jax.device_put(
      gather_cohorts([*setups.values()], sizes, t)
    )
    for _, cohorts in cohort.prefetch(gather, range(config.rounds)):
      state, metrics = jitted.advance(draws, state, cohorts)
      yield {name: metrics[name] for name in loop.NORMS}

  for t, metrics in enumerate(programs.iterate_in_order(advance_rounds())):
    norms = jax.device_get(metrics)
    for i, seed in enumerate(setups):
      of_seed = {name: float(norm[i, 0]) for name, norm in norms.items()}
      loop.check_finite(config, of_seed, f'round {t + 1} of seed {seed}')
    bar.update(len(setups))
  return jitted.flush(draws, state) if programs.has_waiting(state) else state


def measure_sizes(setup: build.Setup) -> Sizes:
  """Measures the sizes that a run needs."""
  return Sizes(
    canaries=setup.participants.max_canaries,
    slots=setup.participants.slots,
    steps=cohort.count_steps(setup.train.sizes, setup.plan),
  )


def stack_draws(setups: Sequence[build.Setup], sizes: Sizes) -> build.RunKeys:
  """Stacks the draws of several runs along a new first axis."""
  rows = (
    audit_step.canary_rows(setup.participants.canaries, width=sizes.canaries)
    for setup in setups
  )
  return _stack_trees(
    [setup.draws._replace(rows=x) for setup, x in zip(setups, rows)]
  )


def gather_cohorts(
  setups: Sequence[build.Setup], sizes: Sizes, t: int
) -> fedavg.Cohort:
  """Gathers the cohorts of round t, which have one shape for all runs.

  Returns:
    Arrays [runs, 1, chunks, chunk, steps, b, ...].
  """
  clients = [setup.participants.clients(t) for setup in setups]
  steps = [
    cohort.count_steps(setup.train.sizes[of_run], setup.plan)
    for setup, of_run in zip(setups, clients)
    if of_run.size
  ]
  room = cohort.choose_room(max(steps, default=1), sizes.steps)
  cohorts = [
    cohort.gather(
      setup.train,
      of_run,
      setup.plan._replace(slots=sizes.slots, steps=room),
      seed=setup.randomness.order,
      round=t,
    )
    for setup, of_run in zip(setups, clients)
  ]
  return _stack_trees([cohort.stack_rounds([x]) for x in cohorts])


def _stack_trees(trees: Sequence[Any]) -> Any:
  """Stacks trees of one shape along a new first axis."""
  return jax.tree.map(
    lambda *x: (np if isinstance(x[0], np.ndarray) else jnp).stack(x), *trees
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
