"""What an estimator reports when nothing leaks.

An estimator that maximises over thresholds or fits a spread is biased upwards:
with no leakage at all and 1000 canaries, the fitted two-Gaussian estimate is
0.31 on average at δ = 1e-5, and 1.22 with 100. An estimate means little until
it is compared with this floor.

Where the law of the scores is known, audits are drawn from it (`draw_from_null`).
Where it is not, as of scores of another system, labels are dealt anew
(`draw_permutations`): if nothing leaks, observed and unobserved scores are alike and
every dealing is as likely as the one that was seen, whatever their law.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jaxtyping import Float
import numpy as np
from scipy import interpolate, special

from epe_jax.epsilon import cosine_null
from epe_jax.epsilon.types import Estimate, Floor, Scores

Estimator = Callable[..., Estimate]
Draw = Callable[[np.random.Generator, int], Scores]
"""(rng, audits) -> scores in which nothing leaks, audits along the first axis."""

# Scores of a block of audits, and of all of them.
_BLOCK, _ALL = 2_000_000, 20_000_000
_FEWEST, _MOST = 200, 4000
# Nodes from -9 to 9 standard deviations.
_NODES = np.linspace(-9.0, 9.0, 2049)


def estimate_noise_floor(
  rng: np.random.Generator,
  estimator: Estimator,
  *,
  delta: float,
  num_observed: int,
  num_unobserved: int,
  dim: float | None = None,
  rounds: float = 1,
  simulations: int | None = None,
) -> Floor:
  """Mean and 5, 50, 95 % points of an estimator on scores that hide nothing.

  Observed and unobserved scores are drawn from the same null law. The estimator
  is called as `estimator(scores, delta=delta)` with audits along the leading axis
  of the scores, and must return that many values of ε: the contract that every
  estimator of this package keeps. Bind other settings first, with
  `functools.partial`.

  Args:
    rng: source of the simulated scores.
    estimator: the estimator.
    delta: δ, in (0, 1).
    num_observed: as in `draw_from_null`, like all that follow.
    num_unobserved: likewise.
    dim: likewise.
    rounds: likewise.
    simulations: as in `floors`.

  Returns:
    The floor.

  Raises:
    ValueError: if the estimator does not return one ε per simulation, or an
      argument is out of range.

  >>> from epe_jax import epsilon
  >>> floor = estimate_noise_floor(
  ...   np.random.default_rng(0), epsilon.two_gaussian, delta=1e-5,
  ...   num_observed=1000, num_unobserved=0, dim=10**6)
  >>> round(floor.mean, 1)
  0.3
  """
  draw = draw_from_null(num_observed, num_unobserved, dim=dim, rounds=rounds)
  values = simulate(
    rng, [estimator], draw, delta=delta, simulations=simulations
  )
  return summarize(values[0])


def simulate(
  rng: np.random.Generator,
  estimators: Sequence[Estimator],
  draw: Draw,
  *,
  delta: float,
  simulations: int | None = None,
) -> Float[np.ndarray, 'estimators simulations']:
  """What each estimator reports of audits in which nothing leaks.

  All estimators are shown the same audits, as drawing these takes the time.

  Args:
    rng: source of the audits.
    estimators: each as for `estimate_noise_floor`.
    draw: makes audits: `draw_from_null` or `draw_permutations`.
    delta: δ, in (0, 1).
    simulations: number of audits, >= 1; None for 4,000, and fewer, at least 200,
      where an audit has more than 5,000 scores.

  Returns:
    ε of each audit.

  Raises:
    ValueError: an estimator does not return one ε per audit.
  """
  if simulations is not None and simulations < 1:
    raise ValueError(f'simulations={simulations} must be at least 1.')
  first = draw(rng, 1)
  size = first.observed.shape[-1] + first.unobserved.shape[-1]
  if simulations is None:
    simulations = int(np.clip(_ALL // size, _FEWEST, _MOST))
  block = max(1, min(simulations, _BLOCK // size))
  values = np.empty((len(estimators), simulations))
  for start in range(0, simulations, block):
    audits = min(block, simulations - start)
    scores = draw(rng, audits)
    for row, estimator in zip(values, estimators):
      epsilon = np.asarray(estimator(scores, delta=delta).epsilon)
      if epsilon.shape != (audits,):
        raise ValueError(
          f'estimator returned ε of shape {epsilon.shape} for {audits} audits '
          'on the leading axis; it must work on the last axis and keep the '
          'others.'
        )
      row[start : start + audits] = epsilon
  return values


def summarize(values: Float[np.ndarray, ' simulations']) -> Floor:
  """Mean and 5, 50, 95 % points."""
  q05, q50, q95 = np.quantile(values, (0.05, 0.5, 0.95))
  return Floor(float(values.mean()), float(q05), float(q50), float(q95))


def p_value(epsilon: float, values: Float[np.ndarray, ' simulations']) -> float:
  """Of "nothing leaks": the share of audits, with this one, that report as much.

  Exact for `draw_permutations`: under no leakage at most p of all audits have a
  p-value of p or less.

  >>> p_value(2.0, np.array([0.0, 1.0, 2.0]))
  0.5
  """
  return float((1 + np.sum(values >= epsilon)) / (1 + values.size))


def draw_from_null(
  num_observed: int,
  num_unobserved: int,
  *,
  dim: float | None = None,
  rounds: float = 1,
  shift: Float[np.ndarray, ' n1'] | None = None,
) -> Draw:
  """Audits with observed and unobserved scores of the same null law.

  Args:
    num_observed: observed canaries of an audit, >= 1.
    num_unobserved: unobserved canaries of an audit; 0 is allowed if the null is
      known.
    dim: d of the cosines; None for standard normal scores, the limit of large d
      in units of 1/√d, whose law the estimator is not told.
    rounds: a score is the maximum over this many independent ones, >= 1, and
      need not be whole. The estimator is then not told `dim` either, as in a
      real run, where the law of the maximum is unknown.
    shift: as in `Scores`, for estimators that look at it.

  Raises:
    ValueError: rounds is out of range.
  """
  if rounds < 1:
    raise ValueError(f'rounds={rounds} must be at least 1.')

  def draw(rng: np.random.Generator, audits: int) -> Scores:
    observed, unobserved = (
      draw_null(rng, (audits, num), dim=dim, rounds=rounds)
      for num in (num_observed, num_unobserved)
    )
    known = dim if rounds == 1 else None
    return Scores(observed, unobserved, dim=known, shift=shift)

  return draw


def draw_permutations(scores: Scores) -> Draw:
  """Audits with the same scores, of which others are said to be observed.

  Args:
    scores: one audit, with unobserved scores.

  Raises:
    ValueError: leading axes, or no unobserved scores.
  """
  if scores.observed.ndim != 1 or not scores.unobserved.size:
    raise ValueError(
      f'observed has shape {scores.observed.shape} and '
      f'{scores.unobserved.size} scores are unobserved; give one audit with '
      'scores of both kinds.'
    )
  pooled = np.concatenate([scores.observed, scores.unobserved])
  num = scores.observed.size

  def draw(rng: np.random.Generator, audits: int) -> Scores:
    dealt = np.broadcast_to(pooled, (audits, pooled.size))
    dealt = rng.permuted(dealt, axis=-1)
    return Scores(dealt[:, :num], dealt[:, num:], dim=scores.dim)

  return draw


def draw_null(
  rng: np.random.Generator,
  shape: tuple[int, ...],
  *,
  dim: float | None,
  rounds: float = 1,
) -> Float[np.ndarray, '...']:
  """Scores of unobserved canaries: maxima of `rounds` independent null cosines.

  Args:
    rng: source of the scores.
    shape: shape of the result.
    dim: d of the cosines, >= 2; None for standard normals.
    rounds: scores of which each is the maximum, >= 1.

  Returns:
    Independent scores.
  """
  if rounds == 1:
    normals = rng.standard_normal(shape)
    if dim is None:
      return normals
    if np.isinf(cosine_null.null_law(dim).dim):
      return normals
    # A direction is one coordinate beside the length of all the others.
    return normals / np.sqrt(normals**2 + rng.chisquare(dim - 1, shape))
  # The cdf of a maximum is a power: its log is that of a uniform over rounds,
  # and minus the log of a uniform is exponential.
  above = -np.expm1(-rng.standard_exponential(shape) / rounds)
  normals = -special.ndtri(above)
  if dim is None:
    return normals
  # Cosines are a smooth function of normals, dear to compute one by one.
  known = cosine_null.null_law(dim).isf(special.ndtr(-_NODES))
  return interpolate.CubicSpline(_NODES, known)(np.clip(normals, -9, 9))
