"""Colours, styles of attackers, panels and axes of all figures.

The colours are those of Okabe and Ito, which remain distinct in every common kind of
colour blindness.
"""

from collections.abc import Iterable, Sequence
import functools
import io as streams
import itertools
import math
import os
import pathlib
import re
from typing import Any, NamedTuple

import matplotlib
from matplotlib import axes as mpl_axes
from matplotlib import figure, layout_engine, scale, ticker

from epe_jax import io
from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.audit.attackers import THREAT_MODELS
from epe_jax.epsilon.types import Estimate
from epe_jax.report import cells

BLACK, GREY = '#000000', '#CCCCCC'
BLUE, SKY, GREEN = '#0072B2', '#56B4E9', '#009E73'
VERMILLION, ORANGE, PURPLE = '#D55E00', '#E69F00', '#CC79A7'

WIDE, MEDIUM, NARROW = 12.0, 9.0, 4.8
"""Widths of figures in inches: of three panels, of two, and for a phone."""

TOOK_PART, NO_PART = VERMILLION, BLUE

FLOOR = 'floor: 5 to 95 % when nothing leaks'
"""The legend of what an estimator reports when nothing leaks."""

# Of the line of an analytic ε above and below its row.
_REACH = 0.42
# Text stays text, which is small, sharp and searchable; a fixed salt makes the file
# reproducible.
_SVG: Any = {'svg.fonttype': 'none', 'svg.hashsalt': 'epe_jax'}
_FAMILY = re.compile(r'font-family: [^;"]*')


class Style(NamedTuple):
  """How an attacker is drawn: its colour, and the marker on its line.

  Hollow markers are larger, so that both show where two agree.
  """

  color: str
  marker: str
  filled: bool

  @property
  def line_options(self) -> dict[str, Any]:
    """Arguments of `Axes.plot` for a line with markers."""
    size = {} if self.filled else {'ms': 9, 'mfc': 'white', 'mew': 1.5}
    return {'color': self.color, 'marker': self.marker, 'ms': 4, 'lw': 1.5} | (
      size
    )


# Of the attackers of this package, by their keys.
_STYLES = {
  'final': Style(SKY, 'o', False),
  'change': Style(BLUE, 's', True),
  'maximum': Style(ORANGE, '^', False),
  'likelihood': Style(PURPLE, 'v', True),
  'own_round': Style(GREEN, 'D', False),
  'residual': Style(VERMILLION, 'o', True),
  'decorrelated': Style('#8B0000', 'h', True),
}
# Of others, in the order of their keys.
_MORE_STYLES = (
  Style(BLACK, 'P', True),
  Style('#777777', 'X', False),
  Style('#8B5A2B', 'p', True),
)


def assign_styles(
  threat_models: Iterable[ThreatModel],
) -> dict[ThreatModel, Style]:
  """Gives each attacker of a figure a style of its own.

  An attacker of this package always has the same one, and so have others if a figure
  has the same attackers.
  """
  models = {model.key: model for model in (*THREAT_MODELS, *threat_models)}
  others = sorted(models.keys() - _STYLES.keys())
  styles = _STYLES | dict(zip(others, itertools.cycle(_MORE_STYLES)))
  return {models[key]: style for key, style in styles.items()}


def find_highest(values: Sequence[float]) -> float:
  """The largest ε that has a place on an axis."""
  return max((x for x in values if math.isfinite(x)), default=1.0)


