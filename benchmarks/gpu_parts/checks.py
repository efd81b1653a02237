"""The same on the device as on a processor, before anything is timed."""

import importlib.util
import os
import pathlib
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from epe_jax import canaries, io
from epe_jax.audit.record import load_record
from epe_jax.audit.threat_models import THREAT_MODELS
from epe_jax.experiment import audited_run, chunk_size
from gpu_parts import configs, rounds
from gpu_parts.compilations import Compilations
from gpu_parts.results import Context, Results

# Coordinates that are no whole number of tiles, and canaries of two groups; and
# toys.
_DIM, _NUM = 70_003, 4_100
_QUICK_DIM, _QUICK_NUM = 5_003, 300
_RUNS = ('digits', 'emnist', 'stackoverflow')
_RUN_FILE = 'run.json'


def compare_canaries(context: Context, results: Results) -> None:
  """Compares canaries and cosines of all families with those of a processor."""
  on_device = draw_canaries(context)
  path = context.folder / 'canaries.npz'
  run_on_cpu('checks:write_canaries', path, context)
  on_cpu = np.load(path)
  families = {}
  for name in canaries.FAMILIES:
    unit = np.sqrt(_sizes(context)[0])
    here, there = on_device[f'{name}_canaries'], on_cpu[f'{name}_canaries']
    cosines = on_device[f'{name}_cosines'] - on_cpu[f'{name}_cosines']
    families[name] = {
      'same_bits': bool(np.array_equal(here, there)),
      'same_signs': bool(np.array_equal(np.sign(here), np.sign(there))),
      'largest_difference_in_entries': float(
        np.abs(here - there).max() / np.abs(there).max()
      ),
      # 1 is the standard deviation of a canary that was not put in.
      'largest_difference_of_cosines_in_std': float(
        unit * np.abs(cosines).max()
      ),
    }
  results.add(canaries=families, dim=_sizes(context)[0])


def _sizes(context: Context) -> tuple[int, int]:
  return (_QUICK_DIM, _QUICK_NUM) if context.quick else (_DIM, _NUM)


def draw_canaries(context: Context) -> dict[str, np.ndarray]:
  """Some canaries of each family, and the cosines of a vector with all."""
  dim, num = _sizes(context)
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


def write_canaries(path: pathlib.Path, context: Context) -> None:
  """`draw_canaries` into a file."""
  drawn: dict[str, Any] = draw_canaries(context)
  io.write_atomically(path, lambda f: np.savez(f, **drawn))


def compare_runs(context: Context, results: Results) -> None:
  """Compares a run of each task with that on a processor."""
  for name in _RUNS[:1] if context.quick else _RUNS:
    results.attempt(name, lambda name=name: compare_run(name, context))


def compare_run(name: str, context: Context) -> dict[str, Any]:
  """The run of a task here and on a processor: bits, trace, ε, compilations."""
  begun = subprocess_of(
    f'checks:write_{name}_run', context.folder / name, context
  )
  try:
    here = make_run(name, context.folder / f'{name}_here', context)
    wait(begun, context)
  finally:
    begun.kill()
    begun.wait()
  there = io.read_json(context.folder / name / _RUN_FILE)
  # Infinity is a string in JSON.
  epsilon = {name: float(x) for name, x in there['epsilon'].items()}
  ours, theirs = (
    load_record(folder / 'private/scores.npz')
    for folder in (context.folder / f'{name}_here', context.folder / name)
  )
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
    'epsilon': {'here': here['epsilon'], 'cpu': epsilon},
    'largest_epsilon_difference': max(
      # Both may be infinite.
      0.0 if value == epsilon[attacker] else abs(value - epsilon[attacker])
      for attacker, value in here['epsilon'].items()
    ),
    'round_programs_compiled': here['round_programs_compiled'],
    'chunk': {'here': here['chunk'], 'cpu': there['chunk']},
  }


