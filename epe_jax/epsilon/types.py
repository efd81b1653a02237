"""What goes into an estimate of ε, and what comes out."""

import dataclasses
import enum
import math
import reprlib
from typing import Literal, NamedTuple, cast

from jaxtyping import Float, Shaped
import numpy as np
from scipy import special

from epe_jax.epsilon import checks

# What a function of real checks takes; it broadcasts.
Real = np.ndarray | np.number | float | int

Sides = Literal['in', 'both']
"""Which guesses of the attack "in if score >= threshold" bound ε.

'in': those that a canary took part, by ε >= log (1 - δ - FNR)/FPR. 'both': also
those that one did not, by ε >= log (1 - δ - FPR)/FNR.
"""


@dataclasses.dataclass(frozen=True)
class Sphere:
  """The score of an unobserved canary is the cosine of a random direction.

  It is exactly that of a uniform unit vector in R^d, d >= 2, with an independent
  vector: `cosine_null.CosineNull`.
  """

  dim: int

  def __post_init__(self):
    checks.check_integer('dim', self.dim, 2)


@dataclasses.dataclass(frozen=True)
class Gaussian:
  """The score of an unobserved canary is exactly N(0, 1).

  So is an inner product with Gaussian noise in units of that noise.
  """


@dataclasses.dataclass(frozen=True)
class Unknown:
  """The null law is unknown, and estimated from unobserved scores.

  So it is for a maximum over rounds.
  """


NullLaw = Sphere | Gaussian | Unknown
"""What is known of the law of the score of an unobserved canary."""


def make_null(dim: float | None) -> NullLaw:
  """The null law that a number of dimensions names, as a flag or a file has it.

  It is d of cosines in R^d, inf for N(0, 1), or None if the law is unknown.

  >>> make_null(100), make_null(None)
  (Sphere(dim=100), Unknown())
  """
  if dim is None:
    return Unknown()
  return Gaussian() if dim == math.inf else Sphere(cast(int, dim))


# Squares of these, and sums of them, are far from where float64 overflows or has fewer
# digits.
_MAX_SCORE = 1e140


# Chance below which fair coins are taken for a mistake.
_COINS_REJECTED_BELOW = 1e-6


@dataclasses.dataclass(frozen=True)
class Scores:
  """Scores of canaries that took part, and of canaries that did not.

  A higher score means "took part". Leading axes hold independent audits, such as
  bootstrap resamples or simulations.

  Attributes:
    observed: [*batch, n1], n1 >= 1, of any real dtype; converted to float64.
    unobserved: [*batch, n0]. It may be empty only if `null` is known.
    null: the law of the score of an unobserved canary: `Sphere` for cosines,
      `Gaussian` or `Unknown`.
    design: 'fixed' if the numbers of observed and unobserved canaries were
      chosen, 'coin_flip' if independent coins decided of each.
    shift: [n1] by how much participation is expected to shift the score of each
      observed canary, > 0 and up to one common factor; None if all are shifted
      alike. Canaries of different rounds are not, if the final model holds more of
      one round than of another.
    overlap: Σ_{i≠j} μ_i² μ_j²/(d Σ μ²) over pairs of observed canaries that are
      in the same vector, where μ are the shifts: each is noise to the other, and
      the variance of a fitted common factor s grows by s² times `overlap`.
      Whatever else all scores share by a factor adds to it.
    inclusion_probability: π, in (0, 1), of the coins of design 'coin_flip'. If
      inclusion probabilities differ, give the largest if that is below 1/2, the
      smallest if that is above, and else the largest, with guesses=[(k, 0)].
    is_ordinal: their order is known and no more, as where one is infinite.

  Raises:
    ValueError: these make no audit; the message says what to give.
  """

  observed: Shaped[np.ndarray, '... n1']
  unobserved: Shaped[np.ndarray, '... n0']
  null: NullLaw = Unknown()
  design: Literal['fixed', 'coin_flip'] = 'fixed'
  shift: Shaped[np.ndarray, ' n1'] | None = None
  overlap: float = 0.0
  inclusion_probability: float = 0.5
  is_ordinal: bool = False

  def __post_init__(self):
    observed = _to_float64('observed', self.observed)
    unobserved = _to_float64('unobserved', self.unobserved)
    batch = observed.shape[:-1]
    if unobserved.size == 0:
      unobserved = np.empty((*batch, 0))
    object.__setattr__(self, 'observed', observed)
    object.__setattr__(self, 'unobserved', unobserved)
    if observed.shape[-1] < 1:
      raise ValueError(
        f'observed has shape {observed.shape}, but an audit needs at least one '
        'observed canary.'
      )
    _check_no_columns(observed, unobserved)
    if unobserved.shape[:-1] != batch:
      raise ValueError(
        f'observed has leading axes {batch} but unobserved has '
        f'{unobserved.shape[:-1]}; give both the same independent audits.'
      )
    _check_range('observed', observed)
    _check_range('unobserved', unobserved)
    checks.check_choice('design', self.design, ('fixed', 'coin_flip'))
    checks.check_number(
      'inclusion_probability', self.inclusion_probability, '(0, 1)'
    )
    if self.design == 'coin_flip':
      sizes = observed.shape[-1], unobserved.shape[-1]
      _check_coins(*sizes, self.inclusion_probability)
    checks.check_number('overlap', self.overlap, '[0, inf)')
    check_null(self.null)
    if not self.has_known_null and unobserved.shape[-1] < 1:
      raise ValueError(
        'unobserved is empty and null=Unknown(), so nothing says how an unobserved '
        'canary scores. Give unobserved scores, or null=Sphere(d) if scores are '
        'cosines in R^d.'
      )
    if isinstance(self.null, Sphere):
      _check_cosines(self.null.dim, observed, unobserved)
    if self.shift is not None:
      shift = _validate_shift(self.shift, observed.shape[-1])
      object.__setattr__(self, 'shift', shift)

  @property
  def has_known_null(self) -> bool:
    """Whether the law of the score of an unobserved canary is known exactly."""
    return not isinstance(self.null, Unknown)


