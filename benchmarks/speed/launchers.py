"""What an engine costs a sweep.

  python -m benchmarks.speed.launchers

Sixteen small points of digits run over two slots by a bare loop that starts their
processes, and right after it by a sweep: on this machine, on a Slurm of two slots and on a
Ray of two nodes, both of the loopback. The overhead of an engine is the time of a slot for
each point beyond the loop. The tables of all must be equal. --quick takes four points.
Slurm and Ray are left out where they are not installed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
import contextlib
import pathlib
import sys
import tempfile
import time
from typing import Any

from benchmarks import harness
from epe_jax.experiment import (
  config_files,
  launchers,
  placement,
  processes,
  sweep,
  sweep_points,
)
from epe_jax.report import comparison
from tests import clusters

_SLOTS = 2
_SEEDS = (0, 1, 2, 3)
_NOISES = (0.05, 0.1, 0.2, 0.3)


def measure(quick: bool) -> dict[str, Any]:
  """Seconds of the points by each engine.

  Args:
    quick: whether to take four points and not sixteen.

  Raises:
    ValueError: the tables of two engines differ.
  """
  points = sweep_points.make_grid(
    config_files.load_config('digits:smoke'),
    [('noise_multiplier', _NOISES), ('seed', _SEEDS[:1] if quick else _SEEDS)],
  )
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    return {
      'points': len(points),
      'engines': _time_engines(points, folder),
    }


def _time_engines(
  points: Sequence[sweep_points.Point], folder: pathlib.Path
) -> list[dict[str, Any]]:
  """A row for each engine that is installed, with the loop that ran before it."""
  # All points are one program, which is compiled once.
  _time_loop(points[:1], folder / 'first', jobs=1)
  rows, texts = [], {}
  for engine in placement.ENGINES:
    workdir = folder / engine
    try:
      with _make_launch(engine, workdir) as launch:
        loop = _time_loop(points, folder / f'{engine} loop', jobs=_SLOTS)
        seconds, texts[engine] = _time_sweep(points, workdir, launch)
    except clusters.Missing as missing:
      print(f'{engine}: {missing}.', file=sys.stderr)
      continue
    overhead = _SLOTS * (seconds - loop) / len(points)
    rows.append(
      {
        'engine': engine,
        'seconds': seconds,
        'loop_seconds': loop,
        'overhead_seconds_per_point': overhead,
      }
    )
  if len({*texts.values()}) > 1:
    raise ValueError(f'the tables of {[*texts]} differ.')
  return rows


def _time_loop(
  points: Sequence[sweep_points.Point], folder: pathlib.Path, *, jobs: int
) -> float:
  """Seconds of the bare processes of all points, so many at a time."""
  folder.mkdir()
  slots = placement.make_slots(
    placement.find_devices(), jobs=jobs, devices_per_job=None
  )

  def run(i: int) -> None:
    # Each thread has a slot, and its share of the points.
    for point in points[i::jobs]:
      work = processes.Work(
        point.config.to_dict(),
        folder / point.name,
        folder / f'{point.name}.log',
        '',
      )
      with placement.enter(slots[i]):
        process = processes.start_point(work, slots[i].environment)
      if process.wait():
        raise ValueError(f'{point.name}: {work.log.read_text()}')

  start = time.perf_counter()
  with futures.ThreadPoolExecutor(jobs) as pool:
    for done in [pool.submit(run, i) for i in range(jobs)]:
      done.result()
  return time.perf_counter() - start


@contextlib.contextmanager
def _make_launch(
  engine: str, workdir: pathlib.Path
) -> Iterator[Callable[[], launchers.Launcher]]:
  """Makes what starts points by an engine, on a cluster that ends with the context."""
  with contextlib.ExitStack() as stack:
    options: Mapping[str, Any] = {}
    if engine == 'slurm':
      state = workdir.with_name('cluster')
      state.mkdir()
      stack.enter_context(clusters.run_slurm(state))
      options = {'cpus_per_task': 1, 'timeout_min': 60}
    if engine == 'ray':
      cluster = stack.enter_context(clusters.run_ray())
      options = {'address': cluster.address, 'num_cpus': 1}
    yield lambda: launchers.make_launcher(
      engine, jobs=_SLOTS, options=options, folder=workdir
    )


def _time_sweep(
  points: Sequence[sweep_points.Point],
  workdir: pathlib.Path,
  launch: Callable[[], launchers.Launcher],
) -> tuple[float, str]:
  """Seconds of a sweep, and its tables."""
  start = time.perf_counter()
  outcome = sweep.run_sweep(points, workdir, launch=launch)
  seconds = time.perf_counter() - start
  if outcome.failed:
    raise ValueError(f'{outcome.failed}')
  return seconds, comparison.write_sweep(workdir, points, outcome)


if __name__ == '__main__':
  harness.run(measure, 'jax', 'submitit', 'ray')
