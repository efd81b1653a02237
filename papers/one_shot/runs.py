"""One run of many canaries against several runs: quantiles of the estimates."""

from collections.abc import Sequence
from typing import Any

from matplotlib import axes as mpl_axes
from matplotlib import figure
import numpy as np

from epe_jax.experiment import stopping
from epe_jax.experiment.setup import workloads
from epe_jax.report import cells, tables
from epe_jax.report.figures import style
from papers import grid, item, reported
from papers.one_shot import run_comparison
from papers.one_shot.run_comparison import DesignEstimate

_REPORTED = reported.Reported('papers.one_shot')

_TITLES: dict[run_comparison.Std, str] = {
  'fitted': 'std fitted, as the paper has it',
  'null': 'std of the null: calibrated',
}
# They differ by the line too, for prints without colours.
_STYLES: dict[str, dict[str, Any]] = {
  'single': {'color': style.BLUE, 'ls': '-', 'lw': 2.5, 'marker': 'o'},
  'several': {'color': style.VERMILLION, 'ls': '--', 'lw': 2, 'marker': 's'},
}


def make_runs(settings: Any, workspace: item.Workspace) -> item.Product:
  """Compares both designs at each noise level, training what is missing.

  Args:
    settings: config and sets, as for `grid.make_base_config`; noises,
      experiments and runs.
    workspace: of the item.
  """
  base = grid.make_base_config(settings, workspace)

  def compare() -> list[DesignEstimate]:
    rows = []
    for noise in grid.choose_values(
      'noise_multiplier', settings.noises, workspace.fields
    ):
      base.noise_multiplier = noise
      rows += run_comparison.compare(
        base,
        experiments=settings.experiments,
        runs=settings.runs,
        workdir=workspace.folder / f'noise_multiplier={noise}',
      )
    return rows

  rows = stopping.wait_for(compare)
  return make_tables(rows, source=workloads.load_workload(base).source)


def make_tables(rows: Sequence[DesignEstimate], *, source: str) -> item.Product:
  """Makes tables of quantiles over experiments, and a figure for each noise level.

  Args:
    rows: what `run_comparison.compare` returns, of one noise level or more.
    source: of the data, in words.

  Returns:
    A table for each estimator; the paper's numbers are in that of its own.
  """
  noises = dict.fromkeys(row.noise_multiplier for row in rows)
  by_noise = [
    [row for row in rows if row.noise_multiplier == z] for z in noises
  ]
  return item.Product(
    make_quantile_tables(by_noise, source=source, has_paper=True),
    {
      f'runs_{of_noise[0].noise_multiplier:g}': draw_single_or_several(of_noise)
      for of_noise in by_noise
      if _count_experiments(of_noise) > 1
    },
  )


def make_quantile_tables(
  by_noise: Sequence[Sequence[DesignEstimate]],
  *,
  source: str,
  has_paper: bool = False,
) -> list[tables.Table]:
  """Makes a table of quantiles over experiments for each estimator.

  Args:
    by_noise: the rows of each noise level.
    source: of the data, in words.
    has_paper: whether the paper has these experiments; its numbers, which are of
      the fitted std, are in brackets.
  """
  first, count = by_noise[0][0], _count_experiments(by_noise[0])
  quantiles = run_comparison.QUANTILES if count > 1 else (0.5,)
  scatter = (
    f'Quantiles of the ε of the final model over {count} experiments, each of other '
    'seeds throughout.'
    if count > 1
    else 'ε of the final model of one experiment, which does not show how far others '
    "are from it; the paper's is the median."
  )
  return [
    tables.Table(
      f'{title}; δ = {cells.format_delta(first.delta)}',
      [
        'noise',
        'runs x canaries',
        *(
          (*(f'{q:g}' for q in quantiles), 'mean ± its error')
          if count > 1
          else ['ε']
        ),
        'accuracy',
      ],
      [
        _list_cells(
          run_comparison.select_rows(rows, design, std),
          quantiles,
          has_paper=has_paper and std == 'fitted',
        )
        for rows in by_noise
        for design in ('single', 'several')
      ],
      [
        *(
          _REPORTED.explain_brackets('runs')
          if has_paper and std == 'fitted'
          else ()
        ),
        scatter,
        *(_describe_floor(rows, std) for rows in by_noise),
        f'Data: {source}. d = {first.dim:,}.',
      ],
    )
    for std, title in _TITLES.items()
  ]


