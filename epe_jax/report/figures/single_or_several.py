"""Whether ε̂ of one run is spread as that of several runs is."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import axes as mpl_axes
from matplotlib import figure
import numpy as np

from epe_jax.report import narrative, run_comparison
from epe_jax.report.figures import style

# Told apart by the line too, where they are printed without colours.
_LOOKS: dict[str, dict[str, Any]] = {
  'single': {'color': style.BLUE, 'ls': '-', 'lw': 2.5, 'marker': 'o'},
  'several': {'color': style.VERMILLION, 'ls': '--', 'lw': 2, 'marker': 's'},
}
_TITLES = {
  'null': 'std of the null: calibrated',
  'fitted': 'std fitted: as the paper has it',
}


def draw_single_or_several(rows: Sequence[Mapping[str, Any]]) -> figure.Figure:
  """The share of experiments that find at most ε, of both designs.

  Marks are at the quantiles of `run_comparison.make_table`. Shaded is what the same
  estimator finds where nothing leaks.

  Args:
    rows: as `run_comparison.compare` gives them.

  Returns:
    A panel for each estimator.
  """
  fig, all_axes = style.make_panels(
    len(run_comparison.STDS), columns=2, height=4.0, share=True
  )
  for axes, std in zip(all_axes, run_comparison.STDS):
    for design in _LOOKS:
      _curve(
        axes, run_comparison.select_rows(rows, design, std), _LOOKS[design]
      )
    null = run_comparison.select_rows(rows, 'single', std)[0]['floor_quantiles']
    axes.axvspan(
      float(null['5']),
      float(null['95']),
      color=style.GREY,
      lw=0,
      zorder=0,
      label='noise floor: 5 to 95 % when nothing leaks',
    )
    axes.set_title(_TITLES[std])
    axes.set_xlabel(f'ε̂ at δ = {narrative.format_delta(rows[0]["delta"])}')
    axes.set_ylim(0, 1.02)
  all_axes[0].set_xlim(left=0)
  all_axes[0].set_ylabel('share of experiments that find at most this')
  fig.suptitle(
    f'final model, d = {rows[0]["dim"]:,}, noise multiplier '
    f'{rows[0]["noise_multiplier"]:g}',
    fontsize='medium',
  )
  style.draw_legend(fig, all_axes, columns=3)
  return fig


def _curve(
  axes: mpl_axes.Axes,
  rows: Sequence[Mapping[str, Any]],
  options: dict[str, Any],
) -> None:
  """The empirical distribution function; infinite ε are beyond the axes."""
  values = np.sort([float(row['epsilon']) for row in rows])
  n = len(values)
  finite = values[np.isfinite(values)]
  shares = np.arange(1, len(finite) + 1) / n
  runs, canaries = rows[0]['runs'], rows[0]['canaries']
  label = f'{"1 run" if runs == 1 else f"{runs} runs"} x {canaries:,} canaries, n = {n}'
  axes.step(
    np.concatenate([[0.0], finite]),
    np.concatenate([[0.0], shares]),
    where='post',
    label=label,
    markevery=_marked(n, len(finite)),
    ms=7,
    mfc='white',
    mew=1.5,
    **options,
  )


def _marked(n: int, drawn: int) -> list[int]:
  """Which points are the quantiles of the table."""
  at = [int(np.ceil(q * n - 1e-9)) for q in run_comparison.QUANTILES]
  return [i for i in at if i <= drawn]
