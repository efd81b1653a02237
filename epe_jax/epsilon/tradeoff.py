"""Trade-off curves of mechanisms.

No attacker of a mechanism with trade-off curve f has a false positive rate α and a
false negative rate below f(α). More noise raises the curve, so that the rates of an
audit bound the noise from above and ε from below. All curves are those of the
add-or-remove relation: symmetric in the two rates. They are functions of log FPR.

References: Dong, Roth and Su, "Gaussian differential privacy" (2019); Nasr et al.,
"Tight auditing of differentially private machine learning" (2023).
"""

from collections.abc import Callable
import functools
from typing import NamedTuple, TypeAlias

from jaxtyping import Float
import numpy as np
from scipy import optimize, special

from epe_jax.epsilon import checks, two_gaussians
from epe_jax.epsilon.checks import check_delta
from epe_jax.epsilon.types import Real, scalar_or_array

_LOG_SQRT_2PI = 0.5 * np.log(2 * np.pi)
_PRECISION, _DOUBLINGS, _FAR = 1e-7, 40, 8.0
# The strength of a family beyond which its curve practically does not change.
_SATURATED = 16.0

Curve: TypeAlias = Callable[[Float[np.ndarray, ' m']], Float[np.ndarray, ' m']]
"""log FPR -> the smallest FNR."""


class MechanismFamily(NamedTuple):
  """Mechanisms that differ in how much Gaussian noise they add.

  Attributes:
    name: of the family, part of the name of the method.
    fnr: (noise multiplier, log FPR) -> the smallest FNR, or a lower value: a curve
      that is too low makes a bound weaker, and still valid.
    epsilon: (noise multiplier, δ) -> the ε to report, such as that of all steps of
      a run if the scores are those of single steps.
    is_gdp: the curve is exactly that of μ-Gaussian DP, where μ is 1/noise.
  """

  name: str
  fnr: Callable[[float, Float[np.ndarray, '*m']], Float[np.ndarray, '*m']]
  epsilon: Callable[[float, float], float]
  is_gdp: bool = False


def gaussian_family() -> MechanismFamily:
  """Gaussian mechanisms of sensitivity 1: FNR >= Φ(Φ⁻¹(1 - FPR) - 1/z).

  The ε is exact, and may be in the thousands.

  >>> round(gaussian_family().epsilon(0.0496, 341_000**-1.1), 2)
  298.98
  """

  def fnr(noise_multiplier, log_fpr):
    return fnr_gdp(1 / noise_multiplier, log_fpr)

  def epsilon(noise_multiplier, delta):
    return float(epsilon_gdp(1 / noise_multiplier, delta))

  return MechanismFamily('gdp', fnr, epsilon, is_gdp=True)


class Lines(NamedTuple):
  """A curve that is at most the trade-off curve: the maximum of some lines.

  Each (ε, δ) guarantee implies FNR >= 1 - δ - e^ε FPR, and the same with the rates
  exchanged, equation (4) of Nasr et al.

  Attributes:
    epsilon: [n] values of ε >= 0.
    delta: [n] δ of each ε.
    reverse: [n] δ of each ε, with the two inputs exchanged; None if δ holds for
      both, as a guarantee does.
  """

  epsilon: Float[np.ndarray, 'n']
  delta: Float[np.ndarray, 'n']
  reverse: Float[np.ndarray, 'n'] | None = None

  def fnr(self, log_fpr: Float[np.ndarray, '*m']) -> Float[np.ndarray, '*m']:
    """Smallest FNR at each log FPR."""
    best = np.zeros(np.shape(log_fpr))
    fpr = np.exp(log_fpr)
    reverse = self.delta if self.reverse is None else self.reverse
    for epsilon, delta, other in zip(self.epsilon, self.delta, reverse):
      steep = 1 - delta - np.exp(np.minimum(epsilon + log_fpr, 0.0))
      flat = np.exp(-epsilon) * (1 - other - fpr)
      best = np.maximum(best, np.maximum(steep, flat))
    return best


class Curves(NamedTuple):
  """Trade-off curves f_θ that fall as the strength θ of a leak grows from 0.

  Attributes:
    fnr: (θ, log FPR) -> the smallest FNR, or a lower value.
    limit: the θ beyond which the curve does not change; inf if there is none.
  """

  fnr: Callable[[float, Float[np.ndarray, 'n']], Float[np.ndarray, 'n']]
  limit: float


@functools.lru_cache(maxsize=64)
def approximate_dp_curves(delta: float) -> Curves:
  """The curves of (ε, δ)-DP in both directions, of strength ε."""

  def fnr(epsilon, log_fpr):
    return Lines(np.array([epsilon]), np.array([delta])).fnr(log_fpr)

  return Curves(fnr, np.inf)


@functools.lru_cache(maxsize=64)
def family_curves(family: MechanismFamily) -> Curves:
  """The curves of a family, of strength 1/noise; at 0 there is no leak."""

  def fnr(strength, log_fpr):
    if strength == 0:
      return -np.expm1(log_fpr)
    return family.fnr(1 / strength, log_fpr)

  return Curves(fnr, _SATURATED)


def epsilon_of_strength(
  family: MechanismFamily, strength: Real, delta: float
) -> float | Float[np.ndarray, '...']:
  """The ε that a member of a family reports; 0 and inf for a strength of 0 and inf."""
  epsilon = [
    x if x == 0 or np.isinf(x) else family.epsilon(1 / x, delta)
    for x in np.ravel(strength).tolist()
  ]
  return scalar_or_array(np.reshape(epsilon, np.shape(strength)))


