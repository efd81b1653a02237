"""The jitted programs of a run: its rounds, and the scores of its observers."""

from collections.abc import Callable
import functools
from typing import NamedTuple

import jax
import numpy as np

from epe_jax.audit import audited_algorithm
from epe_jax.experiment import build
from epe_jax.parallel import sharding
from epe_jax.training import fedavg
from epe_jax.types import Array, Key

Advance = Callable[
  [audited_algorithm.AuditState, fedavg.Cohort, Key, Key],
  tuple[audited_algorithm.AuditState, dict[str, Array]],
]
"""(state, cohorts, training key, noise key) -> (state, metrics by name).

Cohorts and metrics have a first axis of rounds."""


class Programs(NamedTuple):
  """The jitted programs of a run, whose first argument are `setup.draws`.

  No number that follows from a seed or a secret is a constant in them.

  Attributes:
    advance: (draws, *arguments) -> what `make_advance` has of the other arguments:
      steps through a group of rounds. The state is donated.
    flush: (draws, state) -> state: scores the vectors that wait in a state, which is
      donated.
    score: (draws, state) -> cosines of all observers by name, of a state in which no
      vector of a round waits.
  """

  advance: jax.stages.Wrapped
  flush: jax.stages.Wrapped
  score: jax.stages.Wrapped


def make_programs(
  setup: build.Setup,
  state: audited_algorithm.AuditState,
  mesh: sharding.Mesh | None,
) -> Programs:
  """Makes the programs of a run, which are compiled when they are first called.

  Args:
    setup: what was built of the config.
    state: the initial state of setup.algorithm, laid out over the devices.
    mesh: the devices that share the work; None for one device.
  """

  def flush(draws: build.CanaryDraws, state: audited_algorithm.AuditState):
    return audited_algorithm.flush(state, setup.make_algorithm(draws)[1])

  def score(draws: build.CanaryDraws, state: audited_algorithm.AuditState):
    # Nothing waits, and without room for it no program that scores it is compiled.
    flushed = audited_algorithm.drop_buffers(state)
    return audited_algorithm.score_observers(
      flushed, setup.make_algorithm(draws)[1]
    )

  return Programs(
    advance=jax.jit(
      functools.partial(advance_run, setup.make_algorithm),
      donate_argnums=1,
      out_shardings=sharding.step_shardings(mesh, state),
    ),
    flush=jax.jit(
      flush,
      donate_argnums=1,
      out_shardings=sharding.current_shardings(mesh, state),
    ),
    score=jax.jit(score),
  )


def compile_for_later(
  program: jax.stages.Wrapped,
  draws: build.CanaryDraws,
  state: audited_algorithm.AuditState,
) -> Callable[[], None]:
  """Prepares to compile a program that a run needs behind its first rounds.

  Args:
    program: such as the one that scores.
    draws: as it is called with.
    state: likewise, or any of its shapes and layouts.

  Returns:
    A function that compiles it, which a thread may call while rounds are made.
    It holds no arrays. Calls of the program take what was compiled.
  """

  def describe(x: Array | np.ndarray) -> jax.ShapeDtypeStruct:
    # Where an array may be anywhere, so may what is compiled for it.
    if isinstance(x, jax.Array) and x.committed:
      return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
    return jax.ShapeDtypeStruct(x.shape, x.dtype)

  draws, state = jax.tree.map(describe, (draws, state))

  def compile_program() -> None:
    program.lower(draws, state).compile()

  return compile_program


def replicate_draws(
  draws: build.CanaryDraws, mesh: sharding.Mesh | None
) -> build.CanaryDraws:
  """Puts what the programs of a run draw canaries from on every device."""
  return build.CanaryDraws(
    sharding.replicate_key(mesh, draws.key),
    sharding.replicate(mesh, draws.rows),
  )


def advance_run(
  make_algorithm: build.MakeAlgorithm,
  draws: build.CanaryDraws,
  state: audited_algorithm.AuditState,
  cohorts: fedavg.Cohort,
  training_key: Key,
  noise_key: Key,
) -> tuple[audited_algorithm.AuditState, dict[str, Array]]:
  """Steps through a group of rounds, as `make_advance` has it, to be jitted.

  Args:
    make_algorithm: that of a setup.
    draws: what it makes the algorithm from.
    state: as for `make_advance`, like all further arguments.
    cohorts: of each round.
    training_key: of the run.
    noise_key: of the run.
  """
  algorithm, _ = make_algorithm(draws)
  advance = make_advance(algorithm)
  return advance(state, cohorts, training_key, noise_key)


def make_advance(algorithm: fedavg.Algorithm) -> Advance:
  """Makes the function that steps through a group of rounds, to be jitted.

  Keys of a round are folds of the run's keys by its number, so they do not
  depend on which rounds are dispatched as one.

  Args:
    algorithm: an algorithm as `wrapper.audited` gives it.

  Returns:
    A function of (state, cohorts as `cohort.stack_rounds` gives them, training
    key, noise key of the run) -> (state, name -> metrics [rounds]).
  """

  def advance(state, cohorts, training_key, noise_key):
    def step(state: audited_algorithm.AuditState, clients: fedavg.Cohort):
      t = state.algorithm.round
      state, made = algorithm.step(
        state,
        clients,
        jax.random.fold_in(training_key, t),
        jax.random.fold_in(noise_key, t),
      )
      return state, made.metrics.by_name()

    if cohorts.clients.shape[0] > 1:
      return jax.lax.scan(step, state, cohorts)
    # No loop around a single round, for loops are compiled less well.
    state, metrics = step(state, jax.tree.map(lambda x: x[0], cohorts))
    return state, {name: x[None] for name, x in metrics.items()}

  return advance
