"""What speaks against an estimate, found in the scores themselves, in words."""

import dataclasses

from jaxtyping import Float
import numpy as np
from scipy import special

from epe_jax.epsilon import cosine_null, diagnostics, shift_fit
from epe_jax.epsilon.types import Scores

_SWAPPED_BELOW = 1e-3


def scores_differ(scores: Scores) -> bool:
  """Whether observed scores differ by more than float32 rounds.

  They do not where nothing else is in what is seen: without noise, for one who
  removes the other updates.
  """
  null = np.median(scores.unobserved) if scores.unobserved.size else 0.0
  largest = np.max(np.abs(scores.observed - null))
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
  found = describe_if_swapped(scores)
  if found is None:
    return ()
  return (
    f'{found}: a high score has to say "took part", so the groups may be swapped or '
    'the sign be wrong',
  )


def describe_if_swapped(scores: Scores) -> str | None:
  """That canaries that took part score lower than others, if it is beyond chance."""
  if scores.unobserved.size:
    p = rank_sum_p_value(scores.observed, scores.unobserved)
  else:
    assert scores.dim is not None, 'scores have unobserved ones, or a dim'
    std = cosine_null.null_law(scores.dim).std / np.sqrt(scores.observed.size)
    p = special.ndtr(scores.observed.mean() / std)
  if p >= _SWAPPED_BELOW:
    return None
  p_value = diagnostics.format_p_value(p)
  return f'canaries that took part score lower than others ({p_value})'


def rank_sum_p_value(
  scores: Float[np.ndarray, ' m'], others: Float[np.ndarray, ' n']
) -> float:
  """P-value of "scores are not lower than others", by ranks.

  It is that of `scipy.stats.mannwhitneyu` with method='asymptotic', which takes
  a second to import: the normal limit with a correction for continuity and ties.

  Args:
    scores: one group.
    others: the other group.

  References:
    Mann and Whitney 1947, "On a Test of Whether one of Two Random Variables is
    Stochastically Larger than the Other".
  """
  m, n = scores.size, others.size
  _, index, ties = np.unique(
    np.concatenate([scores, others]), return_inverse=True, return_counts=True
  )
  # Equal scores share the mean of their ranks.
  ranks = (np.cumsum(ties) - (ties - 1) / 2)[index]
  wins = ranks[:m].sum() - m * (m + 1) / 2
  size = m + n
  tied = np.sum(ties**3.0 - ties) / (size * (size - 1))
  if size + 1 == tied:
    return 1.0  # All scores are equal.
  std = np.sqrt(m * n / 12 * (size + 1 - tied))
  return float(special.ndtr((wins - m * n / 2 + 0.5) / std))


def doubt_mixture(scores: Scores) -> tuple[str, ...]:
  """Doubts if scores are not Gaussian around shifts with the spread of the null."""
  tests = shift_fit.p_values(scores)
  rejected_below, doubts = shift_fit.REJECTED_BELOW, ()
  if tests.spread < rejected_below:
    doubts += (
      'scores of canaries that took part scatter otherwise than those of others '
      f'({diagnostics.format_p_value(float(tests.spread))}), so that no estimate that takes them to be '
      'shifted alone is calibrated',
    )
  if tests.shape < rejected_below:
    doubts += (
      'scores of canaries that took part are not Gaussian around their shifts '
      f'({diagnostics.format_p_value(float(tests.shape))}), so that no estimate that takes them to be is '
      'calibrated',
    )
  return doubts
