"""The jitted programs of a run, and how many of them may be in flight.

Runs that differ by their seed alone are replicates of one program, which is vmapped
over their draws, states and cohorts. Compiling takes longer than anything else in a
small run, so that compiled programs are kept on the disk: they depend on shapes,
settings, libraries and the machine, but on no seed.

JAX returns from a jitted function before its program has run. Over several devices of
one processor a loop that is far ahead deadlocks: XLA:CPU has one pool of as many
threads as cores, or devices if they are more. In a collective each thread waits for all
others, while threads of the same pool that launch the next program wait where 32 are in
flight on their device (`PjRtCpuExecutable::Execute` and
`CpuClientOptions::max_inflight_computations_per_device` in openxla/xla,
xla/pjrt/cpu). So a loop has at most `MAX_PROGRAMS` in flight, the one that runs and the
next, which is as fast as any number; loops within loops add up to a few.

Processors of several processes talk by Gloo, which knows no programs: what one process
sends for the next program another takes for the one that it runs, if neither needs the
result of the other. There a program ends before the next one is dispatched.
"""

import collections
from collections.abc import Callable, Iterable, Iterator
import functools
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from epe_jax import io
from epe_jax.audit import audited_algorithm
from epe_jax.audit.audited_algorithm import AuditState
from epe_jax.audit.observers import Trace
from epe_jax.experiment.setup.build import MakeAlgorithm, RunKeys, Setup
from epe_jax.parallel import hosts, sharding
from epe_jax.training import algorithms, fedavg
from epe_jax.types import Array, Key, Params

T = TypeVar('T')

Metrics = dict[str, Array]
"""Metrics of a group of rounds by name, each [rounds]."""

MAX_PROGRAMS = 2
"""Programs that a loop has in flight: the one that runs, and the next."""

_MAX_BYTES = 2**30
# Below this, reading takes as long as compiling.
_MIN_SECONDS = 0.05


class Programs(NamedTuple):
  """The jitted programs of a run.

  No number that follows from a seed or a secret is a constant in them. The states
  that `advance` and `flush` take are donated.
  """

  # (draws, state, cohorts) -> (state, metrics): a group of rounds.
  advance: jax.stages.Wrapped
  # (draws, state) -> state: scores the vectors that wait in a state.
  flush: jax.stages.Wrapped
  # (draws, state) -> the cosines of all observers by name; of a state in which no
  # vector waits.
  score: jax.stages.Wrapped
  # The same of the observers that score round by round, which takes no canaries.
  score_rounds: jax.stages.Wrapped


def make_init(setup: Setup, *, replicates: bool = False) -> jax.stages.Wrapped:
  """Makes the program (draws, params) -> initial state.

  It is one program, so that no temporary array of the model's size is made.
  """

  def init(draws: RunKeys, params: Params) -> AuditState:
    return setup.make_algorithm(draws)[0].init(params)

  if replicates:
    init = jax.vmap(init, out_axes=_replicate_axes(setup.state))
  return jax.jit(init)


def make_programs(
  setup: Setup,
  state: AuditState,
  mesh: sharding.Mesh | None = None,
  *,
  replicates: bool = False,
) -> Programs:
  """Makes the programs of a run, which are compiled when they are first called."""
  advance = functools.partial(advance_run, setup.make_algorithm)

  def flush(draws: RunKeys, state: AuditState) -> AuditState:
    return audited_algorithm.flush(state, setup.make_algorithm(draws)[1])

  def score(draws: RunKeys, state: AuditState, *, rounds_only: bool = False):
    # Nothing waits. Without buffers no program that scores them is compiled.
    flushed = audited_algorithm.drop_buffers(state)
    observers = {
      name: observer
      for name, observer in setup.make_algorithm(draws)[1].items()
      if not rounds_only or isinstance(state.observers[name], Trace)
    }
    return audited_algorithm.score_observers(flushed, observers)

  if replicates:
    axes = _replicate_axes(setup.state)
    advance = jax.vmap(advance, in_axes=(0, axes, 0), out_axes=(axes, 0))
    flush = jax.vmap(flush, in_axes=(0, axes), out_axes=axes)
    score = jax.vmap(score, in_axes=(0, axes))
  return Programs(
    advance=jax.jit(
      advance,
      donate_argnums=1,
      out_shardings=hosts.step_shardings(mesh, state),
    ),
    flush=jax.jit(
      flush,
      donate_argnums=1,
      out_shardings=hosts.current_shardings(mesh, state),
    ),
    score=jax.jit(score),
    score_rounds=jax.jit(functools.partial(score, rounds_only=True)),
  )


def _replicate_axes(state: AuditState) -> Any:
  """The axis of replicates in each array of a state: the first, or none.

  All replicates are in the same round. Were the counters of rounds replicated, the
  condition on which canaries are scored would be one of each replicate, and under
  vmap every round would pay for scoring.
  """
  axes = jax.tree.map(lambda _: 0, state)
  observers = {
    name: x._replace(round=None, pending=None, skipped=None)
    if isinstance(x, Trace)
    else x
    for name, x in axes.observers.items()
  }
  return axes._replace(
    algorithm=axes.algorithm._replace(round=None), observers=observers
  )


