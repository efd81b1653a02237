"""Many runs that differ in a few fields: a grid, one folder for each point.

Each point is a process of its own, so that one that fails, or is killed for
want of memory, takes no other with it. What is finished stays finished: the
folder of a point holds an ordinary run, which is taken up where it stopped.
"""

from collections.abc import Iterator, Mapping, Sequence
import concurrent.futures
import contextlib
import copy
import functools
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
from typing import Any, NamedTuple

from ml_collections import config_dict
import tqdm

from epe_jax import io
from epe_jax.experiment import audited_run, workdirs, workloads
from epe_jax.parallel import sharding

Config = workloads.Config

FAILED = '.failed'
"""Behind the name of a point: why it failed, in a file beside its folder."""


class Point(NamedTuple):
  """One run of a grid.

  Attributes:
    name: of its folder: what it sets, as field=value.
    settings: dotted field -> value, in the order of the axes.
    config: all of its fields.
  """

  name: str
  settings: dict[str, Any]
  config: Config


class Outcome(NamedTuple):
  """What became of a grid.

  Attributes:
    finished: points -> workdir.
    failed: points -> why.
  """

  finished: dict[str, pathlib.Path]
  failed: dict[str, str]


Axis = tuple[str | Sequence[str], Sequence[Any]]
"""A field and its values; or several fields, and for each step a value of
each."""


def make_grid(base: Config, axes: Sequence[Axis]) -> list[Point]:
  """Every combination of the values of the axes, the last one changing fastest.

  Args:
    base: the fields that no axis sets.
    axes: dotted names of fields, and their values.

  Raises:
    ValueError: a field is not one of base, two axes set it, an axis has no
      values, or two points have one name.

  >>> base = config_dict.create(noise=0.1, canaries=dict(repetitions=1))
  >>> axes = [('noise', (0.0, 0.1)), ('canaries.repetitions', (1, 2))]
  >>> [point.name for point in make_grid(base, axes)][1:3]
  ['noise=0.0,canaries.repetitions=2', 'noise=0.1,canaries.repetitions=1']
  """
  fields = [name for names, _ in axes for name in _names(names)]
  for name in fields:
    if fields.count(name) > 1:
      raise ValueError(f'two axes set {name}; keep one of them.')
    _check_field(base, name)
  points = []
  for values in itertools.product(*(_steps(axis) for axis in axes)):
    settings = {k: v for step in values for k, v in step.items()}
    config = copy.deepcopy(base)
    for field, value in settings.items():
      *path, last = field.split('.')
      functools.reduce(getattr, path, config)[last] = value
    name = ','.join(f'{k}={v}' for k, v in settings.items()) or 'base'
    points.append(Point(name.replace(os.sep, '_'), settings, config))
  names = [point.name for point in points]
  if len(set(names)) < len(names):
    raise ValueError(f'axes={axes!r} make one point twice; give each once.')
  return points


def run_sweep(
  points: Sequence[Point],
  workdir: str | os.PathLike,
  *,
  jobs: int = 1,
  retry: bool = False,
) -> Outcome:
  """Trains what is not finished, `jobs` points side by side.

  A point that failed before is left alone, unless it is to be tried again. When
  this process is stopped, the points that run are stopped too, and go on from
  their checkpoints the next time.

  Args:
    points: as `make_grid` makes them.
    workdir: a folder with a folder for each point; <point>.log beside it has
      what the run said.
    jobs: processes at a time, >= 1; each uses all cores it finds.
    retry: try again what failed.

  Raises:
    ValueError: jobs is out of range, or the folder of a point holds another
      run.
  """
  if jobs < 1:
    raise ValueError(f'jobs={jobs}; give 1 or more.')
  folder = pathlib.Path(workdir)
  folder.mkdir(parents=True, exist_ok=True)
  for point in points:
    # All at once, and before any work.
    workdirs.claim(folder / point.name, point.config)
  with contextlib.ExitStack() as stack:
    progress = stack.enter_context(
      tqdm.tqdm(total=len(points), unit='run', desc=folder.name)
    )
    pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(jobs))
    stop = threading.Event()
    # Before the pool waits for its threads, they are told.
    stack.callback(stop.set)
    said = {
      pool.submit(_run, point, folder, retry, stop): point for point in points
    }
    finished, failed = {}, {}
    for future in concurrent.futures.as_completed(said):
      name = said[future].name
      why = future.result()
      if why is None:
        finished[name] = folder / name
      else:
        failed[name] = why
      progress.set_postfix(failed=len(failed))
      progress.update()
  names = [point.name for point in points]
  return Outcome(
    {name: finished[name] for name in names if name in finished},
    {name: failed[name] for name in names if name in failed},
  )


def _run(
  point: Point, folder: pathlib.Path, retry: bool, stop: threading.Event
) -> str | None:
  """Has a process make one point; says why if it failed."""
  mark = folder / f'{point.name}{FAILED}'
  if workdirs.workdir_at(folder / point.name).result.exists():
    return None
  if mark.exists() and not retry:
    return mark.read_text()
  if stop.is_set():
    return 'stopped'
  mark.unlink(missing_ok=True)
  log = folder / f'{point.name}.log'
  with open(log, 'wb') as said:
    process = subprocess.Popen(
      [
        sys.executable,
        '-m',
        'epe_jax.experiment.sweep',
        str(folder / point.name),
      ],
      stdin=subprocess.PIPE,
      stdout=said,
      stderr=subprocess.STDOUT,
    )
    assert process.stdin is not None
    with process.stdin as sent:
      sent.write(
        json.dumps(io.spell_non_finite(point.config.to_dict())).encode()
      )
    while True:
      try:
        code = process.wait(timeout=0.5)
        break
      except subprocess.TimeoutExpired:
        if stop.is_set():
          process.terminate()
  if code == 0:
    return None
  if stop.is_set():
    return 'stopped'
  lines = log.read_text(errors='replace').strip().splitlines()
  why = f'{_ended(code)}: {lines[-1] if lines else "it said nothing"}'
  io.write_text(mark, why)
  return why


def _ended(code: int) -> str:
  if code >= 0:
    return f'ended with {code}'
  return f'ended by {signal.Signals(-code).name}'


def _names(names: str | Sequence[str]) -> Sequence[str]:
  return [names] if isinstance(names, str) else list(names)


def _steps(axis: Axis) -> Iterator[Mapping[str, Any]]:
  """What each step along an axis sets."""
  names, values = axis
  if not values:
    raise ValueError(f'axis {names!r} has no values; give at least one.')
  for value in values:
    if isinstance(names, str):
      yield {names: value}
    elif len(names) == len(value):
      yield dict(zip(names, value))
    else:
      raise ValueError(
        f'axis {tuple(names)} has the step {tuple(value)}; give a value for '
        'each field.'
      )


def _check_field(base: Config, name: str) -> None:
  at = base
  for part in name.split('.'):
    if not isinstance(at, config_dict.ConfigDict) or part not in at:
      raise ValueError(
        f'{name} is no field of the config; see the file in configs/.'
      )
    at = at[part]


def _main() -> None:
  """One point: its config comes in, its run goes into the folder."""
  config = config_dict.ConfigDict(json.load(sys.stdin))
  sharding.use_cores(config.clients_per_round)
  try:
    audited_run.run(config, sys.argv[1])
  except (ValueError, FileNotFoundError, FloatingPointError) as error:
    raise SystemExit(f'{type(error).__name__}: {error}') from error


if __name__ == '__main__':
  _main()