def make_panels(
  num: int,
  *,
  columns: int = 3,
  height: float = 3.6,
  share: bool = False,
  width: float = WIDE,
) -> tuple[figure.Figure, list[mpl_axes.Axes]]:
  """Makes a figure of empty panels, each of a height in inches.

  Returns:
    The figure and its panels, row by row; with the same axes if they `share` them.
  """
  rows = -(-num // columns)
  fig = figure.Figure(
    figsize=(width, height * rows + 0.6), layout='constrained'
  )
  grid = fig.subplots(
    rows, min(num, columns), squeeze=False, sharex=share, sharey=share
  ).ravel()
  for axes in grid[num:]:
    axes.remove()
  for axes in grid[:num]:
    axes.spines[['top', 'right']].set_visible(False)
  return fig, list(grid[:num])


def draw_legend(
  fig: figure.Figure, all_axes: Sequence[mpl_axes.Axes], *, columns: int = 4
) -> None:
  """Draws one legend for all panels, below them, with each label once."""
  handles = {}
  for axes in all_axes:
    for handle, label in zip(*axes.get_legend_handles_labels()):
      handles.setdefault(label, handle)
  fig.legend(
    list(handles.values()),
    list(handles),
    loc='outside lower center',
    ncols=columns,
    frameon=False,
  )


def style_analytic_line(epsilon: float) -> dict[str, Any]:
  """Arguments of `Axes.plot` for an analytic ε; ∞ has a label and no place."""
  label = f'limit: ε = {cells.format_number(epsilon)}'
  if epsilon == math.inf:
    label += ', off the axes'
  return {'color': BLACK, 'ls': '--', 'lw': 1.5, 'label': label}


def draw_row(
  axes: mpl_axes.Axes,
  y: float,
  estimate: Estimate | None = None,
  *,
  height: float,
  color: str = BLACK,
  label: str | None = None,
  floor: str = FLOOR,
  highest: float = math.inf,
  line_width: float = 4,
  bounds: Sequence[tuple[Estimate | None, dict[str, Any]]] = (),
  analytic: float = math.nan,
  line: dict[str, Any] | None = None,
  **point: Any,
) -> None:
  """Draws floor, interval, point, lower bounds and analytic ε on a row of a panel.

  What is None, or not finite, is left out.

  Args:
    height: of the floor above and below the row.
    label: of the point in the legend; `floor` is that of the floor.
    highest: the largest ε of the panel; an interval ends at twice of it.
    line_width: of the interval.
    bounds: each with arguments of `Axes.plot`; a tick unless these say otherwise.
    analytic: a line across the row.
    line: arguments of `Axes.plot` for it.
    **point: arguments of `Axes.plot` for the point.
  """
  if estimate is not None and estimate.floor is not None:
    ends = estimate.floor.q05, estimate.floor.q95
    band = [y - height, y + height]
    axes.fill_betweenx(band, *ends, color=GREY, lw=1, label=floor)
  interval = estimate and estimate.interval
  ends = [min(float(x), 2 * highest) for x in interval or ()]
  if ends and all(map(math.isfinite, ends)):
    axes.plot(ends, [y, y], color=color, lw=line_width, alpha=0.45)
  tick: dict[str, Any] = {'color': BLACK, 'ls': 'none', 'marker': '|'}
  dot: dict[str, Any] = {'color': color, 'label': label, 'marker': 'o'} | point
  for shown, options in ((estimate, dot), *bounds):
    if shown is not None and math.isfinite(shown.epsilon):
      axes.plot(float(shown.epsilon), y, **tick | options)
  if math.isfinite(analytic):
    across = [y - _REACH, y + _REACH]
    options = {'color': BLACK, 'ls': '--', 'lw': 1.5} | (line or {})
    axes.plot([analytic] * 2, across, **options)


def set_rows(
  axes: mpl_axes.Axes, names: Sequence[str], *, first: float, last: float
) -> None:
  """Gives a panel a row for each name, from the top down, with vertical lines.

  `first` and `last` are the space above the first row and below the last, in rows.
  """
  axes.set_yticks(range(len(names)), names)
  axes.set_ylim(len(names) - 1 + last, -first)
  axes.tick_params(axis='y', length=0)
  axes.grid(axis='x', color='#DDDDDD', lw=0.6)
  axes.set_axisbelow(True)


def set_epsilon_axis(axes: mpl_axes.Axes, which: str, highest: float) -> None:
  """Makes the axis 'x' or 'y' linear up to 1 and logarithmic above."""
  decades = range(math.ceil(math.log10(max(highest, 1) * 1.5)) + 1)
  axes.set(
    **{
      f'{which}scale': scale.SymmetricalLogScale(
        None, linthresh=1, linscale=0.5
      ),
      f'{which}lim': (0, max(1.0, highest) * 1.6),
    }
  )
  axis = axes.xaxis if which == 'x' else axes.yaxis
  axis.set_major_locator(
    ticker.FixedLocator([0, *(m * 10.0**p for p in decades for m in (1, 3))])
  )
  axis.set_minor_locator(ticker.NullLocator())
  axis.set_major_formatter('{x:,g}')


def make_round_locator() -> ticker.Locator:
  """Makes a locator of ticks at whole numbers, for axes of rounds."""
  return ticker.MaxNLocator(integer=True, steps=[1, 2, 5, 10])


def write_figure(fig: figure.Figure, path: str | os.PathLike[str]) -> str:
  """Writes a figure as the PNG of a path, and as SVG next to it, which it returns."""
  path = pathlib.Path(path)
  if title := fig.get_suptitle():
    fig.suptitle(title, fontweight='bold')
  # Once for both files, as it measures every text; other programs have wider letters.
  layout_engine.ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.06).execute(fig)
  fig.set_layout_engine('none')
  save = functools.partial(fig.savefig, format='png', dpi=150)
  io.write_atomically(path, save)
  text = render_svg(fig)
  io.write_text(path.with_suffix('.svg'), text)
  return text


def render_svg(fig: figure.Figure) -> str:
  """The figure as SVG; the same figure gives the same text."""
  file = streams.StringIO()
  with matplotlib.rc_context(_SVG):
    fig.savefig(file, format='svg', metadata={'Date': None, 'Creator': None})
  return _FAMILY.sub(
    "font-family: 'DejaVu Sans', Verdana, sans-serif", file.getvalue()
  )
