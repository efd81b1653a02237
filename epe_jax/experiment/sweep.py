"""Many runs that differ in a few fields: a grid with one folder for each point.

Each point is run by a process of its own, so that one that fails, or is killed
for lack of memory, takes no other with it. The folder of a point holds an
ordinary run: one that is finished is not made again, and one that was stopped
is resumed.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
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
import time
from typing import Any, NamedTuple

from ml_collections import config_dict

from epe_jax import interpreters, io, progress
from epe_jax.experiment import (
  audited_run,
  compiled_programs,
  config_files,
  stopping,
  sweep_checks,
  workdirs,
  workloads,
)
from epe_jax.parallel import sharding

Config = workloads.Config

FAILED = '.failed'
"""The suffix of the file beside the folder of a point that failed."""

_STOPPED = 'stopped'
# Seconds between two tries to have a point that another process has.
_INTERVAL = 1.0


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

  >>> base = config_dict.create(noise=0.1, canaries=dict(repetitions=1))
  >>> axes = [('noise', (0.0, 0.1)), ('canaries.repetitions', (1, 2))]
  >>> [point.name for point in make_grid(base, axes)][1:3]
  ['noise=0.0,canaries.repetitions=2', 'noise=0.1,canaries.repetitions=1']
  """
  fields = [name for names, _ in axes for name in _list_names(names)]
  for name in fields:
    if fields.count(name) > 1:
      raise ValueError(f'two axes set {name}; keep one of them.')
    _check_field(base, name)
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
  jobs: int = 1,
  retry: bool = False,
) -> Outcome:
  """Runs all points that are not finished, `jobs` of them side by side.

  A point that failed before is skipped, unless `retry` is set, and one that
  another process runs is waited for. When this process is stopped, the running
  points are stopped too, and resume from their checkpoints the next time; so they
  are when it is killed.

  Args:
    points: the points, as `make_grid` makes them.
    workdir: a folder with a folder for each point. Beside it <point>.log has
      the output of the run.
    jobs: the number of processes at a time, >= 1. Each uses all cores that it
      finds.
    retry: whether points that failed before are tried again.

  Raises:
    ValueError: jobs is out of range, the folder of a point holds another run, or
      points cannot be run. All of these are named, and none was started.
  """
  if jobs < 1:
    raise ValueError(f'jobs={jobs}; give 1 or more.')
  folder = pathlib.Path(workdir)
  waiting = [point for point in points if _is_waiting(point, folder, retry)]
  io.check_folder('workdir', folder)
  # For all of them before any work is done.
  for point in points:
    if (folder / point.name).exists():
      workdirs.claim(folder / point.name, point.config)
  check_points(waiting)
  folder.mkdir(parents=True, exist_ok=True)
  for point in waiting:
    workdirs.claim(folder / point.name, point.config)
  left = {point.name: int(point.config.rounds) for point in waiting}
  with contextlib.ExitStack() as stack:
    requests = stack.enter_context(
      stopping.listen(
        'Finishing the rounds of the points that run. A second signal stops at once.'
      )
    )
    requests.can_defer = True
    # In rounds, as points may differ in them: the time that is left is known from
    # the first point on that finishes.
    bar = stack.enter_context(
      progress.bar(
        total=sum(left.values()),
        unit=' rounds',
        desc=f'{folder.name}, {len(waiting)} of {len(points)} points to run',
        smoothing=0,
      )
    )
    pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(jobs))
    stop = threading.Event()
    # Threads are told to stop before the pool waits for them.
    stack.callback(stop.set)
    names_by_future = {
      pool.submit(_run_point, point, folder, retry, stop): point.name
      for point in points
    }
    finished, failed, num_stopped = {}, {}, 0
    for future in _iterate_completed(names_by_future, requests, stop):
      name, reason = names_by_future[future], future.result()
      rounds = left.pop(name, 0)
      if reason is None:
        finished[name] = folder / name
      elif reason == _STOPPED:
        num_stopped += 1
      else:
        failed[name] = reason
        # Rounds that were not made say nothing of how long others take.
        bar.total -= rounds
      counts = {'finished': len(finished), 'failed': len(failed)}
      if num_stopped:
        counts['stopped'] = num_stopped
      bar.set_postfix(counts, refresh=False)
      bar.update(rounds if reason is None else 0)
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
  if faults := sweep_checks.find_faults_in_process(configs):
    raise ValueError(sweep_checks.describe_faults(faults, len(points)))


def _is_waiting(point: Point, folder: pathlib.Path, retry: bool) -> bool:
  """Says whether a point is to be run: it has neither finished nor failed."""
  failure = folder / f'{point.name}{FAILED}'
  is_finished = workdirs.workdir_at(folder / point.name).result.exists()
  return not is_finished and (retry or not failure.exists())


