"""Runs the points of a sweep, each by a process of its own, in a folder of its own.

The folder of a point holds an ordinary run: a finished one is not repeated, and one
that was stopped is resumed.
"""

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import time
from typing import NamedTuple

from epe_jax import io, locks, progress
from epe_jax.experiment import stopping, workdirs
from epe_jax.experiment.sweeps import launch as launch_lib
from epe_jax.experiment.sweeps import sweep_status
from epe_jax.experiment.sweeps.sweep_points import Point

# Seconds between two polls of the processes.
_INTERVAL = 0.2
# Seconds between two checks whether other sweeps still run points.
_CHECK_EVERY = 2.0
# Seconds between two updates of the progress bar.
_SHOW_EVERY = 5.0
# How often a point is started again that did not fail by itself.
_MAX_AGAIN = 10
# Exit statuses of a run whose result is on another machine and not seen yet; of one
# that was told to stop, and has saved or had not begun; of one that was killed, as for
# lack of memory; of one that another sweep makes; and of one whose machine is gone.
_AGAIN = (
  0,
  128 + signal.SIGTERM,
  128 + signal.SIGINT,
  -signal.SIGTERM,
  -9,
  launch_lib.EXIT_BUSY,
  launch_lib.EXIT_LOST,
)


class SweepResult(NamedTuple):
  """What has ended of a sweep, by the names of the points, in their order."""

  finished: dict[str, pathlib.Path]  # Their workdirs.
  failed: dict[str, str]  # Why they failed.


def run_sweep(
  points: Sequence[Point],
  workdir: str | os.PathLike,
  *,
  launch: Callable[[], launch_lib.Launcher] | None = None,
  retry: bool = False,
  watch: Callable[[SweepResult], object] | None = None,
) -> SweepResult:
  """Runs all points that are not finished, side by side where there is room.

  A point that failed before is skipped, unless `retry` is set, and one that
  another process runs is waited for. One whose machine is lost is started again, and
  resumes. When this process is stopped, so are the running points, which resume from
  their checkpoints the next time.

  Args:
    points: the points, as `sweep_points.make_grid` makes them.
    workdir: a folder with a folder for each point, and its output in <point>.log.
    launch: makes what starts the points, once there are any, as
      `launch.make_launcher` does; None for one process on each GPU of
      this machine, and for one on a CPU.
    retry: whether points that failed before are tried again.
    watch: called with what there is, after each point that ends.

  Raises:
    ValueError: the folder of a point holds another run, or points cannot be run. All
      of these are named, and none was started.
    OSError: an engine is not there, or does not answer any more.
  """
  folder = pathlib.Path(workdir)
  io.check_folder('workdir', folder)
  # For all of them before any work is done.
  for point in points:
    if (folder / point.name).exists():
      workdirs.reserve(folder / point.name, point.config)
  # Why each point failed that has ended; None for one that has a result.
  ends: dict[str, str | None] = {}
  for point in points:
    failure = _failure_file(folder, point)
    if _is_finished(folder, point):
      failure.unlink(missing_ok=True)
      ends[point.name] = None
    elif failure.exists() and not retry:
      ends[point.name] = failure.read_text()
  waiting = [point for point in points if point.name not in ends]
  if waiting:
    check_points(waiting)
    launcher = (launch or _launch_locally)()
    folder.mkdir(parents=True, exist_ok=True)
    with (
      contextlib.ExitStack() as stack,
      stopping.listen(
        'Finishing the rounds of the points that run. A second signal stops at once.'
      ) as requests,
      _show_progress(folder, waiting, len(points)) as show,
    ):
      # However this ends, what it started does.
      stack.callback(launcher.close)
      for point in waiting:
        workdirs.reserve(folder / point.name, point.config)
        _failure_file(folder, point).unlink(missing_ok=True)
      for point, reason in _run_points(folder, waiting, launcher, requests):
        if point is not None:
          ends[point.name] = reason
          if watch is not None:
            watch(_sort_ends(folder, points, ends))
        show()
    statuses = [sweep_status.find_point(folder, x.name) for x in points]
    counts = sweep_status.count_states(statuses)
    listed = ', '.join(f'{number} {state}' for state, number in counts.items())
    requests.raise_if_stopped(
      f'Stopped. Of {len(points)} points in {folder}: {listed}.'
    )
  return _sort_ends(folder, points, ends)


def _launch_locally() -> launch_lib.Launcher:
  return launch_lib.make_launcher('local')


