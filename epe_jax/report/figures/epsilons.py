"""What ε was found: of each attacker, at each δ and after each round."""

from collections.abc import Mapping, Sequence
import math
from typing import Any

from matplotlib import axes as mpl_axes
from matplotlib import figure
import numpy as np

from epe_jax.audit import threat_models
from epe_jax.audit.record import Record
from epe_jax.epsilon import gaussian, location_mixture, tradeoff_curves
from epe_jax.report import narrative
from epe_jax.report.figures import style

_BOUNDS: dict[tuple[str, ...], tuple[dict[str, Any], str]] = {
  ('clopper_pearson', 'rank_test'): (
    {'marker': '|', 'ms': 17, 'mew': 3},
    'lower bound, 95 %, no shape assumed',
  ),
  ('location_mixture_bound',): (
    {'marker': 'd', 'ms': 8, 'mfc': 'white', 'mew': 1.5},
    'bound, 95 %, if scores are Gaussian',
  ),
  ('one_run',): (
    {'marker': 'x', 'ms': 9, 'mew': 2},
    'lower bound, 95 %, from one run by fair coins',
  ),
}


def draw_bars(
  rows: Sequence[Mapping[str, Any]],
  readings: Sequence[Mapping[str, Any]],
  *,
  analytic: float,
  canaries: str,
) -> figure.Figure:
  """The estimate of each attacker, its bounds and its noise floor.

  Args:
    rows: estimates as `estimates.evaluate` gives them, of one δ.
    readings: what it gives of each attacker.
    analytic: ε at that δ; inf without noise, nan if it is not known.
    canaries: how many there were, in words.

  Returns:
    One panel, a bar for each reading.
  """
  names = list(dict.fromkeys(row['statistic'] for row in rows))
  groups = [[r for r in rows if r['statistic'] == name] for name in names]
  # The estimate to believe first comes first.
  values = [float(group[0]['epsilon']) for group in groups]
  highest = _highest([*values, analytic])
  fig, (axes,) = style.make_panels(1, height=0.55 * len(names) + 1.0)
  calibrated = {r['statistic']: r['calibrated'] for r in readings}
  for y, (name, group) in enumerate(zip(names, groups)):
    _bar(axes, y, group, highest, calibrated[name])
  if not math.isnan(analytic):
    ends = [analytic] * 2 if math.isfinite(analytic) else []
    axes.plot(
      ends,
      [-0.6, len(names) - 0.4][: len(ends)],
      **style.analytic_line(analytic),
    )
  axes.set_yticks(range(len(names)), [style.READINGS[n].name for n in names])
  axes.set_ylim(len(names) - 0.4, -0.6)
  axes.tick_params(axis='y', length=0)
  style.set_epsilon_axis(axes, 'x', highest)
  delta = narrative.format_delta(rows[0]['delta'])
  axes.set_xlabel(f'ε at δ = {delta}; linear up to 1, logarithmic above')
  axes.set_title(canaries, fontsize='medium')
  style.draw_legend(fig, [axes], columns=3)
  return fig


def draw_over_delta(
  record: Record, *, analytic: float, delta: float
) -> figure.Figure:
  """ε at each δ, where the estimate is calibrated, with its scatter.

  The shading is the 90 % interval of the shift of the scores. The analytic line is
  of the Gaussian mechanism with the analytic ε at the δ of the run.

  Args:
    record: what a run kept.
    analytic: ε of the run at delta; inf without noise, nan if it is not known.
    delta: δ of the run.

  Returns:
    One panel, a line for each calibrated reading.
  """
  deltas = np.geomspace(min(1e-10, delta / 10), 0.5, 60)
  fig, (axes,) = style.make_panels(1, height=4.4)
  drawn = []
  for i, reading in enumerate(threat_models.read_all(record)):
    if not reading.calibrated or reading.scores.shift is None:
      continue
    look = style.READINGS[reading.statistic]
    line, low, high = location_mixture.curve(reading.scores, deltas)
    axes.fill_between(deltas, low, high, color=look.color, alpha=0.25, lw=0)
    axes.plot(
      deltas, line, markevery=(2 * i, 12), label=look.name, **look.line()
    )
    drawn += [*line, *high]
  if not math.isnan(analytic):
    line = np.empty(0)
    if math.isfinite(analytic):
      mu = tradeoff_curves.mu_of_epsilon(analytic, delta)
      line = np.asarray(gaussian.epsilon_two_gaussians(0, 1, mu, 1, deltas))
    axes.plot(deltas[: len(line)], line, **style.analytic_line(analytic))
    drawn += [*line]
  axes.axvline(delta, color='0.6', lw=1, ls=':')
  axes.annotate(
    f'δ = {narrative.format_delta(delta)}',
    (delta, 1),
    (4, -4),
    xycoords=('data', 'axes fraction'),
    textcoords='offset points',
    va='top',
  )
  axes.set(xscale='log', xlim=(deltas[0], deltas[-1]))
  axes.set(xlabel='δ', ylabel='ε, linear up to 1')
  style.set_epsilon_axis(axes, 'y', _highest(drawn))
  took_part = int(record.observed.sum())
  axes.set_title(
    f'{took_part:,} canaries took part, '
    f'{record.observed.size - took_part:,} did not; shaded: 90 % interval',
    fontsize='medium',
  )
  style.draw_legend(fig, [axes], columns=3)
  return fig


