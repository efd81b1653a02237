"""Runs the points of a sweep, each by a process of its own, in a folder of its own.

The folder of a point holds an ordinary run: a finished one is not repeated, and one
that was stopped is resumed.
"""

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import functools
import json
import os
import pathlib
import signal
import subprocess
import time
from typing import NamedTuple

from absl import logging

from epe_jax import io, locks, progress
from epe_jax.experiment import stopping, workdirs
from epe_jax.experiment.sweeps import launchers, sweep_status
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
  launchers.EXIT_BUSY,
  launchers.EXIT_LOST,
)


class Outcome(NamedTuple):
  """The outcome of a sweep.

  Attributes:
    finished: the workdirs of finished points, by the names of the points.
    failed: the reasons of failed points, by the names of the points.
  """

  finished: dict[str, pathlib.Path]
  failed: dict[str, str]


def run_sweep(
  points: Sequence[Point],
  workdir: str | os.PathLike,
  *,
  launch: Callable[[], launchers.Launcher] | None = None,
  retry: bool = False,
  watch: Callable[[Outcome], object] | None = None,
) -> Outcome:
  """Runs all points that are not finished, side by side where there is room.

  A point that failed before is skipped, unless `retry` is set, and one that
  another process runs is waited for. One whose machine is lost is started again, and
  resumes. When this process is stopped, so are the running points, which resume from
  their checkpoints the next time.

  Args:
    points: the points, as `sweep_points.make_grid` makes them.
    workdir: a folder with a folder for each point, and its output in <point>.log.
    launch: makes what starts the points, once there are any, as
      `launchers.make_launcher` does; None for one process on each GPU of
      this machine, and for one on a CPU.
    retry: whether points that failed before are tried again.
    watch: called with what there is, after each point that ends.

  Raises:
    ValueError: the folder of a point holds another run, or points cannot be run. All
      of these are named, and none was started.
    OSError: an engine is not there, or does not answer any more; or `watch` raised it
      the last time that it was called.
  """
  folder = pathlib.Path(workdir)
  io.check_folder('workdir', folder)
  # For all of them before any work is done.
  for point in points:
    if (folder / point.name).exists():
      workdirs.reserve(folder / point.name, point.config)
  # Why each point failed that has ended; None for one that has a result.
  ends: dict[str, str | None] = {}
  fault: OSError | None = None
  for point in points:
    failure = folder / f'{point.name}{sweep_status.FAILED}'
    if _is_finished(point, folder):
      failure.unlink(missing_ok=True)
      ends[point.name] = None
    elif failure.exists() and not retry:
      ends[point.name] = failure.read_text()
  waiting = [point for point in points if point.name not in ends]
  if launch is None:
    launch = functools.partial(launchers.make_launcher, 'local')
  check_points(waiting)
  # Without points there is no launcher.
  launcher = launch() if waiting else None
  folder.mkdir(parents=True, exist_ok=True)
  for point in waiting:
    workdirs.reserve(folder / point.name, point.config)
    (folder / f'{point.name}{sweep_status.FAILED}').unlink(missing_ok=True)
  with (
    stopping.listen(
      'Finishing the rounds of the points that run. A second signal stops at once.'
    ) as requests,
    _show_progress(waiting, points, folder) as show,
  ):
    for ended in _run_points(waiting, folder, launcher, requests):
      for point, reason in ended:
        ends[point.name] = reason
        if watch is not None:
          try:
            watch(_sort_ends(ends, points, folder))
            fault = None
          except OSError as error:
            # The runs go on, and the next one that ends tells of all.
            fault = error
            logging.warning('%s', error)
      show()
  requests.raise_if_stopped(_describe_stop(ends, points, folder))
  if fault is not None:
    raise fault
  return _sort_ends(ends, points, folder)


def _sort_ends(
  ends: Mapping[str, str | None], points: Sequence[Point], folder: pathlib.Path
) -> Outcome:
  outcome = Outcome({}, {})
  for name in (point.name for point in points if point.name in ends):
    if (reason := ends[name]) is None:
      outcome.finished[name] = folder / name
    else:
      outcome.failed[name] = reason
  return outcome


