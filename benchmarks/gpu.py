"""Runs all measurements on a GPU, unattended, most valuable first.

  python benchmarks/gpu.py --minutes=25 --out=runs/gpu
  python benchmarks/gpu.py --quick --minutes=10 --out=runs/gpu_quick

Each part is a process of its own with a time limit, so that a part that hangs or runs out
of memory does not end the others. Its figures are written to gpu_PART.json in the folder
as soon as they are measured. Finished parts are not run again: the same command continues
where the last one stopped. It needs no network and no data; --emnist and --stackoverflow
give real data.

`cp FOLDER/gpu_*.json benchmarks/results && python benchmarks/page.py` shows the
figures in docs/benchmarks.md.
"""

import contextlib
import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from absl import app, flags, logging
from gpu_parts import schedule

from epe_jax import io

_HERE = pathlib.Path(__file__).resolve().parent
_MINUTES = flags.DEFINE_float('minutes', 25.0, 'For all parts.')
_OUT = flags.DEFINE_string('out', 'runs/gpu', 'Folder of the results.')
_QUICK = flags.DEFINE_bool('quick', False, 'Toy sizes: does it run?')
_PARTS = flags.DEFINE_list('parts', [], 'Some parts; all by default.')
_EMNIST = flags.DEFINE_string('emnist', None, 'emnist_all.sqlite, if at hand.')
_STACKOVERFLOW = flags.DEFINE_string(
  'stackoverflow', None, 'stackoverflow.sqlite, if at hand.'
)
_WORD_COUNT = flags.DEFINE_string(
  'word_count', None, 'stackoverflow.word_count, with --stackoverflow.'
)
_PART = flags.DEFINE_string('part', None, 'Used by the program itself.')
_SECONDS = flags.DEFINE_float('seconds', 60.0, 'Used by the program itself.')
# Seconds in which a part may save its figures, and the program end.
_GRACE = 10.0
# Lines of the log of a part that failed.
_SHOWN = 12


def run_part(part: schedule.Part, folder: pathlib.Path) -> None:
  """Runs the functions of a part in this process."""
  # Imported here: the process that starts the parts must not occupy the device.
  from gpu_parts import results

  logging.set_verbosity(logging.WARNING)
  scratch = folder / part.name
  scratch.mkdir(exist_ok=True)
  given = {
    'emnist': _EMNIST.value,
    'stackoverflow': _STACKOVERFLOW.value,
    'word_count': _WORD_COUNT.value,
  }
  context = results.Context(
    scratch,
    _QUICK.value,
    time.monotonic() + _SECONDS.value,
    {name: path for name, path in given.items() if path is not None},
  )
  found = results.Results(path_of(part, folder), quick=_QUICK.value)
  try:
    results.check_accelerator(quick=_QUICK.value)
    for name in part.functions:
      module, function = name.split(':')
      imported = importlib.import_module(f'gpu_parts.{module}')
      getattr(imported, function)(context, found)
  except Exception as error:
    found.add(error=results.summarize_error(error))
    raise
  found.finish()


def start_part(
  part: schedule.Part, folder: pathlib.Path, programs: str, limit: float
) -> int | None:
  """Runs a part in a process of its own, which is stopped at the time limit.

  Args:
    part: to run.
    folder: of the results, and of the log of its output.
    programs: folder of compiled programs, which parts share.
    limit: seconds.

  Returns:
    The exit status; None if it was stopped.
  """
  given = [sys.executable, '-u', str(_HERE / 'gpu.py'), f'--part={part.name}']
  given += [f'--out={folder}', f'--seconds={limit - 5}']
  for name in ('emnist', 'stackoverflow', 'word_count'):
    if path := flags.FLAGS[name].value:
      given.append(f'--{name}={pathlib.Path(path).absolute()}')
  given += ['--quick'] * _QUICK.value
  paths = [_HERE, _HERE.parent, *filter(None, [os.getenv('PYTHONPATH')])]
  environment = {
    'JAX_COMPILATION_CACHE_DIR': programs,
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
    'XLA_PYTHON_CLIENT_MEM_FRACTION': '0.9',
    # At toy sizes compilation takes longer than running.
    **({'JAX_DISABLE_MOST_OPTIMIZATIONS': '1'} if _QUICK.value else {}),
    **os.environ,
    **part.environment,
    'PYTHONPATH': os.pathsep.join(map(str, paths)),
    'PYTHONUNBUFFERED': '1',
  }
  with open(folder / f'{part.name}.log', 'a') as log:
    process = subprocess.Popen(
      given,
      env=environment,
      stdin=subprocess.DEVNULL,
      stdout=log,
      stderr=subprocess.STDOUT,
      start_new_session=True,
    )
    try:
      return process.wait(limit)
    except subprocess.TimeoutExpired:
      return None
    finally:
      # Including its children, which would occupy the memory of the device.
      stop(process)


