"""What all figures share: colours, styles of attackers, axes.

The colours are Okabe and Ito's, told apart in every common kind of colour
blindness.
"""

from collections.abc import Sequence
import math
from typing import Any, NamedTuple

from matplotlib import axes as mpl_axes
from matplotlib import figure, scale, ticker

from epe_jax.audit import threat_models
from epe_jax.report import narrative

BLACK, GREY = '#000000', '#CCCCCC'
BLUE, SKY, GREEN = '#0072B2', '#56B4E9', '#009E73'
VERMILLION, ORANGE, PURPLE = '#D55E00', '#E69F00', '#CC79A7'

TOOK_PART, NO_PART = VERMILLION, BLUE


class Style(NamedTuple):
  """How an attacker is drawn.

  Attributes:
    color: of its line or bar.
    marker: on its line.
    filled: the marker; hollow ones are larger, so that both show where two
      agree.
  """

  color: str
  marker: str
  filled: bool

  def line(self) -> dict[str, Any]:
    """Arguments of a line with markers."""
    size = {} if self.filled else {'ms': 9, 'mfc': 'white', 'mew': 1.5}
    return {'color': self.color, 'marker': self.marker, 'ms': 4, 'lw': 1.5} | (
      size
    )


STYLES = {
  threat_models.FINAL: Style(SKY, 'o', False),
  threat_models.CHANGE: Style(BLUE, 's', True),
  threat_models.MAXIMUM: Style(ORANGE, '^', False),
  threat_models.LIKELIHOOD: Style(PURPLE, 'v', True),
  threat_models.OWN: Style(GREEN, 'D', False),
  threat_models.RESIDUAL: Style(VERMILLION, 'o', True),
}
"""How each attacker of this package is drawn."""

ANOTHER = Style(BLACK, 'P', True)
"""How one is drawn that this package does not know."""


def make_panels(
  num: int, *, columns: int = 3, height: float = 3.6, share: bool = False
) -> tuple[figure.Figure, list[mpl_axes.Axes]]:
  """A figure of 12 inches with `num` panels, which may share their axes."""
  rows = -(-num // columns)
  fig = figure.Figure(figsize=(12, height * rows + 0.6), layout='constrained')
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
  """One legend for all panels, below them, each label once."""
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


def analytic_line(epsilon: float) -> dict[str, Any]:
  """Arguments of the line of the analytic ε, which has no place if infinite."""
  label = f'analytic ε = {narrative.format_number(epsilon)}'
  if epsilon == math.inf:
    label += ', off the axes'
  return {'color': BLACK, 'ls': '--', 'lw': 1.5, 'label': label}


def set_epsilon_axis(axes: mpl_axes.Axes, which: str, highest: float) -> None:
  """Linear from 0 to 1 and logarithmic above, so that 0 and 100 both show.

  Args:
    axes: a panel.
    which: 'x' or 'y', the axis that ε is on.
    highest: largest ε that is drawn.
  """
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
    ticker.FixedLocator([0, *(m * 10**p for p in decades for m in (1, 3))])
  )
  axis.set_minor_locator(ticker.NullLocator())
  axis.set_major_formatter('{x:,g}')


def set_integer_ticks() -> ticker.Locator:
  """Ticks at whole numbers, for rounds."""
  return ticker.MaxNLocator(integer=True, steps=[1, 2, 5, 10])
