"""One run of many canaries against several runs: quantiles of the estimates."""

from collections.abc import Sequence

import numpy as np

from epe_jax.experiment import run_comparison
from epe_jax.papers import product, reported
from epe_jax.report.figures import single_or_several
from epe_jax.text import tables

_REPORTED = reported.Reported('epe_jax.papers.one_shot')

_STDS = {'fitted': 'std fitted, as the paper has it', 'null': 'std of the null'}


def make_runs_table(
  rows: Sequence[run_comparison.DesignEstimate], *, source: str
) -> product.Product:
  """Makes tables of quantiles over experiments, and a figure for each noise level.

  Args:
    rows: what `run_comparison.compare` returns, of one noise level or more.
    source: of the data, in words.

  Returns:
    A table for each estimator; the paper's numbers are in that of its own.
  """
  noises = dict.fromkeys(row.noise_multiplier for row in rows)
  by_noise = {
    z: [row for row in rows if row.noise_multiplier == z] for z in noises
  }
  count = 1 + max(row.experiment for row in rows)
  notes = [
    f'Quantiles of the ε of the final model over {count} experiments, each of '
    'other seeds throughout.',
    f'Data: {source}. d = {rows[0].dim:,}.',
  ]
  quantile_tables = [
    tables.Table(
      title,
      [
        'noise',
        'runs x canaries',
        *(f'{q:g}' for q in run_comparison.QUANTILES),
      ],
      [
        _list_cells(
          run_comparison.select_rows(of_noise, design, std),
          with_paper=std == 'fitted',
        )
        for of_noise in by_noise.values()
        for design in ('single', 'several')
      ],
      [
        *(_REPORTED.explain_brackets('runs') if std == 'fitted' else ()),
        *notes,
      ],
    )
    for std, title in _STDS.items()
  ]
  return product.Product(
    quantile_tables,
    {
      f'runs_{z:g}': single_or_several.draw_single_or_several(of_noise)
      for z, of_noise in by_noise.items()
    },
  )


def _list_cells(
  rows: Sequence[run_comparison.DesignEstimate], *, with_paper: bool
) -> list[str]:
  """The line of one design, estimator and noise level, over experiments."""
  first = rows[0]
  noise, runs = first.noise_multiplier, first.runs
  quantiles = np.quantile(
    [row.epsilon for row in rows],
    run_comparison.QUANTILES,
    method='inverted_cdf',
  )
  paper = None
  if with_paper:
    paper = _REPORTED.find_row('runs', noise=noise, runs=runs)
  return [
    f'{noise:g}',
    f'{runs:,} x {first.canaries:,}',
    *(
      reported.add_reported(float(x), paper, f'{q:g}')
      for x, q in zip(quantiles, run_comparison.QUANTILES)
    ),
  ]