def _count_experiments(rows: Sequence[DesignEstimate]) -> int:
  return 1 + max(row.experiment for row in rows)


def _describe_floor(
  rows: Sequence[DesignEstimate], std: run_comparison.Std
) -> str:
  first = run_comparison.select_rows(rows, 'single', std)[0]
  low, high = (
    cells.format_number(first.floor_quantiles[q]) for q in ('5', '95')
  )
  return (
    f'Noise {first.noise_multiplier:g}: the estimator reports {low} to {high} in 9 '
    'of 10 audits when nothing leaks.'
  )


def _list_cells(
  rows: Sequence[DesignEstimate],
  quantiles: Sequence[float],
  *,
  has_paper: bool,
) -> list[str]:
  """The line of one design, estimator and noise level, over experiments."""
  first = rows[0]
  noise, runs = first.noise_multiplier, first.runs
  values = np.array([row.epsilon for row in rows])
  paper = None
  if has_paper:
    paper = _REPORTED.find_row('runs', noise=noise, runs=runs)
  # An infinite ε has a quantile, but no spread.
  with np.errstate(invalid='ignore'):
    epsilons = np.quantile(values, quantiles, method='inverted_cdf')
    means = []
    if len(values) > 1:
      error = np.std(values, ddof=1) / np.sqrt(len(values))
      mean, error = (
        cells.format_number(float(x)) for x in (values.mean(), error)
      )
      means = [f'{mean} ± {error}']
  return [
    f'{noise:g}',
    f'{runs:,} x {first.canaries:,}',
    *(
      reported.add_reported(float(x), paper, f'{q:g}')
      for x, q in zip(epsilons, quantiles)
    ),
    *means,
    cells.format_percent(float(np.mean([row.accuracy for row in rows]))),
  ]


def draw_single_or_several(
  rows: Sequence[DesignEstimate],
) -> figure.Figure:
  """Draws the share of experiments that find at most ε, of both designs.

  Marks are at `run_comparison.QUANTILES`. Shaded is what the same estimator
  reports where nothing leaks.

  Args:
    rows: what `run_comparison.compare` returns.

  Returns:
    A panel for each estimator.
  """
  fig, all_axes = style.make_panels(
    len(run_comparison.STDS), columns=2, height=4.0, share=True
  )
  for axes, std in zip(all_axes, run_comparison.STDS):
    for design in _STYLES:
      selected = run_comparison.select_rows(rows, design, std)
      _draw_distribution(axes, selected, _STYLES[design])
    single = run_comparison.select_rows(rows, 'single', std)
    floor = single[0].floor_quantiles
    axes.axvspan(
      floor['5'],
      floor['95'],
      color=style.GREY,
      lw=0,
      zorder=0,
      label='noise floor: 5 to 95 % when nothing leaks',
    )
    axes.set_title(_TITLES[std])
    axes.set_xlabel(f'ε̂ at δ = {cells.format_delta(rows[0].delta)}')
    axes.set_ylim(0, 1.02)
  all_axes[0].set_xlim(left=0)
  all_axes[0].set_ylabel('share of experiments that find at most this')
  fig.suptitle(
    f'final model, d = {rows[0].dim:,}, noise multiplier '
    f'{rows[0].noise_multiplier:g}',
    fontsize='medium',
  )
  style.draw_legend(fig, all_axes, columns=3)
  return fig


def _draw_distribution(
  axes: mpl_axes.Axes,
  rows: Sequence[DesignEstimate],
  options: dict[str, Any],
) -> None:
  """Draws the empirical distribution function; infinite ε are off the axes."""
  values = np.sort([row.epsilon for row in rows])
  n = len(values)
  finite = values[np.isfinite(values)]
  shares = np.arange(1, len(finite) + 1) / n
  runs = '1 run' if rows[0].runs == 1 else f'{rows[0].runs} runs'
  label = f'{runs} x {rows[0].canaries:,} canaries, n = {n}'
  axes.step(
    np.concatenate([[0.0], finite]),
    np.concatenate([[0.0], shares]),
    where='post',
    label=label,
    markevery=_locate_quantiles(n, len(finite)),
    ms=7,
    mfc='white',
    mew=1.5,
    **options,
  )


def _locate_quantiles(n: int, num_finite: int) -> list[int]:
  """Which points of the curve are the quantiles of the table."""
  indices = [int(np.ceil(q * n - 1e-9)) for q in run_comparison.QUANTILES]
  return [i for i in indices if i <= num_finite]