class Floor(NamedTuple):
  """What an estimator reports when nothing leaks, over simulated audits.

  An estimate means little until it is compared with it: mean, 5 % quantile, median
  and 95 % quantile of ε.
  """

  mean: float
  q05: float
  q50: float
  q95: float


class Assumption(enum.StrEnum):
  """A condition without which an estimate is not what it says it is.

  Its value is a key; `epe_jax.report.words` has the words.
  """

  INDEPENDENT = 'independent_canaries'
  COINS = 'independent_inclusion'
  COSINE_NULL = 'cosine_null'
  GAUSSIAN_SCORES = 'gaussian_scores'
  EQUAL_SPREAD = 'equal_spread'
  GAUSSIAN_CURVE = 'gaussian_curve'
  FAMILY = 'mechanism_of_family'
  GAUSSIAN_RUNS = 'gaussian_runs'


# Assumptions about the shape of a law.
_SHAPE = frozenset(Assumption) - {
  Assumption.INDEPENDENT,
  Assumption.COINS,
  Assumption.COSINE_NULL,
}

Kind = Literal['point_estimate', 'confidence_bound', 'credible_bound']


@dataclasses.dataclass(frozen=True)
class Estimate:
  """An ε at a δ, and what it is worth.

  Attributes:
    epsilon: ε >= 0: a float, or an array with the leading axes of the scores.
    delta: the δ at which ε holds.
    method: the name of the estimator.
    confidence: the probability that `epsilon` is at most the true ε, provided
      that its assumptions hold; for a credible bound, the posterior probability.
      None marks a point estimate, which guarantees nothing.
    kind: 'point_estimate', 'confidence_bound' or 'credible_bound'. A credible
      bound is below the true ε as often as stated on average over a prior; at a
      given ε it may fail more often.
    assumes: what must hold of the scores and the mechanism.
    floor: what the same estimator reports when nothing leaks.
    interval: lower and upper limit of ε, two-sided, if the method has them.
    p_value: the p-value of "nothing leaks", if audits without a leak were
      simulated.
    is_rejected: the scores reject what the estimate assumes, and its method is
      named after that.
  """

  epsilon: float | Float[np.ndarray, '...']
  delta: float
  method: str
  confidence: float | None
  kind: Kind = 'point_estimate'
  assumes: tuple[Assumption, ...] = ()
  floor: Floor | None = None
  interval: tuple[float, float] | None = None
  p_value: float | None = None
  is_rejected: bool = False

  def __post_init__(self):
    if (self.kind == 'point_estimate') != (self.confidence is None):
      raise ValueError(
        f'kind={self.kind!r} with confidence={self.confidence}; a bound has a '
        'confidence and a point estimate has none.'
      )

  @property
  def is_shape_free(self) -> bool:
    """Whether no shape of a law, of scores or mechanism, is assumed."""
    return not _SHAPE.intersection(self.assumes)

  @property
  def is_within_floor(self) -> bool:
    """Whether the estimator reports as much in 9 of 10 audits without leakage."""
    return self.floor is not None and float(self.epsilon) <= self.floor.q95


def list_assumptions(scores: Scores) -> tuple[Assumption, ...]:
  """What every estimate assumes of scores with this null law."""
  if not scores.has_known_null:
    return (Assumption.INDEPENDENT,)
  return Assumption.INDEPENDENT, Assumption.COSINE_NULL


def make_bound(
  epsilon: Real,
  delta: float,
  method: str,
  *,
  significance: float,
  assumes: tuple[Assumption, ...],
  kind: Kind = 'confidence_bound',
  rejected: str | None = None,
) -> Estimate:
  """A lower bound, or only a point estimate if its assumptions are rejected.

  `rejected` names what the scores reject: it is appended to the name of the method.
  A kind of 'point_estimate' never had a guarantee.
  """
  if rejected is not None:
    method, kind = f'{method}_{rejected}', 'point_estimate'
  return Estimate(
    scalar_or_array(epsilon),
    float(delta),
    method,
    confidence=None if kind == 'point_estimate' else 1 - significance,
    kind=kind,
    assumes=assumes,
    is_rejected=rejected is not None,
  )


