"""An interval of an estimate over other runs: runs are resampled, then canaries.

Reference: Field and Welsh, "Bootstrapping clustered data" (2007).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import dataclasses

from jaxtyping import Float, Int
import numpy as np

from epe_jax.epsilon import bootstrap, over_runs, pooling
from epe_jax.epsilon.types import Estimate, Scores

_BLOCK_BYTES = 2**26


def cluster_bootstrap(
  rng: np.random.Generator,
  estimator: Callable[..., Estimate],
  runs: Sequence[Scores],
  *,
  delta: float,
  confidence: float = 0.9,
  resamples: int = 1000,
) -> Estimate:
  """The estimate from the pooled canaries, with an interval over other runs.

  It has two stages: R of the R runs are drawn with replacement, and then from each
  as many observed and as many unobserved canaries as it has. The limits are
  percentiles of the resampled ε. The mean of R runs of n canaries, whose variance
  is (τ² + σ²/n)/R, has over resamples an average variance of

    (1 - 1/R) (τ² + (1 - 1/n) σ²/n)/R + (1 - 1/n) σ²/(n R).

  That is too large if runs hardly differ, and too small for few runs that do,
  though less so than in the usual cluster bootstrap, which resamples whole runs
  and lacks the last term. With fewer than about ten runs, or runs of unequal numbers
  of canaries, prefer `random_effects`: 90 % intervals of runs of 50 and of 5,000
  canaries cover 76 %.

  Args:
    rng: source of the resamples.
    estimator: as for `bootstrap.bootstrap_interval`.
    runs: scores of two runs or more, without leading axes, which are cosines of
      one dim and one design. Their `shift` is ignored, as by pooling.
    delta: δ, in (0, 1).
    confidence: nominal coverage of the interval, in (0, 1).
    resamples: number of resamples, at least 2/(1 - confidence).

  Returns:
    The estimate from the pooled canaries, with its `interval`.

  Raises:
    ValueError: there are fewer than two runs, runs cannot be pooled, scores have
      leading axes, a setting is out of range, or the estimator rejects a
      resample.

  >>> from epe_jax import epsilon
  >>> rng = np.random.default_rng(0)
  >>> runs = [Scores(rng.normal(m, 1, 50) / 100, np.empty(0), 10_000) for m in
  ...         (0.5, 1.0, 1.5)]
  >>> e = cluster_bootstrap(rng, epsilon.two_gaussian, runs, delta=1e-5)
  >>> e.interval[0] < e.epsilon < e.interval[1]
  True
  """
  over_runs.check_runs(runs)
  bootstrap.check_settings(confidence, resamples)
  scores = pooling.pool_scores(runs)
  estimate = estimator(scores, delta=delta)

  def epsilon(observed, unobserved):
    block = dataclasses.replace(
      scores, observed=observed, unobserved=unobserved
    )
    return np.asarray(estimator(block, delta=delta).epsilon)

  groups = (
    [scores.observed for scores in runs],
    [scores.unobserved for scores in runs],
  )
  values = []
  for block in _draw_runs(rng, groups, resamples):
    resampled = [_draw_canaries(rng, group, block) for group in groups]
    values.append(bootstrap.call_with_cure(epsilon, *resampled))
  values = np.sort(np.concatenate(values))
  levels = np.array([1 - confidence, 1 + confidence]) / 2
  interval = bootstrap.order_statistics(values, levels)
  return dataclasses.replace(estimate, interval=interval)


def _draw_runs(
  rng: np.random.Generator,
  groups: Sequence[Sequence[Float[np.ndarray, '_']]],
  resamples: int,
) -> Iterator[Int[np.ndarray, 'block runs']]:
  """Runs of each resample, in blocks of resamples with equally many canaries."""
  sizes = np.array([[scores.size for scores in group] for group in groups])
  num = sizes.shape[1]
  runs = rng.integers(num, size=(resamples, num))
  totals, block_of = np.unique(
    np.sum(sizes[:, runs], axis=-1), axis=1, return_inverse=True
  )
  for i, total in enumerate(totals.max(axis=0)):
    same = runs[block_of.ravel() == i]
    rows = max(1, _BLOCK_BYTES // (8 * int(total)))
    for start in range(0, len(same), rows):
      yield same[start : start + rows]


def _draw_canaries(
  rng: np.random.Generator,
  scores: Sequence[Float[np.ndarray, '_']],
  runs: Int[np.ndarray, 'block runs'],
) -> Float[np.ndarray, 'block n']:
  """As many scores of each run as it has, drawn with replacement."""
  sizes = np.array([x.size for x in scores])
  starts = np.cumsum(sizes) - sizes
  # The run of each canary; all rows have equally many.
  run_of = np.stack([np.repeat(row, sizes[row]) for row in runs])
  return np.concatenate(scores)[starts[run_of] + rng.integers(sizes[run_of])]
