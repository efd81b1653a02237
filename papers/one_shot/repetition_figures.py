"""Densities and bars over noise levels and repetitions."""

from collections.abc import Mapping
import math
from typing import NamedTuple

from jaxtyping import Float
from matplotlib import axes as mpl_axes
from matplotlib import figure
import numpy as np
from scipy import stats

from epe_jax.epsilon.types import Estimate
from epe_jax.report import cells
from epe_jax.report.figures import style

_COLORS = (style.SKY, style.GREEN, style.ORANGE, style.VERMILLION, style.PURPLE)
_LINES = ('-', '--', '-.', ':', '-')

NoiseAndRepetitions = tuple[float, int]
"""Noise multiplier, and the participations of a canary."""


class Bar(NamedTuple):
  """Estimates of one run.

  Attributes:
    estimate: the height of the bar, with its floor.
    tick: on the bar; None if there is none.
  """

  estimate: Estimate
  tick: Estimate | None


def draw_densities(
  cosines: Mapping[NoiseAndRepetitions, Float[np.ndarray, ' k']],
) -> figure.Figure:
  """Draws the densities of cosines, a panel for each noise level.

  Args:
    cosines: of the observed canaries, in units of 1/√d.

  Source: One-shot Empirical Privacy Estimation, Figure 1.
  """
  noises = list(dict.fromkeys(noise for noise, _ in cosines))
  fig, all_axes = style.make_panels(len(noises), columns=2, height=3.2)
  for axes, noise in zip(all_axes, noises):
    of_noise = {n: x for (z, n), x in cosines.items() if z == noise}
    low = min(-4.0, *(x.min() - 1 for x in of_noise.values()))
    high = max(4.0, *(x.max() + 1 for x in of_noise.values()))
    grid = np.linspace(low, high, 500)
    for (n, x), color, line in zip(of_noise.items(), _COLORS, _LINES):
      label = f'{n} x, {len(x):,} canaries'
      density = stats.gaussian_kde(x)(grid)
      axes.plot(grid, density, line, color=color, lw=2, label=label)
    axes.plot(
      grid,
      stats.norm.pdf(grid),
      color=style.BLACK,
      lw=1,
      label='took no part: N(0, 1)',
    )
    axes.set_title(f'noise z = {noise:g}')
    axes.set_xlabel('cosine, in units of 1/√d')
    axes.set_yticks([])
    axes.set_ylim(bottom=0)
  for axes in all_axes[::2]:
    axes.set_ylabel('density')
  style.draw_legend(fig, all_axes, columns=5)
  return fig


def draw_bars(bars: Mapping[NoiseAndRepetitions, Bar]) -> figure.Figure:
  """Draws ε_est as a bar, ε_lo as a tick on it, the noise floor as a band.

  Args:
    bars: of the runs, by noise and repetitions.

  Source: One-shot Empirical Privacy Estimation, Figure 2.
  """
  noises = list(dict.fromkeys(noise for noise, _ in bars))
  fig, all_axes = style.make_panels(len(noises), columns=2, height=3.0)
  for axes, noise in zip(all_axes, noises):
    of_noise = {n: bar for (z, n), bar in bars.items() if z == noise}
    top = 0.0
    for x, bar in enumerate(of_noise.values()):
      top = max(top, _draw_bar(axes, x, bar))
    axes.set_xticks(range(len(of_noise)), [f'{n} x' for n in of_noise])
    axes.set_title(f'noise z = {noise:g}')
    axes.set_ylim(0, 1.15 * top or 1)
  for axes in all_axes[::2]:
    axes.set_ylabel('ε of the final model')
  for axes in all_axes[-2:]:
    axes.set_xlabel('rounds in which a canary took part')
  style.draw_legend(fig, all_axes)
  return fig


def _draw_bar(axes: mpl_axes.Axes, x: int, bar: Bar) -> float:
  """Draws one bar; returns how high it reaches."""
  value = float(bar.estimate.epsilon)
  floor = bar.estimate.floor
  if floor is not None:
    axes.bar(
      x,
      floor.q95 - floor.q05,
      0.95,
      floor.q05,
      color=style.GREY,
      zorder=0,
      label='floor: 5 to 95 % of ε_est when nothing leaks',
    )
  if not math.isfinite(value):
    axes.annotate('∞', (x, 0), ha='center', va='bottom')
    return 0.0
  axes.bar(x, value, 0.6, color=style.BLUE, alpha=0.85, label='ε_est')
  axes.annotate(
    cells.format_number(value),
    (x, value),
    (0, 2),
    textcoords='offset points',
    ha='center',
  )
  if bar.tick is not None:
    axes.plot(
      [x - 0.3, x + 0.3],
      [float(bar.tick.epsilon)] * 2,
      color=style.VERMILLION,
      lw=3,
      label="the paper's ε_lo (no bound)",
    )
  return value
