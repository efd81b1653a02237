"""How far the points of a sweep are, read from its folder, from any machine.

Nothing is written, and running points are not disturbed.
"""

import collections
from collections.abc import Sequence
import math
import os
import pathlib
from typing import NamedTuple

from epe_jax import io, locks
from epe_jax.experiment import metrics, workdirs

STATES = ('finished', 'failed', 'running', 'stopped', 'not started')
"""The states of a point. One that is stopped goes on where it was saved."""

FAILED = '.failed'
"""The suffix of the file next to the folder of a point that failed."""

# Rounds whose mean time says how long others take.
_RECENT = 20


class PointStatus(NamedTuple):
  """How far a point is."""

  name: str  # Of the point, and of its folder.
  state: str  # One of `STATES`.
  # Those of a stopped point may be more than were saved.
  rounds_done: int
  rounds: int  # All rounds of the point; 0 if it never started.
  seconds_per_round: float  # The mean of its last rounds; nan without any.
  detail: str  # Who runs it, or why it failed; '' if there is nothing to say.


def find_status(workdir: str | os.PathLike[str]) -> list[PointStatus]:
  """Finds out how far the points of a sweep are, by name.

  Raises:
    FileNotFoundError: there is no such folder, or it has no points.
    ValueError: the config.json of a point is damaged.
  """
  folder = pathlib.Path(workdir)
  names = list_points(folder)
  if not names:
    raise FileNotFoundError(
      f'{folder} has no points of a sweep; give the --workdir of one.'
    )
  return [find_point(folder, name) for name in names]


def estimate_seconds_left(points: Sequence[PointStatus]) -> float:
  """Estimates the seconds after which a sweep ends, from the points that run.

  As many points stay side by side as run now, and those that have not started have as
  many rounds. It is nan if no point runs, or none has made a round.
  """
  known = [p for p in points if p.rounds]
  running = [
    p for p in known if p.state == 'running' and p.seconds_per_round > 0
  ]
  if not running:
    return math.nan
  per_point = sum(p.rounds for p in known) / len(known)
  left = sum(
    (p.rounds or per_point) - p.rounds_done
    for p in points
    if p.state not in ('finished', 'failed')
  )
  rate = sum(1 / p.seconds_per_round for p in running)
  return left / rate


def list_points(folder: pathlib.Path) -> list[str]:
  """The names of all points in the folder of a sweep, which need not exist."""
  paths = folder.iterdir() if folder.is_dir() else ()
  # Folders of runs, of points that have a log, and of those that never started.
  return sorted(
    path.name
    for path in paths
    if path.is_dir()
    and (
      (path / 'config.json').is_file()
      or path.with_name(f'{path.name}.log').is_file()
      or not any(path.iterdir())
    )
  )


def count_states(points: Sequence[PointStatus]) -> dict[str, int]:
  """State -> number of points that are in it, where there are any."""
  counts = collections.Counter(point.state for point in points)
  return {state: counts[state] for state in STATES if counts[state]}


def is_finished(files: workdirs.Workdir) -> bool:
  """Says whether a point has ended: it has a result, or the rows of its seeds."""
  return files.result.is_file() or files.rows.is_file()


def find_point(folder: pathlib.Path, name: str) -> PointStatus:
  """Finds out how far a point is; raises a ValueError if its config.json is damaged."""
  files = workdirs.workdir_at(folder / name)
  failure = folder / f'{name}{FAILED}'
  rounds = 0
  if files.config.is_file():
    rounds = int(io.read_fields(files.config).get('rounds', 0))
  lines = metrics.read_last_lines(files.metrics, _RECENT)
  done = max((int(line['round']) for line in lines), default=0)
  times = [line['seconds'] for line in lines if 'seconds' in line]
  seconds = sum(times) / len(times) if times else math.nan
  state, detail = 'not started', ''
  if is_finished(files):
    state, done = 'finished', rounds
  elif failure.is_file():
    state, detail = 'failed', failure.read_text(errors='replace').strip()
  elif (holder := locks.find_holder(files.lock)) is not None:
    state, detail = 'running', holder
  elif done or (files.private / files.rows.name).is_file():
    state = 'stopped'
  return PointStatus(name, state, done, rounds, seconds, detail)
