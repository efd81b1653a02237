"""Measures how often every bound exceeds the truth; docs/coverage.md.

  python benchmarks/coverage.py --out=docs/coverage.md

Takes about an hour on 2 cores. Writes every row to `data/` next to the page, and the
rows that the page shows between its markers. With --only_conditions it measures the
unusual conditions alone: minutes. Fails if a statement is false more often than stated.
"""

from collections.abc import Callable, Iterable, Sequence
import functools
import os
import pathlib
from typing import Any

from absl import app, flags

from epe_jax import extras

with extras.explain_missing():
  from studies import conditions, coverage, data_files, laws, run_reports
  import tqdm

  from epe_jax import io
  from epe_jax.report import tables

_EPSILON = flags.DEFINE_list('epsilon', ['0', '1', '3', '10'], 'True ε.')
_NUM = flags.DEFINE_list('num_canaries', ['100', '500'], 'Observed canaries.')
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
  'only_conditions',
  False,
  'Only the unusual conditions.',
)
_OUT = flags.DEFINE_string(
  'out', None, 'Page to write into; its data files are in data/ next to it.'
)

_DELTA = 1e-5
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

# What the page shows of the study: tables by how their titles begin, and bounds with
# the null law that they know.
_SHOWN_TABLES = (
  '500 + 500 canaries',
  'sphere, d = 1,024',
  'hadamard, d = 1,024',
)
_SHOWN_BOUNDS = (
  ('eps_lo', 'exact'),
  ('clopper_pearson_bonferroni', 'exact'),
  ('gaussian_lower_bound', 'exact'),
  ('eps_lo', 'empirical'),
  ('rank_test', 'empirical'),
  ('gdp_rank_test', 'empirical'),
  ('gaussian_lower_bound', 'empirical'),
  ('one_run', 'coins'),
  ('one_run_gdp', 'coins'),
  ('one_run_independent_gdp', 'coins'),
)


def _numbers(
  flag: flags.FlagHolder,
  kind: Callable[[str], Any],
  wanted: str,
  fits: Callable[[Any], bool],
) -> list[Any]:
  try:
    values = [kind(text) for text in flag.value]
  except ValueError:
    values = []
  if not values or not all(map(fits, values)):
    raise app.UsageError(
      f'--{flag.name}={",".join(flag.value)}; give {wanted}, with commas between.'
    )
  return values


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is not a flag; see --help.')
  files: dict[str, Sequence[data_files.Record]] = {}
  reports, broken = None, []
  if not _ONLY_CONDITIONS.value:
    files['coverage'], reports, broken = _measure_bounds()
  rows = conditions.run_study(
    conditions.list_conditions(),
    audits=_AUDITS.value,
    seed=_SEED.value,
    **_study_settings('condition'),
  )
  table = conditions.make_table(rows)
  files['conditions'] = data_files.list_records(table)
  broken += [row for row in rows if conditions.find_broken(row)]
  print(tables.format_text(table))
  if _OUT.value:
    page = pathlib.Path(_OUT.value)
    folder = page.parent / 'data'
    for name, records in files.items():
      data_files.write_records(folder / f'{name}.csv', records)
    if reports is not None:
      io.write_json(folder / 'simulated_reports.json', reports._asdict())
    blocks = make_blocks(folder)
    io.write_text(page, tables.splice(page.read_text('utf-8'), blocks))
  if broken:
    raise SystemExit(f'{len(broken)} statements are false too often: {broken}')


def make_blocks(folder: pathlib.Path) -> dict[str, str]:
  """What the page shows between its markers, from its data files.

  Args:
    folder: of the data files.
  """
  records = data_files.read_records(folder / 'coverage.csv')
  several = data_files.link(
    'data/coverage.csv', 'every bound, number of canaries and family'
  )
  blocks = {}
  for name in ('gaussian', 'coupled', 'runs', 'others'):
    shown = [
      record
      for record in records
      if record['study'] == name
      and record['table'].startswith(_SHOWN_TABLES)
      and (record['bound'], record['null']) in _SHOWN_BOUNDS
    ]
    blocks[name] = f'\n{coverage.format_records(shown)}\n\n{several}\n'
  rows = data_files.read_records(folder / 'conditions.csv')
  one_run = [row for row in rows if ' runs ' not in f' {row["condition"]} ']
  table = tables.format_markdown(data_files.make_table(one_run, list(rows[0])))
  of_runs = data_files.link(
    'data/conditions.csv', 'with statements about several runs'
  )
  blocks['conditions'] = f'\n{table}\n\n{of_runs}\n'
  reports = tables.Table(**io.read_json(folder / 'simulated_reports.json'))
  blocks['reports'] = f'\n{tables.format_markdown(reports)}\n'
  return blocks


def _measure_bounds() -> tuple[
  list[data_files.Record], tables.Table, list[Any]
]:
  """Records of bounds, the table of reports, and rows that are broken."""
  epsilons = _numbers(_EPSILON, float, 'numbers >= 0', lambda e: 0 <= e < 1e3)
  nums = _numbers(_NUM, int, 'integers >= 8', lambda k: k >= 8)

  def make_cases(kind: Any, whats: Iterable[object]) -> list[coverage.Case]:
    return [_make_case(kind, what, num) for num in nums for what in whats]

  sections = {
    'gaussian': make_cases('Gaussian', epsilons),
    'coupled': make_cases('coupled', [e for e in epsilons if e > 0]),
    'runs': [_make_case('runs', *shape) for shape in _RUN_SHAPES],
    'others': make_cases('other', [law.name for law in laws.others()]),
  }
  several = coverage.run_study(
    [case for cases in sections.values() for case in cases],
    **_study_settings('case'),
  )
  reports = run_reports.simulate_reports(
    _SEED.value,
    runs=_RUNS.value,
    workers=_WORKERS.value,
    progress=functools.partial(tqdm.tqdm, unit='run'),
  )
  records: list[data_files.Record] = []
  rest = iter(several)
  for name, cases in sections.items():
    rows = [row for _ in cases for row in next(rest)]
    records += coverage.list_records(name, rows)
  table = run_reports.make_table(reports)
  print(tables.format_text(table))
  broken: list[Any] = [
    row for rows in several for row in rows if coverage.find_broken(row)
  ]
  return records, table, broken + run_reports.find_broken(reports)


def _study_settings(unit: str) -> dict[str, Any]:
  return {
    'workers': _WORKERS.value,
    'folder': pathlib.Path(_FOLDER.value) if _FOLDER.value else None,
    'progress': functools.partial(tqdm.tqdm, unit=unit),
  }


def _make_case(kind: Any, what: object, num: int) -> coverage.Case:
  return coverage.Case(kind, str(what), num, _DELTA, _AUDITS.value, _SEED.value)


if __name__ == '__main__':
  app.run(main)
