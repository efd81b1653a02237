"""One-sided confidence limits of a proportion, from a count.

Only upper limits are here: the lower limit of a rate is 1 minus the upper limit
of its complement, with the same chance of failure.

- A Clopper-Pearson limit never fails more often than it says.
- A Jeffreys limit fails as often as it says on average over the proportion, but at
  some proportions up to three times as often. It is an approximation.

A limit holds at a threshold that does not depend on the counted scores. `band`
has limits that hold at all thresholds at once.
"""

from __future__ import annotations

import functools
import reprlib

from jaxtyping import Float
import numpy as np
from scipy import special

from epe_jax.epsilon import arguments
from epe_jax.epsilon.types import Real, check_significance, scalar_or_array


def clopper_pearson_upper(
  count: Real, trials: int, significance: float
) -> float | Float[np.ndarray, '...']:
  """One-sided Clopper-Pearson upper limit of a proportion.

  It is the p at which P(Binomial(trials, p) <= count) = significance.

  Args:
    count: number of events, integers in [0, trials], any shape.
    trials: number of trials, >= 1.
    significance: chance that the limit is below the proportion, in (0, 1).

  Returns:
    The limit, in (0, 1], with the shape of `count`.

  Raises:
    ValueError: an argument is out of range.

  References: Clopper and Pearson, Biometrika 26 (1934).

  >>> round(clopper_pearson_upper(0, 1000, 0.05), 6)
  0.002991
  """
  return _limit('clopper_pearson', count, trials, significance)


def jeffreys_upper(
  count: Real, trials: int, significance: float
) -> float | Float[np.ndarray, '...']:
  """One-sided Jeffreys upper limit of a proportion.

  It is the 1 - significance quantile of Beta(count + 1/2, trials - count + 1/2),
  the posterior under Jeffreys' prior.

  Args:
    count: number of events, integers in [0, trials], any shape.
    trials: number of trials, >= 1.
    significance: chance that the limit is below the proportion, in (0, 1), on
      average over the prior.

  Returns:
    The limit, in (0, 1), with the shape of `count`.

  Raises:
    ValueError: an argument is out of range.

  >>> round(jeffreys_upper(0, 1000, 0.05), 6)
  0.001918
  """
  return _limit('jeffreys', count, trials, significance)


def _limit(kind, count, trials, significance):
  significance = check_significance(significance)
  trials = arguments.check_integer('trials', trials)
  count = np.asarray(count)
  is_count = count.dtype.kind in 'iu' and np.all(
    (count >= 0) & (count <= trials)
  )
  if not is_count:
    raise ValueError(
      f'count={reprlib.repr(count.tolist())}; give integers in [0, {trials}].'
    )
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
  # At count = trials the limit is 1, and the beta law has no quantile.
  below = np.minimum(count, trials - 1)
  limit = special.betainccinv(below + 1.0, trials - below, significance)
  return np.where(count < trials, limit, 1.0)
