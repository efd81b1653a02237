"""Rounds of a config: seconds, memory, the longest kernels, and what an audit adds.

  python -m benchmarks.speed.job_rounds --config=configs/emnist.py \\
    --config.data.synthetic=True --device=cuda

The rounds are those of a run, of its first clients, which are on the device. They are
compiled first, for which the record has the seconds, and timed one by one and in a row.
--ratio times the same rounds without canaries in turn. The floor is the arithmetic of the
layers at the speed of a large product in the same precision, for the models of the paper.
"""

from collections.abc import Mapping
import functools
import json
import time
from typing import Any

from absl import flags
import jax
from ml_collections import config_flags
import numpy as np

from benchmarks import harness
from benchmarks.peers import works
from benchmarks.speed import profiles
from epe_jax.experiment import arithmetic, chunk_size, loop, programs
from epe_jax.experiment.setup import build
from epe_jax.experiment.setup import config as config_lib
from epe_jax.parallel import hosts, sharding

_CONFIG = config_flags.DEFINE_config_file(
  'config',
  f'{harness.HERE.parent}/configs/digits.py',
  'Of the rounds.',
)
_REPETITIONS = flags.DEFINE_integer('repetitions', 20, 'Rounds.')
_RATIO = flags.DEFINE_bool('ratio', True, 'Time rounds without canaries, too.')
_PROFILE = flags.DEFINE_bool('profile', True, 'Profile some rounds.')
# Of a profile; each is traced in full.
_PROFILED = 3
# By the number of parameters.
_FLOPS = {1_206_590: works.cnn_flops, 4_050_748: works.lstm_flops}


class Rounds:
  """Repeated rounds of the first cohort.

  Attributes:
    setup: built from the config.
    chunk: clients that are trained at once.
    examples: of a round, without padding.
    rounds: of a dispatch.
    first_seconds: of building, and of the first rounds with their compilation.
  """

  def __init__(self, config: Any):
    """Builds, compiles and makes the first rounds."""
    begun, mesh = time.perf_counter(), sharding.mesh()
    setup = build.build(config, mesh=mesh)
    setup = chunk_size.set_chunk_size(config, setup, mesh=mesh)
    arithmetic.check_arithmetic(config, setup, mesh)
    draws = programs.replicate_draws(setup.draws, mesh)
    params = hosts.replicate(mesh, setup.params)
    init = functools.partial(programs.make_init(setup), draws, params)
    jitted = programs.make_programs(setup, init(), mesh)
    advance = functools.partial(jitted.advance, draws)
    if chunk_size.is_tried():
      setup = chunk_size.halve_until_it_fits(
        config, setup, lambda cohorts: advance(init(), cohorts), mesh=mesh
      )
    self.setup, self.chunk = setup, setup.plan.chunk
    group, self._cohorts = next(loop.iterate_groups(config, setup, 0, mesh))
    self.rounds = len(group)
    self.examples = int(np.sum(np.asarray(self._cohorts.mask))) // self.rounds
    self._advance, self._state = advance, init()
    built = time.perf_counter() - begun
    self.first_seconds = {'built': built, 'compiled': self.run(1)}

  def run(self, dispatches: int) -> float:
    """Seconds of a round, of some dispatches that do not wait for each other."""
    begun = time.perf_counter()
    for _ in range(dispatches):
      self._state, metrics = self._advance(self._state, self._cohorts)
    jax.block_until_ready((self._state, metrics))
    return (time.perf_counter() - begun) / (dispatches * self.rounds)


def _time(made: Rounds, precision: str, repetitions: int) -> dict[str, Any]:
  single = [made.run(1) for _ in range(repetitions)]
  stats = jax.local_devices()[0].memory_stats() or {}
  in_a_row = made.run(repetitions)
  figures = {
    'dim': made.setup.dim,
    'clients': int(made.setup.participants.slots),
    'examples': made.examples,
    'chunk': made.chunk,
    'first_seconds': made.first_seconds,
    'seconds': float(np.median(single)),
    'seconds_best': min(single),
    'seconds_in_a_row': in_a_row,
    'peak_bytes': stats.get('peak_bytes_in_use'),
    'limit_bytes': stats.get('bytes_limit'),
  }
  if made.setup.dim not in _FLOPS:
    return figures
  size = 3000 if jax.default_backend() == 'cpu' else 8192
  floor = made.examples * _FLOPS[made.setup.dim]()
  floor /= harness.matmul_flops_per_second(size, precision)
  return {
    **figures,
    'floor_seconds': floor,
    'share_of_floor': floor / in_a_row,
  }


def _compare(made: Rounds, config: Any, repetitions: int) -> dict[str, Any]:
  # In chunks of the same size, or it would be these that are compared.
  plain = config.copy_and_resolve_references()
  with plain.unlocked():
    plain.update_from_flattened_dict(
      {'canaries.observed': 0, 'canaries.unobserved': 0, 'chunk': made.chunk}
    )
  forms = {'audited': made, 'unaudited': Rounds(plain)}
  timings = harness.time_in_turn(
    {name: functools.partial(form.run, 1) for name, form in forms.items()},
    repetitions,
    warm_up=0,
  )
  return {
    **{name: x.median / made.rounds for name, x in timings.items()},
    'audited_over_unaudited': timings['audited'].over(timings['unaudited']),
  }


def measure(quick: bool) -> Mapping[str, Any]:
  repetitions = 2 if quick else _REPETITIONS.value
  config = config_lib.check_config(_CONFIG.value)
  made = Rounds(config)
  figures: dict[str, Any] = {
    'task': config.task,
    'precision': config.precision,
    'rounds_per_dispatch': config.rounds_per_dispatch,
  }
  parts = {
    'round': lambda: _time(made, config.precision, repetitions),
    'profile': lambda: profiles.profile(lambda: made.run(_PROFILED)),
    'ratio': lambda: _compare(made, config, repetitions),
  }
  wanted = {'profile': _PROFILE.value, 'ratio': _RATIO.value}
  for name, part in parts.items():
    if wanted.get(name, True):
      figures[name] = part()
      # Whatever comes next may run out of time.
      print(name, json.dumps(figures[name]), flush=True)
  return figures


if __name__ == '__main__':
  harness.run(measure, 'jax', 'jaxlib', 'flax', 'optax', 'numpy')
