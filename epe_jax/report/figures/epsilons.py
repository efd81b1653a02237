"""The ε of each attacker: at the δ of the run, at each δ and after each round."""

from collections.abc import Mapping, Sequence
import math
from typing import Any

from jaxtyping import Float
from matplotlib import axes as mpl_axes
from matplotlib import figure
import numpy as np

from epe_jax.accounting import Analytic
from epe_jax.audit import threat_models
from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.audit.curves import DeltaCurve
from epe_jax.audit.estimates import Attack
from epe_jax.audit.over_rounds import RoundEstimate
from epe_jax.audit.sequential import SequentialBounds
from epe_jax.report import over_rounds_report
from epe_jax.report.figures import style
from epe_jax.text import cells

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
    'lower bound, 95 %, from one run',
  ),
}


def draw_bars(
  attacks: Sequence[Attack], *, analytic: float, canaries: str
) -> figure.Figure:
  """Draws the estimate of each attacker, its bounds and its noise floor.

  Args:
    attacks: of one audit.
    analytic: ε of the run at its δ, drawn where attackers have none of their own;
      inf without noise, nan if it is not known.
    canaries: the numbers of canaries, as a title.

  Returns:
    One panel, a bar for each attacker.
  """
  num = len(attacks)
  values = [float(attack.first.epsilon) for attack in attacks]
  highest = _find_highest([*values, analytic])
  fig, (axes,) = style.make_panels(1, height=0.55 * num + 1.0)
  for y, attack in enumerate(attacks):
    _draw_bar(axes, y, attack, highest)
  # Where each attacker has a bound of its own, one line for all says less.
  have_bounds = any(a.analytic and a.analytic.kind == 'bound' for a in attacks)
  if not math.isnan(analytic) and not have_bounds:
    ends = [analytic] * 2 if math.isfinite(analytic) else []
    axes.plot(
      ends,
      [-0.6, num - 0.4][: len(ends)],
      **style.style_analytic_line(analytic),
    )
  axes.set_yticks(range(num), [attack.threat_model.name for attack in attacks])
  axes.set_ylim(num - 0.4, -0.6)
  axes.tick_params(axis='y', length=0)
  style.set_epsilon_axis(axes, 'x', highest)
  delta = cells.format_delta(attacks[0].first.delta)
  axes.set_xlabel(f'ε at δ = {delta}; linear up to 1, logarithmic above')
  axes.set_title(canaries, fontsize='medium')
  style.draw_legend(fig, [axes], columns=3)
  return fig


def draw_over_delta(
  curves: Sequence[DeltaCurve],
  deltas: Float[np.ndarray, ' n'],
  *,
  gaussian: Float[np.ndarray, ' n'] | None,
  analytic: float,
  own: Mapping[ThreatModel, Analytic | None],
  delta: float,
  canaries: str,
) -> figure.Figure:
  """Draws ε at each δ, where the estimate is calibrated, with its scatter.

  The shading is the 90 % interval of the shift of the scores. The analytic line is
  of the Gaussian mechanism with the analytic ε at the δ of the run.

  Args:
    curves: of the attackers whose estimate is calibrated.
    deltas: of their points.
    gaussian: ε of that mechanism at these δ; None if the analytic ε is not known.
    analytic: ε of the run at delta; inf without noise.
    own: analytic ε of each attacker at delta; None where it is not known.
    delta: δ of the run.
    canaries: the numbers of canaries, as a title.

  Returns:
    One panel, a line for each attacker.
  """
  fig, (axes,) = style.make_panels(1, height=4.4)
  epsilons = []
  for curve in curves:
    _draw_delta_curve(axes, deltas, curve)
    epsilons += [*curve.epsilon, *curve.high]
  if gaussian is not None:
    # Without noise there is no line, but its name.
    finite = np.isfinite(gaussian)
    axes.plot(
      deltas[finite], gaussian[finite], **style.style_analytic_line(analytic)
    )
    epsilons += [*gaussian[finite]]
  for curve in curves:
    limit = own.get(curve.threat_model)
    if limit is not None and limit.epsilon < analytic:
      look = style.STYLES[curve.threat_model]
      axes.plot(delta, limit.epsilon, 'x', color=look.color, ms=9, mew=2)
      epsilons.append(limit.epsilon)
  axes.axvline(delta, color='0.6', lw=1, ls=':')
  axes.annotate(
    f'δ = {cells.format_delta(delta)}',
    (delta, 1),
    (4, -4),
    xycoords=('data', 'axes fraction'),
    textcoords='offset points',
    va='top',
  )
  axes.set(xscale='log', xlim=(deltas[0], deltas[-1]))
  axes.set(xlabel='δ', ylabel='ε, linear up to 1')
  style.set_epsilon_axis(axes, 'y', _find_highest(epsilons))
  axes.set_title(f'{canaries}; shaded: 90 % interval', fontsize='medium')
  style.draw_legend(fig, [axes], columns=3)
  return fig


