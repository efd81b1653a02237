"""A grid of runs for people: a line for each point, and a figure."""

from collections.abc import Iterable, Mapping, Sequence
import math
import os
import pathlib
from typing import Any, NamedTuple

from matplotlib import axes as mpl_axes
from matplotlib import figure

from epe_jax import io
from epe_jax.audit import threat_models
from epe_jax.audit.threat_models import ThreatModel
from epe_jax.epsilon import over_runs
from epe_jax.epsilon.over_runs import ShiftEstimate
from epe_jax.experiment import finished_runs, sweep
from epe_jax.experiment.run_result import RunResult
from epe_jax.report import comparison, facts, side_by_side, variation_table
from epe_jax.report.figures import pictures, style
from epe_jax.text import cells, tables

_MAX_PANELS = 12


class PointResult(NamedTuple):
  """The result of a finished point, and its estimates.

  Attributes:
    point: of the grid.
    result: what its result.json holds.
    shifts: attacker, in words -> by how much a canary is shifted on average.
  """

  point: sweep.Point
  result: RunResult
  shifts: Mapping[str, ShiftEstimate]


def load_points(
  points: Sequence[sweep.Point], outcome: sweep.Outcome
) -> dict[str, PointResult]:
  """Loads the finished points and estimates the ε of their attackers.

  Args:
    points: of the grid.
    outcome: what `sweep.run_sweep` returned for them.

  Returns:
    Name of a point -> its result, without those that failed.

  Raises:
    FileNotFoundError: a file of a finished point is missing.
    ValueError: a file is damaged or of another version.
  """
  results = {}
  for point in points:
    if point.name in outcome.finished:
      run = finished_runs.load_finished_run(outcome.finished[point.name])
      results[point.name] = PointResult(
        point, run.result, _estimate_shifts(run)
      )
  return results


def make_variation_table(
  results: Mapping[str, PointResult],
) -> tables.Table | None:
  """How much ε varies between points that differ in the seed; None if none do."""
  return variation_table.make_table(
    variation_table.group_replicates(
      [
        (r.point.settings, r.result.delta, r.shifts)
        for r in results.values()
        if r.shifts
      ]
    )
  )


def make_table(
  points: Sequence[sweep.Point],
  results: Mapping[str, PointResult],
  failed: Mapping[str, str],
) -> tables.Table:
  """A line for each point: what it sets, its accuracy and its estimates.

  Args:
    points: of the grid.
    results: name of a finished point -> its result.
    failed: name of a point that failed -> why.

  Returns:
    A table whose ε are point estimates with 90 % intervals.
  """
  attackers = _list_attackers(results.values())
  body = [
    _list_cells(point, results.get(point.name), attackers) for point in points
  ]
  sources = dict.fromkeys(r.result.data for r in results.values())
  notes = [
    'ε are point estimates, no bounds; in brackets 90 % intervals.',
    *cells.explain_rejected(cell for line in body for cell in line),
    # The table may be published, and paths tell of the machine.
    *(f'Data: {io.hide_paths(source)}.' for source in sources),
    *(f'{name} failed: {io.hide_paths(why)}' for name, why in failed.items()),
  ]
  head = [
    *points[0].settings,
    'accuracy',
    'analytic ε',
    *(f'ε, {attacker.name}' for attacker in attackers),
  ]
  return tables.Table('', head, body, notes)


def draw_sweep(results: Sequence[PointResult]) -> figure.Figure | None:
  """ε along the last axis, a panel for each setting of the others.

  Args:
    results: of the finished points.

  Returns:
    None if there is nothing to draw, or more panels than can be read.
  """
  panels: dict[str, list[PointResult]] = {}
  for result in results:
    *others, _ = result.point.settings.items()
    title = '\n'.join(f'{field} = {_format_value(x)}' for field, x in others)
    panels.setdefault(title, []).append(result)
  if not panels or len(panels) > _MAX_PANELS:
    return None
  fig, all_axes = style.make_panels(len(panels), height=3.8)
  highest = 1.0
  for axes, (title, of_panel) in zip(all_axes, panels.items()):
    last = list(of_panel[0].point.settings)[-1]
    labels = [_format_value(r.point.settings[last]) for r in of_panel]
    highest = max(highest, _draw_panel(axes, of_panel))
    axes.set_xticks(range(len(labels)), labels)
    axes.set_xlim(-0.4, len(labels) - 0.6)
    axes.set_xlabel(last)
    axes.set_title(title, fontsize='medium')
  for axes in all_axes:
    style.set_epsilon_axis(axes, 'y', highest)
  all_axes[0].set_ylabel('ε, linear up to 1')
  fig.suptitle(comparison.find_title([*map(_compare_point, results)]))
  style.draw_legend(fig, all_axes, columns=5)
  return fig


