"""Measures how often every bound exceeds the truth; docs/coverage.md.

  python -m benchmarks.bounds.coverage --out=docs/data

Takes about an hour on 2 cores. Writes every row, of which `benchmarks.pages` shows some.
With --only_conditions it measures the unusual conditions alone: minutes. Fails if a
statement is false more often than stated.
"""

import functools
import os
import pathlib
import time
from typing import Any

from absl import app, flags
import pandas as pd
import tqdm

from benchmarks import study
from benchmarks.bounds import conditions, exceedance, laws, run_reports
from epe_jax.report import tables

_AUDITS = flags.DEFINE_integer(
  'audits', 2000, 'Simulated audits of each case.', lower_bound=1
)
_RUNS = flags.DEFINE_integer(
  'runs', 200, 'Simulated runs, each with a report.', lower_bound=1
)
_SEED = flags.DEFINE_integer('seed', 0, 'Of the scores.', lower_bound=0)
_WORKERS = flags.DEFINE_integer(
  'workers', os.cpu_count() or 1, 'Processes.', lower_bound=1
)
_FOLDER = flags.DEFINE_string(
  'folder', None, 'Keeps finished cases, so that the study can be continued.'
)
_ONLY_CONDITIONS = flags.DEFINE_bool(
  'only_conditions', False, 'Only the unusual conditions.'
)
_OUT = flags.DEFINE_string('out', None, 'Folder of data files.')

_DELTA = 1e-5
_EPSILONS, _NUMS = (0.0, 1.0, 3.0, 10.0), (100, 500)
# Directions of canaries, dimension, and observed canaries of runs.
_RUN_SHAPES = (
  ('sphere 1024', 512),
  ('hadamard 1024', 512),
  ('hadamard2 1024', 128),
  ('sphere 10000', 128),
  ('orthogonal 10000', 128),
  ('sphere 1000000', 128),
  ('orthogonal 1000000', 128),
)


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is not a flag; see --help.')
  if _OUT.value:
    # Before hours of work, not after them.
    pathlib.Path(_OUT.value).mkdir(parents=True, exist_ok=True)
  start = time.monotonic()
  files: dict[str, Any] = {}
  broken: list[Any] = []
  if not _ONLY_CONDITIONS.value:
    files['coverage'], files['simulated_reports'], broken = _measure_bounds()
  rows = conditions.run_study(
    conditions.list_conditions(),
    audits=_AUDITS.value,
    seed=_SEED.value,
    **_study_settings('condition'),
  )
  files['conditions'] = conditions.make_table(rows)
  broken += [row for row in rows if conditions.find_broken(row)]
  print(files['conditions'].to_string(index=False))
  if _OUT.value:
    study.write_data(pathlib.Path(_OUT.value), files, start)
  if broken:
    raise SystemExit(f'{len(broken)} statements are false too often: {broken}')


def _measure_bounds() -> tuple[pd.DataFrame, tables.Table, list[Any]]:
  """Rows of bounds, the table of reports, and rows that are broken."""
  grid = {
    'gaussian': ('Gaussian', [*map(str, _EPSILONS)]),
    'coupled': ('coupled', [str(e) for e in _EPSILONS if e]),
    'runs': ('runs', _RUN_SHAPES),
    'others': ('other', [law.name for law in laws.others()]),
  }
  cases, sections = [], []
  for section, (kind, whats) in grid.items():
    pairs = whats if kind == 'runs' else [(w, n) for n in _NUMS for w in whats]
    for what, num in pairs:
      settings = _DELTA, _AUDITS.value, _SEED.value
      cases.append(exceedance.Case(kind, what, num, *settings))
      sections.append(section)
  several = exceedance.run_study(cases, **_study_settings('case'))
  settings = _study_settings('run')
  del settings['folder']
  reports = run_reports.simulate_reports(
    _SEED.value, runs=_RUNS.value, **settings
  )
  records = [
    record
    for section, rows in zip(sections, several)
    for record in exceedance.list_records(section, rows)
  ]
  table = run_reports.make_table(reports)
  print(tables.format_text(table))
  broken: list[Any] = [
    row for rows in several for row in rows if exceedance.find_broken(row)
  ]
  return pd.DataFrame(records), table, broken + run_reports.find_broken(reports)


def _study_settings(unit: str) -> dict[str, Any]:
  return {
    'workers': _WORKERS.value,
    'folder': pathlib.Path(_FOLDER.value) if _FOLDER.value else None,
    'progress': functools.partial(tqdm.tqdm, unit=unit),
  }


if __name__ == '__main__':
  app.run(main)
