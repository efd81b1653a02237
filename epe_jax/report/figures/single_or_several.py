"""Whether ε̂ of one run is distributed as that of several runs is."""

from collections.abc import Sequence
from typing import Any

from matplotlib import axes as mpl_axes
from matplotlib import figure
import numpy as np

from epe_jax.experiment import run_comparison
from epe_jax.report.figures import style
from epe_jax.text import cells

# They differ by the line too, for prints without colours.
_STYLES: dict[str, dict[str, Any]] = {
  'single': {'color': style.BLUE, 'ls': '-', 'lw': 2.5, 'marker': 'o'},
  'several': {'color': style.VERMILLION, 'ls': '--', 'lw': 2, 'marker': 's'},
}
_TITLES = {
  'null': 'std of the null: calibrated',
  'fitted': 'std fitted: as the paper has it',
}


def draw_single_or_several(
  rows: Sequence[run_comparison.DesignEstimate],
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
  rows: Sequence[run_comparison.DesignEstimate],
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
