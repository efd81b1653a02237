"""The exact law of the score of a canary that took no part.

It is that of the cosine of a random direction, in any dimension; or the standard
normal law of its inner product with Gaussian noise, in units of that noise. Both are
symmetric around 0. All methods broadcast, and give a float for a scalar.
"""

import dataclasses

from jaxtyping import Float
import numpy as np
from scipy import interpolate, special

from epe_jax.epsilon import checks
from epe_jax.epsilon.types import (
  Gaussian,
  NullLaw,
  Real,
  Sphere,
  scalar_or_array,
)

_Value = float | Float[np.ndarray, '...']
_NODES, _WEIGHTS = np.polynomial.laguerre.laggauss(24)
# Smaller survival probabilities are computed in log space only.
_TINY = 1e-290
# From so many values on a spline of so many nodes is faster, for such a d.
_MANY, _SPLINE, _SMOOTH_FROM = 20_000, 4097, 1000


@dataclasses.dataclass(frozen=True)
class CosineNull:
  """Law of τ = <c, v>/|v| for c uniform on the unit sphere of R^d, any fixed v.

  Its density is Γ(d/2)/(Γ((d-1)/2)√π) (1 - τ²)^((d-3)/2) on [-1, 1], so that τ²
  is Beta(1/2, (d-1)/2): every tail is an incomplete beta function of τ², which
  unlike one of (1 + τ)/2 keeps its digits when d is large and τ small. The law is
  exact in every dimension d >= 2: uniform for d = 3, and normal to seven digits for
  d = 1e9.

  References: Theorem 3.1 of the paper.

  >>> CosineNull(3).sf(0.5)
  0.25
  """

  dim: int

  def __post_init__(self):
    checks.check_integer('dim', self.dim, 2)

  @property
  def std(self) -> float:
    """Standard deviation 1/√d; the mean is 0."""
    return 1 / np.sqrt(self.dim)

  def sf(self, cosine: Real) -> _Value:
    """P(τ > cosine)."""
    x = np.clip(np.asarray(cosine, dtype=np.float64), -1.0, 1.0)
    upper = self._upper(np.abs(x))
    return scalar_or_array(np.where(x >= 0, upper, 1 - upper))

  def logsf(self, cosine: Real) -> _Value:
    """Log of P(τ > cosine), also where that probability underflows."""
    x = np.clip(np.asarray(cosine, dtype=np.float64), -1.0, 1.0)
    if x.size > _MANY and self.dim >= _SMOOTH_FROM:
      return self._interpolated_logsf(x)
    upper = self._upper(np.abs(x))
    log_sf = np.where(
      x >= 0, np.log(np.maximum(upper, _TINY)), np.log1p(-upper)
    )
    far = (x >= 0) & (upper < _TINY)
    log_sf[far] = self._log_far_tail(x[far])
    return scalar_or_array(log_sf)

  def isf(self, probability: Real) -> _Value:
    """The cosine exceeded with this probability, in [0, 1]."""
    q = checks.check_numbers('probability', probability, '[0, 1]')
    b = (self.dim - 1) / 2
    # Twice the smaller tail; near the median its complement has the digits.
    both = 2 * np.minimum(q, 1 - q)
    square = np.where(
      both < 0.5,
      special.betainccinv(0.5, b, both),
      special.betaincinv(0.5, b, np.abs(1 - 2 * q)),
    )
    return scalar_or_array(np.copysign(np.sqrt(square), 0.5 - q))

  @property
  def _log_constant(self):
    b = (self.dim - 1) / 2
    return np.log(special.poch(b, 0.5)) - 0.5 * np.log(np.pi)

  def _upper(self, x):
    """P(τ > x) for x in [0, 1], from whichever of x², 1 - x² is smaller."""
    b = (self.dim - 1) / 2
    small = x * x < 0.5
    return 0.5 * np.where(
      small,
      special.betaincc(0.5, b, np.where(small, x * x, 0.0)),
      special.betainc(b, 0.5, np.where(small, 0.0, (1 - x) * (1 + x))),
    )

  def _interpolated_logsf(self, x):
    """log P(τ > x) of very many x: an incomplete beta takes a microsecond.

    Within twelve standard deviations a spline is exact to 1e-12; the few values
    beyond are computed one by one.
    """
    edge = 12 * self.std
    nodes = np.linspace(-edge, edge, _SPLINE)
    spline = interpolate.CubicSpline(nodes, self.logsf(nodes))
    near = np.abs(x) <= edge
    result = spline(np.where(near, x, 0.0))
    far = x[~near]
    parts = np.array_split(far, -(-far.size // _MANY) or 1)
    result[~near] = np.concatenate([self.logsf(part) for part in parts])
    return result

  def _log_far_tail(self, x):
    """log P(τ > x) by Gauss-Laguerre, exact when b x² is large.

    With 1 - t² = (1 - x²) e^(-s/b) the tail is c (1 - x²)^b / (2b) times the
    integral of e^(-s) (1 - (1 - x²) e^(-s/b))^(-1/2).
    """
    b = (self.dim - 1) / 2
    rest = (1 - x) * (1 + x)
    decay = -np.expm1(-_NODES / b)
    smooth = 1 / np.sqrt((x * x)[..., None] + rest[..., None] * decay)
    log_scale = b * _log_one_minus_square(np.where(x < 1, x, 0.0))
    log_scale = log_scale + self._log_constant - np.log(2 * b)
    log_tail = log_scale + np.log(np.sum(_WEIGHTS * smooth, axis=-1))
    return np.where(x < 1, log_tail, -np.inf)


@dataclasses.dataclass(frozen=True)
class NormalNull:
  """N(0, 1), the law of <c, Z> for Z ~ N(0, I)."""

  std: float = 1.0

  def sf(self, score: Real) -> _Value:
    """P(Z > score)."""
    return scalar_or_array(special.ndtr(-np.asarray(score, np.float64)))

  def logsf(self, score: Real) -> _Value:
    """Log of P(Z > score)."""
    return scalar_or_array(special.log_ndtr(-np.asarray(score, np.float64)))

  def isf(self, probability: Real) -> _Value:
    """The score exceeded with this probability."""
    return scalar_or_array(-special.ndtri(np.asarray(probability, np.float64)))


def null_distribution(null: NullLaw) -> CosineNull | NormalNull:
  """The distribution of unobserved scores: of cosines in R^d, or N(0, 1).

  >>> float(null_distribution(Sphere(100)).std)
  0.1
  """
  match null:
    case Sphere(dim):
      return CosineNull(dim)
    case Gaussian():
      return NormalNull()
  raise ValueError(
    f'null={null!r} has no distribution of its own. Give Sphere(d) or Gaussian(); '
    'otherwise use the unobserved scores.'
  )


def _log_one_minus_square(x):
  """log(1 - x²) for |x| < 1, at full precision near 0 and near 1."""
  near_end = np.log1p(-x) + np.log1p(x)
  return np.where(x * x < 0.5, np.log1p(-x * x), near_end)
