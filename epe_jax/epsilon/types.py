"""What goes into an estimate of ε, and what comes out."""

from __future__ import annotations

import dataclasses
import enum
import math
import numbers
from typing import Literal, NamedTuple

from jaxtyping import Float, Shaped
import numpy as np

# What a function of real arguments takes; it broadcasts.
Real = np.ndarray | np.number | float | int


@dataclasses.dataclass(frozen=True)
class Scores:
  """Scores of canaries that took part, and of canaries that did not.

  A higher score means "took part". Leading axes are independent audits, such
  as bootstrap resamples or simulations: every estimator works on the last axis
  and broadcasts over the others.

  Attributes:
    observed: [*batch, n1] scores of canaries that took part; n1 >= 1. Any real
      dtype is taken and float64 is kept.
    unobserved: [*batch, n0] scores of canaries that did not. It may be empty
      only if `dim` is given, then as np.empty(0) whatever the leading axes.
    dim: d, when the score of an unobserved canary is exactly the cosine of a
      uniform unit vector in R^d with an independent vector, so that its law is
      known (`cosine_null.CosineNull`); inf when it is exactly N(0, 1), as an inner
      product with Gaussian noise in units of that noise. None when that law is
      known only through `unobserved`, such as for a maximum over rounds.
    design: 'fixed' if the numbers of observed and unobserved canaries were
      chosen, 'coin_flip' if an independent fair coin put each canary in or out.
    shift: [n1] by how much taking part is expected to move the score of each
      observed canary, > 0 and up to one common factor, alike in all audits;
      None if all are moved alike. Canaries of different rounds are not, where a
      final model holds more of one round than of another.
    overlap: Σ_{i≠j} μ_i² μ_j²/(d Σ μ²) over pairs of observed canaries that are
      in one vector, with μ the shifts. Each is noise to the other and in the same
      way, so that s² times this is what the variance of a fitted factor s of all
      shifts gains. It is next to nothing where clients or noise outweigh
      canaries.

  Raises:
    ValueError: for empty, non-finite or mismatched arrays, for those that are
      masked or not of real numbers, for columns [n, 1] in both groups, for a
      dim that is neither an integer >= 2 nor inf, for scores that cannot be
      cosines although `dim` is given, and for shifts that are not one positive
      number for each observed canary.
  """

  observed: Shaped[np.ndarray, '... n1']
  unobserved: Shaped[np.ndarray, '... n0']
  dim: float | None = None
  design: Literal['fixed', 'coin_flip'] = 'fixed'
  shift: Shaped[np.ndarray, ' n1'] | None = None
  overlap: float = 0.0

  def __post_init__(self):
    observed = _float64('observed', self.observed)
    unobserved = _float64('unobserved', self.unobserved)
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
    if self.design not in ('fixed', 'coin_flip'):
      raise ValueError(
        f"design={self.design!r} is neither 'fixed' nor 'coin_flip'."
      )
    if self.dim is None and unobserved.shape[-1] < 1:
      raise ValueError(
        'unobserved is empty and dim=None, so nothing says how an unobserved '
        'canary scores. Give unobserved scores, or dim if scores are cosines.'
      )
    if self.dim is not None:
      _check_cosines(self.dim, observed, unobserved)
    if self.shift is not None:
      shift = _checked_shift(self.shift, observed.shape[-1])
      object.__setattr__(self, 'shift', shift)


class Floor(NamedTuple):
  """What an estimator reports when nothing leaks: mean and 5, 50, 95 % points.

  An estimate is only meaningful beside it.
  """

  mean: float
  q05: float
  q50: float
  q95: float


class Assumption(enum.StrEnum):
  """What must hold for an estimate to be what it says it is."""

  INDEPENDENT = 'canaries score independently'
  COINS = 'canaries were included by independent fair coins'
  COSINE_NULL = 'unobserved canaries score as random directions do'
  GAUSSIAN_SCORES = 'scores are Gaussian'
  EQUAL_SPREAD = 'taking part shifts a score and leaves its spread alone'
  GAUSSIAN_CURVE = 'the trade-off curve of the mechanism is Gaussian'
  FAMILY = 'the mechanism is of the given family'


_SHAPE = frozenset(Assumption) - {
  Assumption.INDEPENDENT,
  Assumption.COINS,
  Assumption.COSINE_NULL,
}

Kind = Literal['point estimate', 'confidence bound', 'credible bound']


