"""What an engine costs a sweep, and what runs side by side win.

  python benchmarks/launchers.py

Sixteen small points of digits run over two slots by a bare loop that starts their
processes, and right after it by a sweep: on this machine, on a Slurm of two slots and on a
Ray of two nodes, both of the loopback. The overhead of an engine is the time of a slot for
each point beyond the loop. The tables of all must be equal. Then four points of EMNIST run
one after the other on all cores, and two at a time, by a sweep and by the loop, whose ratio
is what the machine allows; medians of three. --quick takes four points of digits, and times
EMNIST once. Slurm and Ray are left out where they are not installed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
import contextlib
import functools
import itertools
import pathlib
import statistics
import sys
import tempfile
import time
from typing import Any

import harness

from epe_jax.experiment.setup import config_files
from epe_jax.experiment.sweeps import launchers, sweep, sweep_points
from epe_jax.report import comparison

# The clusters that the tests have.
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from tests import clusters

_SLOTS = 2
_SEEDS = (0, 1, 2, 3)
_NOISES = (0.05, 0.1, 0.2, 0.3)


def measure(quick: bool) -> dict[str, Any]:
  """Measures both.

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
      'side_by_side': _time_side_by_side(folder, repeats=1 if quick else 3),
    }


def _time_engines(
  points: Sequence[sweep_points.Point], folder: pathlib.Path
) -> list[dict[str, Any]]:
  """A row for each engine that is installed, with the loop that ran before it."""
  # All points are one program, which is compiled once.
  _time_loop(points[:1], folder / 'first', jobs=1)
  rows, texts = [], {}
  for engine in launchers.ENGINES:
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
  slots = launchers.make_slots(launchers.find_devices(), jobs)

  def run(i: int) -> None:
    # Each thread has a slot, and its share of the points.
    for point in points[i::jobs]:
      work = launchers.JobSpec(
        point.config.to_dict(),
        folder / point.name,
        folder / f'{point.name}.log',
        '',
      )
      with launchers.enter(slots[i]):
        process = launchers.start_point(work, slots[i].environment)
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


def _time_side_by_side(folder: pathlib.Path, repeats: int) -> dict[str, float]:
  """Median seconds of EMNIST by the number of jobs, swept and bare, and ratios."""
  config = config_files.load_config('emnist:smoke')
  config.data.synthetic = True
  # Not seeds, some of which draw larger clients: the points are equally long.
  points = sweep_points.make_grid(config, [('noise_multiplier', _NOISES)])
  # The programs of both numbers of cores are compiled once.
  for jobs in (1, _SLOTS):
    _time_loop(points[:jobs], folder / f'first of {jobs}', jobs=jobs)
  swept, bare = {1: [], _SLOTS: []}, {1: [], _SLOTS: []}
  # In turn, as other work on the machine comes and goes.
  for i, jobs in itertools.product(range(repeats), (1, _SLOTS)):
    launch = functools.partial(launchers.make_launcher, 'local', jobs=jobs)
    seconds, _ = _time_sweep(points, folder / f'swept {i} {jobs}', launch)
    swept[jobs].append(seconds)
    bare[jobs].append(
      _time_loop(points, folder / f'bare {i} {jobs}', jobs=jobs)
    )
  one, two = (statistics.median(swept[jobs]) for jobs in (1, _SLOTS))
  bare_one, bare_two = (statistics.median(bare[jobs]) for jobs in (1, _SLOTS))
  return {
    'seconds_of_one_job': one,
    'seconds_of_two_jobs': two,
    'two_over_one': two / one,
    'bare_seconds_of_one_job': bare_one,
    'bare_seconds_of_two_jobs': bare_two,
    'bare_two_over_one': bare_two / bare_one,
  }


if __name__ == '__main__':
  harness.run(measure, 'jax', 'submitit', 'ray')
