"""The attacker who sees every release and knows in which rounds a canary took part."""

import numpy as np

from epe_jax.audit import attack_statistics, upper_bounds
from epe_jax.audit.record import Record
from epe_jax.audit.threat_models.scoring import (
  can_fit_null,
  describe_shifted,
  name_release,
  split_scores,
)
from epe_jax.audit.threat_models.threat_model import AttackScores, ThreatModel
from epe_jax.epsilon.types import Sphere, Unknown


def _score(record: Record) -> AttackScores | None:
  """The round of each canary; of several rounds, the sum of their cosines."""
  trace = record.trace
  if trace is None:
    return None
  models, root = record.sees == 'models', float(np.sqrt(record.dim))
  once = bool(np.count_nonzero(record.assigned, axis=0).max() == 1)
  # Of several rounds norms do not tell how their aggregates lie.
  exact = once and not models
  if not exact and not can_fit_null(record):
    return None
  assigned, shift = attack_statistics.assign_held_out(record.assigned), None
  if models:
    # A row of weights for each difference of models, which are what to expect.
    weights = np.square(assigned, dtype=np.float64)
    shift = root * np.sqrt(np.sum(weights, axis=0))
  elif record.expected is not None:
    expected = np.broadcast_to(record.expected[:, None], assigned.shape)
    shift = root * attack_statistics.score_own_round(expected, assigned)
  values = attack_statistics.score_own_round(trace, assigned)
  is_expected = exact and shift is not None
  scores = split_scores(
    record,
    values,
    Sphere(record.dim) if exact else Unknown(),
    shift,
    assigned.argmax(axis=0),
    is_expected=is_expected,
  )
  return describe_shifted(
    OWN,
    name_release(record),
    scores,
    scale=root,
    is_expected=is_expected,
    is_crowded=exact and not scores.has_known_null,
    is_sum=not exact and not models,
  )


OWN = ThreatModel(
  key='own_round',
  name='own round',
  statistic='own round',
  who=(
    'An attacker who sees what every round releases and knows when a canary took '
    'part'
  ),
  score=_score,
  limit=upper_bounds.bound_known_rounds,
)
