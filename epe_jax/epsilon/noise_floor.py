"""What an estimator reports when nothing leaks.

An estimator that maximises over thresholds or fits a spread is biased upwards:
with no leakage at all and a known null law, the fitted two-Gaussian estimate at
δ = 1e-5 is on average 0.31 with 1000 canaries and 1.22 with 100. An estimate means
little until it is compared with this floor.

If the law of the scores is known, audits are drawn from it (`draw_from_null`). If
it is not, as for scores of another system, labels are permuted
(`draw_permutations`): if nothing leaks, observed and unobserved scores have the same
law, whatever it is, and every permutation of the labels is equally likely.
"""

from collections.abc import Callable, Sequence
from concurrent import futures

from jaxtyping import Float
import numpy as np
from scipy import interpolate, special

from epe_jax.epsilon import checks, cosine_null
from epe_jax.epsilon.types import (
  Estimate,
  Floor,
  NullLaw,
  Scores,
  Sphere,
  Unknown,
  check_null,
)

Estimator = Callable[..., Estimate]
Draw = Callable[[np.random.Generator, int], Scores]
"""(rng, audits) -> scores in which nothing leaks, with audits on the first axis."""

SCORES_AT_ONCE, MAX_SCORES = 2_000_000, 20_000_000
"""Numbers of scores that simulations hold at once, and draw in all."""

_MIN_SIMULATIONS, _MAX_SIMULATIONS = 200, 4000
# Nodes from -9 to 9 standard deviations.
_NODES = np.linspace(-9.0, 9.0, 2049)


def estimate_noise_floor(
  rng: np.random.Generator,
  estimator: Estimator,
  *,
  delta: float,
  num_observed: int,
  num_unobserved: int,
  null: NullLaw = Unknown(),
  rounds: float = 1,
  simulations: int | None = None,
) -> Floor:
  """Mean and 5, 50, 95 % points of an estimator on scores without a leak.

  Observed and unobserved scores are drawn from the same null law, as by
  `draw_from_null`, in so many audits as by `simulate`.

  Args:
    rng: source of the simulated scores.
    estimator: called as `estimator(scores, delta=delta)` with audits on the leading
      axis of the scores; it must return one ε for each, as every estimator of this
      package does. Bind other settings first, with `functools.partial`.

  >>> from epe_jax import epsilon
  >>> floor = estimate_noise_floor(
  ...   np.random.default_rng(0), epsilon.two_gaussian, delta=1e-5,
  ...   num_observed=1000, num_unobserved=0, null=epsilon.Sphere(10**6))
  >>> round(floor.mean, 1)
  0.3
  """
  draw = draw_from_null(num_observed, num_unobserved, null=null, rounds=rounds)
  return summarize(
    *simulate(rng, [estimator], draw, delta=delta, simulations=simulations)
  )


