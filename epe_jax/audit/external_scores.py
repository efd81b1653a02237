"""Scores of any other system, of which nothing is known but the scores."""

from epe_jax.audit import doubts, estimators
from epe_jax.audit.attack_scores import (
  AttackScores,
  ThreatModel,
  draw_null,
  name_law,
)
from epe_jax.epsilon import diagnostics, noise_floor, parametric
from epe_jax.epsilon.types import Scores

EXTERNAL = ThreatModel(
  'external',
  'scores as given',
  'as given',
  'An attacker with these scores',
  lambda record: None,
)


def score_external(scores: Scores) -> AttackScores:
  """Scores of any other system, with what suits them.

  Nothing is known of how taking part moves them, so nothing is calibrated. Bounds
  that take scores for Gaussian are among the others and say so. When nothing
  leaks, labels are dealt at random: floors hold for any law of the scores.
  """
  scores, reasons = doubts.drop_rejected_null(scores)
  has_spread = doubts.scores_differ(scores)
  draw, law = draw_null(scores), name_law(scores)
  if scores.unobserved.size:
    draw, law = noise_floor.draw_permutations(scores), ('permuted', id(scores))
  reason = diagnostics.warn_if_not_gaussian(scores)
  return AttackScores(
    threat_model=EXTERNAL,
    sees='scores',
    scores=scores,
    unit='score',
    scale=1.0,
    points=estimators.choose_points(estimators.NULL_STD, has_spread),
    bounds=(
      *estimators.choose_bounds(scores),
      *((parametric.gaussian_lower_bound,) if has_spread else ()),
    ),
    draw=draw,
    law=law,
    is_calibrated=False,
    is_expected=False,
    doubts=(*reasons, *([reason.removesuffix('.')] if reason else ())),
  )