def draw_over_rounds(
  estimates: Sequence[RoundEstimate],
  sequential: SequentialBounds | None,
  *,
  analytic: float,
) -> figure.Figure:
  """Draws how much had leaked after t rounds about one who took part by then.

  Args:
    estimates: what `over_rounds.evaluate_by_round` returns.
    sequential: bounds that hold at all rounds at once, of the strongest attacker.
    analytic: ε of one who took part; inf without noise, nan if it is not known.

  Returns:
    Two panels: point estimates with intervals, and lower bounds.
  """
  fig, (left, right) = style.make_panels(2, columns=2, height=4.2)
  values = [float(row.estimate.epsilon) for row in estimates]
  values += [x for row in estimates for x in row.estimate.interval or ()]
  highest = _find_highest([*values, analytic])
  for axes, is_bound in ((left, False), (right, True)):
    rows = over_rounds_report.select_estimates(estimates, is_bound=is_bound)
    _draw_attackers(axes, rows)
  if sequential is not None:
    for epsilons, line, label in (
      (sequential.epsilon_gdp, '-', 'all rounds at once, if f Gaussian'),
      (sequential.epsilon, ':', 'all rounds at once'),
    ):
      right.step(
        sequential.rounds,
        epsilons,
        line,
        where='post',
        color=style.BLACK,
        lw=1.2,
        label=label,
      )
  in_order = sorted(estimates, key=lambda row: row.round)
  first, last = in_order[0], in_order[-1]
  left.set_title('point estimates, shaded: 90 % interval')
  right.set_title('lower bounds, 95 % at each round')
  for axes in (left, right):
    if not math.isnan(analytic):
      level = [analytic] * 2 if math.isfinite(analytic) else []
      across = [0, 1.02 * last.round][: len(level)]
      axes.plot(across, level, **style.style_analytic_line(analytic))
    axes.set_xlabel(
      f'round; {first.num_observed:,} to {last.num_observed:,} canaries had '
      f'taken part, {first.num_unobserved:,} never did'
    )
    axes.xaxis.set_major_locator(style.make_round_locator())
    axes.set_xlim(0, 1.02 * last.round)
    style.set_epsilon_axis(axes, 'y', highest)
  delta = cells.format_delta(estimates[0].estimate.delta)
  left.set_ylabel(f'ε at δ = {delta}, linear up to 1')
  style.draw_legend(fig, [right, left])
  return fig


def _find_highest(values: Sequence[float]) -> float:
  """The largest ε that has a place on an axis."""
  return max((x for x in values if math.isfinite(x)), default=1.0)


def _draw_bar(
  axes: mpl_axes.Axes, y: int, attack: Attack, highest: float
) -> None:
  """Draws the floor, the first estimate and the bounds of an attacker."""
  color = style.STYLES.get(attack.threat_model, style.OTHER_STYLE).color
  epsilon, floor = float(attack.first.epsilon), attack.first.floor
  if floor is not None:
    axes.barh(
      y,
      floor.q95 - floor.q05,
      0.85,
      floor.q05,
      color=style.GREY,
      zorder=0,
      label='noise floor: 5 to 95 % when nothing leaks',
    )
  if not math.isnan(epsilon):
    axes.barh(
      y,
      min(epsilon, 2 * highest),
      0.5,
      color=color if attack.is_calibrated else 'white',
      edgecolor=color,
      hatch=None if attack.is_calibrated else '///',
      label=None if attack.is_calibrated else 'hatched: not calibrated',
    )
  axes.annotate(
    cells.format_number(epsilon),
    (1, y),
    (4, 0),
    xycoords=('axes fraction', 'data'),
    textcoords='offset points',
    va='center',
  )
  if attack.analytic is not None and math.isfinite(attack.analytic.epsilon):
    is_bound = attack.analytic.kind == 'bound'
    axes.plot(
      [attack.analytic.epsilon] * 2,
      [y - 0.42, y + 0.42],
      color=style.BLACK,
      ls='--' if is_bound else ':',
      lw=1.5,
      label='analytic ε of the attacker'
      if is_bound
      else 'expected of a linear server',
    )
  for methods, (marker, label) in _BOUNDS.items():
    bounds = [e for e in attack.estimates if e.method.startswith(methods)]
    # The first of several bounds from counts is the pre-declared one.
    if bounds and bounds[0].kind == 'confidence bound':
      x = float(bounds[0].epsilon)
      axes.plot(x, y, **marker, color=style.BLACK, ls='none', label=label)


def _draw_delta_curve(
  axes: mpl_axes.Axes, deltas: Float[np.ndarray, ' n'], curve: DeltaCurve
) -> None:
  """Draws ε of one attacker at each δ, with its interval."""
  look = style.STYLES[curve.threat_model]
  # The markers of each attacker are at points of their own.
  first = 2 * threat_models.THREAT_MODELS.index(curve.threat_model)
  axes.fill_between(
    deltas, curve.low, curve.high, color=look.color, alpha=0.25, lw=0
  )
  axes.plot(
    deltas,
    curve.epsilon,
    markevery=(first, 12),
    label=curve.threat_model.name,
    **look.line_options,
  )


def _draw_attackers(axes: mpl_axes.Axes, rows: Sequence[RoundEstimate]) -> None:
  """Draws ε over rounds, a line for each attacker, with intervals."""
  for threat_model in threat_models.THREAT_MODELS:
    of_attacker = [row for row in rows if row.threat_model == threat_model]
    if not of_attacker:
      continue
    look = style.STYLES[threat_model]
    rounds = [row.round for row in of_attacker]
    epsilons = [float(row.estimate.epsilon) for row in of_attacker]
    axes.plot(rounds, epsilons, label=threat_model.name, **look.line_options)
    intervals = [row.estimate.interval for row in of_attacker]
    if all(interval is not None for interval in intervals):
      low, high = np.array(intervals, np.float64).T
      axes.fill_between(rounds, low, high, color=look.color, alpha=0.25, lw=0)
