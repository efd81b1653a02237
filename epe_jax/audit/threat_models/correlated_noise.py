"""The attacker who undoes the correlation of noise over rounds.

An attacker who knows all other updates has x + C⁻¹ Z left, with independent Z, and
multiplies with C: a canary that takes part in rounds a enters C x as S C a, so that
the score matched to it is N(|C a| S/σ, 1) if it took part and N(0, 1) if not. No other
test of the releases is better; that of `residual.RESIDUAL`, who takes own rounds as
they are, finds less.

References:
  Denisov et al. 2022, "Improved Differential Privacy for SGD via Optimal Private
  Linear Operators on Adaptive Streams".
"""

from jaxtyping import Float
import numpy as np

from epe_jax.audit import upper_bounds
from epe_jax.audit.record import Record
from epe_jax.audit.threat_models.noise_scale import measure_noise
from epe_jax.audit.threat_models.shifted_scores import (
  assign_held_out,
  can_fit_null,
  describe_shifted,
  scale_noise,
)
from epe_jax.audit.threat_models.threat_model import AttackScores, ThreatModel


def _score(record: Record) -> AttackScores | None:
  if record.strategy is None or 'residual' not in record.cosines:
    return None
  noise = measure_noise(record)
  if noise is None or not noise.ratio:
    return None
  if not noise.gives_null_law and not can_fit_null(record):
    return None
  values, shift = score_combined(record, record.strategy)
  return describe_shifted(
    DECORRELATED,
    'all_iterates_combined',
    scale_noise(record, values, shift, noise),
    scale=1.0,
    is_expected=True,
    noise=noise,
  )


def score_combined(
  record: Record, strategy: Float[np.ndarray, 'T T'] | None
) -> tuple[Float[np.ndarray, ' k'], Float[np.ndarray, ' k']]:
  """Weighted sums over rounds in units of their noise, and what to expect of them.

  Args:
    record: with residuals, and with the strategy of its noise.
    strategy: C of the record, for <C a, C y>/|C a|, which expects |C a| of a canary
      of the rounds a, in residuals y; None for sums over own rounds, <a, y>.

  Returns:
    Scores and their expectation where the canary took part, each [k].

  Raises:
    ValueError: the record has not all of that.
  """
  residual, rounds, noising = (
    record.cosines.get('residual'),
    record.rounds,
    record.noising,
  )
  if residual is None or rounds is None or noising is None:
    raise ValueError('the record lacks residuals, rounds or a strategy.')
  std = np.asarray(rounds.noise_std, np.float64)[:, None]
  share = np.asarray(rounds.canary_norm, np.float64)[:, None] / std
  left = np.asarray(rounds.residual_norm, np.float64)[:, None] * residual / std
  released = left + share * record.included
  signal = share * assign_held_out(record.assigned)
  # Noise of <w, y> is |C⁻ᵀ w|; the weights that tell most are w = Cᵀ C a.
  weights = signal if strategy is None else strategy.T @ (strategy @ signal)
  size = np.linalg.norm(noising.T @ weights, axis=0)
  return (
    np.sum(weights * released, axis=0) / size,
    np.sum(weights * signal, axis=0) / size,
  )


DECORRELATED = ThreatModel(
  key='decorrelated',
  name='rounds combined, others removed',
  statistic='rounds combined, others removed',
  who=(
    'An attacker who knows the updates of all others, and undoes the correlation '
    'of the noise of different rounds'
  ),
  score=_score,
  limit=upper_bounds.bound_known_rounds,
  is_worst_case=True,
  is_in_overview=False,
)
