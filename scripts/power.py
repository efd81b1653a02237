"""How many canaries it takes to certify an ε; docs/planning.md.

  python scripts/power.py --truth=4 --certified=3 --delta=1e-5

Without these flags, and with --out=docs/planning.md, it writes the table of that page,
which takes some minutes.
"""

import pathlib

from absl import app, flags

from epe_jax import extras

with extras.explain_missing():
  import tqdm

  from epe_jax import io
  from epe_jax.planning import power
  from epe_jax.report import tables

# The true ε, and the one that is to be certified.
_PAIRS = [
  (1.0, 0.0),
  (1.0, 0.5),
  (3.0, 1.0),
  (3.0, 1.5),
  (4.0, 2.0),
  (4.0, 3.0),
  (10.0, 5.0),
  (10.0, 8.0),
]
# Name of a column, bound, and whether the law of unobserved scores is known.
_COLUMNS: list[tuple[str, power.BoundName, bool]] = [
  ('thresholds, known null', 'lower_bound', True),
  ('thresholds', 'lower_bound', False),
  ('gdp, known null', 'gdp', True),
  ('gdp', 'gdp', False),
  ('Gaussian, known null', 'gaussian', True),
  ('Gaussian', 'gaussian', False),
  ('one run', 'one_run', False),
  ('one run, gdp', 'one_run_gdp', False),
]

_TRUTH = flags.DEFINE_float('truth', None, 'ε of the mechanism at δ, >= 0.')
_CERTIFIED = flags.DEFINE_float('certified', None, 'ε₀ to certify, >= 0.')
_DELTA = flags.DEFINE_float('delta', 1e-5, 'δ, in (0, 1).')
_PROBABILITY = flags.DEFINE_float('probability', 0.8, 'The power, in (0, 1).')
_SIGNIFICANCE = flags.DEFINE_float(
  'significance', 0.05, 'Chance that a bound exceeds the truth, in (0, 1).'
)
_OUT = flags.DEFINE_string('out', None, 'Page to write the table into.')


def _make_table(pairs: list[tuple[float, float]]) -> tables.Table:
  def format_cell(
    truth: float, certified: float, bound: power.BoundName, known_law: bool
  ) -> str:
    needed = power.min_canaries(
      bound,
      certified=certified,
      truth=truth,
      delta=_DELTA.value,
      probability=_PROBABILITY.value,
      known_law=known_law,
      significance=_SIGNIFICANCE.value,
    )
    return '-' if needed is None else f'{needed:,}'

  return tables.Table(
    '',
    ['true ε', 'ε₀', *(name for name, *_ in _COLUMNS)],
    [
      [
        f'{t:g}',
        f'{c:g}',
        *(format_cell(t, c, b, known_law) for _, b, known_law in _COLUMNS),
      ]
      for t, c in tqdm.tqdm(pairs, unit='row')
    ],
    [
      f'Canaries that certify ε₀ at {100 * (1 - _SIGNIFICANCE.value):g} %, with '
      f'probability {_PROBABILITY.value:g}, δ = {_DELTA.value:g}: this many take '
      'part and, if the null law is not known, as many do not. For one run, half '
      'of them take part. "-": more than a million, or no number suffices.',
      'thresholds: assumes nothing about scores or mechanism. gdp: assumes the '
      'trade-off curve. Gaussian: assumes the law of the scores, with a common std.',
    ],
  )


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is not a flag; see --help.')
  truth, certified, out = _TRUTH.value, _CERTIFIED.value, _OUT.value
  if (truth is None) != (certified is None):
    raise app.UsageError('give --truth and --certified together, or neither.')
  pairs = _PAIRS
  if truth is not None and certified is not None:
    pairs = [(truth, certified)]
  try:
    table = _make_table(pairs)
  except ValueError as error:
    raise SystemExit(f'error: {error}') from error
  print(tables.format_text(table))
  if out:
    page = pathlib.Path(out)
    block = {'power': tables.format_markdown(table)}
    io.write_text(page, tables.splice(page.read_text(encoding='utf-8'), block))


if __name__ == '__main__':
  app.run(main)
