"""CANIFE's ε of audited rounds, and of the run that is composed of such rounds.

A round of ε̂ is taken to be a Gaussian mechanism with the noise σ̂ that has this ε, and
the run to be composed of such rounds with Poisson sampling. The result bounds the ε
of the run only if its clients are sampled so, its noise is Gaussian and independent,
and every ε̂ is right. It is not: the threshold of a round maximizes the ε of the counted
rates on the same scores, as in the released code, and the limits of both rates are
taken there as if it had been fixed.
"""

from collections.abc import Sequence
import math
from typing import Any, NamedTuple

import dp_accounting
from dp_accounting import rdp
from jaxtyping import Float
import numpy as np
from scipy import optimize

from epe_jax.epsilon import threshold

ORDERS = (*(1 + x / 10 for x in range(1, 100)), *range(12, 64))
"""Of Rényi DP, those of Opacus."""

MIN_EPSILON = 0.15
"""The smallest ε of a round that is inverted; smaller ones are raised to it."""

# One minus the confidence of the two-sided Clopper-Pearson interval of each rate.
_SIGNIFICANCE = 0.05
_SIGMAS = (1e-2, 1e4)


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

  References:
    CANIFE, section 4 and appendix B.
  """
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
  lower = _limit(
    int(misses[best]), int(alarms[best]), len(included), len(excluded)
  )
  return RoundEpsilon(float(counted[best]), lower, delta)


def cap(num: int) -> float:
  """The lower ε of a round when all scores, `num` of each kind, are on the right side.

  No attack can exceed it.

  >>> round(cap(50), 2), round(cap(100), 2)
  (2.56, 3.28)
  """
  return _limit(0, 0, num, num)


def _limit(
  misses: int, alarms: int, num_included: int, num_excluded: int
) -> float:
  log_fpr, log_fnr = (
    np.log(
      np.atleast_1d(
        threshold.clopper_pearson_upper(count, num, _SIGNIFICANCE / 2)
      )
    )
    for count, num in ((alarms, num_excluded), (misses, num_included))
  )
  delta = 1 / (num_included + num_excluded)
  return float(threshold.epsilon_at(log_fpr, log_fnr, delta)[0])


def epsilon_of_rounds(
  sigmas: Sequence[float],
  rounds: Sequence[int],
  *,
  probability: float,
  delta: float,
) -> float:
  """ε of Poisson-sampled Gaussian rounds by Rényi DP.

  Args:
    sigmas: noise multiplier of each stretch of rounds, > 0.
    rounds: length of each stretch, >= 1.
    probability: q in (0, 1] of a client in a round.
    delta: δ in (0, 1).

  >>> round(epsilon_of_rounds([0.2], [1], probability=1, delta=1 / 60_000), 1)
  34.5
  """
  accountant = rdp.RdpAccountant(ORDERS)
  for sigma, count in zip(sigmas, rounds, strict=True):
    event = dp_accounting.GaussianDpEvent(sigma)
    if probability < 1:
      event = dp_accounting.PoissonSampledDpEvent(probability, event)
    accountant.compose(event, count)
  return float(accountant.get_epsilon(delta))


def invert_noise(epsilon: float, *, delta: float) -> float:
  """σ of the Gaussian mechanism that has this ε at δ by Rényi DP.

  Args:
    epsilon: >= 0, finite; at least `MIN_EPSILON` is used.
    delta: δ in (0, 1).

  Raises:
    ValueError: ε belongs to a σ outside 0.01 to 10,000.
  """

  def excess(log_sigma: float) -> float:
    sigma = math.exp(log_sigma)
    got = epsilon_of_rounds([sigma], [1], probability=1, delta=delta)
    return got - max(epsilon, MIN_EPSILON)

  low, high = map(math.log, _SIGMAS)
  root: Any = optimize.brentq(excess, low, high, xtol=1e-10)
  return math.exp(root)


def compose_audits(
  epsilons: Sequence[float],
  rounds: Sequence[int],
  *,
  round_delta: float,
  probability: float,
  delta: float,
  fallback: float,
) -> float:
  """ε of a run from audits of some of its rounds.

  Args:
    epsilons: of the audited rounds, at round_delta. If one is infinite, as of
      counted rates without an error, `fallback` is its noise.
    rounds: number of rounds that each audit stands for.
    round_delta: δ of the audits.
    probability: q of Poisson sampling.
    delta: δ of the run.
    fallback: noise multiplier of the mechanism, > 0.

  References:
    CANIFE, section 5.3.
  """
  sigmas = [
    fallback if e == math.inf else invert_noise(e, delta=round_delta)
    for e in epsilons
  ]
  return epsilon_of_rounds(sigmas, rounds, probability=probability, delta=delta)
