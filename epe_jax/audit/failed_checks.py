"""What speaks against an estimate, found in the scores themselves.

A failed check is a fact: a key with numbers. `report.checks` has a sentence for each
key.
"""

from collections.abc import Sequence
import dataclasses
import math

from jaxtyping import Float
import numpy as np
from scipy import special

from epe_jax.epsilon import cosine_null, diagnostics, known_shifts
from epe_jax.epsilon.types import (
  Assumption,
  Estimate,
  NullLaw,
  Scores,
  Sphere,
  Unknown,
)
from epe_jax.fact import Fact, Facts

_SWAPPED_BELOW = 1e-3
# Chance that one of the tests of normality fails on Gaussian scores.
_NORMALITY_SIGNIFICANCE = 0.01
# Distinct scores that are no longer few, and the share of repeats that is not an accident.
_MANY_VALUES, _REPEATED = 20, 0.1


def scores_differ(scores: Scores) -> bool:
  """Whether observed scores differ by more than float32 rounds.

  They do not where an attacker sees a canary alone: without noise, if the other
  updates are removed.
  """
  null = np.median(scores.unobserved) if scores.unobserved.size else 0.0
  largest = np.max(np.abs(scores.observed - null))
  return bool(np.ptp(scores.observed) > 1e-5 * largest)


def drop_rejected_null(scores: Scores) -> tuple[Scores, Facts]:
  """Scores without a null law that the unobserved ones reject, and failed checks."""
  failed = check_not_swapped(scores)
  if not diagnostics.is_null_rejected(scores):
    return scores, failed
  without = dataclasses.replace(scores, null=Unknown(), overlap=0.0)
  return without, (
    *failed,
    Fact('null_law_rejected', {'dim': _name_dim(scores.null)}),
  )


def check_not_swapped(scores: Scores) -> Facts:
  """Fails if canaries that took part score lower than others, beyond chance."""
  if scores.unobserved.size:
    p = rank_sum_p_value(scores.observed, scores.unobserved)
  else:
    std = cosine_null.null_distribution(scores.null).std / np.sqrt(
      scores.observed.size
    )
    p = float(special.ndtr(scores.observed.mean() / std))
  return (Fact('swapped', {'p_value': p}),) if p < _SWAPPED_BELOW else ()


def rank_sum_p_value(
  scores: Float[np.ndarray, ' m'], others: Float[np.ndarray, ' n']
) -> float:
  """P-value of "scores are not lower than others", by ranks.

  It is that of `scipy.stats.mannwhitneyu` with method='asymptotic', which takes
  a second to import: the normal limit with a correction for continuity and ties.

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


def check_mixture(scores: Scores) -> Facts:
  """Fails unless scores are Gaussian around shifts with the spread of the null."""
  tests = known_shifts.p_values(scores)
  p_values = {
    'spread_differs': float(tests.spread),
    'not_gaussian_around_shifts': float(tests.shape),
  }
  return tuple(
    Fact(key, {'p_value': p})
    for key, p in p_values.items()
    if p < known_shifts.REJECTED_BELOW
  )


def check_repeats(scores: Scores) -> Facts:
  """Fails where scores of a group repeat that are no few values: copies, likely."""
  groups = {'observed': scores.observed, 'unobserved': scores.unobserved}
  return tuple(
    Fact(
      'scores_repeat',
      {'group': name, 'num': x.size, 'repeats': x.size - np.unique(x).size},
    )
    for name, x in groups.items()
    if _are_copied(x)
  )


def _are_copied(group: Float[np.ndarray, ' n']) -> bool:
  """Whether fine scores repeat all over their range.

  Counts, ranks, shares and rounded numbers are multiples of a step, and numbers of 16
  bits have mantissas of 11. Scores that saturate repeat at one end.
  """
  values, counts = np.unique(group, return_counts=True)
  if values.size < _MANY_VALUES:
    return False
  thirds = np.array_split(counts, 3)
  if any(np.mean(x) < 1 / (1 - _REPEATED) for x in thirds):
    return False
  bits = np.ldexp(np.frexp(values)[0], 11)
  steps = np.diff(values) / np.diff(values).min()
  return all(np.abs(x - np.round(x)).max() > 1e-3 for x in (bits, steps))


def check_normality(scores: Scores) -> Facts:
  """Fails where estimates that take scores for Gaussian mislead, or nobody can tell."""
  failed = []
  for group, values in (
    ('observed', scores.observed),
    ('unobserved', scores.unobserved),
  ):
    size = {'group': group, 'num': values.size}
    if not values.size:
      continue
    if values.size < diagnostics.MIN_SCORES:
      failed.append(Fact('too_few_to_test', size))
    elif not np.ptp(values) > 0:
      failed.append(Fact('all_equal', size))
    else:
      test = diagnostics.anderson_darling(values)
      if test.p_value < _NORMALITY_SIGNIFICANCE:
        failed.append(_name_test('not_gaussian', test, group=group))
  null, unobserved = scores.null, scores.unobserved
  if scores.has_known_null and unobserved.size >= diagnostics.MIN_SCORES:
    test = diagnostics.anderson_darling_null(unobserved, null=null)
    if test.p_value < _NORMALITY_SIGNIFICANCE:
      failed.append(_name_test('not_cosines', test, dim=_name_dim(null)))
  return tuple(failed)


def check_bounds(first: Estimate, bounds: Sequence[Estimate]) -> Facts:
  """Fails if a bound from the same scores is above the first estimate.

  Args:
    first: the estimate to believe first.
    bounds: those that every audit computes, at least one. Others are computed only on
      request, and a check fails or does not.
  """
  highest = max(bounds, key=lambda e: e.epsilon)
  assert highest.confidence is not None, 'bounds have one'
  if first.epsilon >= highest.epsilon:
    return ()
  values = {
    'epsilon': float(first.epsilon),
    'bound': float(highest.epsilon),
    'confidence': highest.confidence,
    'method': highest.method,
    'assumes': [str(assumption) for assumption in highest.assumes],
  }
  return (Fact('below_bound', values),)


def note_separation(scores: Scores, first: Estimate) -> Facts:
  """What scores show if no threshold ever errs, and that a fit extrapolates."""
  if not scores.unobserved.size:
    return ()
  if not np.min(scores.observed) > np.max(scores.unobserved):
    return ()
  num = max(scores.observed.size, scores.unobserved.size)
  if Assumption.GAUSSIAN_SCORES not in first.assumes:
    return (Fact('separated', {'num': num}),)
  if not first.epsilon > np.log(num):
    return ()
  epsilon = float(first.epsilon)
  return (Fact('extrapolates', {'num': num, 'epsilon': epsilon}),)


def _name_dim(null: NullLaw) -> float:
  """d of cosines; N(0, 1) is their limit for large d."""
  return null.dim if isinstance(null, Sphere) else math.inf


def _name_test(
  key: str, test: diagnostics.AndersonDarling, **values: float | int | str
) -> Fact:
  statistic, p_value = map(float, test)
  return Fact(key, {**values, 'statistic': statistic, 'p_value': p_value})
