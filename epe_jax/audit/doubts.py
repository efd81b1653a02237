"""What speaks against an estimate, found in the scores themselves, in words."""

import dataclasses

import numpy as np
from scipy import stats

from epe_jax.epsilon import cosine_null, diagnostics, shift_tests
from epe_jax.epsilon.types import Scores

_SWAPPED_BELOW = 1e-3


def scores_differ(scores: Scores) -> bool:
  """Whether observed scores differ by more than float32 rounds.

  They do not where nothing else is in what is seen: without noise, for one who
  removes the other updates.
  """
  largest = np.max(np.abs(scores.observed))
  return bool(np.ptp(scores.observed) > 1e-5 * largest)


def drop_rejected_null(scores: Scores) -> tuple[Scores, tuple[str, ...]]:
  """Scores without a null law that the unobserved ones reject, and doubts."""
  doubts = doubt_if_swapped(scores)
  if not diagnostics.is_null_rejected(scores):
    return scores, doubts
  law = (
    'the spread of the noise that is claimed'
    if scores.dim is not None and np.isinf(scores.dim)
    else f'the law of random directions, d = {scores.dim}'
  )
  reason = (
    f'scores of canaries that took no part do not follow {law}, so their own law '
    'is taken instead'
  )
  without = dataclasses.replace(scores, dim=None, overlap=0.0)
  return without, (*doubts, reason)


def doubt_if_swapped(scores: Scores) -> tuple[str, ...]:
  """A doubt if canaries that took part score lower than those that did not."""
  if scores.unobserved.size:
    p = stats.mannwhitneyu(
      scores.observed,
      scores.unobserved,
      alternative='less',
      method='asymptotic',
    ).pvalue
  else:
    assert scores.dim is not None, 'scores have unobserved ones, or a dim'
    std = cosine_null.null_law(scores.dim).std / np.sqrt(scores.observed.size)
    p = stats.norm.cdf(scores.observed.mean() / std)
  if p >= _SWAPPED_BELOW:
    return ()
  return (
    f'canaries that took part score lower than others (p = {p:.1g}): a high '
    'score has to say "took part", so the groups may be swapped or the sign be '
    'wrong',
  )


def doubt_mixture(scores: Scores) -> tuple[str, ...]:
  """Doubts if scores are not Gaussian around shifts with the spread of the null."""
  tests = shift_tests.p_values(scores)
  rejected_below, doubts = shift_tests.REJECTED_BELOW, ()
  if tests.spread < rejected_below:
    doubts += (
      'scores of canaries that took part scatter otherwise than those of others '
      f'(p = {tests.spread:.2g}), so that no estimate that takes them to be '
      'shifted alone is calibrated',
    )
  if tests.shape < rejected_below:
    doubts += (
      'scores of canaries that took part are not Gaussian around their shifts '
      f'(p = {tests.shape:.2g}), so that no estimate that takes them to be is '
      'calibrated',
    )
  return doubts
