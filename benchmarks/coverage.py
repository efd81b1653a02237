"""Measures how often every bound exceeds the truth; docs/coverage.md.

  python benchmarks/coverage.py --out=docs/coverage.md

takes about an hour on 2 cores. With --only_conditions it measures what the page has
between its markers and keeps the rest: minutes. Fails if a claim breaks its word.
"""

from collections.abc import Callable, Iterable
import os
import pathlib
from typing import Any

from absl import app, flags

from epe_jax import extras

with extras.explain_missing():
  from studies import conditions, coverage, laws, run_reports
  import tqdm

  from epe_jax import io
  from epe_jax.text import tables

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
  'folder', None, 'Keeps what is done of the audits, and goes on from there.'
)
_ONLY_CONDITIONS = flags.DEFINE_bool(
  'only_conditions',
  False,
  'Only the unusual conditions, into the page of --out.',
)
_OUT = flags.DEFINE_string('out', None, 'Markdown file to write.')

_DELTA = 1e-5
# Directions of canaries, dimension, and observed canaries of runs.
_RUN_SHAPES = (
  ('sphere 1024', 512),
  ('hadamard 1024', 512),
  ('hadamard2 1024', 128),
  ('sign 1024', 128),
  ('sphere 10000', 128),
  ('orthogonal 10000', 128),
  ('sphere 1000000', 128),
  ('orthogonal 1000000', 128),
)

_HEAD = """\
# Coverage: how often do bounds fail?

Written by `python benchmarks/coverage.py --out=docs/coverage.md`. Each cell has
the share of simulated audits whose bound exceeds the true ε, and the median bound. A
bound at 95 % may exceed it in 5 % of audits. The paper's ε_lo (`eps_lo`), the
uncorrected best threshold and approximate intervals (`jeffreys`, `katz`) are shown for
comparison; they guarantee nothing. A credible bound guarantees 5 % on average over
truths drawn from its prior, and nothing for a single truth.

## Scores of a Gaussian mechanism

The assumptions of every bound hold here.
"""

_COUPLED = """
## Canaries that leak together

For each single canary, this mechanism is exactly as private as the Gaussian one,
whatever it reveals about the others. It tells the truth about each canary with the
probability that the Gaussian mechanism would have. But it draws that probability once
for all canaries of an audit. Bounds that do not assume that canaries leak independently
are valid. The others, which are tighter if canaries do, exceed the truth in many
audits.
"""

_OTHERS = """
## Scores of other laws

The scores of canaries that took part follow the same law, shifted (for the lognormal
law, with its logarithm shifted). Bounds that assume no shape are valid. Those that
assume one exceed the truth in most audits of most of these laws. `gaussian_lower_bound`
tests the shape first (Anderson-Darling). This does not help if tails are only slightly
heavier than Gaussian: "pass" is the share of audits whose scores pass the test.
"""

_STRUCTURE = """
## Canaries of one run

Canaries of a run share its noise and its rounds, and act as noise for each other.
[Dependence between canaries](dependence.md) derives the effect. This study simulates
runs of Algorithm 3 with 4 rounds. Clients add 3 clip norms, and canaries take part once.
`sphere` and `orthogonal` have the law of random directions and of a random orthogonal
frame. `sign`, `hadamard` and `hadamard2` are the canaries of this package. ε is what the
mechanism allows the attacker. "of scores" is the share of bounds that exceed the ε of
the law of one score. That ε is smaller if other updates hide a canary, and bounds that
assume independence may exceed it more often than they state. If canaries make up more
than a hundredth of what is seen, there is no exact null law. Maxima and likelihoods over
rounds are not Gaussian, so bounds that assume a shape guarantee nothing there.
"""

_REPORTS = """
## Reports of simulated runs

Runs are simulated with explicit vectors, so the ε of each attacker's scores is known,
as well as the analytic one. They are evaluated like real runs.
"""

_CONDITIONS = """
## Unusual conditions

Runs of which something is not as one would have it, and how often what is said of them is
false. Noise is not what is claimed. Many canaries share the noise of one round, and
`--claim` tests whether the run is as private as it is. Or canaries are more than a
hundredth of a release, so that their null law is fitted and they are noise to one another.
Or several runs have very different numbers of canaries.

<!-- begin conditions -->
<!-- end conditions -->
"""


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


def _measure_conditions(page: str) -> tuple[str, list[Any]]:
  """The page with the table of unusual conditions, and rows that are broken."""
  rows = conditions.run_study(
    conditions.list_conditions(),
    audits=_AUDITS.value,
    seed=_SEED.value,
    workers=_WORKERS.value,
    folder=pathlib.Path(_FOLDER.value) if _FOLDER.value else None,
    progress=lambda some: tqdm.tqdm(some, unit='condition'),
  )
  table = conditions.format_markdown(rows)
  page = tables.splice(page, {'conditions': table})
  return page, [row for row in rows if conditions.find_broken(row)]


def _write(text: str, bad: list[Any]) -> None:
  print(text)
  if _OUT.value:
    io.write_text(_OUT.value, text)
  if bad:
    raise SystemExit(f'{len(bad)} claims break their word: {bad}')


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is not a flag; see --help.')
  if _ONLY_CONDITIONS.value:
    if not _OUT.value:
      raise app.UsageError('--only_conditions needs the page as --out.')
    page = pathlib.Path(_OUT.value).read_text('utf-8')
    _write(*_measure_conditions(page))
    return
  epsilons = _numbers(_EPSILON, float, 'numbers >= 0', lambda e: 0 <= e < 1e3)
  nums = _numbers(_NUM, int, 'integers >= 8', lambda k: k >= 8)

  def make_cases(kind: Any, whats: Iterable[object]) -> list[coverage.Case]:
    return [_make_case(kind, what, num) for num in nums for what in whats]

  sections = {
    _HEAD: make_cases('Gaussian', epsilons),
    _COUPLED: make_cases('coupled', [e for e in epsilons if e > 0]),
    _STRUCTURE: [_make_case('runs', *shape) for shape in _RUN_SHAPES],
    _OTHERS: make_cases('other', [law.name for law in laws.others()]),
  }
  rows = coverage.run_study(
    [case for cases in sections.values() for case in cases],
    workers=_WORKERS.value,
    folder=pathlib.Path(_FOLDER.value) if _FOLDER.value else None,
    progress=lambda cases: tqdm.tqdm(cases, unit='case'),
  )
  found = run_reports.simulate_reports(
    _SEED.value,
    runs=_RUNS.value,
    workers=_WORKERS.value,
    progress=lambda runs: tqdm.tqdm(runs, unit='run'),
  )
  parts, rest = [], iter(rows)
  for head, cases in sections.items():
    mine = [row for _ in cases for row in next(rest)]
    parts += [head, coverage.format_markdown(mine)]
  reports = tables.format_markdown(run_reports.make_table(found))
  text = '\n'.join([*parts, _CONDITIONS, _REPORTS, reports, ''])
  text, bad = _measure_conditions(text)
  bad += [row for some in rows for row in some if coverage.find_broken(row)]
  bad += run_reports.find_broken(found)
  _write(text, bad)


def _make_case(kind: Any, what: object, num: int) -> coverage.Case:
  return coverage.Case(kind, str(what), num, _DELTA, _AUDITS.value, _SEED.value)


if __name__ == '__main__':
  app.run(main)
