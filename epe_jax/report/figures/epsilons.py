"""What ε was found: of each attacker, at each δ and after each round."""

from collections.abc import Sequence
import math
from typing import Any

from jaxtyping import Float
from matplotlib import axes as mpl_axes
from matplotlib import figure
import numpy as np

from epe_jax.audit import threat_models
from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.audit.curves import DeltaCurve
from epe_jax.audit.estimates import Attack
from epe_jax.audit.over_rounds import RoundEstimate
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
  attacks: Sequence[Attack], *, analytic: float, canaries: str
) -> figure.Figure:
  """The estimate of each attacker, its bounds and its noise floor.

  Args:
    attacks: of one audit.
    analytic: ε at its δ; inf without noise, nan if it is not known.
    canaries: how many there were, in words.

  Returns:
    One panel, a bar for each attacker.
  """
  num = len(attacks)
  values = [float(attack.first.epsilon) for attack in attacks]
  highest = _highest([*values, analytic])
  fig, (axes,) = style.make_panels(1, height=0.55 * num + 1.0)
  for y, attack in enumerate(attacks):
    _bar(axes, y, attack, highest)
  if not math.isnan(analytic):
    ends = [analytic] * 2 if math.isfinite(analytic) else []
    axes.plot(
      ends, [-0.6, num - 0.4][: len(ends)], **style.analytic_line(analytic)
    )
  axes.set_yticks(range(num), [attack.threat_model.name for attack in attacks])
  axes.set_ylim(num - 0.4, -0.6)
  axes.tick_params(axis='y', length=0)
  style.set_epsilon_axis(axes, 'x', highest)
  delta = narrative.format_delta(attacks[0].first.delta)
  axes.set_xlabel(f'ε at δ = {delta}; linear up to 1, logarithmic above')
  axes.set_title(canaries, fontsize='medium')
  style.draw_legend(fig, [axes], columns=3)
  return fig


def draw_over_delta(
  lines: Sequence[DeltaCurve],
  deltas: Float[np.ndarray, ' n'],
  *,
  gaussian: Float[np.ndarray, ' n'] | None,
  analytic: float,
  delta: float,
  canaries: str,
) -> figure.Figure:
  """ε at each δ, where the estimate is calibrated, with its scatter.

  The shading is the 90 % interval of the shift of the scores. The analytic line is
  of the Gaussian mechanism with the analytic ε at the δ of the run.

  Args:
    lines: of the attackers whose estimate is calibrated.
    deltas: of their points.
    gaussian: ε of that mechanism there; None if the analytic ε is not known.
    analytic: ε of the run at delta; inf without noise.
    delta: δ of the run.
    canaries: how many there were, in words.
  """
  fig, (axes,) = style.make_panels(1, height=4.4)
  drawn = []
  for line in lines:
    # Markers of each attacker have places of their own.
    i = threat_models.THREAT_MODELS.index(line.threat_model)
    drawn_as = style.STYLES[line.threat_model]
    axes.fill_between(
      deltas, line.low, line.high, color=drawn_as.color, alpha=0.25, lw=0
    )
    axes.plot(
      deltas,
      line.epsilon,
      markevery=(2 * i, 12),
      label=line.threat_model.name,
      **drawn_as.line(),
    )
    drawn += [*line.epsilon, *line.high]
  if gaussian is not None:
    # Without noise there is no line, but its name.
    some = np.isfinite(gaussian)
    axes.plot(deltas[some], gaussian[some], **style.analytic_line(analytic))
    drawn += [*gaussian[some]]
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
  axes.set_title(f'{canaries}; shaded: 90 % interval', fontsize='medium')
  style.draw_legend(fig, [axes], columns=3)
  return fig


def draw_over_rounds(
  leaked: Sequence[RoundEstimate], *, analytic: float
) -> figure.Figure:
  """How much had leaked after t rounds about one who took part by then.

  Args:
    leaked: as `over_rounds.evaluate_by_round` gives it.
    analytic: ε of one who took part; inf without noise, nan if it is not known.

  Returns:
    Two panels: point estimates with intervals, and lower bounds.
  """
  fig, (left, right) = style.make_panels(2, columns=2, height=4.2)
  values = [float(one.estimate.epsilon) for one in leaked]
  values += [x for one in leaked for x in one.estimate.interval or ()]
  highest = _highest([*values, analytic])
  for threat_model in threat_models.THREAT_MODELS:
    for axes, is_bound in ((left, False), (right, True)):
      mine = [
        one
        for one in leaked
        if one.threat_model == threat_model
        and (one.estimate.confidence is not None) == is_bound
      ]
      if mine:
        _line(axes, mine, threat_model)
  in_order = sorted(leaked, key=lambda one: one.round)
  ends = in_order[0], in_order[-1]
  n = ' to '.join(f'{one.num_observed:,}' for one in ends)
  left.set_title('point estimates, shaded: 90 % interval')
  right.set_title('lower bounds, 95 % at each round')
  for axes in (left, right):
    if not math.isnan(analytic):
      level = [analytic] * 2 if math.isfinite(analytic) else []
      across = [0, 1.02 * ends[1].round][: len(level)]
      axes.plot(across, level, **style.analytic_line(analytic))
    axes.set_xlabel(
      f'round; {n} canaries had taken part, '
      f'{ends[0].num_unobserved:,} never did'
    )
    axes.xaxis.set_major_locator(style.set_integer_ticks())
    axes.set_xlim(0, 1.02 * ends[1].round)
    style.set_epsilon_axis(axes, 'y', highest)
  left.set_ylabel(
    f'ε at δ = {narrative.format_delta(leaked[0].estimate.delta)}, linear up to 1'
  )
  style.draw_legend(fig, [right, left])
  return fig


def _highest(values: Sequence[float]) -> float:
  """The largest ε that has a place on an axis."""
  return max((x for x in values if math.isfinite(x)), default=1.0)


def _bar(axes: mpl_axes.Axes, y: int, attack: Attack, highest: float) -> None:
  color = style.STYLES.get(attack.threat_model, style.ANOTHER).color
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
    narrative.format_number(epsilon),
    (1, y),
    (4, 0),
    xycoords=('axes fraction', 'data'),
    textcoords='offset points',
    va='center',
  )
  for methods, (marker, label) in _BOUNDS.items():
    bounds = [e for e in attack.estimates if e.method.startswith(methods)]
    # Of several from counts the first one was chosen before looking.
    if bounds and bounds[0].kind == 'confidence bound':
      at = float(bounds[0].epsilon)
      axes.plot(at, y, **marker, color=style.BLACK, ls='none', label=label)


def _line(
  axes: mpl_axes.Axes,
  leaked: Sequence[RoundEstimate],
  threat_model: ThreatModel,
) -> None:
  drawn_as = style.STYLES[threat_model]
  rounds = [one.round for one in leaked]
  epsilons = [float(one.estimate.epsilon) for one in leaked]
  axes.plot(rounds, epsilons, label=threat_model.name, **drawn_as.line())
  between = [one.estimate.interval for one in leaked]
  if all(interval is not None for interval in between):
    low, high = np.array(between, np.float64).T
    axes.fill_between(rounds, low, high, color=drawn_as.color, alpha=0.25, lw=0)
