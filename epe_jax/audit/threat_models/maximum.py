"""The attacker of the paper, who takes the largest cosine over rounds.

Its null law is a power of that of one cosine.

References:
  Andrew et al. 2023, "One-shot empirical privacy estimation for federated learning",
  section 4.
"""

import dataclasses
import functools

from jaxtyping import Float, Int
import numpy as np

from epe_jax.audit import (
  failed_checks,
  upper_bounds,
)
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
from epe_jax.epsilon import maximum, noise_floor, registry, threshold
from epe_jax.epsilon import shift as shift_fit
from epe_jax.epsilon.registry import Estimator
from epe_jax.epsilon.types import Scores, Unknown
from epe_jax.fact import Fact


def _score(record: Record) -> AttackScores | None:
  largest = record.cosines.get(f'max_{record.sees}')
  if largest is None and record.trace is not None:
    largest = max_over_rounds(record.trace)
  if largest is None or not can_fit_null(record):
    return None
  # In units of the std of one cosine, whose maximum has a law of its own.
  largest = np.sqrt(record.dim) * np.asarray(largest, np.float64)
  scores = split_scores(record, largest, Unknown())
  sees, rounds = name_release(record), record.num_rounds
  if record.expected is None:
    return describe_maxima(sees, scores, rounds=rounds)
  own_shifts = np.sqrt(record.dim) * record.expected[:, None] * record.assigned
  own_shifts = -np.sort(-own_shifts[:, record.observed], axis=0)
  max_rounds = np.count_nonzero(record.assigned, axis=0).max()
  in_round = record.assigned[:, record.observed].sum(axis=1)
  overlap = measure_overlap(record.expected, in_round, record.dim)
  return describe_maxima(
    sees,
    dataclasses.replace(scores, overlap=overlap),
    own_shifts[:max_rounds].T,
    rounds=rounds,
  )


def describe_maxima(
  sees: str,
  scores: Scores,
  own_shifts: Float[np.ndarray, 'n1 n'] | None = None,
  *,
  rounds: int,
) -> AttackScores:
  """Maxima over rounds, with what suits them; audits and plans describe them so.

  Args:
    sees: as in `AttackScores`.
    scores: maxima in units of 1/√d.
    own_shifts: expected shifts in the rounds of each observed canary, in the same
      units, largest first; None if they are unknown, and then no estimate is
      calibrated.
    rounds: T.
  """
  differ = failed_checks.scores_differ(scores)
  points: tuple[Estimator, ...] = (
    registry.FITTED if differ else registry.COUNTED,
    threshold.eps_lo,
  )
  failed, tau = failed_checks.check_not_swapped(scores), float(rounds)
  if own_shifts is not None:
    estimator = functools.partial(
      maximum.maximum_over_rounds, own=own_shifts, rounds=rounds
    )
    points = (estimator, *points)
    tau = maximum.fit_rounds(scores.unobserved, rounds)
    p = maximum.p_value(scores.unobserved)
    if p < shift_fit.REJECTED_BELOW:
      failed += (Fact('maximum_law_rejected', {'p_value': float(p)}),)
  return AttackScores(
    threat_model=MAXIMUM,
    sees=sees,
    scores=scores,
    unit=COSINE,
    points=points,
    bounds=registry.choose_bounds(registry.describe(scores)),
    draw=noise_floor.draw_from_null(
      scores.observed.size, scores.unobserved.size, rounds=tau
    ),
    law=('maximum', scores.observed.size, scores.unobserved.size, tau),
    is_calibrated=own_shifts is not None and not failed,
    failed_checks=failed,
  )


def max_over_rounds(trace: Float[np.ndarray, 'T k']) -> Float[np.ndarray, ' k']:
  """Returns g_j = max_t cos(c_j, ρ̄_t), if the attacker does not know the rounds.

  References:
    One-shot Empirical Privacy Estimation, Algorithm 3.
  """
  return np.max(np.asarray(trace, np.float64), axis=0)


def measure_overlap(
  expected: Float[np.ndarray, ' T'], in_round: Int[np.ndarray, ' T'], dim: int
) -> float:
  """`Scores.overlap` of canaries that are in the same rounds.

  Args:
    expected: mean cosine of a canary with the aggregate of its round.
    in_round: number of observed canaries that are assigned each round.
    dim: d.
  """
  squares = dim * np.square(expected, dtype=np.float64)
  others = np.sum(in_round * (in_round - 1) * squares**2)
  return float(others / (dim * np.sum(in_round * squares)))


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
