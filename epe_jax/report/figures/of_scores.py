"""The figures of scores of any system, by the name of their file."""

import dataclasses
import math

from matplotlib import figure
import numpy as np
from scipy import special

from epe_jax.audit import curves, headline
from epe_jax.audit.evaluation import Audit
from epe_jax.epsilon.types import Scores
from epe_jax.report.figures import attackers, cosines, style, tradeoff
from epe_jax.text import cells

CAPTIONS = {
  'attackers.png': (
    'The estimate of ε, what the same estimator reports when nothing leaks, and '
    'lower bounds. An estimate that a test of the scores speaks against is small '
    'and grey.'
  ),
  'densities.png': (
    'Scores of the canaries that took part and of those that did not. The '
    'further apart, the more an attacker learns.'
  ),
  'tradeoff.png': (
    'How often the attack is wrong about canaries that took no part (false '
    'positives) and about those that did (false negatives), at every threshold. '
    'The further down to the left, the more leaks. The axes are of normal '
    'quantiles. With 95 % confidence some attack gets as low as the dashed and '
    'dotted line.'
  ),
}
"""What each figure shows, in the order of a report."""

# In inches, for the name of the attack and its numbers.
_MARGINS = {'attackers.png': {'left': 1.5, 'right': 2.4}}


def draw_scores(scores: Scores, audit: Audit) -> dict[str, figure.Figure]:
  """Draws every figure that `CAPTIONS` names.

  Args:
    scores: of any system.
    audit: what `audit.evaluate_scores` returns of them.

  Returns:
    File name -> figure.
  """
  (attack,) = audit.attacks
  found = headline.find_headline(audit)
  assert found is not None, 'scores have a bound'
  # Evenly over normal quantiles, as the axes are.
  low, high = special.ndtri(1e-14), special.ndtri(1 - 0.5 / _size(attack))
  grid = special.ndtr(np.linspace(low, high, 240))
  finding = f'ε ≥ {cells.format_epsilon(attack.bounds[0])} (95 %)'
  figures = {
    'attackers.png': attackers.draw_attackers(
      # Shown as an estimate where the headline shows it.
      [dataclasses.replace(attack, is_calibrated=found.point is not None)],
      analytic=math.nan,
      canaries=f'{attack.num_observed:,} canaries took part, '
      f'{attack.num_unobserved:,} did not',
      finding=finding,
    ),
    'densities.png': cosines.draw_densities(audit.attacks),
    'tradeoff.png': tradeoff.draw_tradeoff(
      audit,
      curves.compute_tradeoffs(audit, grid),
      grid,
      allowed={attack.threat_model: None},
      bounds={
        attack.threat_model: curves.compute_bound_fnr(attack.bounds[0], grid)
      },
      finding=finding,
    ),
  }
  for name, fig in figures.items():
    style.lay_out(fig, **_MARGINS.get(name, {}))
  return figures


def _size(attack) -> int:
  return max(attack.num_observed, attack.num_unobserved)
