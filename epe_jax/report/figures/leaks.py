"""The figure of a first page: what each attacker learns at least, about, at most."""

from collections.abc import Sequence
import math

from matplotlib import axes as mpl_axes
from matplotlib import figure

from epe_jax.report import cells
from epe_jax.report.figures import style
from epe_jax.report.leaks import Leak


def draw_leaks(found: Sequence[Leak], *, delta: float) -> figure.Figure:
  """Draws the lower bound, the estimate and the limit of a canary, by attacker.
  Returns:
    One narrow panel, a line for each attacker.
  """
  fig, (axes,) = style.make_panels(
    1, columns=1, height=0.42 * len(found) + 0.8, width=style.NARROW
  )
  axes.spines['left'].set_visible(False)
  highest = style.find_highest(
    [x for leak in found for x in _list_values(leak)]
  )
  for y, leak in enumerate(found):
    _draw_leak(axes, y, leak, highest)
  style.set_rows(axes, [leak.name for leak in found], first=0.6, last=0.6)
  style.set_epsilon_axis(axes, 'x', highest)
  axes.set_xlabel(f'ε of a canary at δ = {cells.format_delta(delta)}')
  style.draw_legend(fig, [axes], columns=4)
  return fig


def _list_values(leak: Leak) -> list[float]:
  estimates = [e for e in (leak.at_least, leak.about) if e is not None]
  return [*(float(e.epsilon) for e in estimates), leak.at_most]


def _draw_leak(axes: mpl_axes.Axes, y: int, leak: Leak, highest: float) -> None:
  style.draw_row(
    axes,
    y,
    leak.about,
    color=style.BLUE,
    height=0.3,
    label='about',
    floor='no leak',
    highest=highest,
    line_width=5,
  )
  if leak.at_least is not None and math.isfinite(leak.at_least.epsilon):
    axes.plot(
      float(leak.at_least.epsilon),
      y,
      '|',
      color=style.BLACK,
      ms=16,
      mew=2.5,
      label='at least',
    )
  style.draw_limit(
    axes,
    y,
    leak.at_most,
    height=0.38,
    label='at most',
    color=style.VERMILLION,
    lw=1.8,
  )
