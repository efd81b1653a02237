"""Runs benchmarks on a GPU in order, unattended, most valuable first.

  python benchmarks/gpu.py --minutes=25 --out=runs/gpu
  python benchmarks/gpu.py --quick --device=cpu --out=runs/gpu_quick

Each step is a program with a time limit, which writes its record, or its run, and a log
into the folder. A step that hangs or fails does not end the others. Steps that have
finished are not repeated: the same command goes on where the last one was cut off. It
needs no network and no data.

`cp runs/gpu/gpu_*.json benchmarks/results` and `python -m benchmarks.pages` show the records
in docs/benchmarks.md.
"""

from collections.abc import Sequence
import contextlib
import functools
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import NamedTuple

from absl import app, flags

from epe_jax import io

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_MINUTES = flags.DEFINE_float('minutes', 25.0, 'For all steps.')
_OUT = flags.DEFINE_string('out', 'runs/gpu', 'Folder of the results.')
_QUICK = flags.DEFINE_bool('quick', False, 'Toy sizes: does it run?')
_DEVICE = flags.DEFINE_string('device', 'cuda', 'cpu, cuda or tpu.')
_STEPS = flags.DEFINE_list('steps', [], 'Some steps; all by default.')
# Seconds in which a step may save what it has, and those without which none begins.
_GRACE, _LEAST = 10.0, 20.0


class Step(NamedTuple):
  """A program.

  Attributes:
    name: of its record or workdir, and of its log.
    arguments: of Python.
    limit: seconds after which it is stopped.
  """

  name: str
  arguments: Sequence[str]
  limit: float


def list_steps(folder: pathlib.Path, *, quick: bool) -> list[Step]:
  """The steps, in their order."""

  def benchmark(name: str, limit: float, *given: str, record: str = '') -> Step:
    record = record or name
    out = f'--out={folder}/gpu_{record}.json'
    arguments = ['-m', f'benchmarks.speed.{name}', out, *given]
    return Step(record, [*arguments, *['--quick'] * quick], limit)

  def run(name: str, limit: float, *given: str) -> Step:
    workdir = f'--workdir={folder / name}'
    return Step(name, ['-m', 'epe_jax', 'run', *given, workdir], limit)

  def config(name: str, *fields: str) -> list[str]:
    file = f'--config={_ROOT}/configs/{name}.py' + ':smoke' * quick
    fields = ('data.synthetic=True', 'canaries.family=hadamard', *fields)
    return [file, *(f'--config.{field}' for field in fields)]

  tests = ['tests/canaries/test_bits.py']
  if not quick:
    tests = [f'tests/{x}' for x in ('canaries', 'training', 'audit', 'epsilon')]
  emnist = config('emnist')
  # As many users as some rounds need, each with what a round takes of it at most.
  words = config('stackoverflow', 'data.num_clients=2000')
  words += [] if quick else ['--config.data.max_sentences=256']
  only = '--noratio', '--noprofile'
  kernels = functools.partial(benchmark, 'canary_kernels', 90, '--stacks=1')
  hadamards = '--families=hadamard,hadamard2'

  def rounds(record: str, limit: float, job: list[str], *given: str) -> Step:
    return benchmark('job_rounds', limit, *job, *given, record=record)

  steps = [
    Step('tests', ['-m', 'pytest', '-q', *tests], 180),
    benchmark('device_agreement', 120),
    rounds('emnist_rounds', 180, emnist, '--repetitions=100'),
    benchmark('audited_round', 120, '--works=B', '--nopeaks', '--rounds=60'),
  ]
  for precision in ('float32', 'tensorfloat32', 'bfloat16'):
    others = () if precision == 'float32' else only
    given = f'--config.precision={precision}', *others
    steps.append(rounds(f'words_{precision}', 120, words, *given))
  # One projection of microseconds would be timed by its dispatch, so there are 50.
  steps += [
    run('emnist', 300, *emnist),
    kernels(
      *(hadamards, '--dims=1206590,4050748', '--counts=2e3,1e5', '--calls=50'),
      record='kernels',
    ),
    kernels(
      *(hadamards, '--dims=1e8,1e9', '--counts=2e3', '--max_stack_entries=1e9'),
      record='kernels_large',
    ),
    kernels(
      *('--families=sphere', '--counts=2e3', '--dims=1206590,4050748,1e8'),
      *('--max_entries=2e9', '--repetitions=1'),
      record='kernels_sphere',
    ),
  ]
  jobs = {'emnist': (emnist, (51, 26)), 'words': (words, (84, 42))}
  for name, (job, _) in jobs.items():
    given = *only, '--config.rounds_per_dispatch=4'
    steps.append(rounds(f'{name}_4_per_dispatch', 60, job, *given))
  for name, (job, chunks) in jobs.items():
    for chunk in chunks:
      given = *only, f'--config.chunk={2 if quick else chunk}'
      steps.append(rounds(f'{name}_chunk_{chunk}', 60, job, *given))
  # Last, because it takes all the time that is left; it can be resumed.
  return [*steps, run('stackoverflow', 3600, *words)]


