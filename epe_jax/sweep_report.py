"""A grid of runs for people: a line for each point, and a figure."""

from collections.abc import Sequence
import functools
import math
import os
import pathlib
from typing import Any

from matplotlib import figure

from epe_jax import finished, results, sweep, tables, words
from epe_jax.figures import style

_READINGS = (finished.FINAL, finished.CHANGE, finished.OWN, finished.REMOVED)
_MOST_PANELS = 12


def table(
  points: Sequence[sweep.Point], outcome: sweep.Outcome
) -> tables.Table:
  """What each point found, beside what it sets; what failed, and why.

  ε are calibrated point estimates with 90 % bootstrap intervals over canaries.
  """
  fields = _fields(points)
  rows, sources = [], {}
  for point in points:
    head = [_text(point.settings[field]) for field in fields]
    if point.name not in outcome.finished:
      rows.append([*head, 'failed', *[''] * (1 + len(_READINGS))])
      continue
    run = finished.read(outcome.finished[point.name])
    sources[run.result['data']] = None
    rows.append(
      [
        *head,
        f'{100 * run.result["accuracy"]:.1f} %',
        words.number(run.result['analytic_epsilon']),
        *(with_interval(run, statistic) for statistic in _READINGS),
      ]
    )
  notes = [
    'ε are point estimates, no bounds; in brackets 90 % bootstrap intervals '
    'over canaries.',
    *(f'Data: {source}.' for source in sources),
    *(f'{name} failed: {why}' for name, why in outcome.failed.items()),
  ]
  names = [style.READINGS[statistic].name for statistic in _READINGS]
  head = [*fields, 'accuracy', 'analytic ε', *(f'ε, {name}' for name in names)]
  return tables.Table('', head, rows, notes)


def drawing(
  points: Sequence[sweep.Point], outcome: sweep.Outcome
) -> figure.Figure | None:
  """ε along the last axis, a panel for each setting of the others.

  None if nothing is finished, or there are more panels than can be read.
  """
  fields = _fields(points)
  panels: dict[str, list[sweep.Point]] = {}
  for point in points:
    if point.name in outcome.finished:
      others = [f'{f} = {_text(point.settings[f])}' for f in fields[:-1]]
      panels.setdefault('\n'.join(others), []).append(point)
  if not panels or not fields or len(panels) > _MOST_PANELS:
    return None
  fig, all_axes = style.panels(len(panels), height=3.8)
  highest = 1.0
  for axes, (title, mine) in zip(all_axes, panels.items()):
    runs = [finished.read(outcome.finished[point.name]) for point in mine]
    labels = [_text(point.settings[fields[-1]]) for point in mine]
    highest = max(highest, _panel(axes, runs))
    axes.set_xticks(range(len(labels)), labels)
    axes.set_xlim(-0.4, len(labels) - 0.6)
    axes.set_xlabel(fields[-1])
    axes.set_title(title, fontsize='medium')
  for axes in all_axes:
    style.epsilon_axis(axes, 'y', highest)
  all_axes[0].set_ylabel('ε, linear up to 1')
  style.legend(fig, all_axes, columns=5)
  return fig


def write(
  folder: str | os.PathLike,
  points: Sequence[sweep.Point],
  outcome: sweep.Outcome,
) -> str:
  """Writes sweep.md, sweep.tex and sweep.png; gives the table as text."""
  made = table(points, outcome)
  folder = pathlib.Path(folder)
  for name, content in (
    ('sweep.md', tables.markdown(made)),
    ('sweep.tex', tables.latex(made)),
  ):
    text = f'{content}\n'.encode()
    results.write_atomically(folder / name, lambda f, text=text: f.write(text))
  drawn = drawing(points, outcome)
  if drawn is not None:
    save = functools.partial(drawn.savefig, format='png', dpi=150)
    results.write_atomically(folder / 'sweep.png', save)
  return tables.text(made)


def with_interval(run: finished.Finished, statistic: str) -> str:
  """A calibrated ε and its interval, as a cell."""
  estimate = finished.calibrated(run, statistic)
  if estimate is None:
    return '-'
  text = words.number(float(estimate.epsilon))
  if estimate.interval is not None and math.isfinite(estimate.epsilon):
    low, high = map(words.number, estimate.interval)
    text += f' [{low}, {high}]'
  return text


def _panel(axes: Any, runs: Sequence[finished.Finished]) -> float:
  """Draws the readings of some runs; gives the largest ε drawn."""
  highest = 1.0
  for shift, statistic in enumerate(_READINGS):
    look = style.READINGS[statistic]
    found = [finished.calibrated(run, statistic) for run in runs]
    known = [
      (i, float(e.epsilon), e.interval)
      for i, e in enumerate(found)
      if e is not None and math.isfinite(e.epsilon)
    ]
    if not known:
      continue
    at = [i + 0.06 * (shift - 1.5) for i, _, _ in known]
    axes.plot(at, [e for _, e, _ in known], label=look.name, **look.line())
    for x, (_, _, interval) in zip(at, known):
      if interval is not None:
        axes.plot([x, x], interval, color=look.color, lw=3, alpha=0.4)
    highest = max(highest, *(e for _, e, _ in known))
  analytic = [float(run.result['analytic_epsilon']) for run in runs]
  drawn = [(i, x) for i, x in enumerate(analytic) if math.isfinite(x)]
  if drawn:
    axes.plot(
      *zip(*drawn), '_', color=style.BLACK, ms=24, mew=1.5, label='analytic ε'
    )
    highest = max(highest, *(x for _, x in drawn))
  return highest


def _fields(points: Sequence[sweep.Point]) -> list[str]:
  return list(points[0].settings)


def _text(value: Any) -> str:
  return f'{value:g}' if isinstance(value, float) else str(value)
