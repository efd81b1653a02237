"""Measures how often every bound exceeds the truth; docs/coverage.md.

  python scripts/coverage.py --out=docs/coverage.md

takes some minutes on 2 cores. Fails if a bound breaks its word.
"""

from absl import app, flags
import tqdm

from epe_jax import coverage, results

_EPSILON = flags.DEFINE_list('epsilon', ['0', '1', '3', '10'], 'True ε.')
_DELTA = flags.DEFINE_list('delta', ['1e-5', '1e-3'], 'δ.')
_NUM = flags.DEFINE_list('num_canaries', ['100', '1000'], 'Observed canaries.')
_AUDITS = flags.DEFINE_integer(
  'audits', 500, 'Simulated audits.', lower_bound=1
)
_SEED = flags.DEFINE_integer('seed', 0, 'Of the scores.', lower_bound=0)
_OUT = flags.DEFINE_string('out', None, 'Markdown file to write.')

_HEAD = """\
# Coverage: do bounds keep their word?

Written by `python scripts/coverage.py --out=docs/coverage.md`. Scores are those of
a Gaussian mechanism of known ε. Each cell has the share of audits whose bound
exceeds the truth, which a bound at 95 % may do in 5 % of them, and the median
bound. The paper's ε_lo (`eps_lo`) and the uncorrected best threshold are shown
for comparison; they promise nothing. `gaussian_lower_bound` takes scores for
Gaussian, and `gdp_...` and `one_run_gdp` the trade-off curve, which both are here.
"""


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is no flag; see --help.')
  rows = coverage.study(
    _SEED.value,
    epsilons=[float(e) for e in _EPSILON.value],
    deltas=[float(d) for d in _DELTA.value],
    nums=[int(k) for k in _NUM.value],
    audits=_AUDITS.value,
    progress=lambda cases: tqdm.tqdm(cases, unit='case'),
  )
  text = f'{_HEAD}\n{coverage.markdown(rows)}\n'
  print(text)
  if _OUT.value:
    results.write_atomically(_OUT.value, lambda f: f.write(text.encode()))
  bad = [row for row in rows if coverage.broken(row)]
  if bad:
    raise SystemExit(f'{len(bad)} cases break their word: {bad}')


if __name__ == '__main__':
  app.run(main)
