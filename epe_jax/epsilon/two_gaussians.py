"""ε between two Gaussians, exactly, and the paper's estimator built on it.

References: Andrew et al., "One-shot empirical privacy estimation for federated
learning" (ICLR 2024), section 3.2 and Algorithms 1-3.
"""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
import numpy as np

from epe_jax.epsilon import checks, cosine_null, hockey_stick
from epe_jax.epsilon.checks import check_delta
from epe_jax.epsilon.types import (
  Assumption,
  Estimate,
  Real,
  Scores,
  check_scores,
  scalar_or_array,
)


def epsilon_two_gaussians(
  mean0: Real,
  std0: Real,
  mean1: Real,
  std1: Real,
  delta: Real,
) -> float | Float[np.ndarray, '...']:
  """Smallest ε >= 0 at which N(mean0, std0²), N(mean1, std1²) are (ε, δ)-close.

  Both directions of the hockey-stick divergence are then at most δ. For any
  finite input and δ <= 1/2 the relative error is below 1e-10 or the absolute
  error below 1e-12; ε is inf if it exceeds the range of a float64.

  Args:
    mean0: mean of the first Gaussian; all arguments broadcast.
    std0: its standard deviation, > 0.
    mean1: mean of the second Gaussian.
    std1: its standard deviation, > 0.
    delta: δ, in (0, 1).

  Returns:
    ε: a float for scalar arguments, otherwise an array of the broadcast shape.

  Raises:
    ValueError: an argument is not finite or is out of range.

  References: section 3.2 of the paper.

  >>> round(epsilon_two_gaussians(0, 1, 1 / 4.22, 1, 1e-6), 2)
  1.0
  """
  moments, target, shape = _moments_and_target(mean0, std0, mean1, std1, delta)
  mean0, std0, mean1, std1 = moments
  # An event far out in the wider Gaussian nearly always leaks most: the other
  # direction is solved only where its ε is larger.
  swap = std0 < std1
  wider, narrower = (
    [np.where(choose, x0, x1) for x0, x1 in ((mean0, mean1), (std0, std1))]
    for choose in (~swap, swap)
  )
  epsilon = _solve(wider, narrower, target, min_epsilon=np.zeros_like(target))
  epsilon = _solve(narrower, wider, target, min_epsilon=epsilon)
  return scalar_or_array(epsilon.reshape(shape))


def log_delta_one_direction(
  epsilon: Real,
  mean0: Real,
  std0: Real,
  mean1: Real,
  std1: Real,
) -> float | Float[np.ndarray, '...']:
  """Log of δ(ε) = sup_A N(mean0, std0²)(A) - e^ε N(mean1, std1²)(A).

  Args:
    epsilon: ε >= 0, finite; all arguments broadcast.
    mean0: mean of the first Gaussian.
    std0: its standard deviation, > 0.
    mean1: mean of the second Gaussian.
    std1: its standard deviation, > 0.

  Returns:
    log δ, -inf where δ = 0: a float for scalar arguments, otherwise an array of
    the broadcast shape.

  Raises:
    ValueError: an argument is not finite or is out of range.
  """
  epsilon = checks.check_numbers('epsilon', epsilon, '[0, inf)')
  means_and_stds, epsilon = _validate_moments(mean0, std0, mean1, std1, epsilon)
  with np.errstate(all='ignore'):
    pair = hockey_stick.standardise(*(x.ravel() for x in means_and_stds))
    root = hockey_stick.near_root(pair, epsilon.ravel())
    log_delta = hockey_stick.log_delta(pair, root)
  return scalar_or_array(log_delta.reshape(epsilon.shape))


def two_gaussian(
  scores: Scores,
  *,
  delta: float,
  std: Literal['fitted', 'pooled', 'null'] = 'fitted',
) -> Estimate:
  """The paper's estimate: ε between the null and the observed Gaussian.

  The null Gaussian is N(0, 1/d) if `scores.null` is given (Algorithms 1 and 2),
  otherwise it is fitted to the unobserved scores (Algorithm 3). The observed
  Gaussian has the sample mean, and as standard deviation

  - 'fitted': that of the observed scores (1/k), as the paper prints it. It biases
    ε upwards, because at small δ ε is smallest for equal standard deviations;
  - 'null': that of the null Gaussian. The estimate is calibrated if participation
    shifts a score and does not change its spread, as in Algorithm 1, and it
    reproduces the table of the paper;
  - 'pooled': that of both groups, each around its own mean, used for both
    Gaussians. It assumes the same as 'null' and uses all scores, so it has less
    variance if the null is not known exactly. If it is known there is nothing to
    pool.

  Args:
    scores: scores of canaries, any leading axes.
    delta: δ, in (0, 1).
    std: the standard deviation of the observed Gaussian, as above.

  Returns:
    A point estimate.

  Raises:
    ValueError: a setting is out of range, a fitted standard deviation is zero, or
      std='pooled' although `scores.null` is given.
  """
  check_delta(delta)
  epsilon = epsilon_curve(scores, np.array([delta]), std=std)
  assumes = (Assumption.GAUSSIAN_SCORES,)
  if std != 'fitted':
    assumes += (Assumption.EQUAL_SPREAD,)
  return Estimate(
    scalar_or_array(epsilon[..., 0]),
    delta,
    f'two_gaussian_{std}',
    confidence=None,
    assumes=assumes,
  )


