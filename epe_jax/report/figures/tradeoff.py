"""What an attacker trades: false positives against false negatives."""

import math
from typing import Any

from jaxtyping import Float
from matplotlib import axes as mpl_axes
from matplotlib import figure, ticker
import numpy as np
from scipy import special

from epe_jax.audit import threat_models
from epe_jax.audit.record import Record
from epe_jax.epsilon import (
  cosine_null,
  intervals,
  location_mixture,
  threshold,
  tradeoff_curves,
)
from epe_jax.epsilon.types import Scores
from epe_jax.report import narrative
from epe_jax.report.figures import style


def draw_tradeoff(
  record: Record, *, analytic: float, delta: float
) -> figure.Figure:
  """Rates of the attack "took part if the score is high", for each attacker.

  The shading holds the false negative rate of a threshold fixed beforehand in
  19 of 20 audits. No attack on a Gaussian mechanism with the analytic ε is below
  the dashed line. The solid one is of the fitted mixture of shifted Gaussians,
  drawn where that is calibrated. On log axes small rates show, which are what ε
  is about.

  Args:
    record: what a run kept.
    analytic: ε of the run at delta; inf without noise, nan if it is not known.
    delta: δ, in (0, 1).

  Returns:
    A panel for each reading of `threat_models.read_all`.
  """
  found = threat_models.read_all(record)
  fig, all_axes = style.make_panels(len(found), height=3.8, share=True)
  lowest = 0.5 / max(record.observed.sum(), (~record.observed).sum())
  grid = np.geomspace(lowest, 1, 200)[:-1]
  for axes, reading in zip(all_axes, found):
    scores = reading.scores
    axes.plot(grid, 1 - grid, color='0.6', lw=1, label='guessing')
    _counted(axes, scores, lowest)
    title = style.READINGS[reading.statistic].name
    if reading.calibrated:
      epsilon = float(reading.points[0](scores, delta=delta).epsilon)
      title = f'{title}: ε ≈ {narrative.format_number(epsilon)}'
    if reading.calibrated and scores.shift is not None:
      look = dict(color=style.VERMILLION, lw=2, label='fitted Gaussians')
      _line(axes, grid, 1 - location_mixture.rates(scores, grid), look)
    if not math.isnan(analytic):
      # Nothing is left of the curve of an infinite ε but its name.
      mu = tradeoff_curves.mu_of_epsilon(analytic, delta)
      fnr = special.ndtr(-special.ndtri(grid) - mu)
      _line(axes, grid, fnr, style.analytic_line(analytic))
    axes.set_title(title)
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
  scores = found[0].scores
  fig.suptitle(
    f'{scores.observed.size:,} canaries took part, '
    f'{scores.unobserved.size:,} did not; δ = {narrative.format_delta(delta)}',
    fontsize='medium',
  )
  return fig


def _counted(axes: mpl_axes.Axes, scores: Scores, lowest: float) -> None:
  """Rates at every score, with the uncertainty of the false negatives."""
  at, misses = threshold.realisable(scores.observed)
  num = scores.observed.size
  if scores.dim is not None:
    fpr = np.asarray(cosine_null.law(scores.dim).sf(at))
  else:
    # Half an alarm where there was none: a rate of 0 has no place here.
    alarms = threshold.at_least(scores.unobserved, at)
    fpr = np.maximum(alarms, 0.5) / scores.unobserved.size
  high = intervals.clopper_pearson_upper(misses, num, 0.025)
  low = 1 - np.asarray(
    intervals.clopper_pearson_upper(num - misses, num, 0.025)
  )
  tiny = 1e-12
  axes.fill_between(
    np.maximum(fpr, tiny),
    np.maximum(low, tiny),
    high,
    color='0.5',
    alpha=0.3,
    lw=0,
    label='95 % range of the counts',
  )
  if np.any((misses == 0) & (fpr <= lowest)):
    axes.text(
      0.45,
      0.5,
      'all told apart',
      transform=axes.transAxes,
      ha='center',
      style='italic',
    )
  some = (misses > 0) & (fpr > lowest)
  axes.plot(
    fpr[some],
    misses[some] / num,
    '.',
    color='0.4',
    ms=3,
    zorder=1,
    label='counted',
  )


def _line(
  axes: mpl_axes.Axes,
  fpr: Float[np.ndarray, ' m'],
  fnr: Float[np.ndarray, ' m'],
  look: dict[str, Any],
) -> None:
  some = fnr > 0
  axes.plot(fpr[some], fnr[some], **look)
