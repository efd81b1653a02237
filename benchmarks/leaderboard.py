"""Estimators of ε on frozen scores of mechanisms whose ε is known.

  python benchmarks/leaderboard.py --out=docs/leaderboard.md
  python benchmarks/leaderboard.py --add=my_entries.py --only=my_entry

Takes some minutes on 2 cores, and writes the tables between the markers of the page.
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
  from studies import entries, score_sets, standings
  import tqdm

  from epe_jax import io
  from epe_jax.text import tables

_OUT = flags.DEFINE_string('out', None, 'Page to write the tables into.')
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
  machine = harness.describe_machine()
  groups = [
    [name, f'{sum(one.group == name for one in sets)}', what]
    for name, what in _WHAT.items()
  ]
  blocks = {
    'sets': [
      tables.format_markdown(
        tables.Table('', ['sets', 'number', 'what'], groups)
      )
    ],
    'standings': [
      f'Measured on {machine["cores"]} cores of {machine["cpu"]}.',
      tables.format_markdown(table),
      _describe_broken(found),
    ],
  }
  page = pathlib.Path(_OUT.value)
  texts = {name: '\n' + '\n\n'.join(x) + '\n' for name, x in blocks.items()}
  io.write_text(page, tables.splice(page.read_text(), texts))


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
