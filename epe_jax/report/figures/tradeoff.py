"""Trade-off curves: false negatives over false positives, on probit axes."""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float, Int
from matplotlib import axes as mpl_axes
from matplotlib import figure, ticker
import numpy as np
from scipy import special

from epe_jax.audit.results import AttackResult, Audit
from epe_jax.report import cells, words
from epe_jax.report.curves import Tradeoff
from epe_jax.report.figures import style

# Rates that may be ticks.
_TICKS = (
  *(10.0**-p for p in range(14, 1, -1)),
  *(0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.999, 0.9999, 0.99999),
)
# The smallest distance of ticks, as a share of the axis.
_MIN_GAP = 0.17
# More points of a curve are indistinguishable.
_MAX_POINTS = 200
# Stands for 0, which has no place on a probit axis.
_TINY = 1e-15
# A panel begins at the rate where this share of those who took part is missed.
_MISSED, _LOWEST_FPR = 0.95, 1e-14
_ALLOWED = {
  'bound': dict(ls='--', label='least that the mechanism allows'),
  'expectation': dict(ls=':', label='least to expect'),
}


def draw_tradeoff(
  audit: Audit, curves: Sequence[Tradeoff], *, finding: str
) -> figure.Figure:
  """Draws the rates of the attack "took part if the score is high".

  The shading holds the false negative rate of a threshold fixed in advance in 19 of
  20 audits. On probit axes small rates show, which are what ε is about, and a Gaussian
  mechanism is a straight line.
  """
  fig, all_axes = style.make_panels(len(curves), height=3.8)
  lowest = 0.5 / max(
    audit.attacks[0].num_observed, audit.attacks[0].num_unobserved
  )
  for axes, curve in zip(all_axes, curves):
    attack = audit.find(curve.threat_model)
    assert attack is not None, 'every attacker has a trade-off'
    _draw_attack(axes, attack, curve, lowest)
    if curve.allowed is not None:
      kind = 'bound' if attack.analytic is None else attack.analytic.kind
      options = dict(color=style.BLACK, lw=1.5) | _ALLOWED[kind]
      _draw_line(axes, curve.grid, curve.allowed, options)
    if curve.bound is not None:
      label = '(ε, δ)-DP with the lower bound, 95 %'
      options = dict(color=style.BLUE, lw=1.2, ls='-.', label=label)
      _draw_line(axes, curve.grid, curve.bound, options)
    _set_probit_axes(axes, *_find_limits(curve, lowest))
  # The last of each column, which need not be in the last row.
  for axes in all_axes[-3:]:
    axes.set_xlabel('false positive rate')
  for axes in all_axes[::3]:
    axes.set_ylabel('false negative rate')
  style.draw_legend(fig, all_axes)
  first = audit.attacks[0]
  fig.suptitle(
    f'{finding}\n{first.num_observed:,} canaries took part, '
    f'{first.num_unobserved:,} held out; δ = '
    f'{cells.format_delta(first.first.delta)}'
  )
  return fig


def _find_limits(
  curve: Tradeoff, lowest: float
) -> tuple[tuple[float, float], tuple[float, float]]:
  """Where the errors of an attack are: false positive and false negative rates.

  Where the null law is known, so are false positive rates far below one over the number
  of canaries, and only there do attacks that seldom err differ.
  """
  missed = curve.fpr[curve.fnr >= _MISSED]
  low = max(float(missed.max(initial=0.0)), _LOWEST_FPR)
  low, high = min(low, lowest), 1 - lowest
  # An attack that is hardly ever wrong is shown in the lower left corner alone.
  found = curve.fpr[curve.fnr <= lowest]
  if found.size and float(found.min()) < 0.3:
    high = 0.5
  return (low, high), (lowest, high if high > 0.5 else _MISSED)


