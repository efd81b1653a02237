"""Many runs that differ in a few fields: a grid with one folder for each point.

Each point is run by a process of its own. The folder of a point holds an ordinary
run: a finished one is not repeated, and one that was stopped is resumed.
"""

import collections
from collections.abc import Collection, Iterator, Mapping, Sequence
import contextlib
import copy
import functools
import itertools
import os
import pathlib
import signal
import subprocess
import time
from typing import Any, NamedTuple

from epe_jax import io, progress
from epe_jax.experiment import (
  config_files,
  placement,
  stopping,
  sweep_process,
  workdirs,
)
from epe_jax.experiment.config_files import Config

FAILED = '.failed'
"""The suffix of the file beside the folder of a point that failed."""

# Seconds between two polls of the processes.
_INTERVAL = 0.2


class Point(NamedTuple):
  """One run of a grid.

  Attributes:
    name: the name of its folder: the fields that it sets, as field=value.
    settings: dotted field -> value, in the order of the axes.
    config: its config, with every field set.
  """

  name: str
  settings: dict[str, Any]
  config: Config


class Outcome(NamedTuple):
  """The outcome of a sweep.

  Attributes:
    finished: the workdirs of finished points, by the names of the points.
    failed: the reasons of failed points, by the names of the points.
  """

  finished: dict[str, pathlib.Path]
  failed: dict[str, str]


Axis = tuple[str | Sequence[str], Sequence[Any]]
"""A field and its values; or several fields, and the values of each step."""


def make_grid(base: Config, axes: Sequence[Axis]) -> list[Point]:
  """Combines the values of all axes, of which the last one changes fastest.

  Args:
    base: a config with every field set; axes replace some of them.
    axes: the dotted names of fields, and their values.

  Returns:
    One point for each combination.

  Raises:
    ValueError: base lacks a field of an axis, a value is of another type than the
      field, two axes set the same field, an axis has no values, or two points
      have the same name.

  >>> from ml_collections import config_dict
  >>> base = config_dict.create(noise=0.1, canaries=dict(repetitions=1))
  >>> axes = [('noise', (0.0, 0.1)), ('canaries.repetitions', (1, 2))]
  >>> [point.name for point in make_grid(base, axes)][1:3]
  ['noise=0.0,canaries.repetitions=2', 'noise=0.1,canaries.repetitions=1']
  """
  fields = [name for names, _ in axes for name in _list_names(names)]
  for name in fields:
    if fields.count(name) > 1:
      raise ValueError(f'two axes set {name}; keep one of them.')
    config_files.check_field(name, [*io.flatten(base.to_dict())])
  points = []
  for values in itertools.product(*(_iterate_steps(axis) for axis in axes)):
    settings = {k: v for step in values for k, v in step.items()}
    config = copy.deepcopy(base)
    for field, value in settings.items():
      _set_field(config, field, value)
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
  jobs: int | None = None,
  devices_per_job: int | None = None,
  retry: bool = False,
) -> Outcome:
  """Runs all points that are not finished, `jobs` of them side by side.

  Each has its own accelerators, or cores, as `placement.make_slots` shares them.

  A point that failed before is skipped, unless `retry` is set, and one that
  another process runs is waited for. When this process is stopped or killed, so are
  the running points, which resume from their checkpoints the next time.

  Args:
    points: the points, as `make_grid` makes them.
    workdir: a folder with a folder for each point, and its output in <point>.log.
    jobs: the number of processes at a time, >= 1; None for one on each accelerator,
      and for one on a CPU.
    devices_per_job: the number of accelerators, or of cores, of each process, >= 1;
      None for equal shares.
    retry: whether points that failed before are tried again.

  Raises:
    ValueError: jobs or devices_per_job is out of range, the folder of a point holds
      another run, or points cannot be run. All of these are named, and none was
      started.
    RuntimeError: JAX finds no device.
  """
  placement.check_counts(jobs=jobs, devices_per_job=devices_per_job)
  folder = pathlib.Path(workdir)
  io.check_folder('workdir', folder)
  # For all of them before any work is done.
  for point in points:
    if (folder / point.name).exists():
      workdirs.claim(folder / point.name, point.config)
  finished, failed, waiting = {}, {}, []
  for point in points:
    failure = folder / f'{point.name}{FAILED}'
    if workdirs.workdir_at(folder / point.name).result.exists():
      failure.unlink(missing_ok=True)
      finished[point.name] = folder / point.name
    elif failure.exists() and not retry:
      failed[point.name] = failure.read_text()
    else:
      waiting.append(point)
  slots = []
  if waiting:
    slots = placement.make_slots(
      placement.find_devices(), jobs=jobs, devices_per_job=devices_per_job
    )
  check_points(waiting)
  folder.mkdir(parents=True, exist_ok=True)
  for point in waiting:
    workdirs.claim(folder / point.name, point.config)
    (folder / f'{point.name}{FAILED}').unlink(missing_ok=True)
  with (
    stopping.listen(
      'Finishing the rounds of the points that run. A second signal stops at once.'
    ) as requests,
    # In rounds, as points may differ in them: the time that is left is known once
    # the first point has finished.
    progress.bar(
      total=sum(int(point.config.rounds) for point in waiting),
      unit=' rounds',
      desc=f'{folder.name}, {len(waiting)} of {len(points)} points to run',
      smoothing=0,
    ) as bar,
  ):
    requests.can_defer = True
    for point, reason in _run_points(waiting, folder, slots, requests):
      rounds = int(point.config.rounds)
      if reason is None:
        finished[point.name] = folder / point.name
        bar.update(rounds)
      else:
        failed[point.name] = reason
        # Rounds that were not made say nothing of how long others take.
        bar.total -= rounds
      counts = {'finished': len(finished), 'failed': len(failed)}
      bar.set_postfix(counts, refresh=True)
  requests.raise_if_stopped(
    _describe_stop(points, folder, finished=finished, failed=failed)
  )
  names = [point.name for point in points]
  return Outcome(
    {name: finished[name] for name in names if name in finished},
    {name: failed[name] for name in names if name in failed},
  )