def run_step(step: Step, folder: pathlib.Path, limit: float) -> str:
  """Runs a step, stops it at the limit, and says how it ended."""
  paths = [_ROOT, *filter(None, [os.getenv('PYTHONPATH')])]
  environment = {
    'JAX_COMPILATION_CACHE_DIR': str(folder / 'programs'),
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
    **os.environ,
    'PYTHONPATH': os.pathsep.join(map(str, paths)),
    'PYTHONUNBUFFERED': '1',
  }
  begun = time.monotonic()
  with open(folder / f'{step.name}.log', 'a') as log:
    process = subprocess.Popen(
      [sys.executable, *step.arguments],
      cwd=_ROOT,
      env=environment,
      stdin=subprocess.DEVNULL,
      stdout=log,
      stderr=subprocess.STDOUT,
      start_new_session=True,
    )
    try:
      status = process.wait(limit)
      ended = 'finished' if status == 0 else f'failed with status {status}'
    except subprocess.TimeoutExpired:
      ended = 'stopped'
    finally:
      stop(process)
  return f'{ended} after {time.monotonic() - begun:.0f} s'


def stop(process: subprocess.Popen) -> None:
  """Ends a process and its group; it may save what it has first."""
  for number, seconds in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, 5.0)):
    try:
      if process.poll() is None:
        process.send_signal(number)
        process.wait(seconds)
    except subprocess.TimeoutExpired:
      continue
  # Its children would occupy the memory of the device.
  with contextlib.suppress(ProcessLookupError):
    os.killpg(process.pid, signal.SIGKILL)


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is not a flag; see --help.')
  deadline = time.monotonic() + 60 * _MINUTES.value - _GRACE
  folder = pathlib.Path(_OUT.value).absolute()
  folder.mkdir(parents=True, exist_ok=True)
  # Of all steps, as they inherit it; the CPU stays at hand.
  others = '' if _DEVICE.value == 'cpu' else ',cpu'
  os.environ['JAX_PLATFORMS'] = _DEVICE.value + others
  steps = list_steps(folder, quick=_QUICK.value)
  if unknown := {*_STEPS.value} - {step.name for step in steps}:
    raise app.UsageError(f'--steps has {unknown}; see the list in {__file__}.')
  file = folder / 'states.json'
  states = io.read_json(file) if file.exists() else {}
  for step in steps:
    if _STEPS.value and step.name not in _STEPS.value:
      continue
    if states.get(step.name, '').startswith('finished'):
      continue
    left = deadline - time.monotonic()
    if left < _LEAST:
      states[step.name] = 'no time left'
    else:
      states[step.name] = run_step(step, folder, min(step.limit, left))
    print(f'{step.name}: {states[step.name]}', flush=True)
    io.write_json(file, states)


if __name__ == '__main__':
  app.run(main)