@dataclasses.dataclass(frozen=True)
class Estimate:
  """An ε at a δ, and what it is worth.

  Attributes:
    epsilon: a float, or an array with the leading axes of the scores.
    delta: the δ it holds at, in (0, 1).
    method: the name of the estimator.
    confidence: probability that `epsilon` is below the true ε, if what it
      assumes holds; of a credible bound the belief that it is. None marks a
      point estimate: no guarantee.
    kind: 'point estimate', 'confidence bound' or 'credible bound'. A credible
      bound is below the true ε as often as it says on average over a prior; at
      one given ε it may fail more often.
    assumes: what must hold of scores and mechanism.
    floor: what the same estimator reports when nothing leaks.
    interval: lower and upper limit, where the method has them.
    p_value: of "nothing leaks", where audits without leakage were simulated.

  Raises:
    ValueError: a point estimate with a confidence, or a bound without.
  """

  epsilon: float | Float[np.ndarray, '...']
  delta: float
  method: str
  confidence: float | None
  kind: Kind = 'point estimate'
  assumes: tuple[Assumption, ...] = ()
  floor: Floor | None = None
  interval: tuple[float, float] | None = None
  p_value: float | None = None

  def __post_init__(self):
    if (self.kind == 'point estimate') != (self.confidence is None):
      raise ValueError(
        f'kind={self.kind!r} with confidence={self.confidence}; a bound has a '
        'confidence and a point estimate has none.'
      )

  @property
  def is_shape_free(self) -> bool:
    """Whether neither scores nor mechanism are taken to be of some shape."""
    return not _SHAPE.intersection(self.assumes)


def make_bound(
  epsilon: Real,
  delta: float,
  method: str,
  *,
  significance: float,
  assumes: tuple[Assumption, ...],
  kind: Kind = 'confidence bound',
  rejected: str | None = None,
  interval: tuple[float, float] | None = None,
) -> Estimate:
  """A lower bound, or where its assumptions are rejected a mere point estimate.

  Args:
    epsilon: the bound.
    delta: δ.
    method: the name of the estimator.
    significance: chance that the bound exceeds the true ε.
    assumes: what must hold.
    kind: of the bound; 'point estimate' if it never had a guarantee.
    rejected: names the assumption that the scores reject: it is added to the
      name of the method, and the confidence is withdrawn.
    interval: lower and upper limit, if there are two.
  """
  if rejected is not None:
    method, kind = f'{method}_{rejected}', 'point estimate'
  return Estimate(
    scalar_or_array(epsilon),
    delta,
    method,
    confidence=None if kind == 'point estimate' else 1 - significance,
    kind=kind,
    assumes=assumes,
    interval=interval,
  )


def check_delta(delta: float) -> None:
  """Raises a ValueError unless 0 < delta < 1."""
  if not 0 < delta < 1:
    raise ValueError(f'delta={delta!r} must lie strictly between 0 and 1.')


def check_significance(significance: float) -> None:
  """Raises a ValueError unless 0 < significance < 1."""
  if not 0 < significance < 1:
    raise ValueError(f'significance={significance!r} must lie in (0, 1).')


def scalar_or_array(values: Real) -> float | Float[np.ndarray, '...']:
  """A Python float for a value without axes, the array itself otherwise."""
  return np.asarray(values) if np.ndim(values) else float(values)


def _float64(name, values):
  if isinstance(values, np.ma.MaskedArray):
    raise ValueError(
      f'{name} is a masked array of shape {values.shape}, of which estimators '
      f'would use the masked scores too. Give {name}.compressed().'
    )
  found = np.asarray(values)
  if found.dtype.kind not in 'biuf':
    raise ValueError(
      f'{name} has dtype {found.dtype}, which is not one of real numbers. Give '
      'real scores, such as cosines.'
    )
  array = found.astype(np.float64)
  if array.ndim < 1:
    raise ValueError(
      f'{name}={values!r} is a single number; give an array [..., canaries].'
    )
  if not np.all(np.isfinite(array)):
    raise ValueError(
      f'{name} has {np.sum(~np.isfinite(array))} scores that are not finite. '
      'A diverged run cannot be audited; drop it or audit an earlier model.'
    )
  return array


def _checked_shift(values, num):
  shift = _float64('shift', values)
  if shift.shape != (num,) or not np.all(shift > 0):
    raise ValueError(
      f'shift has shape {shift.shape} and a smallest value of '
      f'{np.min(shift, initial=np.inf):.3g}; give a number > 0 for each of the '
      f'{num} observed canaries.'
    )
  return shift


def _check_no_columns(observed, unobserved):
  """Refuses several audits of one canary in each group: they say nothing."""
  one_each = observed.shape[-1] == 1 and unobserved.shape[-1] == 1
  if one_each and max(observed.size, unobserved.size) > 1:
    raise ValueError(
      f'observed has shape {observed.shape} and unobserved {unobserved.shape}: '
      'the last axis is that of canaries, so these are audits of one canary '
      'each. For one audit give arrays [n], as observed.ravel() and '
      'unobserved.ravel() are.'
    )


def _check_cosines(dim, *groups):
  if dim == math.inf:
    return
  if isinstance(dim, bool) or not isinstance(dim, numbers.Integral):
    raise ValueError(
      f'dim={dim!r} is not a number of dimensions. Give the integer d, such as '
      '1_000_000, math.inf, or None.'
    )
  if dim < 2:
    raise ValueError(f'dim={dim} must be at least 2.')
  # Cosines in float32 may exceed 1 by rounding.
  largest = max(np.max(np.abs(g), initial=0.0) for g in groups)
  if largest > 1 + 1e-5:
    raise ValueError(
      f'dim={dim} says that the scores are cosines, but one is {largest:.6g} '
      'in magnitude. Give cosines, or dim=None with unobserved scores.'
    )
