"""How far a sweep is, in words, with the results that there are."""

from collections.abc import Iterable, Sequence
import datetime
import math
import os
import pathlib

from epe_jax import io
from epe_jax.experiment.sweeps import sweep_status
from epe_jax.experiment.sweeps.sweep_status import PointStatus
from epe_jax.report import comparison, labelled_runs, tables

# Last lines of the log of a point that failed.
_QUOTED = 10


def format_progress(workdir: str | os.PathLike[str]) -> str:
  """A line of how far a sweep is, a table of its points, results and failures."""
  points = sweep_status.find_status(workdir)
  parts = [describe_progress(points), tables.format_text(make_table(points))]
  finished = [
    labelled_runs.load_point(
      point.name, pathlib.Path(workdir, point.name), {'point': point.name}
    )
    for point in points
    if point.state == 'finished'
  ]
  if finished:
    table = comparison.make_settings_table(finished)
    parts.append(tables.format_text(table))
  failed = [point.name for point in points if point.state == 'failed']
  if failed:
    parts.append(quote_logs(workdir, failed))
  return '\n\n'.join(parts)


def quote_logs(workdir: str | os.PathLike[str], names: Iterable[str]) -> str:
  """The last lines of the logs of points."""
  parts = []
  for name in names:
    log = pathlib.Path(workdir, f'{name}.log')
    lines = io.read_last_lines(log, _QUOTED) or ['(no output)']
    parts.append('\n'.join([f'{log}:', *(f'  {line}' for line in lines)]))
  return '\n\n'.join(parts)


def describe_progress(points: Sequence[PointStatus]) -> str:
  """How many points are in which state, and the time that is left, in one line.

  >>> describe_progress([PointStatus('a', 'running', 5, 20, 2.0, 'process 1')])
  '1 point: 1 running; 5 of 20 rounds; 0:00:30 left'
  """
  counts = sweep_status.count_states(points)
  states = ', '.join(f'{number} {state}' for state, number in counts.items())
  plural = '' if len(points) == 1 else 's'
  parts = [f'{len(points)} point{plural}: {states}']
  if all(point.rounds for point in points):
    done = sum(point.rounds_done for point in points)
    parts.append(f'{done:,} of {sum(p.rounds for p in points):,} rounds')
  seconds = sweep_status.estimate_seconds_left(points)
  if not math.isnan(seconds):
    parts.append(f'{datetime.timedelta(seconds=round(seconds))} left')
  return '; '.join(parts)


def make_table(points: Sequence[PointStatus]) -> tables.Table:
  """A line for each point: its state, rounds, and who runs it or why it failed."""
  return tables.select_columns(
    points,
    {
      'point': lambda point: point.name,
      'state': lambda point: point.state,
      'rounds': lambda point: (
        f'{point.rounds_done:,} of {point.rounds:,}' if point.rounds else '-'
      ),
      'by, or why': lambda point: point.detail or '-',
    },
  )
