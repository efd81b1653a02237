"""The attacker who combines rounds, where noise is correlated over rounds.

DP-FTRL with a matrix mechanism releases x + C⁻¹ Z: Z is independent, C is lower
triangular. The noise of one round alone is larger than that of Z, which an attacker
who has all rounds undoes by multiplying with C.
"""

from jaxtyping import Bool, Float
import numpy as np

from epe_jax import accounting
from epe_jax.accounting import Analytic
from epe_jax.audit.record import Record
from epe_jax.audit.threat_models import (
  AttackScores,
  ThreatModel,
  noise_scale,
  shifted_scores,
)
from epe_jax.training.round_scalars import RoundScalars


def combining_rounds(
  strategy: Float[np.ndarray, 'rows columns'],
) -> ThreatModel:
  """The attacker who knows all other updates, and undoes the correlation.

  A canary that takes part in rounds a enters C x as S C a. Matched to it, the
  score is N(|C a| S/σ, 1) if the canary took part and N(0, 1) if not, where σ is
  the standard deviation of Z. No other test of the releases is better.

  Args:
    strategy: C, lower triangular with a positive diagonal. The identity makes
      noise independent, and this attacker the one of `threat_models.RESIDUAL`.

  Returns:
    For `evaluate(record, threat_models=[...])`. It reads records that have the
    residual of every round and noise_std, the standard deviation of Z in a
    release, which is what an auditor records whose noise multiplier is that of Z.

  Raises:
    ValueError: strategy is not such a matrix; later, it is not of the rounds of a
      record.

  References:
    Denisov et al., Improved Differential Privacy for SGD via Optimal Private Linear
    Operators on Adaptive Streams, 2022. Choquette-Choo et al., (Amplified) Banded
    Matrix Factorization, 2023.
  """
  c = np.asarray(strategy, np.float64)
  if c.ndim != 2 or len(c) != c.shape[-1] or not np.isfinite(c).all():
    raise ValueError(
      f'strategy has shape {c.shape}; give a finite square matrix, with a row for '
      'each round.'
    )
  if np.any(np.triu(c, 1)) or not np.all(np.diagonal(c) > 0):
    raise ValueError(
      'strategy is not lower triangular with a positive diagonal; give C, not '
      'its inverse transposed, so that a round has noise of itself and of those '
      'before it.'
    )

  def score(record: Record) -> AttackScores | None:
    residual, rounds = record.cosines.get('residual'), record.rounds
    if residual is None or rounds is None:
      return None
    _check_rounds(c, record)
    # A release has the noise C⁻¹ Z.
    row_norms = np.linalg.norm(np.linalg.inv(c), axis=1)
    noise = noise_scale.measure_noise(record, row_norms)
    if noise is None or not noise.ratio:
      return None
    assigned = shifted_scores.assign_held_out(record.assigned)
    values, shift = score_decorrelated(
      residual, record.included, assigned, rounds, c
    )
    return shifted_scores.describe_shifted(
      model,
      'all_iterates_combined',
      shifted_scores.scale_noise(
        record, values, shift, noise, independent=False
      ),
      scale=1.0,
      is_expected=True,
    )

  def limit(record: Record, delta: float) -> Analytic | None:
    if record.rounds is None or record.noise_multiplier is None:
      return None
    _check_rounds(c, record)
    columns = np.linalg.norm(c @ record.assigned, axis=0)
    return accounting.epsilon_of_releases(
      record.noise_multiplier / float(columns.max()), delta=delta
    )

  model = ThreatModel(
    'decorrelated',
    'rounds combined, others removed',
    'rounds combined',
    'An attacker who knows the updates of all others, and undoes the correlation '
    'of the noise of different rounds',
    score,
    limit,
    is_worst_case=True,
  )
  return model


def score_decorrelated(
  residual: Float[np.ndarray, 'T k'],
  included: Bool[np.ndarray, 'T k'],
  assigned: Bool[np.ndarray, 'T k'],
  rounds: RoundScalars,
  strategy: Float[np.ndarray, 'T T'],
) -> tuple[Float[np.ndarray, ' k'], Float[np.ndarray, ' k']]:
  """<C a, C y>/|C a| in units of the noise, and what to expect of it, |C a|.

  Args:
    residual: cosines with the residuals of releases.
    included: row t holds the canaries of round t.
    assigned: row t holds the canaries scored in round t, each in at least one.
    rounds: the scalars of rounds with noise.
    strategy: C.

  Returns:
    Scores and their expectation where the canary took part, each [k].
  """
  std = np.asarray(rounds.noise_std, np.float64)[:, None]
  share = np.asarray(rounds.canary_norm, np.float64)[:, None] / std
  left = np.asarray(rounds.residual_norm, np.float64)[:, None] * residual / std
  released = strategy @ (left + share * included)
  signal = strategy @ (share * assigned)
  size = np.linalg.norm(signal, axis=0)
  return np.sum(signal * released, axis=0) / size, size


def _check_rounds(strategy: Float[np.ndarray, 'T T'], record: Record) -> None:
  if len(strategy) != record.num_rounds:
    raise ValueError(
      f'strategy has {len(strategy)} rows, but the record {record.num_rounds} '
      'rounds; give a row for each round.'
    )
