"""One run of many canaries against several runs, as a table of quantiles."""

from collections.abc import Sequence

import numpy as np

from epe_jax.experiment import run_comparison
from epe_jax.text import cells, tables

# Of the columns: std, runs x canaries, quantiles, mean and accuracy.
_WIDTHS = (7, 16, *(8 for _ in run_comparison.QUANTILES), 20, 10)


def format_comparison(rows: Sequence[run_comparison.DesignEstimate]) -> str:
  """Quantiles of ε̂ over experiments, of one run and of several.

  Args:
    rows: what `run_comparison.compare` returns.

  Returns:
    Text without a final newline.
  """
  first = rows[0]
  num = 1 + max(row.experiment for row in rows)
  quantiles = [f'{q:g}' for q in run_comparison.QUANTILES]
  lines = [
    f'{num} experiments, d = {first.dim:,}, '
    f'δ = {cells.format_delta(first.delta)}, noise multiplier '
    f'{first.noise_multiplier:g}: quantiles of ε̂ from the final model',
    '',
    _format_line(
      ['std', 'runs x canaries', *quantiles, 'mean ± its error', 'accuracy']
    ),
  ]
  for std in run_comparison.STDS:
    for design in ('single', 'several'):
      selected = run_comparison.select_rows(rows, design, std)
      lines.append(_format_line(_list_cells(selected)))
    floor = selected[0].floor_quantiles
    low, high = (cells.format_number(floor[q]) for q in ('5', '95'))
    lines.append(
      f'{"":7}{low} to {high} is what it finds in 9 of 10 audits where nothing '
      'leaks'
    )
  return '\n'.join(lines)


def _list_cells(rows: Sequence[run_comparison.DesignEstimate]) -> list[str]:
  """The line of one design and estimator, over experiments."""
  values = np.array([row.epsilon for row in rows])
  # An infinite ε has a quantile, but no spread.
  with np.errstate(invalid='ignore'):
    quantiles = np.quantile(
      values, run_comparison.QUANTILES, method='inverted_cdf'
    )
    error = (
      np.std(values, ddof=1) / np.sqrt(len(values)) if len(rows) > 1 else 0
    )
  mean = cells.format_number(float(values.mean()))
  if len(rows) > 1:
    mean += f' ± {cells.format_number(float(error))}'
  first = rows[0]
  return [
    first.std,
    f'{first.runs} x {first.canaries:,}',
    *(cells.format_number(float(q)) for q in quantiles),
    mean,
    cells.format_percent(float(np.mean([row.accuracy for row in rows]))),
  ]


def _format_line(line: Sequence[str]) -> str:
  alignment = '<' + '>' * (len(line) - 1)
  return tables.align_columns([line], alignment, widths=_WIDTHS, gap='')