def fnr_gdp(
  mu: float, log_fpr: Float[np.ndarray, '*m']
) -> Float[np.ndarray, '*m']:
  """Smallest FNR of μ-Gaussian DP at each log FPR: Φ(Φ⁻¹(1 - FPR) - μ)."""
  return special.ndtr(-special.ndtri_exp(log_fpr) - mu)


def epsilon_gdp(mu: Real, delta: float) -> float | Float[np.ndarray, '...']:
  """ε of μ-Gaussian DP at δ, exact and without a cap, for μ in [0, inf].

  >>> round(epsilon_gdp(1.0, 1e-5), 4)
  4.3772
  """
  check_delta(delta)
  mu = checks.check_numbers('mu', mu, '[0, inf]')
  epsilon = np.where(mu > 0, np.inf, 0.0)
  positive = np.isfinite(mu) & (mu > 0)
  epsilon[positive] = two_gaussians.epsilon_two_gaussians(
    0, 1, mu[positive], 1, delta
  )
  return scalar_or_array(epsilon)


def mu_of_epsilon(epsilon: float, delta: float) -> float:
  """μ of the Gaussian mechanism that has a given ε, in [0, inf], at δ.

  >>> round(mu_of_epsilon(4.3772, 1e-5), 4)
  1.0
  """
  check_delta(delta)
  epsilon = checks.check_number('epsilon', epsilon, '[0, inf]')
  if not 0 < epsilon < np.inf:
    return epsilon
  if epsilon > 1e20:
    # δ = Φ(μ/2 - ε/μ), as rounding hides the rest.
    return float(np.sqrt(2) * np.sqrt(epsilon) + special.ndtri(delta))
  return _solve_mu(epsilon, float(delta))


# A report asks for the same few again and again.
@functools.lru_cache(maxsize=4096)
def _solve_mu(epsilon: float, delta: float) -> float:
  """μ with log δ(ε, μ) = log δ.

  In μ, log δ is increasing and concave, and its derivative φ(μ/2 - ε/μ)/δ: Newton's
  steps from below never pass the root.
  """
  # Below the root: δ = Φ(q) - e^ε Φ(q - μ) with q = μ/2 - ε/μ; at ε = 0, 2 Φ(μ/2) - 1.
  quantile = float(special.ndtri(delta))
  root = np.hypot(quantile, np.sqrt(2 * epsilon))
  mu = quantile + root if quantile > 0 else 2 * epsilon / (root - quantile)
  at_zero = special.ndtri((1 + delta) / 2)
  if delta > 0.5:
    at_zero = -special.ndtri((1 - delta) / 2)
  mu = max(mu, 2 * float(at_zero))
  # 4 are usual.
  for _ in range(100):
    log_delta = float(
      two_gaussians.log_delta_one_direction(epsilon, mu, 1, 0, 1)
    )
    log_density = -((mu / 2 - epsilon / mu) ** 2) / 2 - _LOG_SQRT_2PI
    step = (np.log(delta) - log_delta) * np.exp(log_delta - log_density)
    mu += step
    # The next one would be its square.
    if abs(step) <= 1e-8 * mu:
      break
  return float(mu)


def gdp_mu(
  log_fpr: Float[np.ndarray, '*shape'], fnr: Float[np.ndarray, '*shape']
) -> Float[np.ndarray, '*shape']:
  """The smallest μ >= 0 of a Gaussian mechanism that allows given rates.

  It is 0 for an attack no better than chance, and inf for an FPR of 0.
  """
  informative = (log_fpr < 0) & (fnr < 1)
  with np.errstate(divide='ignore'):
    mu = -special.ndtri_exp(
      np.where(informative, log_fpr, -1.0)
    ) - special.ndtri(np.where(informative, fnr, 0.5))
  return np.where(informative, np.maximum(mu, 0.0), 0.0)


def max_noise(
  family: MechanismFamily,
  log_fpr: Float[np.ndarray, 'm'],
  fnr: Float[np.ndarray, 'm'],
) -> float:
  """The largest noise multiplier of a family that allows all given rates or limits.

  It is rounded up in the seventh digit; inf if the rates are no better than chance,
  0 if no noise allows them: even without noise a Poisson sample of probability p
  has FNR >= (1-p)(1-FPR).
  """
  mu = gdp_mu(log_fpr, fnr)
  better = mu > 0
  if not np.any(better):
    return np.inf
  if np.any(np.isinf(mu)):
    return 0.0
  log_fpr, target = log_fpr[better], special.ndtri(fnr[better])

  # Cached, because a curve may take a tenth of a second.
  @functools.cache
  def slack(log_noise):
    min_fnr = family.fnr(float(np.exp(log_noise)), log_fpr)
    # Probits are nearly linear in 1/noise; the cap keeps them finite.
    min_fnr = np.clip(min_fnr, 1e-300, 1 - 1e-16)
    return float(np.min(target - special.ndtri(min_fnr)))

  start = -np.log(np.max(mu))
  sign = 1.0 if slack(start) >= 0 else -1.0
  low, high = start, start
  # With so little noise a Gaussian test has hardly a false negative: with less,
  # the curve does not change.
  lowest = -np.log(np.max(-special.ndtri_exp(log_fpr)) + _FAR)
  for _ in range(_DOUBLINGS):
    low, high = high, max(high + sign * np.log(2), lowest)
    if sign * slack(high) < 0:
      break
    if high == lowest:
      return 0.0
  else:
    return np.inf
  root = float(optimize.brentq(slack, low, high, xtol=_PRECISION))  # pyright: ignore
  return float(np.exp(root + _PRECISION))