def has_waiting(state: AuditState) -> bool:
  """Whether vectors of rounds wait to be scored, by the package's own observers."""
  traces = (x for x in state.observers.values() if isinstance(x, Trace))
  return any(int(x.pending) > 0 for x in traces)


def compile_for_later(
  program: jax.stages.Wrapped, draws: RunKeys, state: AuditState
) -> Callable[[], None]:
  """Prepares to compile a program that a run needs after its first rounds.

  Returns:
    A function that compiles it, which a thread may call while rounds are made.
    It holds no arrays. Calls of the program use what was compiled.
  """

  def describe(x: Array | np.ndarray) -> jax.ShapeDtypeStruct:
    # A program compiled for uncommitted arrays serves wherever they are.
    if isinstance(x, jax.Array) and x.committed:
      return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
    return jax.ShapeDtypeStruct(x.shape, x.dtype)

  draws, state = jax.tree.map(describe, (draws, state))

  def compile_program() -> None:
    program.lower(draws, state).compile()

  return compile_program


def replicate_draws(draws: RunKeys, mesh: sharding.Mesh | None) -> RunKeys:
  """Puts the draws of a run on every device."""
  keys = {
    name: hosts.replicate_key(mesh, getattr(draws, name))
    for name in ('canaries', 'training', 'noise')
  }
  return RunKeys(rows=hosts.replicate(mesh, draws.rows), **keys)


def advance_run(
  make_algorithm: MakeAlgorithm,
  draws: RunKeys,
  state: AuditState,
  cohorts: fedavg.Cohort,
) -> tuple[AuditState, Metrics]:
  """Steps through a group of rounds, as `Programs.advance` does."""
  algorithm, _ = make_algorithm(draws)
  return make_advance(algorithm)(state, cohorts, draws.training, draws.noise)


def make_advance(
  algorithm: algorithms.Algorithm,
) -> Callable[
  [AuditState, fedavg.Cohort, Key, Key], tuple[AuditState, Metrics]
]:
  """Makes the function that steps through a group of rounds, to be jitted.

  The keys of a round are folds of the run's keys by its number, so they do not
  depend on which rounds are dispatched together.

  Returns:
    (state, cohorts, training key, noise key) -> (state, metrics). Cohorts have a first
    axis of rounds.
  """

  def advance(state, cohorts, training_key, noise_key):
    def step(state: AuditState, clients: fedavg.Cohort):
      t = state.algorithm.round
      state, made = algorithm.step(
        state,
        clients,
        jax.random.fold_in(training_key, t),
        jax.random.fold_in(noise_key, t),
      )
      return state, made.by_name()

    if cohorts.clients.shape[0] > 1:
      return jax.lax.scan(step, state, cohorts)
    # No loop around a single round: XLA compiles loops less well.
    state, metrics = step(state, jax.tree.map(lambda x: x[0], cohorts))
    return state, jax.tree.map(lambda x: x[None], metrics)

  return advance


def keep_programs() -> None:
  """Keeps compiled programs in compiled/ of `io.user_cache`, for later ones.

  At most 1 GiB is kept: what was used last. A folder set by
  JAX_COMPILATION_CACHE_DIR has precedence, and JAX_ENABLE_COMPILATION_CACHE=0 keeps
  nothing. Call it before anything is compiled. A folder that is not writable is no
  error.
  """
  if jax.config.values['jax_compilation_cache_dir'] is not None:
    return
  folder = io.user_cache() / 'compiled'
  jax.config.update('jax_compilation_cache_dir', str(folder))
  jax.config.update('jax_compilation_cache_max_size', _MAX_BYTES)
  jax.config.update('jax_persistent_cache_min_compile_time_secs', _MIN_SECONDS)


def pop_due(queue: collections.deque[T], *, drain: bool = False) -> Iterator[T]:
  """Takes out of a queue what must end before one more program may be dispatched.

  Yields:
    The oldest program each time. The caller waits for it.

  >>> queue = collections.deque('abc')
  >>> list(pop_due(queue)), queue
  (['a', 'b'], deque(['c']))
  """
  is_gloo = jax.process_count() > 1 and jax.default_backend() == 'cpu'
  most = 1 if is_gloo else MAX_PROGRAMS
  while len(queue) >= (1 if drain else most):
    yield queue.popleft()


def iterate_in_order(results: Iterable[T]) -> Iterator[T]:
  """Yields the results of a loop's programs in order, each once it is computed.

  >>> double = jax.jit(lambda x: 2 * x)
  >>> [int(x) for x in iterate_in_order(double(i) for i in range(3))]
  [0, 2, 4]
  """
  queue = collections.deque()
  for result in results:
    queue.append(result)
    yield from map(jax.block_until_ready, pop_due(queue))
  yield from map(jax.block_until_ready, pop_due(queue, drain=True))
