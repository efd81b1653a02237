"""How far an estimate would move if other canaries had been drawn.

References: Davison and Hinkley, "Bootstrap methods and their application" (1997),
section 5.3.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses

from jaxtyping import Float
import numpy as np

from epe_jax.epsilon import checks
from epe_jax.epsilon.checks import check_confidence
from epe_jax.epsilon.types import Estimate, Scores, check_scores

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
      resamples on a leading axis. Bind other settings first, with
      `functools.partial`.
    scores: one audit, without leading axes. An estimator that fits a spread
      needs about a dozen canaries, or all scores of a resample may be equal.
    delta: δ, in (0, 1).
    confidence: nominal coverage of the interval, in (0, 1).
    resamples: number of resamples, at least 2/(1 - confidence).

  Returns:
    The estimate with its `interval`. Its own `confidence` does not change.

  Raises:
    ValueError: the scores have leading axes or a shift, a setting is out of
      range, or the estimator rejects a resample.

  >>> from epe_jax import epsilon
  >>> scores = Scores(np.linspace(-1, 3, 500), np.linspace(-2, 2, 500))
  >>> rng = np.random.default_rng(0)
  >>> e = bootstrap_interval(rng, epsilon.two_gaussian, scores, delta=1e-5)
  >>> e.interval[0] < e.epsilon < e.interval[1]
  True
  """
  _check(scores, confidence, resamples)
  estimate = estimator(scores, delta=delta)

  def epsilon(observed, unobserved):
    blocks = dataclasses.replace(
      scores, observed=observed, unobserved=unobserved
    )
    return np.asarray(estimator(blocks, delta=delta).epsilon)

  values = np.sort(_resample_epsilon(rng, epsilon, scores, resamples))
  levels = np.array([1 - confidence, 1 + confidence]) / 2
  return dataclasses.replace(
    estimate, interval=order_statistics(values, levels)
  )


def check_settings(confidence: float, resamples: int) -> None:
  """Raises a ValueError unless there are enough resamples for the confidence."""
  check_confidence(confidence)
  min_resamples = int(np.ceil(2 / (1 - confidence) * (1 - 1e-12)))
  if checks.check_integer('resamples', resamples) < min_resamples:
    raise ValueError(
      f'resamples={resamples} leaves nothing outside a {confidence:.3g} '
      f'interval; take at least {min_resamples}.'
    )


def order_statistics(
  values: Float[np.ndarray, 'resamples'], levels: Float[np.ndarray, '2']
) -> tuple[float, float]:
  """Two order statistics, without interpolation, since ε may be infinite.

  Args:
    values: sorted values.
    levels: shares of the values, in [0, 1], that lie at or below each statistic.

  Returns:
    A value for each level.

  >>> order_statistics(np.array([0.0, 1.0, 2.0, np.inf]), np.array([0.25, 0.75]))
  (0.0, 2.0)
  """
  index = np.ceil(levels * len(values)).astype(int) - 1
  low, high = values[np.clip(index, 0, len(values) - 1)]
  return float(low), float(high)


def call_with_cure(
  epsilon: Callable[..., Float[np.ndarray, 'rows']],
  observed: Float[np.ndarray, 'rows n1'],
  unobserved: Float[np.ndarray, 'rows n0'],
) -> Float[np.ndarray, 'rows']:
  """ε of each resample; an error of the estimator also names a cure.

  Args:
    epsilon: (observed, unobserved) -> ε of each row.
    observed: resampled scores of observed canaries.
    unobserved: resampled scores of unobserved canaries.

  Raises:
    ValueError: the estimator rejects a resample.
  """
  try:
    return epsilon(observed, unobserved)
  except ValueError as error:
    raise ValueError(
      f'the estimator rejects a resample of the {observed.shape[-1]} observed '
      f'and {unobserved.shape[-1]} unobserved scores: {error} A bootstrap needs '
      'more canaries, or fewer tied scores.'
    ) from error


def _resample_epsilon(rng, epsilon, scores, resamples):
  """ε of each resample, a block of bounded memory at a time."""
  groups = (scores.observed, scores.unobserved)
  block = max(1, _BLOCK_BYTES // (8 * max(g.size for g in groups)))
  values = []
  for start in range(0, resamples, block):
    rows = min(block, resamples - start)
    resampled = [_resample(rng, group, rows) for group in groups]
    values.append(call_with_cure(epsilon, *resampled))
  return np.concatenate(values)


def _resample(rng, group, rows):
  if not group.size:
    return np.empty((rows, 0))
  return group[rng.integers(group.size, size=(rows, group.size))]


def _check(scores, confidence, resamples):
  check_scores(scores)
  if scores.observed.ndim != 1:
    raise ValueError(
      f'observed has shape {scores.observed.shape}; bootstrap one audit at a '
      'time, without leading axes.'
    )
  if scores.shift is not None:
    raise ValueError(
      'scores have a shift, so they are not identically distributed and cannot '
      'be resampled; take the interval of location_mixture, or leave shift out.'
    )
  check_settings(confidence, resamples)
