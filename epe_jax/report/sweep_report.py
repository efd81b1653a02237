"""A grid of runs for people: a line for each point, and a figure."""

from collections.abc import Iterable, Mapping, Sequence
import functools
import math
import os
import pathlib
from typing import Any, NamedTuple

from matplotlib import figure

from epe_jax import io
from epe_jax.audit import threat_models
from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.epsilon.types import Estimate
from epe_jax.experiment import finished_runs, sweep
from epe_jax.report import narrative, side_by_side, tables
from epe_jax.report.figures import style

_MOST_PANELS = 12


def explain_rejected(cells: Iterable[str]) -> list[str]:
  """What a dagger behind an ε means, if any of these cells has one."""
  if not any('†' in cell for cell in cells):
    return []
  return [
    '† the scores contradict what the estimate assumes: take it for an order of '
    'magnitude.'
  ]


class PointResult(NamedTuple):
  """What a finished point found.

  Attributes:
    point: of the grid.
    result: what its result.json holds.
    epsilons: attacker -> the first point estimate with its interval; None where
      there is none, as without canaries.
  """

  point: sweep.Point
  result: Mapping[str, Any]
  epsilons: Mapping[ThreatModel, Estimate | None]


def load_points(
  points: Sequence[sweep.Point], outcome: sweep.Outcome
) -> dict[str, PointResult]:
  """What the finished points found, by name."""
  found = {}
  for point in points:
    if point.name in outcome.finished:
      run = finished_runs.load_finished_run(outcome.finished[point.name])
      epsilons = {
        name: finished_runs.estimate_first(run, name)
        for name in threat_models.SHIFTED
      }
      found[point.name] = PointResult(point, run.result, epsilons)
  return found


def make_table(
  points: Sequence[sweep.Point],
  found: Mapping[str, PointResult],
  failed: Mapping[str, str],
) -> tables.Table:
  """What each point found, beside what it sets; what failed, and why.

  ε are point estimates with 90 % intervals.
  """
  fields = _fields(points)
  rows = []
  for point in points:
    head = [_text(point.settings[field]) for field in fields]
    if point.name not in found:
      rows.append([*head, 'failed', *[''] * (1 + len(threat_models.SHIFTED))])
      continue
    result = found[point.name].result
    rows.append(
      [
        *head,
        f'{100 * result["accuracy"]:.1f} %',
        side_by_side.format_analytic(result),
        *map(format_with_interval, found[point.name].epsilons.values()),
      ]
    )
  sources = dict.fromkeys(one.result['data'] for one in found.values())
  notes = [
    'ε are point estimates, no bounds; in brackets 90 % intervals.',
    *explain_rejected(cell for row in rows for cell in row),
    *(f'Data: {source}.' for source in sources),
    *(f'{name} failed: {why}' for name, why in failed.items()),
  ]
  names = [threat_model.name for threat_model in threat_models.SHIFTED]
  head = [*fields, 'accuracy', 'analytic ε', *(f'ε, {name}' for name in names)]
  return tables.Table('', head, rows, notes)


def draw_sweep(found: Sequence[PointResult]) -> figure.Figure | None:
  """ε along the last axis, a panel for each setting of the others.

  None if there is nothing to draw, or more panels than can be read.
  """
  panels: dict[str, list[PointResult]] = {}
  for one in found:
    *others, _ = one.point.settings.items()
    title = '\n'.join(f'{field} = {_text(x)}' for field, x in others)
    panels.setdefault(title, []).append(one)
  if not panels or len(panels) > _MOST_PANELS:
    return None
  fig, all_axes = style.make_panels(len(panels), height=3.8)
  highest = 1.0
  for axes, (title, mine) in zip(all_axes, panels.items()):
    last = list(mine[0].point.settings)[-1]
    labels = [_text(one.point.settings[last]) for one in mine]
    highest = max(highest, _panel(axes, mine))
    axes.set_xticks(range(len(labels)), labels)
    axes.set_xlim(-0.4, len(labels) - 0.6)
    axes.set_xlabel(last)
    axes.set_title(title, fontsize='medium')
  for axes in all_axes:
    style.set_epsilon_axis(axes, 'y', highest)
  all_axes[0].set_ylabel('ε, linear up to 1')
  style.draw_legend(fig, all_axes, columns=5)
  return fig


def write_sweep(
  folder: str | os.PathLike,
  points: Sequence[sweep.Point],
  outcome: sweep.Outcome,
) -> str:
  """Writes sweep.md, sweep.tex and sweep.png; gives the table as text."""
  found = load_points(points, outcome)
  made = make_table(points, found, outcome.failed)
  folder = pathlib.Path(folder)
  for name, content in (
    ('sweep.md', tables.format_markdown(made)),
    ('sweep.tex', tables.format_latex(made)),
  ):
    io.write_text(folder / name, f'{content}\n')
  drawn = draw_sweep(list(found.values()))
  if drawn is not None:
    save = functools.partial(drawn.savefig, format='png', dpi=150)
    io.write_atomically(folder / 'sweep.png', save)
  return tables.format_text(made)


def format_with_interval(estimate: Estimate | None) -> str:
  """ε and its interval, as a cell; with a dagger where scores contradict it."""
  if estimate is None:
    return '-'
  text = narrative.format_number(float(estimate.epsilon))
  if estimate.interval is not None and math.isfinite(estimate.epsilon):
    low, high = map(narrative.format_number, estimate.interval)
    text += f' [{low}, {high}]'
  return f'{text} †' if estimate.method.endswith('_rejected') else text


def _panel(axes: Any, found: Sequence[PointResult]) -> float:
  """Draws the estimates of some points; gives the largest ε drawn."""
  highest = 1.0
  for shift, threat_model in enumerate(threat_models.SHIFTED):
    drawn_as = style.STYLES[threat_model]
    known = [
      (i, float(e.epsilon), e.interval)
      for i, e in enumerate(one.epsilons[threat_model] for one in found)
      if e is not None and math.isfinite(e.epsilon)
    ]
    if not known:
      continue
    at = [i + 0.06 * (shift - 1.5) for i, _, _ in known]
    axes.plot(
      at, [e for _, e, _ in known], label=threat_model.name, **drawn_as.line()
    )
    for x, (_, _, interval) in zip(at, known):
      if interval is not None:
        axes.plot([x, x], interval, color=drawn_as.color, lw=3, alpha=0.4)
    highest = max(highest, *(e for _, e, _ in known))
  analytic = [narrative.analytic_epsilon(one.result) for one in found]
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
