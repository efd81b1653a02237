"""How far an estimate would move if other canaries had been drawn.

References: Davison and Hinkley, "Bootstrap methods and their application" (1997),
section 5.3.
"""

from collections.abc import Callable
import dataclasses

import numpy as np

from epe_jax.epsilon import checks
from epe_jax.epsilon.types import Estimate, Scores, check_one_audit

_BLOCK_BYTES = 2**26


def bootstrap_interval(
  rng: np.random.Generator,
  estimator: Callable[..., Estimate],
  scores: Scores,
  *,
  delta: float,
  confidence: float = 0.9,
  resamples: int = 1000,
) -> Estimate:
  """The estimator's own estimate, with a bootstrap interval of its ε.

  Observed and unobserved scores are resampled separately, with replacement, and
  the interval is between percentiles of the resampled ε. It shows how much the
  estimator varies over draws of canaries. It does not bound the true ε: a biased
  estimator, such as a maximum over thresholds or one with a noise floor, has an
  interval around its biased value.

  Args:
    rng: source of the resamples.
    estimator: called as `estimator(scores, delta=delta)` with blocks of
      resamples on a leading axis. Bind other settings with `functools.partial`.
    scores: one audit, without a shift. An estimator that fits a spread needs about
      a dozen canaries, or all scores of a resample may be equal.
    confidence: nominal coverage of the interval.
    resamples: number of resamples, at least 2/(1 - confidence).

  Raises:
    ValueError: also if the estimator rejects a resample.

  >>> from epe_jax import epsilon
  >>> scores = Scores(np.linspace(-1, 3, 500), np.linspace(-2, 2, 500))
  >>> rng = np.random.default_rng(0)
  >>> e = bootstrap_interval(rng, epsilon.two_gaussian, scores, delta=1e-5)
  >>> e.interval[0] < e.epsilon < e.interval[1]
  True
  """
  check_one_audit(scores)
  if scores.shift is not None:
    raise ValueError(
      'scores have a shift, so they are not identically distributed and cannot '
      'be resampled; take the interval of location_mixture, or leave shift out.'
    )
  checks.check_confidence(confidence)
  min_resamples = int(np.ceil(2 / (1 - confidence) * (1 - 1e-12)))
  if checks.check_integer('resamples', resamples) < min_resamples:
    raise ValueError(
      f'resamples={resamples} leaves nothing outside a {confidence:.3g} '
      f'interval; take at least {min_resamples}.'
    )
  estimate = estimator(scores, delta=delta)
  groups = (scores.observed, scores.unobserved)
  # A block of bounded memory at a time.
  block = max(1, _BLOCK_BYTES // (8 * max(g.size for g in groups)))
  values = []
  for start in range(0, resamples, block):
    rows = min(block, resamples - start)
    observed, unobserved = (_resample(rng, group, rows) for group in groups)
    resampled = dataclasses.replace(
      scores, observed=observed, unobserved=unobserved
    )
    try:
      values.append(np.asarray(estimator(resampled, delta=delta).epsilon))
    except ValueError as error:
      raise ValueError(
        f'the estimator rejects a resample of the {observed.shape[-1]} observed '
        f'and {unobserved.shape[-1]} unobserved scores: {error} A bootstrap needs '
        'more canaries, or fewer tied scores.'
      ) from error
  # Order statistics, without interpolation, since ε may be infinite.
  values = np.sort(np.concatenate(values))
  levels = np.array([1 - confidence, 1 + confidence]) / 2
  index = np.ceil(levels * resamples).astype(int) - 1
  low, high = values[np.clip(index, 0, resamples - 1)]
  return dataclasses.replace(estimate, interval=(float(low), float(high)))


def _resample(rng, group, rows):
  if not group.size:
    return np.empty((rows, 0))
  return group[rng.integers(group.size, size=(rows, group.size))]
