"""Seconds of the paper's Algorithm 1 in d dimensions, by family of canaries.

  python benchmarks/algorithm1.py

k canaries, their sum, d normals and k cosines, in each of the simulations of
each noise level of the paper; with compilation, and all in one process. Beside
the seconds is what is estimated, by the paper's fitted and by the calibrated
reading, and the floor: one pass over the released vector in each simulation.
"""

import functools
import os
import time

from absl import app, flags
import jax
import jax.numpy as jnp
import record

from epe_jax import canaries
from epe_jax.audit import gaussian_mechanism

_QUICK = flags.DEFINE_bool('quick', False, 'Small sizes: does it run?')
_FAMILIES = flags.DEFINE_list('families', ['hadamard', 'hadamard2'], 'Which.')
_DIM = flags.DEFINE_integer('dim', 1_000_000, 'd.')
_NUM = flags.DEFINE_integer('num_canaries', 1000, 'k.')
_SIMULATIONS = flags.DEFINE_integer('simulations', 50, 'Of each noise level.')
_SEED = flags.DEFINE_integer('seed', 0, 'Of everything random.')
_OUT = flags.DEFINE_string(
  'out', str(record.FOLDER / 'algorithm1.json'), 'File of the result.'
)
_SIGMAS, _DELTA = (4.22, 1.54, 0.541), 1e-6


def measured(name: str, dim: int, num: int, simulations: int) -> dict:
  """Seconds of a family, and what it estimates."""
  law = functools.partial(
    gaussian_mechanism.simulate_literal, family=canaries.family(name)
  )
  seconds, rows = [], []
  for sigma in _SIGMAS:
    begun = time.perf_counter()
    found = gaussian_mechanism.run_estimators(
      _SEED.value,
      [sigma],
      num_canaries=num,
      dim=dim,
      delta=_DELTA,
      simulations=simulations,
      law=law,
    )
    seconds.append(time.perf_counter() - begun)
    rows += gaussian_mechanism.summarize(
      [sigma], found, num_canaries=num, dim=dim, delta=_DELTA
    )
  return {
    'family': name,
    'seconds': sum(seconds),
    'seconds_by_sigma': dict(zip(map(str, _SIGMAS), seconds)),
    'estimates': [row._asdict() for row in rows],
  }


def pass_seconds(dim: int) -> float:
  """Of one pass over a vector, the sum of squares."""
  v = jnp.ones(dim)
  square = jax.jit(lambda v: jnp.sum(v * v)).lower(v).compile()
  jax.block_until_ready(square(v))
  seconds = []
  for _ in range(20):
    begun = time.perf_counter()
    jax.block_until_ready(square(v))
    seconds.append(time.perf_counter() - begun)
  return min(seconds)


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is not a flag; see --help.')
  load = os.getloadavg()[0]
  size = (_DIM.value, _NUM.value, _SIMULATIONS.value)
  if _QUICK.value:
    size = (10_000, 100, 3)
  # The device is started by the floor, and not within what is timed.
  floor = len(_SIGMAS) * size[2] * pass_seconds(size[0])
  result = {
    'families': [measured(name, *size) for name in _FAMILIES.value],
    'floor_seconds': floor,
    'quick': _QUICK.value,
    'load_before': load,
  }
  record.write(_OUT.value, result, 'jax')


if __name__ == '__main__':
  app.run(main)
