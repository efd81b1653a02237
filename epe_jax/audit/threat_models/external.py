"""Scores of any other system; nothing else is known of it."""

import dataclasses

import numpy as np

from epe_jax.audit import failed_checks
from epe_jax.audit.threat_models.shifted_scores import draw_null, name_law
from epe_jax.audit.threat_models.threat_model import AttackScores, ThreatModel
from epe_jax.epsilon import noise_floor, registry
from epe_jax.epsilon.types import Scores

# The largest chance that scores without a spread are dealt to a group.
_NEGLIGIBLE = 1e-12

EXTERNAL = ThreatModel(
  key='external',
  name='scores as given',
  statistic='as given',
  who='An attacker with these scores',
  score=lambda record: None,
  is_shift=False,
  is_in_overview=False,
)


def score_external(scores: Scores) -> AttackScores:
  """Scores of any other system, with what suits them.

  What is said of how taking part moves them is taken as it is given, and nothing is
  calibrated. Bounds that take scores for Gaussian are among the others and say so.
  When nothing leaks, labels are dealt at random: floors hold for any law of the scores.

  Raises:
    ValueError: a group has only one score.
  """
  if 1 in (scores.observed.size, scores.unobserved.size):
    raise ValueError(
      f'There are too few scores: {scores.observed.size:,} of canaries that took '
      f'part and {scores.unobserved.size:,} of others. Give at least 2 of each, '
      'better hundreds.'
    )
  scores, failed = failed_checks.drop_rejected_null(scores)
  has_spread = _can_fit_spread(scores)
  if not has_spread and not scores.has_known_null:
    # There is no spread in units of which to fit a shift.
    scores = dataclasses.replace(scores, shift=None)
  if scores.shift is None:
    of_law = failed_checks.check_normality(scores)
  else:
    of_law = failed_checks.check_mixture(scores)
  traits = registry.describe(
    scores,
    has_spread=has_spread,
    is_external=True,
    is_rejected=scores.shift is not None and bool(of_law),
  )
  draw, law = draw_null(scores), name_law(scores)
  if scores.unobserved.size:
    draw, law = noise_floor.draw_permutations(scores), ('permuted', id(scores))
  return AttackScores(
    threat_model=EXTERNAL,
    sees='scores',
    scores=scores,
    unit='score',
    points=registry.choose_points(traits),
    bounds=registry.choose_bounds(traits),
    draw=draw,
    law=law,
    failed_checks=(*failed, *(failed_checks.check_repeats(scores) or of_law)),
  )


def _can_fit_spread(scores: Scores) -> bool:
  """Whether each group that is fitted has a spread, here and where nothing leaks.

  It has none if its scores are all equal, as may be when labels are dealt at random
  and many scores are.
  """
  if not failed_checks.scores_differ(scores):
    return False
  if not scores.unobserved.size:
    return True
  fitted = [scores.observed]
  if not scores.has_known_null:
    fitted.append(scores.unobserved)
  pooled = np.concatenate([scores.observed, scores.unobserved])
  most = np.unique(pooled, return_counts=True)[1].max()
  return all(
    np.ptp(group) > 0
    and (most < group.size or (most / pooled.size) ** group.size < _NEGLIGIBLE)
    for group in fitted
  )
