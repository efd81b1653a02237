"""Estimators of ε on frozen scores of mechanisms whose ε is known.

  python benchmarks/leaderboard.py --out=docs/leaderboard.md
  python benchmarks/leaderboard.py --add=my_entries.py --only=my_entry

Takes some minutes on 2 cores. Writes every entry to `data/leaderboard.csv` next to the
page, and the best bounds between the markers of the page.
`--add` names a file with a list `ENTRIES` of `studies.entries.Entry`. `--make_sets` draws
new sets, which changes all rows.
"""

from collections.abc import Sequence
import pathlib
import time

from absl import app, flags

from epe_jax import extras

with extras.explain_missing():
  import harness
  from studies import data_files, entries, score_sets, standings
  import tqdm

  from epe_jax import io
  from epe_jax.report import tables

_OUT = flags.DEFINE_string(
  'out', None, 'Page to write into; its data file is in data/ next to it.'
)
_ADD = flags.DEFINE_string('add', None, 'File with a list ENTRIES.')
_ONLY = flags.DEFINE_list('only', None, 'Names of entries to run, not all.')
_SETS = flags.DEFINE_integer(
  'sets', None, 'Only every n-th set, to try things out.', lower_bound=1
)
_MAKE_SETS = flags.DEFINE_bool('make_sets', False, 'Draw new sets.')

_WHAT = {
  'Gaussian': 'scores of the Gaussian mechanism, ε = 0, 1, 3 and 10',
  'subsampled': 'a canary that took part is shifted by 1, 2 or 4 with probability 0.1',
  'heavy tails': 't with 3 degrees of freedom, Laplace, lognormal',
  'discrete': 'randomised response, and Gaussian scores rounded',
  'coupled': 'a mechanism that errs on all canaries at once: as private as a Gaussian one',
  'runs': 'DP-FedAvg of this package on digits, "own round, others removed"; ε is analytic',
}

# What the page shows: so many bounds, and these columns.
_NUM_SHOWN = 12
_COLUMNS = (
  'estimator',
  'of',
  'assumes',
  'exceeds',
  'Gaussian',
  'runs',
  'score',
)


def _run(
  entry: entries.Entry, sets: Sequence[score_sets.ScoreSet]
) -> standings.Standing:
  results, seconds = [], []
  for one in sets:
    start = time.perf_counter()
    results.append(entry.estimate(one.scores))
    seconds.append(time.perf_counter() - start)
  return standings.summarize(entry, sets, results, seconds)


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is not a flag; see --help.')
  if _MAKE_SETS.value:
    score_sets.make(score_sets.PATH)
  competing = entries.list_entries(_ADD.value)
  if _ONLY.value is not None:
    unknown = set(_ONLY.value) - {entry.name for entry in competing}
    if unknown:
      names = ', '.join(sorted({entry.name for entry in competing}))
      raise app.UsageError(f'--only={min(unknown)} is no entry; give {names}.')
    competing = [entry for entry in competing if entry.name in _ONLY.value]
  sets = score_sets.load()[:: _SETS.value or 1]
  found = [_run(entry, sets) for entry in tqdm.tqdm(competing, unit='entry')]
  table = standings.make_table(found)
  print(tables.format_text(table))
  if not _OUT.value:
    return
  page = pathlib.Path(_OUT.value)
  path = page.parent / 'data' / 'leaderboard.csv'
  data_files.write_records(path, data_files.list_records(table))
  machine = harness.describe_machine()
  groups = [
    [name, f'{sum(one.group == name for one in sets)}', what]
    for name, what in _WHAT.items()
  ]
  sets_table = tables.Table('', ['sets', 'number', 'what'], groups)
  parts = [
    f'Measured on {machine["cores"]} cores of {machine["cpu"]}.',
    format_best(path),
    _describe_broken(found),
  ]
  blocks = {
    'sets': f'\n{tables.format_markdown(sets_table)}\n',
    'standings': '\n' + '\n\n'.join(parts) + '\n',
  }
  io.write_text(page, tables.splice(page.read_text(), blocks))


def format_best(path: pathlib.Path) -> str:
  """The bounds of a data file that never fail too often, best first, as Markdown."""
  records = data_files.read_records(path)
  bounds = [r for r in records if r['kind'] == 'bound']
  best = [r for r in bounds if '**' not in r['exceeds']][:_NUM_SHOWN]
  # Some sets alone may lack a group.
  columns = [column for column in _COLUMNS if column in records[0]]
  table = tables.format_markdown(data_files.make_table(best, columns))
  more = data_files.link(
    'data/leaderboard.csv',
    f'{len(records)} estimators with the medians of each group and their times',
  )
  return f'{table}\n\n{more}'


def _describe_broken(found: Sequence[standings.Standing]) -> str:
  broken = [one for one in found if one.broken]
  if not broken:
    return 'No bound fails too often where its assumptions hold.'
  lines = [
    f'- {one.entry.name} ({one.entry.origin}) exceeds the truth in '
    + ', '.join(
      f'{share.count} of {share.num} sets of "{group}"'
      for group, share in one.broken.items()
    )
    + '.'
    for one in broken
  ]
  return '\n'.join(
    ['Bounds that fail too often although their assumptions hold:', '', *lines]
  )


if __name__ == '__main__':
  app.run(main)
