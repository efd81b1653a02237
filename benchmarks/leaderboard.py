"""Estimators of ε on frozen scores of mechanisms whose ε is known.

  python benchmarks/leaderboard.py --out=docs/leaderboard.md
  python benchmarks/leaderboard.py --add=my_entries.py --only=my_entry

takes some minutes on 2 cores. `--add` names a file with a list `ENTRIES` of
`studies.entries.Entry`. `--make_sets` draws the sets anew, which changes all rows.
"""

from collections.abc import Sequence
import time

from absl import app, flags

from epe_jax import extras

with extras.explain_missing():
  import harness
  from studies import entries, score_sets, standings
  import tqdm

  from epe_jax import io
  from epe_jax.text import tables

_OUT = flags.DEFINE_string('out', None, 'Markdown file to write.')
_ADD = flags.DEFINE_string('add', None, 'File with a list ENTRIES.')
_ONLY = flags.DEFINE_list('only', None, 'Names of entries to run, not all.')
_SETS = flags.DEFINE_integer(
  'sets', None, 'Only every n-th set, to try things out.', lower_bound=1
)
_MAKE_SETS = flags.DEFINE_bool('make_sets', False, 'Draw the sets anew.')

_PAGE = """\
# Leaderboard of estimators

Written by `python benchmarks/leaderboard.py --out=docs/leaderboard.md`.

{num} frozen sets of scores (`benchmarks/score_sets.npz`), each of {canaries:,} canaries
of which fair coins included about half, from mechanisms whose ε at δ = {delta:g} is known.
Every estimator receives only the two arrays of scores.

| sets | number | what |
|---|---|---|
{groups}

- **exceeds** is the share of sets in which the estimator is above the true ε. A bound may
  exceed it in at most 5 %. It is marked **broken** if it does so significantly more often
  (p < 1/1,000) in sets where its assumptions hold.
- The next columns are medians of the estimate divided by the true ε, where that is not 0. A
  valid bound is better the closer it is to 1. An estimate should vary around 1. The share
  that exceeds the truth is in brackets.
- **score**, for bounds, is the mean of these medians. Groups in which the bound exceeds the
  truth too often count as 0, whatever it assumes: in practice the distribution of the scores
  is unknown.

Bounds that assume no shape cannot come near 1 where rare events determine ε at such a small
δ, because so few canaries show none of them. Time is the median of one set, on
{machine}.

{table}

{notes}

Left out, because they take many seconds per set: `epsilon_one_run_fdp` of jax-privacy with
many splits, the joint densities of privacy-estimates, and `FDPAnalysisNode` of
privacyguard-platform 0.0.2, which has the bound of Mahloujifar et al. for given counts and
tries up to 1,000 noise levels one by one. opake-auditing 0.16.1 has the bounds of Xiang et
al. (arXiv 2509.08704), which are those of `one_run_independent`; it cannot be imported
without torch 2.9 and its training engine, which this board does not install.

To add your own estimator, write a file with `ENTRIES = [Entry(name, origin, estimate,
is_bound, assumes)]` of `studies.entries`, and run `python benchmarks/leaderboard.py
--add=FILE --only=NAME`.
"""

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
    f'| {name} | {sum(one.group == name for one in sets)} | {what} |'
    for name, what in _WHAT.items()
  ]
  page = _PAGE.format(
    num=len(sets),
    canaries=score_sets.CANARIES,
    delta=score_sets.DELTA,
    groups='\n'.join(groups),
    machine=f'{machine["cores"]} cores of {machine["cpu"]}',
    table=tables.format_markdown(table),
    notes=_describe_broken(found),
  )
  io.write_text(_OUT.value, page)


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