def simulate(
  rng: np.random.Generator,
  estimators: Sequence[Estimator],
  draw: Draw,
  *,
  delta: float,
  simulations: int | None = None,
) -> Float[np.ndarray, 'estimators simulations']:
  """What each estimator reports for the same audits, in which nothing leaks.

  If no number of simulations is given, it is 4,000, or fewer, but at least 200, if an
  audit has more than 5,000 scores.

  Raises:
    ValueError: also if an estimator does not return one ε for each audit.
  """
  if simulations is not None:
    checks.check_integer('simulations', simulations)
  first = draw(rng, 1)
  size = first.observed.shape[-1] + first.unobserved.shape[-1]
  if simulations is None:
    simulations = int(
      np.clip(MAX_SCORES // size, _MIN_SIMULATIONS, _MAX_SIMULATIONS)
    )
  block = max(1, min(simulations, SCORES_AT_ONCE // size))
  values, last = [], None
  # A block is drawn while the one before it is estimated from.
  with futures.ThreadPoolExecutor(1, 'estimates') as pool:
    for start in range(0, simulations, block):
      scores = draw(rng, min(block, simulations - start))
      if last is not None:
        values.append(last.result())
      last = pool.submit(_estimate_all, estimators, scores, delta=delta)
    assert last is not None, 'there is a simulation'
    values.append(last.result())
  return np.concatenate(values, axis=1)


def _estimate_all(
  estimators: Sequence[Estimator], scores: Scores, *, delta: float
) -> Float[np.ndarray, 'estimators audits']:
  audits = len(scores.observed)
  values = np.empty((len(estimators), audits))
  for row, estimator in zip(values, estimators):
    epsilon = np.asarray(estimator(scores, delta=delta).epsilon)
    if epsilon.shape != (audits,):
      raise ValueError(
        f'estimator returned ε of shape {epsilon.shape} for {audits} audits '
        'on the leading axis; it must work on the last axis and keep the '
        'others.'
      )
    row[:] = epsilon
  return values


def summarize(values: Float[np.ndarray, ' simulations']) -> Floor:
  """Mean and 5, 50, 95 % points of the values of ε of simulated audits."""
  q05, q50, q95 = np.quantile(values, (0.05, 0.5, 0.95))
  return Floor(float(values.mean()), float(q05), float(q50), float(q95))


def p_value(epsilon: float, values: Float[np.ndarray, ' simulations']) -> float:
  """P-value of "nothing leaks": the share of simulated audits that report as much.

  The audit itself is counted among them. The p-value is exact for
  `draw_permutations`: if nothing leaks, at most a share p of all audits has a
  p-value of p or less.

  >>> p_value(2.0, np.array([0.0, 1.0, 2.0]))
  0.5
  """
  return float((1 + np.sum(values >= epsilon)) / (1 + values.size))


def draw_from_null(
  num_observed: int,
  num_unobserved: int,
  *,
  null: NullLaw = Unknown(),
  rounds: float = 1,
  shift: Float[np.ndarray, ' n1'] | None = None,
) -> Draw:
  """A source of audits whose observed and unobserved scores have one null law.

  Args:
    num_observed: number of observed canaries of an audit, >= 1.
    num_unobserved: number of unobserved canaries of an audit; 0 is allowed if the
      null law is known.
    null: the law of scores. If it is `Unknown`, scores are standard normal, the
      limit of large d in units of 1/√d, and the estimator is not given their law.
    rounds: the number of independent scores, >= 1 and not necessarily an integer,
      whose maximum a score is. Unless it is 1 the estimator is not given `null`,
      as in a real run, where the law of the maximum is unknown.
    shift: as in `Scores`, for estimators that use it.
  """
  checks.check_integer('num_observed', num_observed)
  checks.check_integer('num_unobserved', num_unobserved, 0)

  def draw(rng: np.random.Generator, audits: int) -> Scores:
    observed, unobserved = (
      draw_null(rng, (audits, num), null=null, rounds=rounds)
      for num in (num_observed, num_unobserved)
    )
    given = null if rounds == 1 else Unknown()
    return Scores(observed, unobserved, null=given, shift=shift)

  return draw


def draw_permutations(scores: Scores) -> Draw:
  """A source of audits with the scores of one audit, whose labels are permuted.

  Raises:
    ValueError: the scores have leading axes, or none are unobserved.
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
    copies = np.broadcast_to(pooled, (audits, pooled.size))
    permuted = rng.permuted(copies, axis=-1)
    return Scores(
      permuted[:, :num], permuted[:, num:], scores.null, shift=scores.shift
    )

  return draw


def draw_null(
  rng: np.random.Generator,
  shape: tuple[int, ...],
  *,
  null: NullLaw,
  rounds: float = 1,
) -> Float[np.ndarray, '...']:
  """Scores of unobserved canaries: maxima of `rounds` independent null scores.

  They are cosines if the null law is `Sphere`, otherwise standard normals.
  """
  check_null(null)
  checks.check_number('rounds', rounds, '[1, inf)')
  if rounds == 1:
    normals = rng.standard_normal(shape)
    if not isinstance(null, Sphere):
      return normals
    # A direction is one coordinate next to the length of all the others.
    return normals / np.sqrt(normals**2 + rng.chisquare(null.dim - 1, shape))
  # The cdf of a maximum is a power: its log is that of a uniform over rounds,
  # and minus the log of a uniform is exponential.
  above = -np.expm1(-rng.standard_exponential(shape) / rounds)
  normals = -special.ndtri(above)
  if not isinstance(null, Sphere):
    return normals
  # Cosines are a smooth function of normals, expensive to compute one by one.
  cosines = cosine_null.CosineNull(null.dim).isf(special.ndtr(-_NODES))
  return interpolate.CubicSpline(_NODES, cosines)(np.clip(normals, -9, 9))
