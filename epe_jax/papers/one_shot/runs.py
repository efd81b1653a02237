"""One run of many canaries against several runs: quantiles of the estimates."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from epe_jax.papers.one_shot import product, reported
from epe_jax.report import run_comparison, tables
from epe_jax.report.figures import single_or_several

_STDS = {'fitted': 'std fitted, as the paper has it', 'null': 'std of the null'}


def make_runs_table(
  rows: Sequence[Mapping[str, Any]], *, source: str
) -> product.Product:
  """Quantiles over experiments, with the paper's beside those of its estimator.

  Args:
    rows: as `run_comparison.compare` gives them, of one noise level or more.
    source: of the data, in words.
  """
  noises = list(dict.fromkeys(row['noise_multiplier'] for row in rows))
  by_noise = {
    z: [row for row in rows if row['noise_multiplier'] == z] for z in noises
  }
  first = rows[0]
  count = 1 + max(row['experiment'] for row in rows)
  about = [
    f'Quantiles of the ε of the final model over {count} experiments, each of '
    'other seeds throughout.',
    f'Data: {source}. d = {first["dim"]:,}.',
  ]
  said = [
    tables.Table(
      title,
      [
        'noise',
        'runs x canaries',
        *(f'{q:g}' for q in run_comparison.QUANTILES),
      ],
      [
        _cells(
          run_comparison.select_rows(mine, design, std), paper=std == 'fitted'
        )
        for mine in by_noise.values()
        for design in ('single', 'several')
      ],
      [*(reported.brackets('runs') if std == 'fitted' else ()), *about],
    )
    for std, title in _STDS.items()
  ]
  return product.Product(
    said,
    {
      f'runs_{z:g}': single_or_several.draw_single_or_several(mine)
      for z, mine in by_noise.items()
    },
  )


def _cells(rows: Sequence[Mapping[str, Any]], *, paper: bool) -> list[str]:
  first = rows[0]
  noise, runs = first['noise_multiplier'], first['runs']
  found = np.quantile(
    [float(row['epsilon']) for row in rows],
    run_comparison.QUANTILES,
    method='inverted_cdf',
  )
  theirs = reported.find_row('runs', noise=noise, runs=runs) if paper else None
  return [
    f'{noise:g}',
    f'{runs:,} x {first["canaries"]:,}',
    *(
      reported.add_reported(float(x), theirs, f'{q:g}')
      for x, q in zip(found, run_comparison.QUANTILES)
    ),
  ]
