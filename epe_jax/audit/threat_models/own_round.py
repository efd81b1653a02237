"""The attacker who sees every release and knows in which rounds a canary took part."""

from jaxtyping import Bool, Float
import numpy as np

from epe_jax.audit import upper_bounds
from epe_jax.audit.record import Record
from epe_jax.audit.threat_models.shifted_scores import (
  assign_held_out,
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
  assigned, shift = assign_held_out(record.assigned), None
  if models:
    # A row of weights for each difference of models, which are what to expect.
    weights = np.square(assigned, dtype=np.float64)
    shift = root * np.sqrt(np.sum(weights, axis=0))
  elif record.expected is not None:
    expected = np.broadcast_to(record.expected[:, None], assigned.shape)
    shift = root * score_own_round(expected, assigned)
  values = score_own_round(trace, assigned)
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


def score_own_round(
  trace: Float[np.ndarray, 'T k'],
  participation: Bool[np.ndarray, 'T k'] | Float[np.ndarray, 'T k'],
) -> Float[np.ndarray, ' k']:
  """Returns the cosine in a canary's own rounds, if the attacker knows them.

  With n own rounds it is their sum over √n. For n = 1 an unobserved canary has the
  exact null law; for n > 1 its variance is 1/d only if the aggregates of those rounds
  are orthogonal, and client updates seldom are.

  With weights it is Σ_t w_t x_t / √(Σ_t w_t²), the likelihood ratio of independent
  rounds that hold w_t of a canary.

  Args:
    trace: cosines [T, k].
    participation: 0/1 matrix [T, k], or weights; each canary takes part at
      least once. `assign_held_out` assigns rounds to unobserved canaries.

  Raises:
    ValueError: a canary has no round of its own.
  """
  own = np.asarray(participation, np.float64)
  n = np.sum(own**2, axis=0)
  if not np.all(n > 0):
    raise ValueError(
      f'participation has no round for canary {int(np.argmin(n))}; assign '
      "it another's, with `assign_held_out`, or read observed canaries only."
    )
  return np.sum(np.asarray(trace, np.float64) * own, axis=0) / np.sqrt(n)


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
