"""What an attacker trades: false positives against false negatives."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxtyping import Float
from matplotlib import axes as mpl_axes
from matplotlib import figure, ticker
import numpy as np

from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.audit.curves import Tradeoff
from epe_jax.audit.estimates import Attack, Audit
from epe_jax.report.figures import style
from epe_jax.text import cells

_ALLOWED = {
  'bound': dict(ls='--', label='least that the mechanism allows'),
  'expectation': dict(ls=':', label='least to expect'),
}


def draw_tradeoff(
  audit: Audit,
  tradeoffs: Sequence[Tradeoff],
  grid: Float[np.ndarray, ' m'],
  *,
  allowed: Mapping[ThreatModel, Float[np.ndarray, ' m'] | None],
) -> figure.Figure:
  """Draws the rates of the attack "took part if the score is high".

  The shading holds the false negative rate of a threshold fixed beforehand in
  19 of 20 audits. The dashed line is the least that the mechanism allows the attacker,
  by the curve of the Gaussian mechanism and by an analytic ε of his own; it is dotted
  where that is only to be expected. The solid one is of the fitted mixture of shifted Gaussians,
  drawn where that is calibrated. On log axes small rates show, which are what ε
  is about.

  Args:
    audit: of the run.
    tradeoffs: of each of its attackers.
    grid: false positive rates of the fitted and the analytic curve, rising.
    allowed: rates of `curves.compute_allowed_fnr` of each attacker.

  Returns:
    A panel for each attacker.
  """
  fig, all_axes = style.make_panels(len(tradeoffs), height=3.8, share=True)
  lowest = float(grid[0])
  for axes, curve in zip(all_axes, tradeoffs):
    attack = audit.find(curve.threat_model)
    assert attack is not None, 'every attacker has a trade-off'
    _draw_attack(axes, attack, curve, grid)
    lowest_fnr = allowed[curve.threat_model]
    if lowest_fnr is not None:
      kind = 'bound' if attack.analytic is None else attack.analytic.kind
      options = dict(color=style.BLACK, lw=1.5) | _ALLOWED[kind]
      _draw_line(axes, grid, lowest_fnr, options)
  all_axes[0].set(xscale='log', yscale='log')
  all_axes[0].set(xlim=(lowest, 1), ylim=(lowest, 1))
  for axis in (all_axes[0].xaxis, all_axes[0].yaxis):
    axis.set_minor_locator(ticker.NullLocator())
  # The last of each column, which need not be in the last row.
  for axes in all_axes[-3:]:
    axes.set_xlabel('false positive rate')
    axes.tick_params(labelbottom=True)
  for axes in all_axes[::3]:
    axes.set_ylabel('false negative rate')
  style.draw_legend(fig, all_axes, columns=5)
  first = audit.attacks[0]
  fig.suptitle(
    f'{first.num_observed:,} canaries took part, {first.num_unobserved:,} did '
    f'not; δ = {cells.format_delta(first.first.delta)}',
    fontsize='medium',
  )
  return fig


def _draw_attack(
  axes: mpl_axes.Axes,
  attack: Attack,
  curve: Tradeoff,
  grid: Float[np.ndarray, ' m'],
) -> None:
  """Draws the counted and the fitted rates of an attacker, beside guessing."""
  axes.plot(grid, 1 - grid, color='0.6', lw=1, label='guessing')
  _draw_counts(axes, curve, float(grid[0]))
  parts = []
  if attack.is_calibrated:
    parts.append(f'ε ≈ {cells.format_epsilon(attack.first)}')
  if attack.analytic is not None:
    parts.append(f'analytic {cells.format_analytic(attack.analytic)}')
  name = attack.threat_model.name
  title = f'{name}: {", ".join(parts)}' if parts else name
  axes.set_title(title, fontsize='medium')
  if curve.fitted is not None:
    options = dict(color=style.VERMILLION, lw=2, label='fitted Gaussians')
    _draw_line(axes, grid, curve.fitted, options)


def _draw_counts(axes: mpl_axes.Axes, curve: Tradeoff, lowest: float) -> None:
  """Draws the rates at every score, and how uncertain the false negatives are."""
  tiny = 1e-12
  axes.fill_between(
    np.maximum(curve.fpr, tiny),
    np.maximum(curve.low, tiny),
    curve.high,
    color='0.5',
    alpha=0.3,
    lw=0,
    label='95 % range of the counts',
  )
  if np.any((curve.fnr == 0) & (curve.fpr <= lowest)):
    axes.text(
      0.45,
      0.5,
      'all told apart',
      transform=axes.transAxes,
      ha='center',
      style='italic',
    )
  visible = (curve.fnr > 0) & (curve.fpr > lowest)
  axes.plot(
    curve.fpr[visible],
    curve.fnr[visible],
    '.',
    color='0.4',
    ms=3,
    zorder=1,
    label='counted',
  )


def _draw_line(
  axes: mpl_axes.Axes,
  fpr: Float[np.ndarray, ' m'],
  fnr: Float[np.ndarray, ' m'],
  options: dict[str, Any],
) -> None:
  # Zero has no place on a logarithmic axis.
  positive = fnr > 0
  axes.plot(fpr[positive], fnr[positive], **options)
