"""ε of one round from its attack scores, as the released code has it.

The threshold is where the ε of the counted rates is largest, on the same scores, and
limits of both rates are taken there as if it had been given: neither number is a
bound. `cap` is what the lower limit is when no score is on the wrong side, which no
attack can exceed, however well it tells the two apart.
"""

from typing import NamedTuple

from jaxtyping import Float
import numpy as np

from epe_jax.epsilon import intervals, threshold

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

  A threshold at which just one of the two rates is 0 is left out, as its ε is
  infinite from counts alone.

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
  misses = len(included) - threshold.count_at_least(included, levels)
  alarms = threshold.count_at_least(excluded, levels)
  kept = (misses == 0) == (alarms == 0)
  misses, alarms = misses[kept], alarms[kept]
  if not len(misses):
    return RoundEpsilon(0.0, 0.0, delta)
  with np.errstate(divide='ignore'):
    counted = threshold.epsilon_at(
      np.log(alarms / len(excluded)), np.log(misses / len(included)), delta
    )
  best = int(np.argmax(counted))
  lower = _from_limits(
    int(misses[best]), int(alarms[best]), len(included), len(excluded), delta
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
  misses: int, alarms: int, num_included: int, num_excluded: int, delta: float
) -> float:
  tail = (1 - CONFIDENCE) / 2
  alarm_limit, miss_limit = (
    intervals.clopper_pearson_upper(count, num, tail)
    for count, num in ((alarms, num_excluded), (misses, num_included))
  )
  log = lambda limit: np.log(np.atleast_1d(limit))
  epsilon = threshold.epsilon_at(log(alarm_limit), log(miss_limit), delta)
  return float(epsilon[0])