def stop(process: subprocess.Popen) -> None:
  """Ends a process and its group; it may save its figures first."""
  for number, seconds in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, 5.0)):
    try:
      if process.poll() is None:
        # Not its children: the part would report their end as an error.
        process.send_signal(number)
        process.wait(seconds)
    except subprocess.TimeoutExpired:
      continue
  with contextlib.suppress(ProcessLookupError):
    os.killpg(process.pid, signal.SIGKILL)


def path_of(part: schedule.Part, folder: pathlib.Path) -> pathlib.Path:
  """The file of the figures of a part."""
  return folder / f'gpu_{part.name}.json'


def is_finished(path: pathlib.Path) -> bool:
  """Whether a part is complete at the requested size."""
  if not path.exists():
    return False
  found = io.read_json(path)
  return found.get('finished', False) and found.get('quick') == _QUICK.value


def list_failed(path: pathlib.Path) -> list[str]:
  """The figures of a part that failed, while others were measured."""
  if not path.exists():
    return []
  return [
    name
    for name, value in io.read_json(path).items()
    if isinstance(value, dict) and 'not_measured' in value
  ]


def note(path: pathlib.Path, text: str) -> None:
  """Records why a part stopped."""
  found = io.read_json(path) if path.exists() else {}
  io.write_json(path, {**found, 'stopped': text, 'finished': False})


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is not a flag; see --help.')
  parts = {part.name: part for part in schedule.PARTS}
  if _PART.value is not None:
    run_part(parts[_PART.value], pathlib.Path(_OUT.value))
    return
  deadline = time.monotonic() + 60 * _MINUTES.value - _GRACE
  for name in _PARTS.value:
    if name not in parts:
      raise app.UsageError(f'--parts has {name!r}; give some of {list(parts)}.')
  folder = pathlib.Path(_OUT.value).absolute()
  folder.mkdir(parents=True, exist_ok=True)
  selected = [parts[name] for name in _PARTS.value or parts]
  with tempfile.TemporaryDirectory(prefix='epe_jax_gpu_') as programs:
    run_all(selected, folder, programs, deadline)


def run_all(
  parts: list[schedule.Part],
  folder: pathlib.Path,
  programs: str,
  deadline: float,
) -> None:
  """Runs all parts that are not finished, until time is up."""
  states = {}
  for part in parts:
    path, begun = path_of(part, folder), time.monotonic()
    limit = schedule.choose_limit(part, deadline - begun)
    if is_finished(path):
      states[part.name] = 'finished before'
    elif limit is None:
      states[part.name] = 'no time left'
    else:
      print(f'{part.name}: at most {limit:.0f} s', flush=True)
      status = start_part(part, folder, programs, limit)
      took = time.monotonic() - begun
      states[part.name] = f'finished in {took:.0f} s'
      if failed := list_failed(path):
        states[part.name] += f', but not {failed}'
      if status is None:
        states[part.name] = f'stopped after {took:.0f} s'
        note(path, states[part.name])
      elif status:
        states[part.name] = f'failed after {took:.0f} s, see {part.name}.log'
        note(path, states[part.name])
        log = (folder / f'{part.name}.log').read_text(errors='replace')
        print('\n'.join(log.splitlines()[-_SHOWN:]), flush=True)
    print(f'{part.name}: {states[part.name]}', flush=True)
    io.write_json(folder / 'states.json', states)
  print(json.dumps(states, indent=2), flush=True)


if __name__ == '__main__':
  app.run(main)
