"""Runs all measurements on a GPU, unattended, most valuable first.

  python benchmarks/gpu.py --minutes=25 --out=runs/gpu
  python benchmarks/gpu.py --quick --minutes=10 --out=runs/gpu_quick

Each part is a process of its own with a time limit, so that a part that hangs or runs out
of memory does not end the others. Its figures are written to gpu_PART.json in the folder
as soon as they are measured. Finished parts are not run again: the same command continues
where the last one stopped. It needs no network, no installation of this package and no
data; --emnist and --stackoverflow give real data. Wheels of missing packages, from
benchmarks/collect_wheels.py, are read from --wheels. --bundle and --resume carry results
from one machine to the next.

`cp FOLDER/gpu_*.json benchmarks/results && python benchmarks/page.py` shows the
figures in docs/benchmarks.md.
"""

import contextlib
import importlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from typing import Any

_HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(_HERE))

from absl import app, flags, logging  # noqa: E402
from gpu_parts import bare_machine, schedule  # noqa: E402

_MINUTES = flags.DEFINE_float('minutes', 25.0, 'For all parts.')
_OUT = flags.DEFINE_string('out', 'runs/gpu', 'Folder of the results.')
_QUICK = flags.DEFINE_bool('quick', False, 'Toy sizes: does it run?')
_PARTS = flags.DEFINE_list('parts', [], 'Some parts; all by default.')
_WHEELS = flags.DEFINE_string(
  'wheels', str(_HERE / 'wheels'), 'Folder of wheels of missing packages.'
)
_BUNDLE = flags.DEFINE_string(
  'bundle', None, 'A .tar.gz of the results, rewritten after each part.'
)
_RESUME = flags.DEFINE_string(
  'resume', None, 'A bundle of an earlier command, unpacked into --out.'
)
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
_BUNDLED = ('*.json', '*.gz', '*.log')


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
  part: schedule.Part, folder: pathlib.Path, site: pathlib.Path, limit: float
) -> int | None:
  """Runs a part in a process of its own, which is stopped at the time limit.

  Args:
    part: to run.
    folder: of the results, and of the log of its output.
    site: folder made by `bare_machine.make_site`.
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
  paths = [site, _HERE, _HERE.parent, *filter(None, [os.getenv('PYTHONPATH')])]
  environment = {
    # Parts share compiled programs.
    'JAX_COMPILATION_CACHE_DIR': str(site / 'programs'),
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


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """Reads a file of figures."""
  # Imported here: the package may need wheels that are not unpacked yet.
  from epe_jax import io

  return io.read_json(path)


def write_json(path: pathlib.Path, value: dict[str, Any]) -> None:
  """Writes a file of figures, atomically."""
  from epe_jax import io

  io.write_json(path, value)


def is_finished(path: pathlib.Path) -> bool:
  """Whether a part is complete at the requested size."""
  if not path.exists():
    return False
  found = read_json(path)
  return found.get('finished', False) and found.get('quick') == _QUICK.value


def list_failed(path: pathlib.Path) -> list[str]:
  """The figures of a part that failed, while others were measured."""
  if not path.exists():
    return []
  return [
    name
    for name, value in read_json(path).items()
    if isinstance(value, dict) and 'not_measured' in value
  ]


def note(path: pathlib.Path, text: str) -> None:
  """Records why a part stopped."""
  found = read_json(path) if path.exists() else {}
  write_json(path, {**found, 'stopped': text, 'finished': False})


def write_bundle(folder: pathlib.Path) -> None:
  """Writes results, profiles and logs into the --bundle, if one is given."""
  if _BUNDLE.value is None:
    return
  target = pathlib.Path(_BUNDLE.value)
  target.parent.mkdir(parents=True, exist_ok=True)
  draft = target.with_name(f'.{target.name}')
  with tarfile.open(draft, 'w:gz') as archive:
    for pattern in _BUNDLED:
      for path in sorted(folder.glob(pattern)):
        archive.add(path, path.name)
  draft.replace(target)


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
  if _RESUME.value is not None:
    with tarfile.open(_RESUME.value) as archive:
      archive.extractall(folder, filter='data')
  site = pathlib.Path(tempfile.mkdtemp(prefix='epe_jax_gpu_'))
  try:
    run_all([parts[x] for x in _PARTS.value or parts], folder, site, deadline)
  finally:
    shutil.rmtree(site, ignore_errors=True)


def run_all(
  parts: list[schedule.Part],
  folder: pathlib.Path,
  site: pathlib.Path,
  deadline: float,
) -> None:
  """Runs all parts that are not finished, until time is up."""
  wheels = pathlib.Path(_WHEELS.value)
  unpacked = bare_machine.make_site(site, _HERE.parent, wheels.glob('*.whl'))
  sys.path.insert(0, str(site))
  print(f'wheels that were unpacked: {unpacked or "none"}', flush=True)
  if missing := bare_machine.find_missing(unpacked):
    print(f'MISSING: {missing}; see benchmarks/collect_wheels.py', flush=True)
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
      status = start_part(part, folder, site, limit)
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
    write_json(folder / 'states.json', states)
    write_bundle(folder)
  print(json.dumps(states, indent=2), flush=True)


if __name__ == '__main__':
  app.run(main)
