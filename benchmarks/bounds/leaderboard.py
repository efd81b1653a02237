"""Estimators of ε on frozen scores of mechanisms whose ε is known.

  python -m benchmarks.bounds.leaderboard --out=docs/data
  python -m benchmarks.bounds.leaderboard --add=my_entries.py --only=my_entry

Takes some minutes on 2 cores. Writes every entry, of which `pages.py` shows the best bounds.
`--add` names a file with a list `ENTRIES` of `benchmarks.bounds.entries.Entry`. `--make_sets` draws
new sets, which changes all rows.
"""

from collections.abc import Sequence
import pathlib
import time

from absl import app, flags

from epe_jax import extras

with extras.explain_missing():
  import tqdm

  from benchmarks.bounds import entries, score_sets, standings

_OUT = flags.DEFINE_string('out', None, 'Folder of the data file.')
_ADD = flags.DEFINE_string('add', None, 'File with a list ENTRIES.')
_ONLY = flags.DEFINE_list('only', None, 'Names of entries to run, not all.')
_SETS = flags.DEFINE_integer(
  'sets', None, 'Only every n-th set, to try things out.', lower_bound=1
)
_MAKE_SETS = flags.DEFINE_bool('make_sets', False, 'Draw new sets.')


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
      raise app.UsageError(
        f'--only={min(unknown)} is not an entry; give {names}.'
      )
    competing = [entry for entry in competing if entry.name in _ONLY.value]
  sets = score_sets.load()[:: _SETS.value or 1]
  found = [_run(entry, sets) for entry in tqdm.tqdm(competing, unit='entry')]
  table = standings.make_table(found)
  print(table.to_string(index=False))
  if _OUT.value:
    table.to_csv(pathlib.Path(_OUT.value) / 'leaderboard.csv', index=False)


if __name__ == '__main__':
  app.run(main)