def write_sweep(
  folder: str | os.PathLike,
  points: Sequence[sweep.Point],
  outcome: sweep.Outcome,
) -> str:
  """Writes sweep.md, sweep.tex, a figure and the comparison of the points.

  The figure is sweep.png and .svg, where there is one; comparison.html, .md, .png and
  .svg, as of any runs, where two points of one δ or more have estimates.

  Args:
    folder: where the files go.
    points: of the grid.
    outcome: what `sweep.run_sweep` returned for them.

  Returns:
    The tables as text, without a final newline.

  Raises:
    FileNotFoundError: a file of a finished point is missing.
    ValueError: a file is damaged or of another version.
  """
  results = load_points(points, outcome)
  table = make_table(points, results, outcome.failed)
  folder = pathlib.Path(folder)
  both = [table, make_variation_table(results)]
  some = [table for table in both if table is not None]
  for name, content in (
    (
      'sweep.md',
      tables.escape_html('\n\n'.join(map(tables.format_markdown, some))),
    ),
    ('sweep.tex', tables.format_latex(table)),
  ):
    io.write_text(folder / name, f'{content}\n')
  drawing = draw_sweep(list(results.values()))
  if drawing is not None:
    pictures.write_figure(drawing, folder / 'sweep.png')
  compared = [_compare_point(result) for result in results.values()]
  if comparison.is_comparable(compared):
    comparison.write_comparison(folder, compared, name='comparison')
  return '\n\n'.join(map(tables.format_text, some))


def _compare_point(result: PointResult) -> comparison.Compared:
  """A point among others."""
  return comparison.describe_run(result.point.name, result.result)


def _list_attackers(results: Iterable[PointResult]) -> list[ThreatModel]:
  """The attackers whose estimates are shown, the weakest first."""
  found = (a.threat_model for r in results for a in r.result.audit.attacks)
  return threat_models.sort_by_strength(
    [*filter(_is_shown, threat_models.THREAT_MODELS), *filter(_is_shown, found)]
  )


def _is_shown(threat_model: ThreatModel) -> bool:
  return threat_model.is_shift


def _estimate_shifts(
  run: finished_runs.FinishedRun,
) -> dict[str, ShiftEstimate]:
  if run.record is None:
    return {}
  return {
    attack_scores.threat_model.name: over_runs.estimate_shift(
      attack_scores.scores
    )
    for attack_scores in threat_models.score_all(run.record)
    if attack_scores.scores.shift is not None
  }


def _list_cells(
  point: sweep.Point,
  result: PointResult | None,
  attackers: Sequence[ThreatModel],
) -> list[str]:
  """The line of a point in the table."""
  settings = [
    _format_value(io.hide_paths(value)) for value in point.settings.values()
  ]
  if result is None:
    return [*settings, 'failed', *[''] * (1 + len(attackers))]
  return [
    *settings,
    cells.format_percent(result.result.accuracy),
    side_by_side.format_analytic(result.result),
    *(
      cells.format_with_interval(result.result.audit.find_first(attacker))
      for attacker in attackers
    ),
  ]


def _draw_panel(axes: mpl_axes.Axes, results: Sequence[PointResult]) -> float:
  """Draws the estimates of some points; returns the largest ε in the panel."""
  highest, attackers = 1.0, _list_attackers(results)
  styles = style.assign_styles(attackers)
  for i, attacker in enumerate(attackers):
    # Moved sideways, so that the intervals of attackers do not overlap.
    shift = 0.06 * (i - (len(attackers) - 1) / 2)
    look = styles[attacker]
    highest = max(highest, _draw_attacker(axes, results, attacker, look, shift))
  analytic = [facts.find_analytic_epsilon(r.result) for r in results]
  finite = [(x, e) for x, e in enumerate(analytic) if math.isfinite(e)]
  if finite:
    axes.plot(
      *zip(*finite), '_', color=style.BLACK, ms=24, mew=1.5, label='analytic ε'
    )
  return max([highest, *(e for _, e in finite)])


def _draw_attacker(
  axes: mpl_axes.Axes,
  results: Sequence[PointResult],
  threat_model: ThreatModel,
  look: style.Style,
  shift: float,
) -> float:
  """Draws the estimates of one attacker; returns the largest of them."""
  estimates = {
    x + shift: estimate
    for x, estimate in enumerate(
      r.result.audit.find_first(threat_model) for r in results
    )
    if estimate is not None and math.isfinite(estimate.epsilon)
  }
  if not estimates:
    return 0.0
  epsilons = [float(estimate.epsilon) for estimate in estimates.values()]
  axes.plot(
    list(estimates), epsilons, label=threat_model.name, **look.line_options
  )
  for x, estimate in estimates.items():
    if (floor := estimate.floor) is not None:
      axes.fill_between(
        [x - 0.028, x + 0.028],
        floor.q05,
        floor.q95,
        color=style.GREY,
        lw=0.8,
        zorder=0,
        label='noise floor: 5 to 95 %',
      )
    if estimate.interval is not None:
      axes.plot([x, x], estimate.interval, color=look.color, lw=3, alpha=0.4)
  return max(epsilons)


def _format_value(value: Any) -> str:
  return f'{value:g}' if isinstance(value, float) else str(value)
