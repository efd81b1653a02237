"""What an estimator reports when nothing leaks.

An estimator that maximises over thresholds or fits a spread is biased upwards:
with no leakage at all and 1000 canaries, the fitted two-Gaussian estimate is
0.31 on average at δ = 1e-5, and 1.22 with 100. An estimate means little until
it is compared with this floor.
"""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
import numpy as np
from scipy import special

from epe_jax.epsilon import null
from epe_jax.epsilon.types import Estimate, Floor, Scores


def noise_floor(
  rng: np.random.Generator,
  estimator: Callable[..., Estimate],
  *,
  delta: float,
  num_observed: int,
  num_unobserved: int,
  dim: int | None = None,
  rounds: int = 1,
  simulations: int = 400,
) -> Floor:
  """Mean and 5, 50, 95 % points of an estimator on scores that hide nothing.

  Observed and unobserved scores are drawn from the same null law. The estimator
  is called once, as `estimator(scores, delta=delta)`, with `simulations` as the
  leading axis of the scores, and must return that many values of ε: the
  contract that every estimator of this package keeps. Bind other settings
  first, with `functools.partial`.

  Args:
    rng: source of the simulated scores.
    estimator: the estimator.
    delta: δ, in (0, 1).
    num_observed: observed canaries of an audit, >= 1.
    num_unobserved: unobserved canaries of an audit; 0 is allowed if the null is
      known.
    dim: d of the cosines; None for standard normal scores, the limit of large d
      in units of 1/√d, whose law the estimator is not told.
    rounds: a score is the maximum over this many independent looks, >= 1. The
      estimator is then not told `dim` either, as in a real run, where the law
      of the maximum is unknown.
    simulations: number of audits, >= 1.

  Returns:
    The floor.

  Raises:
    ValueError: if the estimator does not return one ε per simulation.

  >>> from epe_jax.epsilon import gaussian
  >>> floor = noise_floor(
  ...   np.random.default_rng(0), gaussian.two_gaussian, delta=1e-5,
  ...   num_observed=1000, num_unobserved=0, dim=10**6)
  >>> round(floor.mean, 1)
  0.3
  """
  if rounds < 1 or simulations < 1:
    raise ValueError(
      f'rounds={rounds} and simulations={simulations} must be at least 1.'
    )
  scores = Scores(
    draw_null(rng, (simulations, num_observed), dim=dim, rounds=rounds),
    draw_null(rng, (simulations, num_unobserved), dim=dim, rounds=rounds),
    dim=dim if rounds == 1 else None,
  )
  epsilon = np.asarray(estimator(scores, delta=delta).epsilon)
  if epsilon.shape != (simulations,):
    raise ValueError(
      f'estimator returned ε of shape {epsilon.shape} for {simulations} audits '
      'on the leading axis; it must work on the last axis and keep the others.'
    )
  q05, q50, q95 = np.quantile(epsilon, (0.05, 0.5, 0.95))
  return Floor(float(epsilon.mean()), float(q05), float(q50), float(q95))


def draw_null(
  rng: np.random.Generator,
  shape: tuple[int, ...],
  *,
  dim: int | None,
  rounds: int = 1,
) -> Float[np.ndarray, '...']:
  """Scores of unobserved canaries: maxima of `rounds` independent null cosines.

  Args:
    rng: source of the scores.
    shape: shape of the result.
    dim: d of the cosines, >= 2; None for standard normals.
    rounds: looks of which a score is the maximum, >= 1.

  Returns:
    Independent scores.
  """
  # The cdf of a maximum is a power: its log is that of a uniform over rounds,
  # and minus the log of a uniform is exponential.
  above = -np.expm1(-rng.standard_exponential(shape) / rounds)
  if dim is None:
    return -special.ndtri(above)
  return np.asarray(null.CosineNull(dim).isf(above))