def check_points(points: Sequence[Point]) -> None:
  """Checks that every point can be run, before the first one starts.

  Raises:
    ValueError: some cannot. The message has all of them, each with its reason.
    ChildProcessError: the process that checks them ended before it was done.
  """
  for point in points:
    if str(point.config.task).startswith('__main__:'):
      raise ValueError(
        f'task={point.config.task!r} is a function of this program, which the '
        'processes of points cannot import; put it into a module of its own.'
      )
  # On the CPU and apart from the sweep, which must not hold the memory of an
  # accelerator that its points need.
  with launch_lib.start_process(
    launch_lib.POINT,
    ['check'],
    {point.name: point.config.to_dict() for point in points},
    environment={'JAX_PLATFORMS': 'cpu'},
    stdout=subprocess.PIPE,
  ) as process:
    assert process.stdout is not None, 'it is a pipe'
    lines = process.stdout.read().splitlines()
    code = process.wait()
  if code:
    raise ChildProcessError(
      f'the check of {len(points)} points ended with {code}; what it printed says '
      'why.'
    )
  # A task of a user's own may print, too.
  if faults := json.loads(lines[-1]):
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
  folder: pathlib.Path,
  points: Sequence[Point],
  launcher: launch_lib.Launcher,
  requests: stopping.Requests,
) -> Iterator[tuple[Point | None, str | None]]:
  """Runs points; yields each that ended and why it failed, and (None, None) meanwhile.

  Those that are stopped are not yielded.
  """
  queue, running = [*points], list[tuple[Point, launch_lib.Job]]()
  again = collections.Counter[str]()
  is_told, check_at = False, 0.0
  while queue or running:
    if requests.signum is not None and not is_told:
      queue.clear()
      # Once: a second signal would end them before they have saved.
      for _, job in running:
        job.stop()
      is_told = True
    polled = [(point, job, job.poll()) for point, job in running]
    running = [(point, job) for point, job, code in polled if code is None]
    ended = list[tuple[Point, str | None]]()
    for point, _, code in polled:
      if code is None:
        continue
      check_at = 0.0
      if _is_finished(folder, point):
        ended.append((point, None))
      elif is_told:
        continue
      elif code in _AGAIN and again[point.name] < _MAX_AGAIN:
        again[point.name] += 1
        queue.append(point)
      else:
        ended.append((point, _record_failure(folder, point, code)))
    if queue and time.monotonic() >= check_at:
      check_at = time.monotonic() + _CHECK_EVERY
      # By another sweep.
      elsewhere = [point for point in queue if _is_finished(folder, point)]
      ended += [(point, None) for point in elsewhere]
      queue = [point for point in queue if point not in elsewhere]
      free = [p for p in queue if not _is_elsewhere(folder, p)]
      jobs = launcher.start([_make_spec(folder, p) for p in free])
      running += zip(free, jobs)
      queue = [p for p in queue if p not in free[: len(jobs)]]
    # Once others have started, as the caller may take a while.
    yield from ended
    yield None, None
    time.sleep(_INTERVAL)


def _make_spec(folder: pathlib.Path, point: Point) -> launch_lib.JobSpec:
  folder = folder.absolute()
  return launch_lib.JobSpec(
    point.config.to_dict(),
    folder / point.name,
    folder / f'{point.name}.log',
    stopping.command_line(),
  )


def _is_finished(folder: pathlib.Path, point: Point) -> bool:
  return sweep_status.is_finished(workdirs.workdir_at(folder / point.name))


def _is_elsewhere(folder: pathlib.Path, point: Point) -> bool:
  """Says whether a process runs a point that this sweep did not start."""
  files = workdirs.workdir_at(folder / point.name)
  return locks.find_holder(files.lock) is not None


def _failure_file(folder: pathlib.Path, point: Point) -> pathlib.Path:
  return folder / f'{point.name}{sweep_status.FAILED}'


def _record_failure(folder: pathlib.Path, point: Point, code: int) -> str:
  """Writes down and returns why a point failed: its exit and its last line."""
  lines = io.read_last_lines(folder / f'{point.name}.log', 1)
  if code == launch_lib.EXIT_LOST:
    end = f'its machine was lost {_MAX_AGAIN + 1} times'
  elif code >= 0:
    end = f'ended with {code}'
  else:
    end = f'ended by {signal.Signals(-code).name}'
  reason = f'{end}: {lines[-1].strip() if lines else "no output"}'
  try:
    io.write_text(_failure_file(folder, point), reason)
  except OSError as error:
    # On a full disk the run could not say so, nor can this be written down.
    return f'{reason} ({error.strerror or error})'
  return reason


def _sort_ends(
  folder: pathlib.Path, points: Sequence[Point], ends: Mapping[str, str | None]
) -> SweepResult:
  names = [point.name for point in points if point.name in ends]
  return SweepResult(
    {name: folder / name for name in names if ends[name] is None},
    {name: why for name in names if (why := ends[name]) is not None},
  )


@contextlib.contextmanager
def _show_progress(
  folder: pathlib.Path, waiting: Sequence[Point], num_points: int
) -> Iterator[Callable[[], None]]:
  """Shows a bar of the rounds of waiting points, and how many are in which state.

  Wherever they run, their files say how far they are.

  Yields:
    A function that brings the bar up to date, if that was not just done.
  """
  due = 0.0
  with progress.bar(
    total=sum(int(point.config.rounds) for point in waiting),
    unit=' rounds',
    desc=f'{folder.name}, {len(waiting)} of {num_points} points to run',
    smoothing=0,
  ) as bar:

    def show(*, is_last: bool = False) -> None:
      nonlocal due
      if time.monotonic() < due and not is_last:
        return
      due = time.monotonic() + _SHOW_EVERY
      statuses = [sweep_status.find_point(folder, x.name) for x in waiting]
      bar.set_postfix(sweep_status.count_states(statuses), refresh=False)
      progress.set_done(bar, sum(status.rounds_done for status in statuses))

    yield show
    show(is_last=True)
