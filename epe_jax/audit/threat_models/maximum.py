"""The attacker of the paper, who takes the largest cosine over rounds.

Its null law is a power of that of one cosine.

References:
  Andrew et al. 2023, "One-shot empirical privacy estimation for federated learning",
  section 4.
"""

import dataclasses
import functools

from jaxtyping import Float
import numpy as np

from epe_jax.audit import (
  failed_checks,
  upper_bounds,
)
from epe_jax.audit.failed_checks import Check
from epe_jax.audit.record import Record
from epe_jax.audit.threat_models.shifted_scores import (
  can_fit_null,
  name_release,
  split_scores,
)
from epe_jax.audit.threat_models.threat_model import (
  COSINE,
  AttackScores,
  ThreatModel,
)
from epe_jax.epsilon import registry
from epe_jax.epsilon.null_laws import noise_floor
from epe_jax.epsilon.points import maximum, shift_fit, threshold
from epe_jax.epsilon.registry import Estimator
from epe_jax.epsilon.types import Unknown


def _score(record: Record) -> AttackScores | None:
  largest = record.cosines.get(f'max_{record.sees}')
  if largest is None and record.trace is not None:
    largest = max_over_rounds(record.trace)
  if largest is None or not can_fit_null(record):
    return None
  # In units of the std of one cosine, whose maximum has a law of its own.
  largest = np.sqrt(record.dim) * np.asarray(largest, np.float64)
  scores = split_scores(record, largest, Unknown())
  differ = failed_checks.scores_differ(scores)
  points: tuple[Estimator, ...] = (
    registry.FITTED if differ else registry.COUNTED,
    threshold.eps_lo,
  )
  failed = failed_checks.check_not_swapped(scores)
  tau = float(record.num_rounds)
  if record.expected is not None:
    own_shifts = (
      np.sqrt(record.dim) * record.expected[:, None] * record.assigned
    )
    own_shifts = -np.sort(-own_shifts[:, record.observed], axis=0)
    scores = dataclasses.replace(scores, overlap=_measure_overlap(record))
    max_rounds = np.count_nonzero(record.assigned, axis=0).max()
    estimator = functools.partial(
      maximum.maximum_over_rounds,
      own=own_shifts[:max_rounds].T,
      rounds=len(own_shifts),
    )
    points = (estimator, *points)
    tau = maximum.fit_rounds(scores.unobserved, len(own_shifts))
    p = maximum.p_value(scores.unobserved)
    if p < shift_fit.REJECTED_BELOW:
      failed += (Check('maximum_law_rejected', {'p_value': float(p)}),)
  return AttackScores(
    threat_model=MAXIMUM,
    sees=name_release(record),
    scores=scores,
    unit=COSINE,
    points=points,
    bounds=registry.choose_bounds(registry.describe(scores)),
    draw=noise_floor.draw_from_null(
      scores.observed.size, scores.unobserved.size, rounds=tau
    ),
    law=('maximum', scores.observed.size, scores.unobserved.size, tau),
    is_calibrated=record.expected is not None and not failed,
    failed_checks=failed,
  )


def max_over_rounds(trace: Float[np.ndarray, 'T k']) -> Float[np.ndarray, ' k']:
  """Returns g_j = max_t cos(c_j, ρ̄_t), if the attacker does not know the rounds.

  References:
    One-shot Empirical Privacy Estimation, Algorithm 3.
  """
  return np.max(np.asarray(trace, np.float64), axis=0)


def _measure_overlap(record: Record) -> float:
  """As `Scores.overlap` of canaries that are in the same rounds."""
  assert record.expected is not None
  squares = record.dim * np.square(record.expected, dtype=np.float64)
  num = record.assigned[:, record.observed].sum(axis=1)
  others = np.sum(num * (num - 1) * squares**2)
  return float(others / (record.dim * np.sum(num * squares)))


MAXIMUM = ThreatModel(
  key='maximum',
  name='maximum over rounds',
  statistic='maximum over rounds',
  who=(
    'An attacker who sees what every round releases and takes the largest cosine'
  ),
  score=_score,
  limit=upper_bounds.bound_unknown_rounds,
  is_shift=False,
  is_in_overview=False,
)