def _set_probit_axes(
  axes: mpl_axes.Axes, xlim: tuple[float, float], ylim: tuple[float, float]
) -> None:
  """Makes both axes linear in normal quantiles."""
  # Rates of 0 and 1 are at infinity.
  functions = (special.ndtri, special.ndtr)
  axes.set_xscale('function', functions=functions)
  axes.set_yscale('function', functions=functions)
  for axis, (low, high) in ((axes.xaxis, xlim), (axes.yaxis, ylim)):
    ticks: list[float] = []
    length = special.ndtri(high) - special.ndtri(low)
    for tick in (x for x in _TICKS if low <= x <= high):
      is_free = not ticks or (
        special.ndtri(tick) - special.ndtri(ticks[-1]) > _MIN_GAP * length
      )
      if is_free:
        ticks.append(tick)
    axis.set_major_locator(ticker.FixedLocator(ticks))
    axis.set_minor_locator(ticker.NullLocator())
    axis.set_major_formatter(_format_rate)
  axes.set(xlim=xlim, ylim=ylim)


def _format_rate(rate: float, _: float) -> str:
  """A rate as people write it: 1e-8, 0.01."""
  if rate >= 1e-3:
    return f'{rate:.5g}'
  return cells.format_delta(rate)


def _draw_attack(
  axes: mpl_axes.Axes, attack: AttackResult, curve: Tradeoff, lowest: float
) -> None:
  """Draws the counted and the fitted rates of an attacker, and those of guessing."""
  axes.plot(curve.grid, 1 - curve.grid, color='#999999', lw=1, label='guessing')
  _draw_counts(axes, curve, lowest)
  parts = []
  if attack.is_calibrated:
    parts.append(f'ε ≈ {cells.format_epsilon(attack.first)}')
  if attack.analytic is not None:
    parts.append(f'limit {cells.format_analytic(attack.analytic)}')
  name = words.spell_name(attack.threat_model)
  title = f'{name}: {", ".join(parts)}' if parts else name
  axes.set_title(title, fontsize=9.5)
  if curve.fitted is not None:
    options = dict(color=style.VERMILLION, lw=2, label='fitted Gaussians')
    _draw_line(axes, curve.grid, curve.fitted, options)


def _draw_counts(axes: mpl_axes.Axes, curve: Tradeoff, lowest: float) -> None:
  """Draws the rates at every score, and how uncertain the false negatives are."""
  at = _thin_out(curve.fpr)
  fpr, low, high = (
    np.clip(x[at], _TINY, 1 - _TINY) for x in (curve.fpr, curve.low, curve.high)
  )
  grey: dict[str, Any] = {'color': '#808080', 'alpha': 0.3, 'lw': 0}
  axes.fill_between(fpr, low, high, label='95 % range of the counts', **grey)
  if np.any((curve.fnr == 0) & (curve.fpr <= lowest)):
    middle: dict[str, Any] = {'ha': 'center', 'transform': axes.transAxes}
    axes.text(0.45, 0.5, 'all told apart', style='italic', **middle)
  visible = at[(curve.fnr[at] > 0) & (curve.fpr[at] > _LOWEST_FPR)]
  dots: dict[str, Any] = {'color': '#666666', 'ms': 3, 'zorder': 1}
  axes.plot(
    curve.fpr[visible], curve.fnr[visible], '.', label='counted', **dots
  )


def _thin_out(fpr: Float[np.ndarray, ' n']) -> Int[np.ndarray, ' m']:
  """The indices of points that are evenly spread over a probit axis."""
  order = np.argsort(fpr, kind='stable')
  if len(order) <= _MAX_POINTS:
    return order
  places = special.ndtri(np.clip(fpr[order], _TINY, 1 - _TINY))
  evenly = np.linspace(places[0], places[-1], _MAX_POINTS)
  return order[np.unique(np.searchsorted(places, evenly).clip(0, len(fpr) - 1))]


def _draw_line(
  axes: mpl_axes.Axes,
  fpr: Float[np.ndarray, ' m'],
  fnr: Float[np.ndarray, ' m'],
  options: dict[str, Any],
) -> None:
  # Zero has no place on a probit axis.
  positive = (fnr > 0) & (fnr < 1)
  axes.plot(fpr[positive], fnr[positive], **options)
