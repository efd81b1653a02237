"""Many runs that differ in a few fields: a grid with one folder for each point.

Each point is run by a process of its own. The folder of a point holds an ordinary
run: a finished one is not repeated, and one that was stopped is resumed.
"""

import collections
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
import contextlib
import copy
import functools
import itertools
import os
import pathlib
import signal
import time
from typing import Any, NamedTuple

from epe_jax import io, progress
from epe_jax.experiment import (
  config_files,
  launchers,
  stopping,
  sweep_process,
  workdirs,
)
from epe_jax.experiment.config_files import Config
from epe_jax.io import locks

FAILED = '.failed'
"""The suffix of the file beside the folder of a point that failed."""

# Seconds between two polls of the processes.
_INTERVAL = 0.2
# Seconds between two looks at points that other sweeps run.
_LOOK_EVERY = 2.0
# How often a point is started again whose machine was lost or that was told to stop.
_MAX_LOST = 10
# Exit statuses of a run that was told to stop, and has saved.
_TOLD_TO_STOP = (128 + signal.SIGTERM, 128 + signal.SIGINT)


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
  launch: Callable[[], launchers.Launcher] | None = None,
  retry: bool = False,
) -> Outcome:
  """Runs all points that are not finished, side by side where there is room.

  A point that failed before is skipped, unless `retry` is set, and one that
  another process runs is waited for. One whose machine is lost is started again, and
  resumes. When this process is stopped, so are the running points, which resume from
  their checkpoints the next time.

  Args:
    points: the points, as `make_grid` makes them.
    workdir: a folder with a folder for each point, and its output in <point>.log.
    launch: makes what starts the points, once there are any, as
      `launchers.make_launcher` does; None for one process on each accelerator of
      this machine, and for one on a CPU.
    retry: whether points that failed before are tried again.

  Raises:
    ValueError: the folder of a point holds another run, or points cannot be run. All
      of these are named, and none was started.
    RuntimeError: an engine is not there, or does not answer any more.
  """
  folder = pathlib.Path(workdir)
  io.check_folder('workdir', folder)
  # For all of them before any work is done.
  for point in points:
    if (folder / point.name).exists():
      workdirs.claim(folder / point.name, point.config)
  finished, failed, waiting = {}, {}, []
  for point in points:
    failure = folder / f'{point.name}{FAILED}'
    if _is_finished(point, folder):
      failure.unlink(missing_ok=True)
      finished[point.name] = folder / point.name
    elif failure.exists() and not retry:
      failed[point.name] = failure.read_text()
    else:
      waiting.append(point)
  if launch is None:
    launch = functools.partial(launchers.make_launcher, 'local')
  launcher = launch() if waiting else None
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
    # Without points there is no launcher.
    outcomes = (
      ()
      if launcher is None
      else _run_points(waiting, folder, launcher, requests)
    )
    for point, reason in outcomes:
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
  launcher: launchers.Launcher,
  requests: stopping.Requests,
) -> Iterator[tuple[Point, str | None]]:
  """Runs points; yields each with the reason if it failed, else None.

  Those that are stopped are not yielded.
  """
  queue, running = [*points], list[tuple[Point, launchers.Job]]()
  works = {point.name: _make_work(point, folder) for point in points}
  lost = collections.Counter[str]()
  is_told, look_at = False, 0.0
  # However this ends, what it started does.
  with contextlib.closing(launcher):
    while queue or running:
      if requests.signum is not None and not is_told:
        queue.clear()
        # Once: a second signal would end them before they have saved.
        for _, job in running:
          job.terminate()
        is_told = True
      ended = [(point, job, job.poll()) for point, job in running]
      running = [(point, job) for point, job, code in ended if code is None]
      for point, _, code in ended:
        if code is None:
          continue
        look_at = 0.0
        if code == 0 or _is_finished(point, folder):
          yield point, None
        elif requests.signum is not None:
          continue
        elif code in (launchers.LOST, *_TOLD_TO_STOP) and (
          lost[point.name] < _MAX_LOST
        ):
          lost[point.name] += 1
          queue.append(point)
        else:
          yield point, _record_failure(point, folder, code)
      if queue and time.monotonic() >= look_at:
        look_at = time.monotonic() + _LOOK_EVERY
        for point in [p for p in queue if _is_finished(p, folder)]:
          # By another sweep.
          queue.remove(point)
          yield point, None
        free = [p for p in queue if not _is_elsewhere(p, folder)]
        jobs = launcher.start([works[point.name] for point in free])
        running += zip(free, jobs)
        queue = [p for p in queue if p not in free[: len(jobs)]]
      time.sleep(_INTERVAL)


def _make_work(point: Point, folder: pathlib.Path) -> launchers.Work:
  folder = folder.absolute()
  return launchers.Work(
    point.config.to_dict(),
    folder / point.name,
    folder / f'{point.name}.log',
    stopping.name_command(),
  )


def _is_finished(point: Point, folder: pathlib.Path) -> bool:
  return workdirs.workdir_at(folder / point.name).result.exists()


def _is_elsewhere(point: Point, folder: pathlib.Path) -> bool:
  """Says whether a process runs a point that this sweep did not start."""
  files = workdirs.workdir_at(folder / point.name)
  return locks.find_holder(files.lock) is not None


def _record_failure(point: Point, folder: pathlib.Path, code: int) -> str:
  """Writes down and returns why a point failed: its exit and its last line."""
  log = folder / f'{point.name}.log'
  text = log.read_text(errors='replace') if log.exists() else ''
  lines = text.strip().splitlines()
  if code == launchers.LOST:
    end = f'its machine was lost {_MAX_LOST + 1} times'
  elif code >= 0:
    end = f'ended with {code}'
  else:
    end = f'ended by {signal.Signals(-code).name}'
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