def check_points(points: Sequence[Point]) -> None:
  """Checks that every point can be run, before the first one starts.

  Args:
    points: as `make_grid` makes them.

  Raises:
    ValueError: some cannot. The message has all of them, each with its reason.
  """
  for point in points:
    if str(point.config.task).startswith('__main__:'):
      raise ValueError(
        f'task={point.config.task!r} is a function of this program, which the '
        'processes of points cannot import; put it into a module of its own.'
      )
  configs = {point.name: point.config for point in points}
  if faults := sweep_process.find_faults_in_process(configs):
    raise ValueError(_describe_faults(faults, len(points)))


def _describe_faults(faults: Mapping[str, str], num_points: int) -> str:
  """Lists all faults, each reason once with the points that it concerns.

  >>> print(_describe_faults({'rounds=0': 'give 1', 'rounds=-1': 'give 1'}, 3))
  2 of 3 points cannot be run, so none was started:
    rounds=0
    rounds=-1
      give 1
  """
  names_by_reason: dict[str, list[str]] = {}
  for name, reason in faults.items():
    names_by_reason.setdefault(reason, []).append(name)
  lines = [
    f'{len(faults)} of {num_points} points cannot be run, so none was started:'
  ]
  for reason, names in names_by_reason.items():
    lines += [*(f'  {name}' for name in names), f'    {reason}']
  return '\n'.join(lines)


def _run_points(
  points: Sequence[Point],
  folder: pathlib.Path,
  slots: Sequence[placement.Slot],
  requests: stopping.Requests,
) -> Iterator[tuple[Point, str | None]]:
  """Runs a point in each slot; yields each with the reason if it failed, else None.

  Those that are stopped are not yielded.
  """
  queue, free, is_told = collections.deque(points), [*slots], False
  running: list[tuple[Point, placement.Slot, subprocess.Popen[bytes]]] = []
  # However this ends, the processes do.
  with contextlib.ExitStack() as stack:
    while queue or running:
      if requests.signum is not None and not is_told:
        queue.clear()
        # Once: a second signal would end them before they have saved.
        for *_, process in running:
          process.terminate()
        is_told = True
      while queue and free:
        point, slot = queue.popleft(), free.pop(0)
        process = stack.enter_context(start_point(point, folder, slot))
        running.append((point, slot, process))
      time.sleep(_INTERVAL)
      ended = [one for one in running if one[-1].poll() is not None]
      running = [one for one in running if one not in ended]
      for point, slot, process in ended:
        free.append(slot)
        code = process.returncode
        if code == 0:
          yield point, None
        elif requests.signum is None:
          yield point, _record_failure(point, folder, code)


def start_point(
  point: Point, folder: pathlib.Path, slot: placement.Slot
) -> subprocess.Popen[bytes]:
  """Starts the process that runs a point, with its output in <point>.log."""
  log = folder / f'{point.name}.log'
  with open(log, 'wb') as output, placement.enter(slot):
    return sweep_process.start(
      ['run', str(folder / point.name), stopping.name_command()],
      point.config.to_dict(),
      environment=slot.environment,
      stdout=output,
      stderr=subprocess.STDOUT,
    )


def _record_failure(point: Point, folder: pathlib.Path, code: int) -> str:
  """Writes down and returns why a point failed: its exit and its last line."""
  log = folder / f'{point.name}.log'
  lines = log.read_text(errors='replace').strip().splitlines()
  end = (
    f'ended with {code}'
    if code >= 0
    else f'ended by {signal.Signals(-code).name}'
  )
  reason = f'{end}: {lines[-1] if lines else "no output"}'
  io.write_text(folder / f'{point.name}{FAILED}', reason)
  return reason


def _describe_stop(
  points: Sequence[Point],
  folder: pathlib.Path,
  *,
  finished: Collection[str],
  failed: Collection[str],
) -> str:
  """Counts what is kept of a sweep that was stopped."""
  others = [p.name for p in points if p.name not in {*finished, *failed}]
  saved = [
    name
    for name in others
    if workdirs.has_saved_rounds(workdirs.workdir_at(folder / name))
  ]
  counts = {
    'finished': len(finished),
    'failed': len(failed),
    'saved part way': len(saved),
    'without a saved round': len(others) - len(saved),
  }
  listed = ', '.join(f'{n} {what}' for what, n in counts.items() if n)
  return f'Stopped. Of {len(points)} points in {folder}: {listed}.'


def _list_names(names: str | Sequence[str]) -> Sequence[str]:
  return [names] if isinstance(names, str) else list(names)


def _iterate_steps(axis: Axis) -> Iterator[Mapping[str, Any]]:
  """Iterates over the settings of the steps along an axis."""
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


def _set_field(config: Config, name: str, value: Any) -> None:
  *path, last = name.split('.')
  group = functools.reduce(getattr, path, config)
  try:
    group[last] = value
  except TypeError as error:
    raise ValueError(
      f'axis {name!r} has the value {value!r}, which is of type '
      f'{type(value).__name__}, and not {group.get_type(last).__name__} as '
      f'{name}={group[last]!r} of the config; give values of that type.'
    ) from error
