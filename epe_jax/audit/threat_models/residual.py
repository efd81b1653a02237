"""The attacker of the analytic ε, who removes all updates but the canary's."""

from jaxtyping import Bool, Float
import numpy as np

from epe_jax.audit import upper_bounds
from epe_jax.audit.record import Record
from epe_jax.audit.threat_models.correlated_noise import score_combined
from epe_jax.audit.threat_models.noise_scale import (
  NoiseScale,
  contradict,
  measure_noise,
)
from epe_jax.audit.threat_models.own_round import score_own_round
from epe_jax.audit.threat_models.shifted_scores import (
  assign_held_out,
  can_fit_null,
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
from epe_jax.epsilon import registry
from epe_jax.epsilon.types import Estimate, Scores, Sphere, Unknown
from epe_jax.training.round_scalars import RoundScalars


def _score(record: Record) -> AttackScores | None:
  """The Gaussian mechanism itself: inner products in units of known noise."""
  residual = record.cosines.get('residual')
  if residual is None:
    return None
  sees = f'{name_release(record)}_and_updates'
  assigned = assign_held_out(record.assigned)
  if record.rounds is None:
    if not can_fit_null(record):
      return None
    root = float(np.sqrt(record.dim))
    values = score_own_round(residual, assigned)
    scores = split_scores(record, values, Unknown())
    return describe_shifted(
      RESIDUAL, sees, scores, scale=root, is_expected=False
    )
  noise = measure_noise(record)
  if noise is None or not noise.ratio:
    return _score_without_noise(record, sees, noise)
  if not noise.gives_null_law and not can_fit_null(record):
    return None
  if record.strategy is not None:
    values, shift = score_combined(record, None)
  else:
    values = score_residual(residual, record.included, assigned, record.rounds)
    shift = expect_residual(assigned, record.rounds)
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
    points=(without_noise,),
    bounds=registry.choose_bounds(registry.describe(scores)),
    is_calibrated=True,
    contradictions=contradict(noise),
  )


def without_noise(scores: Scores, *, delta: float) -> Estimate:
  """An infinite ε: nothing hides a canary of which the cosine is 1."""
  del scores
  return Estimate(np.inf, delta, 'without_noise', confidence=None)


def score_residual(
  residual: Float[np.ndarray, 'T k'],
  participation: Bool[np.ndarray, 'T k'],
  assigned: Bool[np.ndarray, 'T k'],
  rounds: RoundScalars,
) -> Float[np.ndarray, ' k']:
  """Returns Σ_t <c, Z_t + S c>/(z S √n) over own rounds, the Gaussian mechanism.

  An attacker who knows all other updates and subtracts them is left with noise of a
  known standard deviation, and with the canary if it took part: N(√n/z, 1), or
  N(0, 1) if it did not. The analytic ε is of this attacker.

  Args:
    residual: cosines [T, k] with the residuals, without any canary.
    participation: row t holds the canaries of round t.
    assigned: row t holds the canaries that are scored in round t; `assign_held_out`
      assigns rounds to unobserved ones.
    rounds: the scalars of rounds with noise.

  References:
    One-shot Empirical Privacy Estimation, section 3.1.
  """
  noise = np.asarray(rounds.residual_norm, np.float64)[:, None] * residual
  total = noise * assigned + rounds.canary_norm[:, None] * participation
  in_noise = np.sum(total / rounds.noise_std[:, None], axis=0)
  return in_noise / np.sqrt(assigned.sum(axis=0))


def expect_residual(
  assigned: Bool[np.ndarray, 'T k'], rounds: RoundScalars
) -> Float[np.ndarray, ' k']:
  """Returns the mean of `score_residual` for observed canaries, √n/z."""
  share = np.asarray(rounds.canary_norm / rounds.noise_std, np.float64)
  return (share @ assigned) / np.sqrt(assigned.sum(axis=0))


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
