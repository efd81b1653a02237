"""The attacker of the analytic ε, who removes all updates but the canary's."""

import numpy as np

from epe_jax.audit import attack_statistics, upper_bounds
from epe_jax.audit.noise_scale import NoiseScale, measure_noise
from epe_jax.audit.record import Record
from epe_jax.audit.threat_models.scoring import (
  can_fit_null,
  contradict,
  describe_shifted,
  name_release,
  scale_noise,
  split_scores,
)
from epe_jax.audit.threat_models.threat_model import (
  COSINE,
  AttackScores,
  ThreatModel,
)
from epe_jax.epsilon import (
  cosine_alternative,
  registry,
)
from epe_jax.epsilon.types import Sphere, Unknown


def _score(record: Record) -> AttackScores | None:
  """The Gaussian mechanism itself: inner products in units of known noise."""
  residual = record.cosines.get('residual')
  if residual is None:
    return None
  sees = f'{name_release(record)}, other updates known'
  assigned = attack_statistics.assign_held_out(record.assigned)
  if record.rounds is None:
    if not can_fit_null(record):
      return None
    root = float(np.sqrt(record.dim))
    values = attack_statistics.score_own_round(residual, assigned)
    scores = split_scores(record, values, Unknown())
    return describe_shifted(
      RESIDUAL, sees, scores, scale=root, is_expected=False
    )
  noise = measure_noise(record)
  if noise is None or not noise.ratio:
    return _score_without_noise(record, sees, noise)
  if not noise.is_steady and not can_fit_null(record):
    return None
  values = attack_statistics.score_residual(
    residual, record.included, assigned, record.rounds
  )
  shift = attack_statistics.expect_residual(assigned, record.rounds)
  return describe_shifted(
    RESIDUAL,
    sees,
    scale_noise(record, values, shift, noise),
    scale=1.0,
    is_expected=True,
    noise=noise,
  )


def _score_without_noise(
  record: Record, sees: str, noise: NoiseScale | None
) -> AttackScores:
  """Without noise only the canary itself is left: a cosine of 1."""
  values = record.observed.astype(np.float64)
  scores = split_scores(record, values, Sphere(record.dim))
  return AttackScores(
    threat_model=RESIDUAL,
    sees=sees,
    scores=scores,
    unit=COSINE,
    scale=float(np.sqrt(record.dim)),
    points=(cosine_alternative.shifted_cosine,),
    bounds=registry.choose_bounds(registry.describe(scores)),
    draw=None,
    law=None,
    is_calibrated=True,
    is_expected=False,
    failed_checks=(),
    contradictions=contradict(noise),
  )


RESIDUAL = ThreatModel(
  key='residual',
  name='own round, others removed',
  statistic='own round, others removed',
  who='An attacker who also knows the updates of all others and removes them',
  score=_score,
  limit=upper_bounds.bound_known_rounds,
  is_worst_case=True,
  is_in_overview=False,
)
