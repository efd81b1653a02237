"""The figures of scores of any system, by the name of their file."""

import math

from matplotlib import figure
import numpy as np

from epe_jax.audit import curves, external_scores
from epe_jax.audit.estimates import Audit
from epe_jax.epsilon.types import Scores
from epe_jax.report.figures import cosines, epsilons, tradeoff

CAPTIONS = {
  'bars.png': (
    'The estimate of ε, what the same estimator reports when nothing leaks, and '
    'lower bounds. A hatched bar is of an estimate that is not calibrated.'
  ),
  'densities.png': (
    'Scores of the canaries that took part and of those that did not. The '
    'further apart, the more an attacker learns.'
  ),
  'tradeoff.png': (
    'How often the attack is wrong about canaries that took no part (false '
    'positives) and about those that did (false negatives), at every threshold. '
    'The further down to the left, the more leaks.'
  ),
}
"""What each figure shows, in the order of a report."""


def draw_scores(scores: Scores, audit: Audit) -> dict[str, figure.Figure]:
  """Draws every figure that `CAPTIONS` names.

  Args:
    scores: of any system.
    audit: what `audit.evaluate_scores` returns of them.

  Returns:
    File name -> figure.
  """
  attack_scores = external_scores.score_external(scores)
  (attack,) = audit.attacks
  grid = np.geomspace(0.5 / _size(attack), 1, 200)[:-1]
  return {
    'bars.png': epsilons.draw_bars(
      audit.attacks,
      analytic=math.nan,
      canaries=f'{attack.num_observed:,} canaries took part, '
      f'{attack.num_unobserved:,} did not',
    ),
    'densities.png': cosines.draw_densities([attack_scores]),
    'tradeoff.png': tradeoff.draw_tradeoff(
      audit,
      [curves.compute_tradeoff(attack_scores, grid)],
      grid,
      allowed={attack.threat_model: None},
    ),
  }


def _size(attack) -> int:
  return max(attack.num_observed, attack.num_unobserved)
