"""Measures how often every bound exceeds the truth; docs/coverage.md.

  python benchmarks/coverage.py --out=docs/coverage.md

takes half an hour on 2 cores. Fails if a claim breaks its word.
"""

from collections.abc import Callable
from typing import Any

from absl import app, flags

from epe_jax import extras

with extras.explain_missing():
  from studies import coverage, run_reports
  import tqdm

  from epe_jax import io
  from epe_jax.report import tables

_EPSILON = flags.DEFINE_list('epsilon', ['0', '1', '3', '10'], 'True ε.')
_DELTA = flags.DEFINE_list('delta', ['1e-5', '1e-3'], 'δ.')
_NUM = flags.DEFINE_list('num_canaries', ['100', '1000'], 'Observed canaries.')
_AUDITS = flags.DEFINE_integer(
  'audits', 500, 'Simulated audits of each case.', lower_bound=1
)
_RUNS = flags.DEFINE_integer(
  'runs', 500, 'Simulated runs, each with a report.', lower_bound=1
)
_SEED = flags.DEFINE_integer('seed', 0, 'Of the scores.', lower_bound=0)
_OUT = flags.DEFINE_string('out', None, 'Markdown file to write.')

_HEAD = """\
# Coverage: do bounds keep their word?

Written by `python benchmarks/coverage.py --out=docs/coverage.md`. Each cell has the
share of simulated audits whose bound exceeds the true ε, which a bound at 95 % may
do in 5 % of them, and the median bound. The paper's ε_lo (`eps_lo`), the uncorrected
best threshold and approximate intervals (`jeffreys`, `katz`) are shown for
comparison; they promise nothing. A credible bound promises 5 % on average over truths
that its prior draws, and nothing for one of them.

## Scores of a Gaussian mechanism

What every bound assumes holds here.
"""

_COUPLED = """
## Canaries that leak together

This mechanism is as private as the Gaussian one, for every canary and whatever it
tells of the others: of each it tells the truth with the probability that the Gaussian
mechanism would have. But it draws that probability once for all canaries of an audit.
Bounds that do not assume that canaries leak independently keep their word; the
others, which are tighter where canaries do, exceed the truth in many audits.
"""

_OTHERS = """
## Scores of other laws

A canary that took part is the same law moved along, a lognormal one with its
logarithm moved. Bounds that assume no shape keep their word. Those that do exceed
the truth in most audits of most of these laws. The test of shape that
`gaussian_lower_bound` makes (Anderson-Darling) does not save it where tails are only
a little heavier than Gaussian: "pass" is the share of audits whose scores it takes
for Gaussian.
"""

_REPORTS = """
## Reports of simulated runs

Runs are simulated by their vectors, so that the ε of each attacker's scores is known
as well as the analytic one, and evaluated as a real run is.
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


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is no flag; see --help.')
  epsilons = _numbers(_EPSILON, float, 'numbers >= 0', lambda e: 0 <= e < 1e3)
  deltas = _numbers(_DELTA, float, 'numbers in (0, 1)', lambda d: 0 < d < 1)
  nums = _numbers(_NUM, int, 'integers >= 8', lambda k: k >= 8)

  def study(laws, deltas):
    return coverage.run_study(
      _SEED.value,
      laws,
      deltas=deltas,
      nums=nums,
      audits=_AUDITS.value,
      progress=lambda cases: tqdm.tqdm(cases, unit='case'),
    )

  gaussian = {
    delta: [coverage.gaussian(epsilon, delta) for epsilon in epsilons]
    for delta in deltas
  }
  mechanism = [r for delta in deltas for r in study(gaussian[delta], [delta])]
  coupled = [coverage.coupled(e, deltas[0]) for e in epsilons if e > 0]
  together = study(coupled, deltas[:1])
  others = study(coverage.others(), deltas[:1])
  found = run_reports.simulate_reports(
    _SEED.value,
    runs=_RUNS.value,
    progress=lambda runs: tqdm.tqdm(runs, unit='run'),
  )
  text = '\n'.join(
    [
      _HEAD,
      coverage.format_markdown(mechanism),
      _COUPLED,
      coverage.format_markdown(together),
      _OTHERS,
      coverage.format_markdown(others),
      _REPORTS,
      tables.format_markdown(run_reports.make_table(found)),
      '',
    ]
  )
  print(text)
  if _OUT.value:
    io.write_text(_OUT.value, text)
  rows = mechanism + together + others
  bad = [row for row in rows if coverage.find_broken(row)]
  bad += run_reports.find_broken(found)
  if bad:
    raise SystemExit(f'{len(bad)} claims break their word: {bad}')


if __name__ == '__main__':
  app.run(main)
