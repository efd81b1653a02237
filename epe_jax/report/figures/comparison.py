"""Labelled runs: points with intervals, differences, and ε along a sweep."""

from collections.abc import Mapping, Sequence
import math
import re
import textwrap
from typing import Any

from matplotlib import axes as mpl_axes
from matplotlib import figure

from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.report import cells, words
from epe_jax.report.comparisons.labelled_runs import (
  Difference,
  LabelledRun,
  format_setting,
  list_attackers,
)
from epe_jax.report.figures import style

# The largest distance of an attacker from the line of its run.
_SPREAD = 0.3
_MAX_PANELS = 12
# Letters of a line of a label.
_LABEL = 18


def draw_comparison(
  runs: Sequence[LabelledRun],
  differences: Sequence[Mapping[ThreatModel, Difference]],
) -> figure.Figure:
  """Draws each attacker's ε in each run, and its difference to the first.

  Two narrow panels, one above the other, with a line for each run.
  """
  shown = list_attackers(runs)
  styles = style.assign_styles(shown)
  # Below both panels is a legend of a line for each attacker and three more.
  height = (0.22 * max(len(shown), 1) + 0.25) * len(runs) + 1.6
  height += 0.12 * (len(shown) + 3)
  fig, (upper, lower) = style.make_panels(
    2, columns=1, height=height, width=style.NARROW
  )
  steps = max(len(shown) - 1, 1)
  for y, (run, of_run) in enumerate(zip(runs, differences)):
    for i, attacker in enumerate(shown):
      at = y + _SPREAD * (2 * i / steps - 1)
      color = styles[attacker].color
      _draw_estimate(upper, at, attacker, run, color)
      difference = of_run.get(attacker)
      if difference is None or not math.isfinite(difference.epsilon):
        continue
      if difference.interval is not None:
        lower.plot(difference.interval, [at, at], color=color, lw=4, alpha=0.45)
      lower.plot(difference.epsilon, at, 'o', color=color, ms=7)
    line = {'label': 'limit'}
    analytic = run.analytic.get('canaries', math.nan)
    style.draw_row(upper, y, height=0, analytic=analytic, line=line)
  lower.axvline(0, color='#999999', lw=1)
  names = [_break_label(run.label) for run in runs]
  for axes in (upper, lower):
    style.set_rows(axes, names, first=0.5, last=0.5)
  style.set_epsilon_axis(upper, 'x', style.find_highest(_list_epsilons(runs)))
  delta = cells.format_delta(runs[0].delta)
  upper.set_xlabel(f'ε at δ = {delta}, linear up to 1')
  lower.set_xlabel('ε less that of the first run')
  style.draw_legend(fig, [upper], columns=1)
  return fig


def _break_label(label: str) -> str:
  """A label in short lines, which leave room for the panel."""
  parts = textwrap.wrap(re.sub('(?<=[,/])', ' ', label), _LABEL)
  return '\n'.join(re.sub('(?<=[,/]) ', '', part) for part in parts)


def _list_epsilons(runs: Sequence[LabelledRun]) -> list[float]:
  return [
    *(float(e.epsilon) for run in runs for e in run.estimates.values()),
    *(x for run in runs for x in run.analytic.values()),
  ]


def _draw_estimate(
  axes: mpl_axes.Axes,
  y: float,
  attacker: ThreatModel,
  run: LabelledRun,
  color: str,
) -> None:
  """Draws the floor, the estimate with its interval and the bound of an attacker."""
  estimate = run.estimates.get(attacker)
  if estimate is None:
    return
  tick = {'label': 'lower bound (95 %)', 'color': color, 'ms': 11, 'mew': 2}
  style.draw_row(
    axes,
    y,
    estimate,
    color=color,
    height=0.08,
    label=words.spell_name(attacker),
    ms=7,
    # What the scores contradict is hollow.
    mfc='white' if estimate.is_rejected else color,
    bounds=[(run.bounds.get(attacker), tick)],
  )


def draw_sweep(
  runs: Sequence[LabelledRun], *, finding: str
) -> figure.Figure | None:
  """Draws ε along the last axis of a sweep, a panel for each setting of the others.

  None if there is nothing to draw, or more panels than can be read.
  """
  panels: dict[str, list[LabelledRun]] = {}
  for run in runs:
    *others, _ = run.settings.items()
    title = '\n'.join(f'{field} = {format_setting(x)}' for field, x in others)
    panels.setdefault(title, []).append(run)
  if not panels or len(panels) > _MAX_PANELS:
    return None
  fig, all_axes = style.make_panels(len(panels), height=3.8)
  highest = style.find_highest([1.0, *_list_epsilons(runs)])
  attackers = list_attackers(runs)
  styles = style.assign_styles(attackers)
  for axes, (title, of_panel) in zip(all_axes, panels.items()):
    last = list(of_panel[0].settings)[-1]
    labels = [format_setting(run.settings[last]) for run in of_panel]
    for i, attacker in enumerate(attackers):
      # Moved sideways, so that the intervals of attackers do not overlap.
      shift = 0.06 * (i - (len(attackers) - 1) / 2)
      _draw_along(axes, of_panel, attacker, styles[attacker], shift)
    limits = (run.analytic.get('canaries', math.nan) for run in of_panel)
    analytic = [*enumerate(limits)]
    if finite := [(x, e) for x, e in analytic if math.isfinite(e)]:
      options = {'color': style.BLACK, 'ms': 24, 'mew': 1.5}
      axes.plot(*zip(*finite), '_', label='limit', **options)
    axes.set_xticks(range(len(labels)), labels)
    axes.set_xlim(-0.4, len(labels) - 0.6)
    axes.set_xlabel(last)
    axes.set_title(title, fontsize='medium')
    style.set_epsilon_axis(axes, 'y', highest)
  all_axes[0].set_ylabel('ε, linear up to 1')
  fig.suptitle(finding)
  style.draw_legend(fig, all_axes, columns=5)
  return fig


def _draw_along(
  axes: mpl_axes.Axes,
  runs: Sequence[LabelledRun],
  attacker: ThreatModel,
  marks: style.Style,
  shift: float,
) -> None:
  """Draws the estimates of an attacker, run by run, with intervals and floors."""
  estimates = {
    x + shift: run.estimates[attacker]
    for x, run in enumerate(runs)
    if attacker in run.estimates
    and math.isfinite(run.estimates[attacker].epsilon)
  }
  if not estimates:
    return
  axes.plot(
    list(estimates),
    [float(estimate.epsilon) for estimate in estimates.values()],
    label=words.spell_name(attacker),
    **marks.line_options,
  )
  for x, estimate in estimates.items():
    if estimate.floor is not None:
      ends = estimate.floor.q05, estimate.floor.q95
      band: dict[str, Any] = {'color': style.GREY, 'lw': 0.8, 'zorder': 0}
      axes.fill_between(
        [x - 0.028, x + 0.028], *ends, label=style.FLOOR, **band
      )
    if estimate.interval is not None:
      axes.plot([x, x], estimate.interval, color=marks.color, lw=3, alpha=0.4)
