"""Runs beside each other: points with intervals, and their differences."""

from collections.abc import Sequence
import math

from matplotlib import axes as mpl_axes
from matplotlib import figure

from epe_jax.audit.threat_models import ThreatModel
from epe_jax.epsilon.types import Estimate
from epe_jax.report import comparison
from epe_jax.report.comparison import Compared, Difference
from epe_jax.report.figures import attackers, style
from epe_jax.text import cells

# Attackers of a run stand so far from its line at most.
_SPREAD = 0.3


def draw_compared(runs: Sequence[Compared], *, finding: str) -> figure.Figure:
  """Draws each attacker's ε in each run, and by how much it differs from the first.

  Args:
    runs: two or more at one δ, the first to compare with.
    finding: what was found, as a title.

  Returns:
    Two panels, a line for each run.
  """
  shown = comparison.list_attackers(runs)
  styles = style.assign_styles(shown)
  height = (0.22 * max(len(shown), 1) + 0.25) * len(runs) + 1.6
  fig, (left, right) = style.make_panels(2, columns=2, height=height)
  highest = attackers.find_highest(
    [
      *(float(e.epsilon) for run in runs for e in run.estimates.values()),
      *(run.analytic for run in runs),
    ]
  )
  steps = max(len(shown) - 1, 1)
  for y, run in enumerate(runs):
    for i, attacker in enumerate(shown):
      at = y + _SPREAD * (2 * i / steps - 1)
      if attacker in run.estimates:
        _draw_estimate(left, at, attacker, run, styles[attacker].color)
        if y and attacker in runs[0].estimates:
          difference = comparison.subtract(
            run.estimates[attacker], runs[0].estimates[attacker]
          )
          _draw_difference(right, at, difference, styles[attacker].color)
    if math.isfinite(run.analytic):
      left.plot(
        [run.analytic] * 2,
        [y - 0.42, y + 0.42],
        color=style.BLACK,
        ls='--',
        lw=1.5,
        label='analytic ε',
      )
  right.axvline(0, color='#999999', lw=1)
  for axes in (left, right):
    axes.set_yticks(range(len(runs)), [run.label for run in runs])
    axes.set_ylim(len(runs) - 0.5, -0.5)
    axes.tick_params(axis='y', length=0)
    axes.grid(axis='x', color='#DDDDDD', lw=0.6)
    axes.set_axisbelow(True)
  right.tick_params(axis='y', labelleft=False)
  style.set_epsilon_axis(left, 'x', highest)
  delta = cells.format_delta(runs[0].delta)
  left.set_xlabel(f'ε at δ = {delta}; linear up to 1, logarithmic above')
  right.set_xlabel(f'difference of ε from {runs[0].label}, 90 % interval')
  fig.suptitle(finding)
  style.draw_legend(fig, [left], columns=4)
  longest = max(len(run.label) for run in runs)
  style.lay_out(fig, left=0.4 + 0.085 * longest)
  return fig


def _draw_estimate(
  axes: mpl_axes.Axes,
  y: float,
  attacker: ThreatModel,
  run: Compared,
  color: str,
) -> None:
  """Draws the floor, the estimate with its interval and the bound of an attacker."""
  estimate = run.estimates[attacker]
  if estimate.floor is not None:
    axes.fill_betweenx(
      [y - 0.08, y + 0.08],
      estimate.floor.q05,
      estimate.floor.q95,
      color=style.GREY,
      lw=1,
      label='noise floor: 5 to 95 %',
    )
  _draw_point(axes, y, attacker, estimate, color)
  bound = run.bounds.get(attacker)
  if bound is not None and math.isfinite(bound.epsilon):
    axes.plot(
      float(bound.epsilon),
      y,
      '|',
      color=color,
      ms=11,
      mew=2,
      label='lower bound, 95 %, of the same colour',
    )


def _draw_point(
  axes: mpl_axes.Axes,
  y: float,
  attacker: ThreatModel,
  estimate: Estimate,
  color: str,
) -> None:
  if not math.isfinite(estimate.epsilon):
    return
  if estimate.interval is not None:
    axes.plot(estimate.interval, [y, y], color=color, lw=4, alpha=0.45)
  # What the scores contradict is hollow.
  is_rejected = estimate.method.endswith('_rejected')
  axes.plot(
    float(estimate.epsilon),
    y,
    'o',
    color=color,
    mfc='white' if is_rejected else color,
    ms=7,
    ls='none',
    label=attacker.name,
  )


def _draw_difference(
  axes: mpl_axes.Axes, y: float, difference: Difference, color: str
) -> None:
  if not math.isfinite(difference.epsilon):
    return
  if difference.interval is not None:
    axes.plot(difference.interval, [y, y], color=color, lw=4, alpha=0.45)
  axes.plot(difference.epsilon, y, 'o', color=color, ms=7)
