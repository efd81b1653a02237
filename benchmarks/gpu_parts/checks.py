"""Whether the device computes the same as a CPU, before anything is timed."""

import concurrent.futures
import pathlib
from typing import Any

import harness
import jax
import jax.numpy as jnp
import numpy as np

from epe_jax import canaries
from epe_jax.audit.record import load_record
from epe_jax.audit.threat_models import THREAT_MODELS
from epe_jax.experiment import audited_run, chunk_size
from gpu_parts import configs, rounds
from gpu_parts.results import Context, Results

# Coordinates that do not fill the last tile, and canaries of two groups.
_DIM, _NUM = 70_003, 4_100
_QUICK_DIM, _QUICK_NUM = 5_003, 300
_RUNS = ('digits', 'emnist', 'stackoverflow')


def compare_canaries(context: Context, results: Results) -> None:
  """Compares canaries and cosines of all families with those of a CPU."""
  dim, num = (_QUICK_DIM, _QUICK_NUM) if context.quick else (_DIM, _NUM)
  on_device = draw_canaries(dim, num)
  path = context.folder / 'canaries.npz'
  call_on_cpu('write_canaries', context, str(path), dim, num)
  on_cpu = np.load(path)
  families, unit = {}, np.sqrt(dim)
  for name in canaries.FAMILIES:
    here, there = on_device[f'{name}_canaries'], on_cpu[f'{name}_canaries']
    cosines = on_device[f'{name}_cosines'] - on_cpu[f'{name}_cosines']
    families[name] = {
      'same_bits': bool(np.array_equal(here, there)),
      'same_signs': bool(np.array_equal(np.sign(here), np.sign(there))),
      'largest_difference_in_entries': float(
        np.abs(here - there).max() / np.abs(there).max()
      ),
      # 1 is the standard deviation of an unobserved canary.
      'largest_difference_of_cosines_in_std': float(
        unit * np.abs(cosines).max()
      ),
    }
  results.add(canaries=families, dim=dim)


def draw_canaries(dim: int, num: int) -> dict[str, np.ndarray]:
  """Some canaries of each family, and the cosines of a vector with all."""
  v = jax.random.normal(jax.random.key(5), (dim,))
  drawn, ids = {}, (0, 3, num - 1)
  for name in canaries.FAMILIES:
    made = canaries.family(name)(jax.random.key(0), num, dim)
    one = jax.jit(lambda j, made=made: made.superpose(j[None], jnp.ones(1)))
    drawn[f'{name}_canaries'] = np.stack([one(jnp.int32(j)) for j in ids])
    drawn[f'{name}_cosines'] = np.asarray(
      jax.jit(made.project)(v) / jnp.linalg.norm(v)
    )
  return drawn


def write_canaries(path: str, dim: int, num: int) -> None:
  """Writes `draw_canaries` into a file."""
  drawn: dict[str, Any] = draw_canaries(dim, num)
  np.savez(path, **drawn)


def compare_runs(context: Context, results: Results) -> None:
  """Compares a run of each task with that on a CPU."""
  for name in _RUNS[:1] if context.quick else _RUNS:
    results.attempt(name, lambda name=name: compare_run(name, context))


def compare_run(name: str, context: Context) -> dict[str, Any]:
  """Cosines, ε and compilations of a run here and on a CPU."""
  folders = [context.folder / f'{name}_{where}' for where in ('here', 'cpu')]
  with concurrent.futures.ThreadPoolExecutor(1) as pool:
    arguments = name, str(folders[1]), context.quick
    on_cpu = pool.submit(call_on_cpu, 'make_run', context, *arguments)
    here = make_run(name, str(folders[0]), context.quick)
    there = on_cpu.result()
  ours, theirs = (load_record(x / 'private/scores.npz') for x in folders)
  assert ours.trace is not None
  assert theirs.trace is not None
  moved = np.sqrt(ours.dim) * np.abs(ours.trace - theirs.trace)
  return {
    'rounds': ours.num_rounds,
    'same_canaries_in_rounds': bool(
      np.array_equal(ours.included, theirs.included)
      and np.array_equal(ours.assigned, theirs.assigned)
    ),
    # In standard deviations of the cosine of an unobserved canary.
    'trace_difference_in_std': {
      'first_round': float(moved[0].max()),
      'median': float(np.median(moved)),
      'largest': float(moved.max()),
    },
    'epsilon': {'here': here['epsilon'], 'cpu': there['epsilon']},
    'largest_epsilon_difference': max(
      # Both may be infinite.
      0.0 if value == other else abs(value - other)
      for value, other in zip(
        here['epsilon'].values(), there['epsilon'].values(), strict=True
      )
    ),
    'round_programs_compiled': here['round_programs_compiled'],
    'chunk': {'here': here['chunk'], 'cpu': there['chunk']},
  }


def make_run(name: str, workdir: str, quick: bool) -> dict[str, Any]:
  """A run of a small config: ε of its attackers, programs that it compiled."""
  if name == 'digits':
    config = configs.digits(quick)
  else:
    config = configs.load(name, 'smoke')
    config.data.synthetic = True
    # Outside the workdir, which a run does not share.
    config.data.cache = f'{workdir}_data'
    config.canaries.update(observed=100, unobserved=100)
  if quick and name != 'stackoverflow':
    config.model.width = 4
  compilations = rounds.Compilations()
  result = audited_run.run(
    config,
    pathlib.Path(workdir),
    threat_models=THREAT_MODELS[-1:] if quick else THREAT_MODELS,
  )
  assert result is not None
  return {
    'epsilon': {
      attack.threat_model.key: float(attack.first.epsilon)
      for attack in result.audit.attacks
    },
    'round_programs_compiled': compilations.count(rounds.ADVANCE),
    'chunk': result.chunk,
  }


def halve_chunk(context: Context, results: Results) -> None:
  """Starts with a chunk that is too large, which has to be halved until it fits.

  The environment of the part gives it a small share of the device's memory, and the
  estimate of the chunk expects a hundred times as much.
  """
  config = configs.emnist(context, rounds=2)
  chunk_size._SHARE *= 100
  made = rounds.Rounds(config)
  results.add(
    was_tried=chunk_size.is_tried(),
    was_halved=made.chunk < made.chunk_estimated,
    **made.describe(),
  )


def call_on_cpu(function: str, context: Context, *arguments: Any) -> Any:
  """Calls a function of this module in a process without the device."""
  return harness.call_in_process(
    f'gpu_parts.checks:{function}',
    *arguments,
    environment={'JAX_PLATFORMS': 'cpu', 'CUDA_VISIBLE_DEVICES': ''},
    timeout=max(1.0, context.seconds_left),
  )