def mark_rejected(estimate: Estimate) -> Estimate:
  """A point estimate under a name that says that scores reject what it assumes."""
  return dataclasses.replace(
    estimate, method=f'{estimate.method}_rejected', is_rejected=True
  )


def check_null(null: NullLaw) -> None:
  """Raises a ValueError unless null is a null law."""
  if not isinstance(null, NullLaw):
    raise ValueError(
      f'null={null!r} is not a null law. Give Sphere(d) for cosines in R^d, whose '
      'law CosineNull(d) is, Gaussian() or Unknown().'
    )


def check_scores(
  scores: Scores,
  delta: float = 0.5,
  *,
  significance: float = 0.05,
  confidence: float = 0.9,
) -> None:
  """Raises a ValueError unless these are `Scores` and settings are in range."""
  if not isinstance(scores, Scores):
    raise ValueError(
      f'scores={reprlib.repr(scores)} is a {type(scores).__name__}; give '
      'Scores(observed, unobserved).'
    )
  checks.check_delta(delta)
  checks.check_significance(significance)
  checks.check_confidence(confidence)


def check_one_audit(scores: Scores) -> None:
  """Raises a ValueError unless these are `Scores` of a single audit."""
  check_scores(scores)
  if scores.observed.ndim != 1:
    raise ValueError(
      f'observed has shape {scores.observed.shape}; give one audit at a time, '
      'without leading axes.'
    )


def scalar_or_array(values: Real) -> float | Float[np.ndarray, '...']:
  """A Python float for a value without axes, the array itself otherwise."""
  return np.asarray(values) if np.ndim(values) else float(values)


def _to_float64(name, values):
  if isinstance(values, np.ma.MaskedArray):
    raise ValueError(
      f'{name} is a masked array of shape {values.shape}, and estimators '
      f'would use its masked scores too. Give {name}.compressed().'
    )
  array = np.asarray(values)
  if array.dtype.kind not in 'biuf':
    raise ValueError(
      f'{name} has dtype {array.dtype}, which is not one of real numbers. Give '
      'real scores, such as cosines.'
    )
  array = array.astype(np.float64)
  if array.ndim < 1:
    raise ValueError(
      f'{name}={values!r} is a single number; give an array [..., canaries].'
    )
  if num := np.sum(~np.isfinite(array)):
    raise ValueError(
      f'{name} has {num} values that are not finite; drop the run, or audit an '
      'earlier model.'
    )
  return array


def _check_range(name, array):
  """Rejects scores whose differences have squares beyond what float64 holds."""
  # No array of magnitudes, for simulated audits have millions of scores.
  largest = float(max(np.max(array, initial=0), -np.min(array, initial=0)))
  if largest > _MAX_SCORE:
    raise ValueError(
      f'{name} has a score of magnitude {largest:.3g}, but squares of differences '
      f'above {_MAX_SCORE:g} are more than float64 holds. Rescale all scores, both '
      'groups alike.'
    )


def _validate_shift(values, num):
  shift = _to_float64('shift', values)
  if shift.shape != (num,) or not np.all(shift > 0):
    raise ValueError(
      f'shift has shape {shift.shape} and a smallest value of '
      f'{np.min(shift, initial=np.inf):.3g}; give a number > 0 for each of the '
      f'{num} observed canaries.'
    )
  return shift


def _check_no_columns(observed, unobserved):
  """Rejects [n, 1] in both groups: nothing follows from audits of one canary."""
  one_each = observed.shape[-1] == 1 and unobserved.shape[-1] == 1
  if one_each and max(observed.size, unobserved.size) > 1:
    raise ValueError(
      f'observed has shape {observed.shape} and unobserved {unobserved.shape}: '
      'the last axis is that of canaries, so these are audits of one canary '
      'each. For one audit give arrays [n], as observed.ravel() and '
      'unobserved.ravel() are.'
    )


def _check_coins(num, num_null, probability):
  """Rejects groups that coins do not make; others may have coins of their own."""
  total = num + num_null
  many = special.bdtrc(num - 1, total, probability)
  few = special.bdtr(num, total, probability)
  # Of the side that is guessed.
  chance = many if probability < 0.5 else few
  if probability == 0.5:
    chance = 2 * min(many, few)
  if chance < _COINS_REJECTED_BELOW:
    raise ValueError(
      f"design='coin_flip' with {num:,} observed and {num_null:,} unobserved scores: "
      f'coins with inclusion_probability={probability:g} give such groups with a '
      f"chance of {chance:.1g}. Give design='fixed', or the probability of the coins."
    )


def _check_cosines(dim, *groups):
  # Cosines in float32 may exceed 1 by rounding.
  largest = max(np.max(np.abs(g), initial=0.0) for g in groups)
  if largest > 1 + 1e-5:
    raise ValueError(
      f'null=Sphere({dim}) says that the scores are cosines, but one is '
      f'{largest:.6g} in magnitude. Give cosines, or unobserved scores and '
      'null=Unknown(), on the command line no --dim.'
    )
