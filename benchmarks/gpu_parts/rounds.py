"""Time and memory of rounds of a config, whose cohort is on the device."""

import collections
from collections.abc import Mapping
import functools
import time
from typing import Any

import jax
import numpy as np

from epe_jax.audit import audited_algorithm
from epe_jax.experiment import build, chunk_size, dispatch, programs
from epe_jax.parallel import sharding

# The function whose program is a round, or a group of them.
ADVANCE = 'advance_run'
_EVENT = '/jax/core/compile/backend_compile_duration'


class Compilations:
  """Counts compiled programs by the name of their function.

  A program that is read from the compilation cache counts too, and takes less.
  """

  def __init__(self):
    self.seconds: dict[str, list[float]] = collections.defaultdict(list)
    jax.monitoring.register_event_duration_secs_listener(self._listen)

  def count(self, name: str) -> int:
    """How often a function was compiled."""
    return len(self.seconds[f'jit({name})'])

  def total(self) -> float:
    """Seconds of all compilations."""
    return sum(map(sum, self.seconds.values()))

  def _listen(self, event: str, duration_secs: float, **about: Any) -> None:
    if event == _EVENT:
      self.seconds[str(about.get('fun_name'))].append(duration_secs)


class Rounds:
  """Repeated rounds of the first cohort.

  Attributes:
    setup: built from the config.
    chunk: clients that are trained at once.
    chunk_estimated: clients that were estimated to fit.
    compile_seconds: of the program of the round.
    examples: of a round, without padding.
    rounds: of a dispatch.
  """

  def __init__(self, config: Any):
    """Builds, compiles and makes the first round."""
    mesh = sharding.mesh()
    setup = build.build(config, mesh=mesh)
    setup = chunk_size.set_chunk_size(config, setup, mesh=mesh)
    self.chunk_estimated = setup.plan.chunk
    draws = programs.replicate_draws(setup.draws, mesh)
    params = sharding.replicate(mesh, setup.params)
    init = functools.partial(programs.make_init(setup), draws, params)
    # Shapes and shardings are enough.
    jitted = programs.make_programs(setup, init(), mesh)
    compilations = Compilations()

    def advance(state: audited_algorithm.AuditState, cohorts: Any):
      return jitted.advance(draws, state, cohorts)

    if chunk_size.is_tried():
      setup = chunk_size.halve_until_it_fits(
        config,
        setup,
        lambda cohorts: advance(init(), cohorts),
        mesh=mesh,
      )
    self.setup, self.chunk = setup, setup.plan.chunk
    groups = dispatch.iterate_groups(config, setup, 0, mesh)
    group, self._cohorts = next(iter(groups))
    self.rounds = len(group)
    self.examples = int(np.sum(np.asarray(self._cohorts.mask))) // self.rounds
    self._advance, self._state = advance, init()
    self._lower = lambda: jitted.advance.lower(
      draws, self._state, self._cohorts
    )
    self.run(1)
    self.compile_seconds = compilations.total()

  def run(self, dispatches: int) -> float:
    """Seconds of some dispatches, none of which waits for the previous one."""
    begun = time.perf_counter()
    for _ in range(dispatches):
      self._state, metrics = self._advance(self._state, self._cohorts)
    jax.block_until_ready((self._state, metrics))
    return time.perf_counter() - begun

  def describe(self) -> dict[str, Any]:
    """Sizes, memory and XLA's cost analysis of the program of a round."""
    compiled = self._lower().compile()
    cost = compiled.cost_analysis() or {}
    # Older versions give a list of one.
    cost = cost[0] if isinstance(cost, list) else cost
    memory = compiled.memory_analysis()
    stats = jax.local_devices()[0].memory_stats() or {}
    return {
      'dim': self.setup.dim,
      'clients': int(self.setup.participants.slots),
      'examples': self.examples,
      'chunk': self.chunk,
      'chunk_estimated': self.chunk_estimated,
      'compile_seconds': self.compile_seconds,
      'temporary_bytes': memory and memory.temp_size_in_bytes,
      'peak_bytes': stats.get('peak_bytes_in_use'),
      'limit_bytes': stats.get('bytes_limit'),
      # XLA counts the body of a loop once.
      'flops_by_xla_loops_once': cost.get('flops'),
    }


def time_in_turn(
  forms: Mapping[str, Rounds], repetitions: int, dispatches: int = 1
) -> dict[str, list[float]]:
  """Seconds of a round of each form, in turn."""
  seconds: dict[str, list[float]] = {name: [] for name in forms}
  for _ in range(repetitions):
    for name, form in forms.items():
      each = form.run(dispatches) / (dispatches * form.rounds)
      seconds[name].append(each)
  return seconds


def replace(config: Any, **fields: Any) -> Any:
  """A copy of a config with other fields, named as on the command line."""
  copy = config.copy_and_resolve_references()
  with copy.unlocked():
    copy.update_from_flattened_dict(
      {name.replace('__', '.'): value for name, value in fields.items()}
    )
  return copy


def without_audit(config: Any) -> Any:
  """The same config without canaries."""
  return replace(config, canaries__observed=0, canaries__unobserved=0)


def measure_ratio(
  audited: Rounds, unaudited: Rounds, repetitions: int
) -> dict[str, Any]:
  """Seconds of audited rounds over those of unaudited ones, in turn."""
  seconds = time_in_turn(
    {'audited': audited, 'unaudited': unaudited}, repetitions
  )
  ratios = np.divide(seconds['audited'], seconds['unaudited'])
  return {
    'repetitions': repetitions,
    **{f'{name}_seconds': float(np.median(x)) for name, x in seconds.items()},
    'audited_over_unaudited': float(np.median(ratios)),
    'of_means': float(
      np.mean(seconds['audited']) / np.mean(seconds['unaudited'])
    ),
  }
