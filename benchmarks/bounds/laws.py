"""Pairs of laws of scores with known ε, of which studies simulate audits."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jaxtyping import Bool, Float
import numpy as np
from scipy import optimize, special, stats

from epe_jax.epsilon import tradeoff
from epe_jax.epsilon.types import Gaussian, NullLaw, Scores, Unknown


class Law(NamedTuple):
  """Laws of the scores of unobserved and of observed canaries.

  Attributes:
    name: of the law.
    draw: (rng, shape) -> scores of unobserved canaries.
    moved: (rng, shape) -> scores of observed canaries.
    epsilon: the true ε at a δ.
    is_gaussian: whether both are Gaussian with the same standard deviation.
    share: (rng, shape) -> log odds, if all canaries of an audit share them: each
      is classified correctly with probability 1/(1 + e^-|log odds|). None if
      canaries score independently.
  """

  name: str
  draw: Callable[[np.random.Generator, Any], Float[np.ndarray, '...']]
  moved: Callable[[np.random.Generator, Any], Float[np.ndarray, '...']]
  epsilon: Callable[[float], float]
  is_gaussian: bool = False
  share: (
    Callable[[np.random.Generator, Any], Float[np.ndarray, '...']] | None
  ) = None


class Audits(NamedTuple):
  """Audits of one mechanism.

  Attributes:
    title: of the table that they are in.
    law: of the scores, in words; empty for that of a Gaussian mechanism.
    epsilon: the true ε at `delta`.
    delta: in (0, 1).
    fixed: audits of chosen numbers of canaries, [audits, n]; in units of the
      standard deviation that scores of unobserved canaries have, if `null` is known.
    by_coins: audits with independent Bernoulli(1/2) inclusion of canaries.
    null: as in `Scores`, of `fixed`.
    shifted: audits with the known shift of each canary, if there is one.
    epsilon_of_scores: the ε of the law of one canary's scores, if it is known and
      less than `epsilon`.
    has_gaussian_scores: whether scores are Gaussian with one standard deviation.
    has_gaussian_curve: whether the trade-off curve is Gaussian.
    is_coupled: whether the errors on all canaries are coupled.
  """

  title: str
  law: str
  epsilon: float
  delta: float
  fixed: Scores
  by_coins: Sequence[Scores]
  null: NullLaw = Unknown()
  shifted: Sequence[Scores] = ()
  epsilon_of_scores: float | None = None
  has_gaussian_scores: bool = False
  has_gaussian_curve: bool = False
  is_coupled: bool = False


def describe(num: int, delta: float, audits: int) -> str:
  """The title of audits with as many unobserved canaries as observed ones."""
  return f'{num:,} + {num:,} canaries, δ = {delta:g}, {audits:,} audits of each'


def gaussian(epsilon: float, delta: float) -> Law:
  """The Gaussian mechanism of this ε at this δ.

  >>> law = gaussian(1.0, 1e-5)
  >>> round(law.epsilon(1e-5), 6)
  1.0
  """
  mu = tradeoff.mu_of_epsilon(epsilon, delta)
  return Law(
    'Gaussian',
    lambda rng, shape: rng.standard_normal(shape),
    lambda rng, shape: rng.standard_normal(shape) + mu,
    lambda delta: float(tradeoff.epsilon_gdp(mu, delta)),
    is_gaussian=True,
  )


def coupled(epsilon: float, delta: float) -> Law:
  """A mechanism of the same ε whose errors on all canaries of an audit are coupled.

  For each single canary it is exactly as private as the Gaussian mechanism. Scores
  are log odds.
  """
  mu = tradeoff.mu_of_epsilon(epsilon, delta)
  half = mu**2 / 2
  return Law(
    'coupled',
    lambda rng, shape: rng.normal(-half, mu, shape),
    lambda rng, shape: rng.normal(half, mu, shape),
    lambda delta: float(tradeoff.epsilon_gdp(mu, delta)),
    share=lambda rng, shape: rng.normal(half, mu, shape),
  )


def shifted(name: str, law: Any, shift: float) -> Law:
  """A law of SciPy, and the same shifted; ε by integration."""
  return Law(
    name,
    lambda rng, shape: law.rvs(size=shape, random_state=rng),
    lambda rng, shape: law.rvs(size=shape, random_state=rng) + shift,
    lambda delta: _integrated(law.pdf, lambda x: law.pdf(x - shift), delta),
  )


def log_losses(shift: float) -> Law:
  """Lognormal scores, whose logarithms are shifted Gaussians; ε is exact."""
  return Law(
    'lognormal',
    lambda rng, shape: rng.lognormal(0, 1, shape),
    lambda rng, shape: rng.lognormal(shift, 1, shape),
    lambda delta: float(tradeoff.epsilon_gdp(shift, delta)),
  )


def randomised_response(epsilon: float) -> Law:
  """One bit, right with probability e^ε/(1 + e^ε)."""
  right = 1 / (1 + np.exp(-epsilon))
  return Law(
    'randomised response',
    lambda rng, shape: (rng.random(shape) >= right).astype(float),
    lambda rng, shape: (rng.random(shape) < right).astype(float),
    lambda delta: float(np.log((right - delta) / (1 - right))),
  )


def subsampled(shift: float, rate: float) -> Law:
  """An observed canary is shifted with the probability of a Poisson sample.

  >>> law = subsampled(3.0, 1.0)
  >>> print(round(law.epsilon(1e-5) / tradeoff.epsilon_gdp(3.0, 1e-5), 3))
  1.0
  """

  def moved(rng, shape):
    return rng.standard_normal(shape) + shift * (rng.random(shape) < rate)

  def density(x):
    return (1 - rate) * stats.norm.pdf(x) + rate * stats.norm.pdf(x - shift)

  return Law(
    f'Gaussian, sampled at {rate:g}',
    lambda rng, shape: rng.standard_normal(shape),
    moved,
    lambda delta: _integrated(stats.norm.pdf, density, delta),
  )


def rounded(shift: float, step: float = 0.5) -> Law:
  """Shifted Gaussians rounded to multiples of a step; ε by summation."""
  far = np.ceil((15 + shift) / step)
  edges = (np.arange(-far, far) - 0.5) * step
  null, moved = (np.diff(stats.norm.cdf(edges - m)) for m in (0.0, shift))

  def snapped(mean):
    return lambda rng, shape: step * np.round(rng.normal(mean, 1, shape) / step)

  return Law(
    'rounded Gaussian',
    snapped(0.0),
    snapped(shift),
    lambda delta: _hockey_stick(null, moved, delta),
  )


def others() -> list[Law]:
  """Laws that are not Gaussian."""
  return [
    shifted('t, 3 degrees of freedom', stats.t(3), 2.0),
    shifted('t, 10 degrees of freedom', stats.t(10), 2.0),
    shifted('t, 20 degrees of freedom', stats.t(20), 2.0),
    shifted('logistic', stats.logistic(), 2.5),
    shifted('Laplace', stats.laplace(), 2.0),
    log_losses(1.0),
    rounded(2.0),
    randomised_response(2.0),
  ]


def draw_scores(
  law: Law, rng: np.random.Generator, taken: Bool[np.ndarray, 'audits n']
) -> Float[np.ndarray, 'audits n']:
  """Draws the scores of audits.

  Args:
    law: of the scores.
    rng: source of the draws.
    taken: which canaries are observed in each audit.
  """
  if law.share is None:
    shape = taken.shape
    return np.where(taken, law.moved(rng, shape), law.draw(rng, shape))
  log_odds = np.abs(law.share(rng, (len(taken), 1)))
  told = taken ^ (rng.random(taken.shape) >= special.expit(log_odds))
  # Distinct, also in float32, in an order without information.
  return np.where(told, log_odds, -log_odds) + 1e-4 * rng.random(taken.shape)


def simulate(
  rng: np.random.Generator, law: Law, num: int, delta: float, audits: int
) -> Audits:
  """Audits of a law, with as many observed as unobserved canaries."""
  scores = draw_scores(
    law, rng, np.tile(np.repeat([True, False], num), (audits, 1))
  )
  return Audits(
    title=describe(num, delta, audits),
    law='' if law.is_gaussian else law.name,
    epsilon=law.epsilon(delta),
    delta=delta,
    fixed=Scores(scores[:, :num], scores[:, num:]),
    by_coins=_flip_coins(law, rng, (audits, 2 * num)),
    null=Gaussian() if law.is_gaussian else Unknown(),
    has_gaussian_scores=law.is_gaussian,
    has_gaussian_curve=law.is_gaussian or law.share is not None,
    is_coupled=law.share is not None,
  )


def _flip_coins(
  law: Law, rng: np.random.Generator, shape: tuple[int, int]
) -> list[Scores]:
  taken = rng.random(shape) < 0.5
  # Two at least of each kind, which coins give but once in 2^num.
  taken[:, :2], taken[:, -2:] = True, False
  return [
    Scores(scores[chosen], scores[~chosen], design='coin_flip')
    for scores, chosen in zip(draw_scores(law, rng, taken), taken)
  ]


def _integrated(
  null: Callable[[Float[np.ndarray, ' n']], Float[np.ndarray, ' n']],
  moved: Callable[[Float[np.ndarray, ' n']], Float[np.ndarray, ' n']],
  delta: float,
) -> float:
  """ε between two densities, on a fine grid."""
  # Uneven, so that heavy tails are followed as far as δ needs.
  u = np.linspace(-12, 12, 200_001)
  x = np.sinh(u) + 1
  step = np.gradient(x)
  return _hockey_stick(null(x) * step, moved(x) * step, delta)


def _hockey_stick(
  p: Float[np.ndarray, ' n'], q: Float[np.ndarray, ' n'], delta: float
) -> float:
  """ε at which both hockey-stick divergences of two masses are at most δ."""

  def excess(epsilon: float) -> float:
    grown = np.exp(epsilon)
    both = (np.maximum(a - grown * b, 0).sum() for a, b in ((p, q), (q, p)))
    return max(both) - delta

  if excess(0.0) <= 0:
    return 0.0
  return float(optimize.brentq(excess, 0.0, 100.0, xtol=1e-10))  # pyright: ignore