def draw_over_rounds(
  rows: Sequence[Mapping[str, Any]], *, analytic: float
) -> figure.Figure:
  """How much had leaked after t rounds about one who took part by then.

  Args:
    rows: as `over_rounds.evaluate_by_round` gives them.
    analytic: ε of one who took part; inf without noise, nan if it is not known.

  Returns:
    Two panels: point estimates with intervals, and lower bounds.
  """
  fig, (left, right) = style.make_panels(2, columns=2, height=4.2)
  values = [float(row['epsilon']) for row in rows]
  values += [float(x) for row in rows for x in row['interval'] or ()]
  highest = _highest([*values, analytic])
  for name, look in style.READINGS.items():
    for axes, is_bound in ((left, False), (right, True)):
      mine = [
        row
        for row in rows
        if row['statistic'] == name
        and (row['confidence'] is not None) == is_bound
      ]
      if mine:
        _line(axes, mine, look)
  in_order = sorted(rows, key=lambda row: row['round'])
  ends = in_order[0], in_order[-1]
  n = ' to '.join(f'{row["num_observed"]:,}' for row in ends)
  left.set_title('point estimates, shaded: 90 % interval')
  right.set_title('lower bounds, 95 % at each round')
  for axes in (left, right):
    if not math.isnan(analytic):
      level = [analytic] * 2 if math.isfinite(analytic) else []
      across = [0, 1.02 * ends[1]['round']][: len(level)]
      axes.plot(across, level, **style.analytic_line(analytic))
    axes.set_xlabel(
      f'round; {n} canaries had taken part, '
      f'{ends[0]["num_unobserved"]:,} never did'
    )
    axes.xaxis.set_major_locator(style.set_integer_ticks())
    axes.set_xlim(0, 1.02 * ends[1]['round'])
    style.set_epsilon_axis(axes, 'y', highest)
  left.set_ylabel(
    f'ε at δ = {narrative.format_delta(rows[0]["delta"])}, linear up to 1'
  )
  style.draw_legend(fig, [right, left])
  return fig


def _highest(values: Sequence[float]) -> float:
  """The largest ε that has a place on an axis."""
  return max((x for x in values if math.isfinite(x)), default=1.0)


def _bar(
  axes: mpl_axes.Axes,
  y: int,
  rows: Sequence[Mapping[str, Any]],
  highest: float,
  calibrated: bool,
) -> None:
  look, first = style.READINGS[rows[0]['statistic']], rows[0]
  epsilon = float(first['epsilon'])
  if first['floor_quantiles'] is not None:
    low, high = (float(first['floor_quantiles'][q]) for q in ('5', '95'))
    axes.barh(
      y,
      high - low,
      0.85,
      low,
      color=style.GREY,
      zorder=0,
      label='noise floor: 5 to 95 % when nothing leaks',
    )
  if not math.isnan(epsilon):
    axes.barh(
      y,
      min(epsilon, 2 * highest),
      0.5,
      color=look.color if calibrated else 'white',
      edgecolor=look.color,
      hatch=None if calibrated else '///',
      label=None if calibrated else 'hatched: not calibrated',
    )
  axes.annotate(
    narrative.format_number(epsilon),
    (1, y),
    (4, 0),
    xycoords=('axes fraction', 'data'),
    textcoords='offset points',
    va='center',
  )
  for methods, (marker, label) in _BOUNDS.items():
    bounds = [r for r in rows if r['method'].startswith(methods)]
    # Of several from counts the first one was chosen before looking.
    if bounds and bounds[0]['kind'] == 'confidence bound':
      at = float(bounds[0]['epsilon'])
      axes.plot(at, y, **marker, color=style.BLACK, ls='none', label=label)


def _line(
  axes: mpl_axes.Axes, rows: Sequence[Mapping[str, Any]], look: style.Style
) -> None:
  rounds = [row['round'] for row in rows]
  epsilons = [float(row['epsilon']) for row in rows]
  axes.plot(rounds, epsilons, label=look.name, **look.line())
  if all(row['interval'] for row in rows):
    low, high = np.array([row['interval'] for row in rows], np.float64).T
    axes.fill_between(rounds, low, high, color=look.color, alpha=0.25, lw=0)