def _describe_stop(
  points: Sequence[Point],
  folder: pathlib.Path,
  *,
  finished: Collection[str],
  failed: Collection[str],
) -> str:
  """What is kept of a sweep that was stopped, by count."""
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


def _iterate_completed(
  pending: Collection[concurrent.futures.Future],
  requests: stopping.Requests,
  stop: threading.Event,
) -> Iterator[concurrent.futures.Future]:
  """Iterates over futures as they complete; a request to stop is passed on."""
  pending = set(pending)
  while pending:
    done, pending = concurrent.futures.wait(
      pending, timeout=0.2, return_when=concurrent.futures.FIRST_COMPLETED
    )
    yield from done
    if requests.signum is not None:
      stop.set()


def _run_point(
  point: Point, folder: pathlib.Path, retry: bool, stop: threading.Event
) -> str | None:
  """Runs one point in a process; gives the reason if it failed, else None."""
  failure = folder / f'{point.name}{FAILED}'
  if workdirs.workdir_at(folder / point.name).result.exists():
    failure.unlink(missing_ok=True)
    return None
  if failure.exists() and not retry:
    return failure.read_text()
  if stop.is_set():
    return _STOPPED
  failure.unlink(missing_ok=True)
  log = folder / f'{point.name}.log'
  with open(log, 'wb') as output:
    process = subprocess.Popen(
      interpreters.make_command(
        '-m',
        'epe_jax.experiment.sweep',
        str(folder / point.name),
        stopping.name_command(),
      ),
      env=interpreters.make_environment(),
      stdin=subprocess.PIPE,
      stdout=output,
      stderr=subprocess.STDOUT,
      # Ctrl-C in a terminal would reach it beside the signal that we send.
      start_new_session=True,
    )
    assert process.stdin is not None
    config = json.dumps(io.spell_non_finite(point.config.to_dict()))
    # One that has ended at once takes none.
    with contextlib.suppress(BrokenPipeError):
      process.stdin.write(f'{config}\n'.encode())
      process.stdin.flush()
    is_told = False
    while True:
      try:
        code = process.wait(timeout=0.5)
        break
      except subprocess.TimeoutExpired:
        # Once: a second signal would end it before it has saved.
        if stop.is_set() and not is_told:
          process.terminate()
          is_told = True
    # Not before: it ends with the pipe.
    with contextlib.suppress(BrokenPipeError):
      process.stdin.close()
  if code == 0:
    return None
  if stop.is_set():
    return _STOPPED
  lines = log.read_text(errors='replace').strip().splitlines()
  reason = f'{_describe_exit(code)}: {lines[-1] if lines else "no output"}'
  io.write_text(failure, reason)
  return reason


def _describe_exit(code: int) -> str:
  if code >= 0:
    return f'ended with {code}'
  return f'ended by {signal.Signals(-code).name}'


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


def _check_field(base: Config, name: str) -> None:
  group = base
  for part in name.split('.'):
    if not isinstance(group, config_dict.ConfigDict) or part not in group:
      fields = list(io.flatten(base.to_dict()))
      similar = config_files.find_similar_fields(name, fields)
      cure = f'give one of {", ".join(fields)}.'
      if similar:
        cure = f'did you mean {" or ".join(map(repr, similar))}?'
      raise ValueError(f'the config has no field {name!r}; {cure}')
    group = group[part]


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


def _explain_resuming() -> str:
  # The command of this process would wait for a config on stdin.
  return f'To go on, repeat the sweep, which was started by: {sys.argv[2]}'


@functools.partial(stopping.end_politely, explain_resuming=_explain_resuming)
def main() -> None:
  """Runs one point, with its config on the first line of stdin.

  Its arguments are its workdir and the command that started the sweep, with which it
  ends.
  """
  config = config_dict.ConfigDict(json.loads(sys.stdin.readline()))
  stopping.end_with_parent()
  compiled_programs.keep_programs()
  sharding.use_cores(config.clients_per_round)
  try:
    _run_when_free(config, sys.argv[1])
  except (ValueError, FileNotFoundError, FloatingPointError) as error:
    raise SystemExit(f'{type(error).__name__}: {error}') from error


def _run_when_free(config: Config, workdir: str) -> None:
  """Runs a point, once no other process does, such as one of a sweep before."""
  is_told = False
  while True:
    try:
      audited_run.run(config, workdir)
      return
    except workdirs.InUse as busy:
      if not is_told:
        print(f'Waiting: {busy}', file=sys.stderr, flush=True)
      is_told = True
    time.sleep(_INTERVAL)


if __name__ == '__main__':
  main()