@contextlib.contextmanager
def _show_progress(
  waiting: Sequence[Point], points: Sequence[Point], folder: pathlib.Path
) -> Iterator[Callable[[], None]]:
  """Shows a bar of the rounds of waiting points, and how many are in which state.

  Wherever they run, their files say how far they are.

  Yields:
    A function that brings the bar up to date, if that was not just done.
  """

  def count_rounds() -> tuple[int, int, dict[str, int]]:
    """Rounds that are done, all rounds, and points by state."""
    statuses = [sweep_status.find_point(folder, x.name) for x in waiting]
    # Rounds that were not made say nothing of how long others take.
    rounds = [
      (status.rounds_done, int(point.config.rounds))
      for point, status in zip(waiting, statuses)
      if status.state != 'failed'
    ]
    done, total = (sum(column) for column in zip((0, 0), *rounds))
    return done, total, sweep_status.count_states(statuses)

  done, total, _ = count_rounds()
  with progress.bar(
    total=total,
    initial=done,
    unit=' rounds',
    desc=f'{folder.name}, {len(waiting)} of {len(points)} points to run',
    smoothing=0,
  ) as bar:
    due = time.monotonic()

    def show() -> None:
      nonlocal due
      done, bar.total, states = count_rounds()
      bar.set_postfix(states, refresh=False)
      progress.set_done(bar, done)
      due = time.monotonic() + _SHOW_EVERY

    yield lambda: show() if time.monotonic() >= due else None
    show()


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
  if not points:
    return
  # On the CPU and apart from the sweep, which must not hold the memory of an
  # accelerator that its points need.
  with launchers.start_process(
    launchers.POINT,
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
  points: Sequence[Point],
  folder: pathlib.Path,
  launcher: launchers.Launcher | None,
  requests: stopping.Requests,
) -> Iterator[list[tuple[Point, str | None]]]:
  """Runs points; yields time and again those that ended, with the reason of a failure.

  Those that are stopped are not yielded.
  """
  if launcher is None:
    return
  queue, running = [*points], list[tuple[Point, launchers.Job]]()
  works = {point.name: _make_work(point, folder) for point in points}
  again = collections.Counter[str]()
  is_told, check_at = False, 0.0
  # However this ends, what it started does.
  with contextlib.closing(launcher):
    while queue or running:
      if requests.signum is not None and not is_told:
        queue.clear()
        # Once: a second signal would end them before they have saved.
        for _, job in running:
          job.terminate()
        is_told = True
      polled = [(point, job, job.poll()) for point, job in running]
      running = [(point, job) for point, job, code in polled if code is None]
      ended = list[tuple[Point, str | None]]()
      for point, _, code in polled:
        if code is None:
          continue
        check_at = 0.0
        if _is_finished(point, folder):
          ended.append((point, None))
        elif requests.signum is not None:
          continue
        elif code in _AGAIN and again[point.name] < _MAX_AGAIN:
          again[point.name] += 1
          queue.append(point)
        else:
          ended.append((point, _record_failure(point, folder, code)))
      if queue and time.monotonic() >= check_at:
        check_at = time.monotonic() + _CHECK_EVERY
        for point in [p for p in queue if _is_finished(p, folder)]:
          # By another sweep.
          queue.remove(point)
          ended.append((point, None))
        free = [p for p in queue if not _is_elsewhere(p, folder)]
        jobs = launcher.start([works[point.name] for point in free])
        running += zip(free, jobs)
        queue = [p for p in queue if p not in free[: len(jobs)]]
      # Once others have started, as the caller may take a while.
      yield ended
      time.sleep(_INTERVAL)


def _make_work(point: Point, folder: pathlib.Path) -> launchers.JobSpec:
  folder = folder.absolute()
  return launchers.JobSpec(
    point.config.to_dict(),
    folder / point.name,
    folder / f'{point.name}.log',
    stopping.command_line(),
  )


def _is_finished(point: Point, folder: pathlib.Path) -> bool:
  return sweep_status.is_finished(workdirs.workdir_at(folder / point.name))


def _is_elsewhere(point: Point, folder: pathlib.Path) -> bool:
  """Says whether a process runs a point that this sweep did not start."""
  files = workdirs.workdir_at(folder / point.name)
  return locks.find_holder(files.lock) is not None


def _record_failure(point: Point, folder: pathlib.Path, code: int) -> str:
  """Writes down and returns why a point failed: its exit and its last line."""
  lines = io.read_last_lines(folder / f'{point.name}.log', 1)
  if code == launchers.EXIT_LOST:
    end = f'its machine was lost {_MAX_AGAIN + 1} times'
  elif code >= 0:
    end = f'ended with {code}'
  else:
    end = f'ended by {signal.Signals(-code).name}'
  reason = f'{end}: {lines[-1].strip() if lines else "no output"}'
  try:
    io.write_text(folder / f'{point.name}{sweep_status.FAILED}', reason)
  except OSError as error:
    # On a full disk the run could not say so, nor can this be written down.
    return f'{reason} ({error.strerror or error})'
  return reason


def _describe_stop(
  ends: Mapping[str, str | None], points: Sequence[Point], folder: pathlib.Path
) -> str:
  """Counts what is kept of a sweep that was stopped."""
  finished = sum(reason is None for reason in ends.values())
  others = [point.name for point in points if point.name not in ends]
  saved = sum(
    workdirs.has_saved_rounds(workdirs.workdir_at(folder / name))
    for name in others
  )
  counts = {
    'finished': finished,
    'failed': len(ends) - finished,
    'saved part way': saved,
    'without a saved round': len(others) - saved,
  }
  listed = ', '.join(f'{n} {what}' for what, n in counts.items() if n)
  return f'Stopped. Of {len(points)} points in {folder}: {listed}.'
