"""Panels of lines, of which most figures of the papers are made."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib import figure
from numpy.typing import ArrayLike

from epe_jax.report.figures import style

COLORS = (
  style.VERMILLION,
  style.BLUE,
  style.GREEN,
  style.ORANGE,
  style.SKY,
  style.PURPLE,
)


class Line(NamedTuple):
  """A line, its errors, and the arguments of `Axes.plot` that style it."""

  x: Sequence[float] | ArrayLike
  y: Sequence[float] | ArrayLike
  style: Mapping[str, Any]
  error: Sequence[float] | ArrayLike | None = None


def draw_lines(
  panels: Mapping[str, Mapping[str, Line]],
  *,
  levels: Mapping[str, Mapping[str, Any]] | None = None,
  columns: int = 2,
  height: float = 4.0,
  legend: int = 4,
  share: bool = False,
  **options: Any,
) -> figure.Figure:
  """Draws a panel for each title, and one legend.

  Args:
    panels: title -> label -> line.
    levels: title -> arguments of `Axes.axhline`.
    columns: panels in a row.
    height: of a panel, in inches.
    legend: entries in a row of it.
    share: whether all panels have the same axes.
    **options: for `Axes.set` of every panel.
  """
  fig, all_axes = style.make_panels(
    len(panels), columns=columns, height=height, share=share
  )
  for axes, (title, lines) in zip(all_axes, panels.items()):
    if levels is not None:
      axes.axhline(**levels[title])
    for label, line in lines.items():
      if line.error is None:
        axes.plot(line.x, line.y, label=label, **line.style)
      else:
        axes.errorbar(line.x, line.y, line.error, label=label, **line.style)
    axes.set(title=title, **options)
  style.draw_legend(fig, all_axes, columns=legend)
  return fig
