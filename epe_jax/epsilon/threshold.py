"""Thresholds on the score: every canary at or above one is guessed "in".

A threshold has a false positive rate (FPR) among unobserved canaries and a false
negative rate (FNR) among observed ones. (ε, δ)-DP forces

  ε >= max(log (1 - δ - FNR)/FPR, log (1 - δ - FPR)/FNR),

equation (1) of Andrew et al. (ICLR 2024), after Kairouz et al. (2015). Only
thresholds equal to an observed score are tried: between two of them the FNR is
constant and the FPR falls. Tied scores are guessed alike.
"""

from collections.abc import Callable
import functools
import reprlib
from typing import NamedTuple

from jaxtyping import Float, Int
import numpy as np
from scipy import special

from epe_jax.epsilon import checks, cosine_null
from epe_jax.epsilon.checks import check_significance
from epe_jax.epsilon.types import (
  Real,
  Scores,
  Sides,
  scalar_or_array,
)

Rate = Callable[..., float | Float[np.ndarray, '...']]
"""(count, trials) -> an estimate of a rate, or an upper limit."""


def clopper_pearson_upper(
  count: Real, trials: int, significance: float
) -> float | Float[np.ndarray, '...']:
  """One-sided Clopper-Pearson upper limit of a proportion: it never fails more often.

  It is the p at which P(Binomial(trials, p) <= count) = significance. It holds at a
  threshold that does not depend on the counted scores. The lower limit of a rate is
  1 minus the upper limit of its complement.

  Args:
    count: number of events, integers in [0, trials], any shape.
    trials: >= 1.
    significance: chance that the limit is below the proportion.

  Returns:
    The limit, in (0, 1], with the shape of `count`.

  References: Clopper and Pearson, Biometrika 26 (1934).

  >>> round(clopper_pearson_upper(0, 1000, 0.05), 6)
  0.002991
  """
  return _limit('clopper_pearson', count, trials, significance)


def jeffreys_upper(
  count: Real, trials: int, significance: float
) -> float | Float[np.ndarray, '...']:
  """One-sided Jeffreys upper limit of a proportion, an approximation.

  It is a quantile of Beta(count + 1/2, trials - count + 1/2), the posterior under
  Jeffreys' prior: it fails as often as it says on average over the proportion, at
  some proportions three times as often. See `clopper_pearson_upper`.

  >>> round(jeffreys_upper(0, 1000, 0.05), 6)
  0.001918
  """
  return _limit('jeffreys', count, trials, significance)


class Counted(NamedTuple):
  """Errors of the attack "in if score >= threshold", [*batch, m] each.

  Attributes:
    scores: that are counted.
    threshold: the m thresholds.
    false_negatives: number of observed canaries below each, guessed "out".
    false_positives: number of unobserved canaries not below each, guessed "in";
      None if the law of their scores is known.
  """

  scores: Scores
  threshold: Float[np.ndarray, '*batch m']
  false_negatives: Int[np.ndarray, '*batch m']
  false_positives: Int[np.ndarray, '*batch m'] | None

  def rates(
    self, rate: Rate
  ) -> tuple[Float[np.ndarray, '*batch m'], Float[np.ndarray, '*batch m']]:
    """Log FPR, exact if the null law is known, and FNR at each threshold."""
    if self.false_positives is None:
      law = cosine_null.null_distribution(self.scores.null)
      log_fpr = law.logsf(self.threshold)
    else:
      num_null = self.scores.unobserved.shape[-1]
      log_fpr = np.log(rate(self.false_positives, num_null))
    fnr = rate(self.false_negatives, self.scores.observed.shape[-1])
    return np.asarray(log_fpr), np.asarray(fnr)


def find_realisable(
  observed: Float[np.ndarray, '*batch n'],
) -> tuple[Float[np.ndarray, '*batch n'], Int[np.ndarray, '*batch n']]:
  """The thresholds worth trying: observed scores in order, and their false negatives."""
  ordered = np.sort(observed, axis=-1)
  index = np.broadcast_to(np.arange(ordered.shape[-1]), ordered.shape)
  first = np.diff(ordered, axis=-1, prepend=-np.inf) > 0
  return ordered, np.maximum.accumulate(np.where(first, index, 0), axis=-1)


def count_at_least(
  scores: Float[np.ndarray, '*batch n'],
  threshold: Float[np.ndarray, '*batch m'],
) -> Int[np.ndarray, '*batch m']:
  """How many scores of an audit are at least each of its thresholds."""
  ordered = np.sort(scores, axis=-1).reshape(-1, scores.shape[-1])
  levels = threshold.reshape(-1, threshold.shape[-1])
  below = [np.searchsorted(o, t) for o, t in zip(ordered, levels)]
  return scores.shape[-1] - np.reshape(below, threshold.shape)


def count_at(
  scores: Scores, threshold: Float[np.ndarray, '*batch m']
) -> Counted:
  """Counts errors at thresholds."""
  num = scores.observed.shape[-1]
  return Counted(
    scores,
    threshold,
    num - count_at_least(scores.observed, threshold),
    None
    if scores.has_known_null
    else count_at_least(scores.unobserved, threshold),
  )


def epsilon_at(
  log_fpr: Float[np.ndarray, '...'],
  log_fnr: Float[np.ndarray, '...'],
  delta: float,
  *,
  sides: Sides = 'both',
) -> Float[np.ndarray, '...']:
  """The larger of equation (1) and 0, from logs of rates or limits; broadcasts.

  It is inf for a rate of 0. `sides` says which guesses count.
  """

  def one_side(log_wrong, log_missed):
    share = 1 - delta - np.exp(log_missed)
    log_share = np.log(np.where(share > 0, share, 1.0))
    return np.where(share > 0, log_share - log_wrong, 0.0)

  of_guesses_in = np.maximum(one_side(log_fpr, log_fnr), 0.0)
  if sides == 'in':
    return of_guesses_in
  return np.maximum(of_guesses_in, one_side(log_fnr, log_fpr))


def _limit(kind, count, trials, significance):
  significance = check_significance(significance)
  trials = checks.check_integer('trials', trials)
  count = np.asarray(count)
  is_count = count.dtype.kind in 'iu' and np.all(
    (count >= 0) & (count <= trials)
  )
  if not is_count:
    raise ValueError(
      f'count={reprlib.repr(count.tolist())}; give integers in [0, {trials}].'
    )
  # One table serves all thresholds of all audits, unless these are fewer.
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
