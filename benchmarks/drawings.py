"""Growth and kernels at a glance, on logarithmic axes."""

from collections.abc import Mapping
from typing import Any, BinaryIO

import matplotlib as mpl
from matplotlib import figure, ticker

from epe_jax.report.figures import style

_LOOKS = {
  'unaudited': (style.BLACK, 'o', 9),
  'hadamard': (style.VERMILLION, 'D', 4),
  'hadamard2': (style.ORANGE, '^', 5),
  'sphere': (style.BLUE, 'v', 5),
  'jax.random': (style.PURPLE, 'x', 6),
  'stored': (style.SKY, 'P', 6),
}
_AXES = {
  'clients': 'clients of a round, m',
  'dim': 'parameters, d',
  'canaries': 'canaries, k',
  'rounds': 'rounds, T',
}
_FLOOR = {'color': style.BLACK, 'ls': '--', 'lw': 1.2}


def draw(records: Mapping[str, Mapping[str, Any]]) -> dict[str, figure.Figure]:
  """File name -> figure, of the result files that are there."""
  drawn = {}
  if 'growth' in records:
    drawn['growth.svg'] = growth(records['growth'])
  if 'canary_kernels' in records:
    drawn['kernels.svg'] = kernels(records['canary_kernels'])
  return drawn


def growth(record: Mapping[str, Any]) -> figure.Figure:
  """Seconds and bytes against each of the four sizes."""
  directions = list(dict.fromkeys(p['direction'] for p in record['points']))
  fig, axes = style.make_panels(2 * len(directions), columns=len(directions))
  for i, direction in enumerate(directions):
    mine = [p for p in record['points'] if p['direction'] == direction]
    for cost, row in (('seconds', 0), ('bytes', 1)):
      panel = axes[row * len(directions) + i]
      for form in mine[0][cost]:
        shown = [p for p in mine if form in p[cost]]
        _line(panel, form, [(p[direction], p[cost][form]) for p in shown])
      panel.set(xscale='log', yscale='log', xlabel=_AXES[direction])
      panel.xaxis.set_minor_formatter(ticker.NullFormatter())
    seconds = axes[i]
    floor = [p['floor_seconds']['unaudited'] for p in mine]
    sizes = [p[direction] for p in mine]
    seconds.plot(sizes, floor, label='floor of the unaudited run', **_FLOOR)
  axes[0].set_ylabel('seconds of all rounds')
  axes[len(directions)].set_ylabel('bytes of a round')
  style.draw_legend(fig, axes)
  return fig


def kernels(record: Mapping[str, Any]) -> figure.Figure:
  """Seconds of a projection of one vector against d, for each number of canaries."""
  ones = [row for row in record['sizes'] if row['vectors'] == 1]
  counts = sorted({row['canaries'] for row in ones})
  fig, axes = style.make_panels(len(counts), height=4.2, share=True)
  for panel, count in zip(axes, counts):
    mine = sorted(
      (row for row in ones if row['canaries'] == count),
      key=lambda row: row['dim'],
    )
    for form in _LOOKS:
      shown = [row for row in mine if form in row['project']]
      if shown:
        best = [(r['dim'], r['project'][form]['best']) for r in shown]
        _line(panel, form, best)
    floor = [(r['dim'], r['project']['|x|^2']['best']) for r in mine]
    panel.plot(*zip(*floor), label='floor: one pass, |x|²', **_FLOOR)
    panel.set(
      xscale='log', yscale='log', title=f'k = {count:,}', xlabel='d', ylabel=''
    )
  axes[0].set_ylabel('seconds of a projection')
  style.draw_legend(fig, axes)
  return fig


def save(drawing: figure.Figure, file: BinaryIO) -> None:
  """Writes an SVG that is the same whenever and however often it is written."""
  with mpl.rc_context({'svg.hashsalt': 'epe_jax', 'svg.fonttype': 'none'}):
    drawing.savefig(file, format='svg', metadata={'Date': None})


def _line(panel, form: str, points: list[tuple[float, float]]) -> None:
  color, marker, size = _LOOKS[form]
  panel.plot(
    *zip(*points), color=color, marker=marker, ms=size, lw=1.5, label=form
  )
