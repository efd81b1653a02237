"""What each attacker learns: estimate, interval, bounds, noise floor and limit."""

from collections.abc import Sequence
import dataclasses
import math
import textwrap
from typing import Any

from matplotlib import axes as mpl_axes
from matplotlib import figure

from epe_jax.audit.results import AttackResult
from epe_jax.epsilon.types import Assumption
from epe_jax.report import cells, words
from epe_jax.report.figures import style
from epe_jax.report.leaks import Leak

# Letters of a line of the name of a row.
_ROW = 12
# Uncalibrated estimates must not stand out.
_FAINT = '#777777'
_UNCALIBRATED = {
  'color': _FAINT,
  'mfc': 'white',
  'mew': 1,
  'ms': 5,
  'label': 'not calibrated: no estimate',
}
_FREE = {'label': 'lower bound (95 %)', 'ms': 18, 'mew': 3}
_SHAPED = {
  'label': 'lower bound (95 %) if scores are Gaussian',
  'marker': 'd',
  'ms': 6,
  'mfc': 'white',
  'mew': 1.2,
}


def draw_leaks(found: Sequence[Leak], *, delta: float) -> figure.Figure:
  """Draws the lower bound, the estimate and the limit of a canary, by attacker.

  One narrow panel, a line for each attacker, without marks if it was not measured.
  """
  fig, (axes,) = style.make_panels(
    1, columns=1, height=0.42 * len(found) + 0.8, width=style.NARROW
  )
  axes.spines['left'].set_visible(False)
  shown = [(x.at_least, x.about) for x in found]
  values = [float(e.epsilon) for pair in shown for e in pair if e is not None]
  highest = style.find_highest([*values, *(leak.at_most for leak in found)])
  for y, leak in enumerate(found):
    style.draw_row(
      axes,
      y,
      leak.about,
      height=0.3,
      color=style.BLUE,
      label='estimate',
      floor='no leak',
      highest=highest,
      line_width=5,
      bounds=[(leak.at_least, {'label': 'lower bound', 'ms': 16, 'mew': 2.5})],
      analytic=leak.at_most,
      line={'label': 'limit', 'color': style.VERMILLION, 'lw': 1.8},
    )
  names = [textwrap.fill(leak.name, _ROW) for leak in found]
  style.set_rows(axes, names, first=0.6, last=0.6)
  style.set_epsilon_axis(axes, 'x', highest)
  axes.set_xlabel(f'ε of a canary at δ = {cells.format_delta(delta)}')
  style.draw_legend(fig, [axes], columns=4)
  return fig


def draw_attackers(
  attacks: Sequence[AttackResult],
  *,
  analytic: float,
  canaries: str,
  finding: str,
) -> figure.Figure:
  """Draws the estimate of each attacker, its interval, bounds and noise floor.

  Points instead of bars: on a partly logarithmic axis the length of a bar means
  nothing. The analytic ε of the run is drawn where attackers have none of their own.
  """
  num = len(attacks)
  values = [float(attack.first.epsilon) for attack in attacks]
  # An estimate that is not calibrated may be anywhere, and must not set the scale.
  calibrated = [
    x for x, attack in zip(values, attacks) if attack.is_calibrated
  ] or values
  bounds = [float(a.bounds[0].epsilon) for a in attacks if a.bounds]
  highest = style.find_highest([*calibrated, *bounds, analytic])
  fig, (axes,) = style.make_panels(1, height=0.55 * num + 1.7)
  styles = style.assign_styles(attack.threat_model for attack in attacks)
  for y, attack in enumerate(attacks):
    color = styles[attack.threat_model].color
    _draw_attacker(axes, y, attack, highest, color)
  # Where each attacker has a bound of its own, one line for all says less.
  have_bounds = any(a.analytic and a.analytic.kind == 'bound' for a in attacks)
  if not math.isnan(analytic) and not have_bounds:
    ends = [analytic] * 2 if math.isfinite(analytic) else []
    axes.plot(
      ends,
      [-0.6, num - 0.4][: len(ends)],
      **style.style_analytic_line(analytic),
    )
  names = [words.spell_name(attack.threat_model) for attack in attacks]
  style.set_rows(axes, names, first=0.6, last=0.6)
  style.set_epsilon_axis(axes, 'x', highest)
  delta = cells.format_delta(attacks[0].first.delta)
  axes.set_xlabel(f'ε at δ = {delta}; linear up to 1, logarithmic above')
  axes.set_title(canaries, fontsize='medium')
  fig.suptitle(finding)
  style.draw_legend(fig, [axes], columns=3)
  return fig


def _draw_attacker(
  axes: mpl_axes.Axes, y: int, attack: AttackResult, highest: float, color: str
) -> None:
  """Draws floor, first estimate, limit and bounds of an attacker, and their numbers."""
  first, analytic = attack.first, attack.analytic
  marks: dict[str, Any] = {'color': color, 'ms': 9, 'zorder': 3}
  said = [f'ε ≈ {cells.format_epsilon(first)}']
  if not attack.is_calibrated:
    epsilon = min(float(first.epsilon), 1.5 * highest)
    first = dataclasses.replace(first, epsilon=epsilon, interval=None)
    marks, said = _UNCALIBRATED, ['not calibrated']
  line = {'label': 'limit', 'ls': '--'}
  if analytic is not None and analytic.kind != 'bound':
    line = {'label': 'expected of a linear server', 'ls': ':'}
  # The first of several bounds from counts is the pre-declared one.
  free = (x for x in attack.bounds if x.is_shape_free)
  shaped = (x for x in attack.bounds if Assumption.GAUSSIAN_SCORES in x.assumes)
  style.draw_row(
    axes,
    y,
    first,
    height=0.36,
    highest=highest,
    line_width=6,
    bounds=[(next(free, None), _FREE), (next(shaped, None), _SHAPED)],
    analytic=math.nan if analytic is None else analytic.epsilon,
    line=line,
    **marks,
  )
  if attack.bounds:
    said.append(f'≥ {cells.format_epsilon(attack.bounds[0])}')
  axes.annotate(
    ', '.join(said),
    (1, y),
    (6, 0),
    xycoords=('axes fraction', 'data'),
    textcoords='offset points',
    va='center',
    color=style.BLACK if attack.is_calibrated else _FAINT,
  )