def make_run(
  name: str, workdir: pathlib.Path, context: Context
) -> dict[str, Any]:
  """A run of a small config: ε of its attackers, programs that it compiled."""
  if name == 'digits':
    config = configs.digits(context)
  else:
    config = configs.load(name, 'smoke')
    config.data.synthetic = True
    # Beside the workdir, in which a run wants nothing of others.
    config.data.cache = f'{workdir}_data'
    config.canaries.update(observed=100, unobserved=100)
  if context.quick and name != 'stackoverflow':
    config.model.width = 4
  compilations = Compilations()
  result = audited_run.run(
    config,
    workdir,
    threat_models=THREAT_MODELS[-1:] if context.quick else THREAT_MODELS,
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


def _write_run(name: str, workdir: pathlib.Path, context: Context) -> None:
  made = make_run(name, workdir, context)
  io.write_json(workdir / _RUN_FILE, made)


def write_digits_run(workdir: pathlib.Path, context: Context) -> None:
  _write_run('digits', workdir, context)


def write_emnist_run(workdir: pathlib.Path, context: Context) -> None:
  _write_run('emnist', workdir, context)


def write_stackoverflow_run(workdir: pathlib.Path, context: Context) -> None:
  _write_run('stackoverflow', workdir, context)


def halve_chunk(context: Context, results: Results) -> None:
  """Lets a chunk that is too large be halved until it fits.

  The part has a small share of the memory of the device, by its environment, and
  is told to hope for a hundred times as much.
  """
  config = configs.emnist(context, rounds=2)
  chunk_size._SHARE *= 100
  made = rounds.Rounds(config)
  results.add(
    was_tried=chunk_size.is_tried(config),
    was_halved=made.chunk < made.chunk_estimated,
    **made.describe(),
  )


def subprocess_of(
  function: str, path: pathlib.Path, context: Context
) -> subprocess.Popen:
  """Starts a function of the parts on a processor, in a process of its own."""
  module, name = function.split(':')
  code = (
    'import pathlib, sys; from gpu_parts import results; '
    f'from gpu_parts import {module} as module; '
    'path, folder, quick, seconds = sys.argv[1:]; '
    'import time; '
    'context = results.Context(pathlib.Path(folder), quick == "True", '
    'time.monotonic() + float(seconds), {}); '
    f'module.{name}(pathlib.Path(path), context)'
  )
  arguments = [path, context.folder, context.quick, context.seconds_left]
  environment = {
    **os.environ,
    'JAX_PLATFORMS': 'cpu',
    'CUDA_VISIBLE_DEVICES': '',
    'PYTHONPATH': os.pathsep.join(sys.path),
  }
  return subprocess.Popen(
    # -P, or the working directory would come before the path that is given.
    [sys.executable, '-P', '-c', code, *map(str, arguments)],
    env=environment,
  )


def wait(process: subprocess.Popen, context: Context) -> None:
  """Waits for a process that should end well, no longer than there is time."""
  status = process.wait(timeout=max(1.0, context.seconds_left))
  if status:
    raise RuntimeError(f'the process on the CPU ended with {status}')


def run_on_cpu(function: str, path: pathlib.Path, context: Context) -> None:
  """Calls a function of the parts on a processor."""
  process = subprocess_of(function, path, context)
  try:
    wait(process, context)
  finally:
    process.kill()
    process.wait()


def run_tests(context: Context, results: Results) -> None:
  """Runs the unit tests of what computes on a device."""
  folders = ['canaries', 'training', 'audit', 'epsilon', 'tasks']
  if any(
    importlib.util.find_spec(name) is None for name in ('pytest', 'beartype')
  ):
    results.add(not_measured='pytest or beartype is missing')
    return
  command = [sys.executable, '-P', '-m', 'pytest', '-q', '--maxfail=20']
  # The package is the one on the path of Python, with its configs.
  command += ['-p', 'no:cacheprovider', '--import-mode=importlib']
  command += [f'tests/{folder}' for folder in folders]
  command += ['--collect-only'] * context.quick
  done = subprocess.run(
    command,
    cwd=configs.ROOT,
    env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
    capture_output=True,
    text=True,
    timeout=max(1.0, context.seconds_left - 5),
  )
  print(done.stdout[-5000:])
  lines = done.stdout.splitlines()
  results.add(
    passed=done.returncode == 0,
    summary=lines[-1] if lines else '',
    failed=[x[:200] for x in lines if x.startswith(('FAILED', 'ERROR'))][:50],
  )
