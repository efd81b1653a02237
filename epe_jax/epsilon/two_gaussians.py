"""ε between two Gaussians, exactly, and the paper's estimator built on it.

References: Andrew et al., "One-shot empirical privacy estimation for federated
learning" (ICLR 2024), section 3.2 and Algorithms 1-3.
"""

from typing import Literal

from jaxtyping import Float
import numpy as np

from epe_jax.epsilon import checks, cosine_null, hockey_stick
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

  Both directions of the hockey-stick divergence are then at most δ. For any finite
  input and δ <= 1/2 the relative error is below 1e-10 or the absolute error below
  1e-12; ε is inf if it exceeds the range of a float64. All arguments broadcast.

  References: section 3.2 of the paper.

  >>> round(epsilon_two_gaussians(0, 1, 1 / 4.22, 1, 1e-6), 2)
  1.0
  """
  delta = checks.check_numbers('delta', delta, '(0, 1)')
  (mean0, std0, mean1, std1, delta), shape = _broadcast(
    mean0, std0, mean1, std1, delta
  )
  target = np.log(delta)
  # An event far out in the wider Gaussian nearly always leaks most: the other
  # direction is solved only where its ε is larger.
  swap = std0 < std1
  wider, narrower = (
    [np.where(choose, x0, x1) for x0, x1 in ((mean0, mean1), (std0, std1))]
    for choose in (~swap, swap)
  )
  zero = np.zeros_like(target)
  epsilon = hockey_stick.solve(wider, narrower, target, zero)
  epsilon = hockey_stick.solve(narrower, wider, target, epsilon)
  return scalar_or_array(epsilon.reshape(shape))


def log_delta_one_direction(
  epsilon: Real,
  mean0: Real,
  std0: Real,
  mean1: Real,
  std1: Real,
) -> float | Float[np.ndarray, '...']:
  """Log of δ(ε) = sup_A N(mean0, std0²)(A) - e^ε N(mean1, std1²)(A).

  ε is >= 0 and finite; the result is -inf where δ = 0. All arguments broadcast.
  """
  epsilon = checks.check_numbers('epsilon', epsilon, '[0, inf)')
  (mean0, std0, mean1, std1, epsilon), shape = _broadcast(
    mean0, std0, mean1, std1, epsilon
  )
  log_delta = hockey_stick.log_delta((mean0, std0), (mean1, std1), epsilon)
  return scalar_or_array(log_delta.reshape(shape))


def two_gaussian(
  scores: Scores,
  *,
  delta: float,
  std: Literal['fitted', 'null'] = 'fitted',
) -> Estimate:
  """The paper's estimate: ε between the null and the observed Gaussian.

  The null Gaussian is that of the null law if it is known, N(0, 1/d) of cosines
  (Algorithms 1 and 2), otherwise it is fitted to the unobserved scores (Algorithm 3). The observed
  Gaussian has the sample mean, and as standard deviation

  - 'fitted': that of the observed scores (1/k), as the paper prints it. It biases
    ε upwards, because at small δ ε is smallest for equal standard deviations;
  - 'null': that of the null Gaussian. The estimate is calibrated if participation
    shifts a score and does not change its spread, as in Algorithm 1, and it
    reproduces the table of the paper.

  Returns:
    A point estimate.

  Raises:
    ValueError: also if a fitted standard deviation is zero.
  """
  check_scores(scores, delta)
  checks.check_choice('std', std, ('fitted', 'null'))
  mean0, std0 = null_gaussian(scores)
  mean1, std1 = np.mean(scores.observed, axis=-1), std0
  if std == 'fitted':
    mean1, std1 = fitted_gaussian('observed', scores.observed)
  assumes = (Assumption.GAUSSIAN_SCORES,)
  if std != 'fitted':
    assumes += (Assumption.EQUAL_SPREAD,)
  return Estimate(
    epsilon_two_gaussians(mean0, std0, mean1, std1, delta),
    delta,
    f'two_gaussian_{std}',
    confidence=None,
    assumes=assumes,
  )


def null_gaussian(
  scores: Scores,
) -> tuple[Float[np.ndarray, '*batch'], Float[np.ndarray, '*batch']]:
  """Mean and standard deviation, [*batch], of the Gaussian of unobserved scores.

  Of the null law if it is known, otherwise fitted to the unobserved scores.
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

  Raises:
    ValueError: the scores of an audit, of the group of that name, are all equal.
  """
  # The standard deviation of equal scores may be a rounding error above 0.
  spread = np.ptp(values, axis=-1)
  std = np.where(spread > 0, np.std(values, axis=-1), 0.0)
  if not np.all(std > 0):
    cure = "use std='null' or more canaries"
    if name == 'unobserved':
      cure = (
        'use more unobserved canaries, or, if scores are cosines in R^d, give '
        'null=Sphere(d), on the command line --dim=D'
      )
    raise ValueError(
      f'the {values.shape[-1]} {name} scores of an audit are all equal or nearly, so '
      f'their standard deviation is 0 and ε is undefined: {cure}.'
    )
  return np.asarray(np.mean(values, axis=-1)), np.asarray(std)


def _broadcast(mean0, std0, mean1, std1, value):
  """Checked moments and a checked value, [num] each, and the shape of all."""
  arrays = np.broadcast_arrays(
    checks.check_numbers('mean0', mean0, '(-inf, inf)'),
    checks.check_numbers('std0', std0, '(0, inf)'),
    checks.check_numbers('mean1', mean1, '(-inf, inf)'),
    checks.check_numbers('std1', std1, '(0, inf)'),
    value,
  )
  return [x.ravel() for x in arrays], arrays[0].shape
