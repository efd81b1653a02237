"""One-sided confidence limits of a proportion, from a count.

Only upper limits are here: the lower limit of a rate is 1 minus the upper limit
of its complement, with the same chance of failure.

- Clopper-Pearson: never fails more often than it says.
- Jeffreys: fails as often as it says on average over the proportion, but at
  some proportions up to three times as often. An approximation, no guarantee.
- Katz: a limit for the logarithm of a ratio of two proportions, by the delta
  method. An approximation for large counts, no guarantee.

A limit holds at a threshold that does not depend on the counted scores. `band`
has limits that hold at all thresholds at once.
"""

from __future__ import annotations

import functools

from jaxtyping import Float
import numpy as np
from scipy import special

from epe_jax.epsilon.types import Real, check_significance, scalar_or_array


def clopper_pearson_upper(
  count: Real, trials: int, significance: float
) -> float | Float[np.ndarray, '...']:
  """One-sided Clopper-Pearson upper limit of a proportion: p at which
  P(Binomial(trials, p) <= count) = significance.

  Args:
    count: number of events, integers in [0, trials].
    trials: number of trials, >= 1.
    significance: chance that the limit is below the proportion, in (0, 1).

  Returns:
    The limit, in (0, 1], with the shape of `count`.

  Source: Clopper and Pearson, Biometrika 26 (1934).

  >>> round(clopper_pearson_upper(0, 1000, 0.05), 6)
  0.002991
  """
  return _limit('clopper_pearson', count, trials, significance)


def jeffreys_upper(
  count: Real, trials: int, significance: float
) -> float | Float[np.ndarray, '...']:
  """One-sided Jeffreys upper limit of a proportion.

  The 1 - significance quantile of Beta(count + 1/2, trials - count + 1/2), the
  posterior from Jeffreys' prior.

  Args:
    count: number of events, integers in [0, trials].
    trials: number of trials, >= 1.
    significance: chance that the limit is below the proportion, in (0, 1), on
      average over the prior.

  Returns:
    The limit, in (0, 1), with the shape of `count`.

  >>> round(jeffreys_upper(0, 1000, 0.05), 6)
  0.001918
  """
  return _limit('jeffreys', count, trials, significance)


def katz_log_lower(
  hits: Real,
  positives: int,
  alarms: Real,
  negatives: int | None,
  significance: float,
  *,
  delta: float = 0.0,
) -> float | Float[np.ndarray, '...']:
  """One-sided Katz lower limit of log((p - δ)/a), p and a two proportions.

  The plug-in value minus z times its standard error by the delta method,
  √(p(1-p)/(n₁(p-δ)²) + (1-a)/(n₀a)). One limit serves the pair of proportions,
  so nothing is lost by dividing the chance of failure between two.

  Args:
    hits: events of the first proportion, integers in [0, positives].
    positives: its number of trials, >= 1.
    alarms: events of the second proportion; if `negatives` is None, that
      proportion itself, exactly known.
    negatives: its number of trials, >= 1, or None.
    significance: nominal chance that the limit is above the log ratio.
    delta: δ, in [0, 1).

  Returns:
    The limit, -inf where the method does not apply: a count of 0, or a first
    proportion of at most δ. Both proportions 1 have standard error 0.

  Source: Katz et al., Biometrics 34 (1978), for δ = 0.

  >>> round(katz_log_lower(60, 100, 20, 100, 0.025), 3)
  0.675
  """
  check_significance(significance)
  p = np.asarray(hits, dtype=np.float64) / positives
  a = np.asarray(alarms, dtype=np.float64)
  a = a if negatives is None else a / negatives
  applies = (p > delta) & (a > 0)
  gain = np.where(applies, p - delta, 1.0)
  safe = np.where(applies, a, 1.0)
  variance = p * (1 - p) / (positives * gain**2)
  if negatives is not None:
    variance = variance + (1 - safe) / (negatives * safe)
  z = -special.ndtri(significance)
  limit = np.log(gain) - np.log(safe) - z * np.sqrt(variance)
  return scalar_or_array(np.where(applies, limit, -np.inf))


def _limit(kind, count, trials, significance):
  check_significance(significance)
  count = np.asarray(count)
  # Limits depend on the count alone: one table serves all thresholds of all
  # audits, unless there are fewer of them than entries.
  if count.size >= trials:
    return scalar_or_array(_table(kind, trials, significance)[count])
  return scalar_or_array(_beta_limit(kind, count, trials, significance))


@functools.lru_cache(maxsize=16)
def _table(kind, trials, significance):
  table = _beta_limit(kind, np.arange(trials + 1), trials, significance)
  table.flags.writeable = False
  return table


def _beta_limit(kind, count, trials, significance):
  if kind == 'jeffreys':
    return special.betainccinv(count + 0.5, trials - count + 0.5, significance)
  some = np.minimum(count, trials - 1)
  limit = special.betainccinv(some + 1.0, trials - some, significance)
  return np.where(count < trials, limit, 1.0)
