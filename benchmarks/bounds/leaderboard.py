"""Estimators of ε on frozen scores of mechanisms whose ε is known.

  python -m benchmarks.bounds.leaderboard --out=docs/data
  python -m benchmarks.bounds.leaderboard --add=my_entries.py --only=my_entry

Takes some minutes on 2 cores. Writes every entry, of which `benchmarks.pages` shows the
best bounds. `--add` names a file with a list `ENTRIES` of `entries.Entry`. `--make_sets`
draws new sets, which changes all rows.
"""

from collections.abc import Sequence
import pathlib
import time
from typing import Any, NamedTuple

from absl import app, flags
import numpy as np
import pandas as pd
import tqdm

from benchmarks import study
from benchmarks.bounds import entries, score_sets

_OUT = flags.DEFINE_string('out', None, 'Folder of the data file.')
_ADD = flags.DEFINE_string('add', None, 'File with a list ENTRIES.')
_ONLY = flags.DEFINE_list('only', None, 'Names of entries to run, not all.')
_SETS = flags.DEFINE_integer(
  'sets', 1, 'Only every n-th set, to try things out.', lower_bound=1
)
_MAKE_SETS = flags.DEFINE_bool('make_sets', False, 'Draw new sets.')

# Groups in which the trade-off curve is Gaussian.
_GAUSSIAN_CURVE = {'Gaussian', score_sets.RUNS}
_CHANCE = 1e-3


class Standing(NamedTuple):
  """The results of an estimator.

  Attributes:
    entry: the estimator.
    groups: a row for each group of sets: `above`, the number of `sets` in which it is
      above the true ε; `median`, of its ε over the true one, for sets whose true ε is
      not 0; whether it exceeds the truth `too_often`, and is `broken`: does so
      although its assumptions hold.
    seconds: median time of a set.
  """

  entry: entries.Entry
  groups: Any
  seconds: float

  @property
  def score(self) -> float:
    """Of a bound: the mean over groups of the median share of the truth.

    A group in which it exceeds the truth too often counts as 0, whatever it
    assumes: in practice the law of scores is unknown.
    """
    known = self.groups.dropna(subset='median')
    return float(known['median'].where(~known.too_often, 0.0).mean())


def summarize(
  entry: entries.Entry,
  sets: Sequence[score_sets.ScoreSet],
  results: Sequence[float],
  seconds: float,
) -> Standing:
  """Summarizes the results of an estimator on sets."""
  frame = pd.DataFrame(
    {'group': [one.group for one in sets], 'sets': 1, 'result': results}
  )
  truth = np.array([one.epsilon for one in sets])
  # Scores in the file are float32; rounding does not count.
  frame['above'] = frame.result > truth * (1 + 1e-6) + 1e-6
  frame['share'] = frame.result / np.where(truth > 0, truth, np.nan)
  by_group = frame.groupby('group', sort=False)
  groups: Any = by_group[['above', 'sets']].sum()
  groups['median'] = by_group.share.median()
  # A valid bound does so in fewer than 1 of 1,000 groups.
  groups['too_often'] = [
    study.fails_too_often(*pair, entries.SIGNIFICANCE, _CHANCE)
    for pair in zip(groups.above, groups.sets)
  ]
  holds = np.array([_holds(entry, group) for group in groups.index])
  groups['broken'] = groups.too_often & holds & entry.is_bound
  return Standing(entry, groups, seconds)


def _holds(entry: entries.Entry, group: str) -> bool:
  """Whether the assumptions of an entry hold in a group."""
  if 'a shape' in entry.assumes and group not in _GAUSSIAN_CURVE:
    return False
  return 'independence' not in entry.assumes or group != 'coupled'


def make_table(found: Sequence[Standing]) -> pd.DataFrame:
  """A row for each estimator: valid bounds, other bounds, estimates."""
  ranked = sorted(
    found,
    key=lambda one: (
      not one.entry.is_bound,
      one.groups.broken.any(),
      -one.score if one.entry.is_bound else 0.0,
    ),
  )
  rows = []
  for one in ranked:
    entry, groups = one.entry, one.groups
    share = groups.above.sum() / groups.sets.sum()
    broken = ' **broken**' * bool(groups.broken.any())
    milliseconds = 1000 * one.seconds
    cells = {
      name: f'{row["median"]:.2f} ({100 * row.above / row.sets:.0f} %)'
      for name, row in groups.dropna(subset='median').iterrows()
    }
    row = {
      'estimator': entry.name,
      'of': entry.origin,
      'assumes': entry.assumes,
      'kind': 'bound' if entry.is_bound else '',
      'exceeds': f'{100 * share:.0f} %{broken}',
      **{k: f'**{x}**' if groups.broken[k] else x for k, x in cells.items()},
      'score': f'{one.score:.2f}' if entry.is_bound else '',
      'ms': f'{milliseconds:.2g}'
      if one.seconds < 0.1
      else f'{milliseconds:.0f}',
    }
    rows.append(row)
  return pd.DataFrame(rows).fillna('')


def run(entry: entries.Entry, sets: Sequence[score_sets.ScoreSet]) -> Standing:
  """Runs an estimator on sets."""
  results, seconds = [], []
  for one in sets:
    start = time.perf_counter()
    results.append(entry.estimate(one.scores))
    seconds.append(time.perf_counter() - start)
  return summarize(entry, sets, results, float(np.median(seconds)))


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is not a flag; see --help.')
  if _OUT.value:
    # Before hours of work, not after them.
    pathlib.Path(_OUT.value).mkdir(parents=True, exist_ok=True)
  if _MAKE_SETS.value:
    score_sets.make(score_sets.PATH)
  start = time.monotonic()
  competing = entries.list_entries(_ADD.value)
  names = {entry.name for entry in competing}
  chosen = names if _ONLY.value is None else {*_ONLY.value}
  if unknown := chosen - names:
    raise app.UsageError(
      f'--only={min(unknown)} is not an entry; give {", ".join(sorted(names))}.'
    )
  competing = [entry for entry in competing if entry.name in chosen]
  sets = score_sets.load()[:: _SETS.value]
  table = make_table(
    [run(entry, sets) for entry in tqdm.tqdm(competing, unit='entry')]
  )
  print(table.to_string(index=False))
  if _OUT.value:
    study.write_data(pathlib.Path(_OUT.value), {'leaderboard': table}, start)


if __name__ == '__main__':
  app.run(main)
