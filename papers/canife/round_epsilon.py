"""ε of one round from its attack scores, as the released code has it.

The threshold maximizes the ε of the counted rates on the same scores, and the limits
of both rates are taken there as if it had been fixed: neither number is a bound.
`cap` is the lower limit if no score is on the wrong side, which no attack can exceed.
"""

from typing import NamedTuple

from jaxtyping import Float
import numpy as np

from epe_jax.epsilon import threshold

CONFIDENCE = 0.95
"""Of the two-sided Clopper-Pearson interval of each rate."""


class RoundEpsilon(NamedTuple):
  """ε of a round at δ = 1/n, n the number of its scores.

  Attributes:
    counted: from the counted rates; inf if no score is on the wrong side.
    lower: from the upper limits of both rates at the same threshold.
    delta: δ.
  """

  counted: float
  lower: float
  delta: float


def measure_round(
  included: Float[np.ndarray, ' n1'], excluded: Float[np.ndarray, ' n0']
) -> RoundEpsilon:
  """ε of a round from scores with the canary and without it.

  Thresholds at which exactly one of the two rates is 0 are left out, as their counted
  ε is infinite.

  Args:
    included: of rounds with the canary, finite, at least 2.
    excluded: of rounds without, finite, at least 2.

  Raises:
    ValueError: there are too few scores, or one is not finite.

  References:
    CANIFE, section 4 and appendix B.
  """
  for name, scores in (('included', included), ('excluded', excluded)):
    if scores.ndim != 1 or len(scores) < 2 or not np.all(np.isfinite(scores)):
      raise ValueError(
        f'{name} has shape {scores.shape}, or scores that are not finite; give two '
        'finite scores or more.'
      )
  delta = 1 / (len(included) + len(excluded))
  levels = np.unique(np.concatenate([included, excluded]))
  false_negatives = len(included) - threshold.count_at_least(included, levels)
  false_positives = threshold.count_at_least(excluded, levels)
  kept = (false_negatives == 0) == (false_positives == 0)
  false_negatives, false_positives = (
    false_negatives[kept],
    false_positives[kept],
  )
  if not len(false_negatives):
    return RoundEpsilon(0.0, 0.0, delta)
  with np.errstate(divide='ignore'):
    counted = threshold.epsilon_at(
      np.log(false_positives / len(excluded)),
      np.log(false_negatives / len(included)),
      delta,
    )
  best = int(np.argmax(counted))
  lower = _from_limits(
    int(false_negatives[best]),
    int(false_positives[best]),
    len(included),
    len(excluded),
    delta,
  )
  return RoundEpsilon(float(counted[best]), lower, delta)


def cap(num_included: int, num_excluded: int) -> float:
  """The lower ε of a round when all scores are on the right side.

  Args:
    num_included: scores with the canary, >= 2.
    num_excluded: scores without, >= 2.

  >>> round(cap(50, 50), 2), round(cap(100, 100), 2)
  (2.56, 3.28)
  """
  delta = 1 / (num_included + num_excluded)
  return _from_limits(0, 0, num_included, num_excluded, delta)


def _from_limits(
  false_negatives: int,
  false_positives: int,
  num_included: int,
  num_excluded: int,
  delta: float,
) -> float:
  tail = (1 - CONFIDENCE) / 2
  log_fpr, log_fnr = (
    np.log(np.atleast_1d(threshold.clopper_pearson_upper(count, num, tail)))
    for count, num in (
      (false_positives, num_excluded),
      (false_negatives, num_included),
    )
  )
  epsilon = threshold.epsilon_at(log_fpr, log_fnr, delta)
  return float(epsilon[0])
