"""What studies share: simulations in processes, kept rows, and counts of failures."""

from collections.abc import Callable, Iterable, Mapping, Sequence
import concurrent.futures
import functools
import json
import multiprocessing
import pathlib
import shlex
import sys
from typing import Any, NamedTuple, TypeVar

from scipy import stats

from epe_jax import io
from epe_jax.report import tables
from papers import origins

Item = TypeVar('Item')
Result = TypeVar('Result')
Progress = Callable[[Iterable[Any]], Iterable[Any]]


def map_in_processes(
  function: Callable[[Item], Result],
  items: Sequence[Item],
  *,
  workers: int = 1,
  progress: Progress = iter,
) -> list[Result]:
  """Maps a function over items.

  Args:
    function: can be pickled, unless workers is 1.
    items: its arguments.
    workers: number of processes, >= 1; 1 is this process.
    progress: wraps the list of items, as `tqdm.tqdm` does.
  """
  if workers == 1:
    return [function(item) for item in progress(items)]
  with concurrent.futures.ProcessPoolExecutor(
    workers, multiprocessing.get_context('spawn')
  ) as pool:
    futures = [pool.submit(function, item) for item in items]
    return [future.result() for future in progress(futures)]


class Simulation(NamedTuple):
  """One case of a study.

  Attributes:
    name: of the file that keeps its rows.
    row: type of a row, a NamedTuple.
    measure: returns the rows; can be pickled.
  """

  name: str
  row: Callable[..., Any]
  measure: Callable[[], list[Any]]


def run_simulations(
  simulations: Sequence[Simulation],
  *,
  folder: pathlib.Path | None = None,
  **settings: Any,
) -> list[list[Any]]:
  """The rows of each simulation.

  Args:
    simulations: cases of a study.
    folder: keeps the rows of each case that is done, so that a study that was
      interrupted can be continued; None to keep nothing.
    **settings: of `map_in_processes`.
  """
  measure = functools.partial(_measure_or_read, folder)
  return map_in_processes(measure, simulations, **settings)


def _measure_or_read(
  folder: pathlib.Path | None, simulation: Simulation
) -> list[Any]:
  if folder is None:
    return simulation.measure()
  path = folder / f'{simulation.name}.json'
  if path.exists():
    return [simulation.row(**row) for row in json.loads(path.read_text())]
  rows = simulation.measure()
  folder.mkdir(parents=True, exist_ok=True)
  io.write_text(path, json.dumps([row._asdict() for row in rows], indent=1))
  return rows


def write_data(
  folder: pathlib.Path, made: Mapping[str, Any], start: float
) -> None:
  """Writes the data files of a study, and into made.json what made them.

  Args:
    folder: of data files; it exists.
    made: name of a file -> a `pandas.DataFrame`, written as .csv, or a
      `tables.Table`, as .json.
    start: `time.monotonic()` when the study began.
  """
  spec = sys.modules['__main__'].__spec__
  options = [
    option
    for option in sys.argv[1:]
    if not option.startswith(('--out', '--folder', '--workers'))
  ]
  command = ['python', '-m', spec.name if spec else sys.argv[0], *options]
  origin = origins.describe_origin(
    shlex.join([*command, '--out=docs/data']), start
  )
  path = folder / 'made.json'
  known = io.read_json(path) if path.exists() else {}
  for name, table in made.items():
    if isinstance(table, tables.Table):
      io.write_json(folder / f'{name}.json', table._asdict())
    else:
      io.write_text(folder / f'{name}.csv', table.to_csv(index=False))
    known[name] = origin
  io.write_json(path, dict(sorted(known.items())))


def fails_too_often(
  failures: int, trials: int, stated: float, level: float = 1e-4
) -> bool:
  """Whether a statement fails more often than stated, beyond chance.

  Args:
    failures: trials in which it was false.
    trials: all of them.
    stated: probability with which it may be false.
    level: probability of a wrong answer at the stated rate.

  >>> fails_too_often(5, 100, 0.05), fails_too_often(20, 100, 0.05)
  (False, True)
  """
  return bool(stats.binom.sf(failures - 1, trials, stated) < level)
