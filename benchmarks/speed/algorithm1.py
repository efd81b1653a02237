"""Seconds of the paper's Algorithm 1 in d dimensions, by family of canaries.

  python -m benchmarks.speed.algorithm1

k canaries, their sum, d normals and k cosines, in each simulation of each noise level
of the paper, compilation included, all in one process. The estimates are recorded by
the paper's fitted and by the calibrated statistic. The floor is one pass over the
released vector in each simulation.
"""

import functools
import time

from absl import flags

from benchmarks import harness
from epe_jax import canaries
from papers.one_shot import gaussian_mechanism

_FAMILIES = flags.DEFINE_list('families', ['hadamard', 'hadamard2'], 'Which.')
_DIM = flags.DEFINE_integer('dim', 1_000_000, 'd.')
_NUM = flags.DEFINE_integer('num_canaries', 1000, 'k.')
_SIMULATIONS = flags.DEFINE_integer('simulations', 50, 'Of each noise level.')
_SEED = flags.DEFINE_integer('seed', 0, 'Of everything random.')
_SIGMAS, _DELTA = (4.22, 1.54, 0.541), 1e-6


def measure_family(name: str, dim: int, num: int, simulations: int) -> dict:
  """Seconds of a family, and its estimates."""
  law = functools.partial(
    gaussian_mechanism.simulate_literal, family=canaries.family(name)
  )
  settings = {'num_canaries': num, 'dim': dim, 'delta': _DELTA}
  seconds, rows = [], []
  for sigma in _SIGMAS:
    begun = time.perf_counter()
    estimates = gaussian_mechanism.run_estimators(
      _SEED.value, [sigma], simulations=simulations, law=law, **settings
    )
    seconds.append(time.perf_counter() - begun)
    rows += gaussian_mechanism.summarize([sigma], estimates, **settings)
  return {
    'family': name,
    'seconds': sum(seconds),
    'seconds_by_sigma': dict(zip(map(str, _SIGMAS), seconds)),
    'estimates': [row._asdict() for row in rows],
  }


def measure(quick: bool) -> dict:
  size = (_DIM.value, _NUM.value, _SIMULATIONS.value)
  if quick:
    size = (10_000, 100, 3)
  # Measured first, so that no timing includes the start of the device.
  floor = len(_SIGMAS) * size[2] * harness.pass_seconds(size[0])
  return {
    'families': [measure_family(name, *size) for name in _FAMILIES.value],
    'floor_seconds': floor,
  }


if __name__ == '__main__':
  harness.run(measure, 'jax')