def epsilon_curve(
  scores: Scores,
  deltas: Float[np.ndarray, 'm'],
  *,
  std: Literal['fitted', 'pooled', 'null'] = 'fitted',
) -> Float[np.ndarray, '*batch m']:
  """ε(δ) of the two-Gaussian estimate: the whole privacy curve of an audit.

  Args:
    scores: scores of canaries, any leading axes.
    deltas: [m] values of δ, each in (0, 1).
    std: as in `two_gaussian`.

  Returns:
    ε at each δ, after the leading axes of the scores: point estimates.

  Raises:
    ValueError: as `two_gaussian`, or a δ is out of range.

  >>> scores = Scores(np.array([0.5, 1.5, 2.5]), np.array([-1.0, 0.0, 1.0]))
  >>> epsilon_curve(scores, np.array([1e-9, 1e-5, 1e-1]), std='pooled').round(2)
  array([12.26,  9.01,  3.3 ])
  """
  check_scores(scores)
  deltas = checks.check_numbers('deltas', deltas, '(0, 1)', is_vector=True)
  moments = [np.asarray(x)[..., None] for x in _two_gaussians(scores, std)]
  mean0, std0, mean1, std1 = moments
  return np.asarray(epsilon_two_gaussians(mean0, std0, mean1, std1, deltas))


def null_gaussian(
  scores: Scores,
) -> tuple[Float[np.ndarray, '*batch'], Float[np.ndarray, '*batch']]:
  """Mean and standard deviation of the Gaussian that unobserved scores follow.

  N(0, 1/d) if `scores.null` is given, otherwise fitted to `scores.unobserved`.

  Args:
    scores: scores of canaries, any leading axes.

  Returns:
    Mean and standard deviation, each with the leading axes of the scores.

  Raises:
    ValueError: it has to be fitted, and all unobserved scores are equal.
  """
  if not scores.has_known_null:
    return fitted_gaussian('unobserved', scores.unobserved)
  batch = scores.observed.shape[:-1]
  return np.zeros(batch), np.full(
    batch, cosine_null.null_distribution(scores.null).std
  )


def fitted_gaussian(
  name: Literal['observed', 'unobserved'], values: Float[np.ndarray, '*batch n']
) -> tuple[Float[np.ndarray, '*batch'], Float[np.ndarray, '*batch']]:
  """Sample mean and population standard deviation (1/n) along the last axis.

  Args:
    name: the group of the scores, for the error message.
    values: scores, [*batch, n].

  Returns:
    Mean and standard deviation, each [*batch].

  Raises:
    ValueError: the scores of an audit are all equal, or nearly.
  """
  # The standard deviation of equal scores may be a rounding error above 0.
  spread = np.ptp(values, axis=-1)
  std = np.where(spread > 0, np.std(values, axis=-1), 0.0)
  if not np.all((std > 0) | (spread == 0)):
    raise ValueError(
      f'the {values.shape[-1]} {name} scores of an audit differ by at most '
      f'{np.max(spread[std == 0]):.3g}, whose square is less than float64 holds. '
      'Rescale all scores, both groups alike.'
    )
  if not np.all(std > 0):
    cure = "use std='null' or more canaries"
    if name == 'unobserved':
      cure = (
        'use more unobserved canaries, or, if scores are cosines in R^d, give '
        'null=Sphere(d), on the command line --dim=D'
      )
    raise ValueError(
      f'the {values.shape[-1]} {name} scores of an audit are all equal, so '
      f'their standard deviation is 0 and ε is undefined: {cure}.'
    )
  return np.asarray(np.mean(values, axis=-1)), np.asarray(std)


def _two_gaussians(scores, std):
  """Mean and std of the null Gaussian, then those of the observed one."""
  if std == 'null':
    mean0, std0 = null_gaussian(scores)
    return mean0, std0, np.mean(scores.observed, axis=-1), std0
  if std == 'fitted':
    return *null_gaussian(scores), *fitted_gaussian('observed', scores.observed)
  checks.check_choice('std', std, ('fitted', 'pooled', 'null'))
  if scores.has_known_null:
    raise ValueError(
      f"std='pooled' estimates one spread from both groups, but null={scores.null}"
      " gives it exactly: use std='null', or null=Unknown() to ignore the exact law."
    )
  return _pooled(scores.observed, scores.unobserved)


def _pooled(observed, unobserved):
  groups = (unobserved, observed)
  means = [np.mean(x, axis=-1) for x in groups]
  total = sum(x.shape[-1] for x in groups)
  variance = sum(np.var(x, axis=-1) * (x.shape[-1] / total) for x in groups)
  spread = np.maximum(*(np.ptp(x, axis=-1) for x in groups))
  # The standard deviation of equal scores may be a rounding error above 0.
  std = np.where(spread > 0, np.sqrt(variance), 0.0)
  if not np.all(std > 0):
    raise ValueError(
      'the scores of an audit are all equal in each group, so their pooled '
      'standard deviation is 0 and ε is undefined: use more canaries.'
    )
  return means[0], std, means[1], std


def _moments_and_target(mean0, std0, mean1, std1, delta):
  """Checked moments and log δ, each [num], and the broadcast shape."""
  moments, delta = _validate_moments(
    mean0, std0, mean1, std1, checks.check_numbers('delta', delta, '(0, 1)')
  )
  return [x.ravel() for x in moments], np.log(delta.ravel()), delta.shape


def _solve(p, q, target, *, min_epsilon):
  """The ε >= min_epsilon of one direction; p and q are mean and std."""
  with np.errstate(all='ignore'):
    pair = hockey_stick.standardise(*p, *q)
    return hockey_stick.solve(pair, target, min_epsilon)


def _validate_moments(mean0, std0, mean1, std1, value):
  """Broadcast float64 arrays, or an error that names argument and value."""
  *moments, value = np.broadcast_arrays(
    checks.check_numbers('mean0', mean0, '(-inf, inf)'),
    checks.check_numbers('std0', std0, '(0, inf)'),
    checks.check_numbers('mean1', mean1, '(-inf, inf)'),
    checks.check_numbers('std1', std1, '(0, inf)'),
    value,
  )
  return moments, value
