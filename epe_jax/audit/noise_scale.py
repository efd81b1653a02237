"""The noise of a run, its size and its correlation, measured by what releases leave.

Residual scores are inner products with noise, in units of the measured noise and not
of the claimed one: too low a claim would make unobserved canaries look exposed. The
cosine of a canary with a residual, which holds none, has one law, whatever the
residual is. That of a sum over rounds is known only if their noise is correlated as
it is claimed to be.
"""

from typing import NamedTuple

from jaxtyping import Float
import numpy as np
from scipy import special

from epe_jax.audit.record import Record
from epe_jax.epsilon import known_shifts
from epe_jax.fact import Fact, Facts

_STANDARD_ERRORS = 4.0
"""Larger differences are reported; fewer than 1 in 10,000 correct runs have them."""

_UNSTEADY_BELOW = 1e-4
# Differences up to here are of float32, or of no consequence.
_ROUNDING = 1e-3


class NoiseScale(NamedTuple):
  """The noise of all rounds together, in units of the claimed noise.

  Attributes:
    ratio: measured over claimed standard deviation, >= 0; 0 up to rounding.
    standard_error: of the ratio, where noise is normal and independent.
    is_steady: the ratios of rounds differ by no more than those of such noise.
    lag: distance of the rounds whose noise is most surely correlated otherwise than
      claimed; 0 if no distance stands out.
    correlation: of their noise, or on average, after that which is claimed is undone;
      0 if there is none beyond chance.
    is_summed: a canary is scored by several rounds.
    is_stated: a strategy states how noise is correlated; otherwise it is claimed to
      be independent.
    rounding: by how much the ratio may exceed 1 because messages of canaries are
      rounded, which no residual knows.
  """

  ratio: float
  standard_error: float
  is_steady: bool
  lag: int = 0
  correlation: float = 0.0
  is_summed: bool = False
  is_stated: bool = False
  rounding: float = 0.0

  @property
  def gives_null_law(self) -> bool:
    """Whether scores of unobserved canaries are N(0, 1) in units of this noise."""
    return self.is_steady and not (self.correlation and self.is_summed)

  @property
  def is_as_claimed(self) -> bool:
    """Whether the ratio is 1, by chance or up to rounding."""
    error = max(_STANDARD_ERRORS * self.standard_error, _ROUNDING)
    return -error < self.ratio - 1 < error + self.rounding

  @property
  def notes(self) -> Facts:
    """Why the null law is that of unobserved canaries, if it is."""
    if self.gives_null_law:
      return ()
    if self.correlation and self.is_summed:
      return (Fact('noise_correlates'),)
    return (Fact('noise_varies'),)

  @property
  def contradictions(self) -> Facts:
    """What the measured noise contradicts of the claim."""
    facts = []
    values = {'lag': self.lag, 'correlation': self.correlation}
    if self.correlation and self.is_stated:
      facts.append(Fact('noise_not_of_strategy', values))
    elif self.correlation:
      facts.append(Fact('noise_not_independent', values))
    # What a wrong strategy claims of single rounds is wrong too.
    if not self.is_as_claimed and not (self.correlation and self.is_stated):
      facts.append(Fact('noise_not_as_claimed', {'ratio': self.ratio}))
    return tuple(facts)


def find_claimed_std(record: Record) -> Float[np.ndarray, ' T'] | None:
  """The standard deviation of the noise claimed of each round; None if not known."""
  if record.rounds is None:
    return None
  claimed = np.asarray(record.rounds.noise_std, np.float64)
  if record.noising is None:
    return claimed
  return claimed * np.linalg.norm(record.noising, axis=1)


def measure_noise(record: Record) -> NoiseScale | None:
  """Compares the residuals of releases with the claimed noise.

  Returns:
    The scale; None if no round has both numbers.
  """
  rounds, claimed = record.rounds, find_claimed_std(record)
  if rounds is None or claimed is None:
    return None
  norm = np.asarray(rounds.residual_norm, np.float64)
  is_known = np.isfinite(norm) & (claimed > 0)
  if not is_known.any():
    return None
  squares = (norm[is_known] / claimed[is_known]) ** 2 / record.dim
  ratio = float(np.sqrt(squares.mean()))
  if ratio < _ROUNDING:
    ratio = 0.0
  num = squares.size
  independent = num / record.num_rounds * count_independent(record)
  # Each is a chi-squared of d over d.
  spread = 2 / record.dim
  varies = np.sum((squares / max(squares.mean(), 1e-300) - 1) ** 2)
  by_chance = special.chdtrc(max(num - 1, 1), varies / spread)
  is_steady = by_chance > _UNSTEADY_BELOW or varies < num * _ROUNDING**2
  lag, correlation = _find_correlation(record) if ratio else (0, 0.0)
  is_stated = record.strategy is not None
  rounding = 0.0
  if record.ring is not None:
    # A coordinate of each has a variance of 1/4 step² at most.
    rounding = float(np.max(rounds.num_canaries)) / (8 * record.ring.std**2)
  return NoiseScale(
    ratio,
    float(np.sqrt(spread / independent)) / 2,
    bool(is_steady),
    lag,
    correlation,
    is_stated or record.participations > 1,
    is_stated,
    rounding,
  )


def _find_correlation(record: Record) -> tuple[int, float]:
  """The lag and the correlation of noise, if it is not correlated as claimed.

  Inner products y of noise with canaries, once the strategy is undone, are independent
  over rounds. Given the earlier of two rounds, Σ_j y_sj y_tj is N(0, Σ_j y_sj²), and a
  sum of such products at a lag likewise, up to what random directions have in common.
  Sums over all rounds have the χ² law of k: they tell what many lags share. They have
  half of the significance, and lag l has 1/(l (l + 1)) of the other half: in all, one
  correct run in a thousand is called correlated. With k canaries in T rounds it is
  seen if consecutive rounds correlate by more than about 4/√(k T), or if sums vary by
  4 √(2/k) more than they should.
  """
  residual = record.cosines.get('residual')
  if residual is None or record.num_rounds < 2:
    return 0, 0.0
  noise = np.sqrt(record.dim) * np.asarray(residual, np.float64)
  if record.strategy is not None and record.noising is not None:
    size = np.linalg.norm(record.noising, axis=1, keepdims=True)
    noise = record.strategy @ (size * noise)
  rounds, num = noise.shape
  products = _sum_products(noise)
  before = np.cumsum(np.sum(noise**2, axis=1))[-2::-1]
  common = 1 + (num - 1) / record.dim
  z = products / np.sqrt(np.maximum(before * common, 1e-300))
  lags = np.arange(1, rounds)
  p = 4 * special.ndtr(-np.abs(z)) * lags * (lags + 1)
  best = int(np.argmin(p))
  if p[best] < known_shifts.REJECTED_BELOW:
    return best + 1, float(products[best] / before[best])
  square = float(np.sum(noise.sum(axis=0) ** 2)) / rounds
  df = num / common
  tails = (
    special.chdtr(df, square / common),
    special.chdtrc(df, square / common),
  )
  if 4 * min(tails) >= known_shifts.REJECTED_BELOW:
    return 0, 0.0
  return 0, (square / num - 1) / (rounds - 1)


def _sum_products(
  noise: Float[np.ndarray, 'T k'],
) -> Float[np.ndarray, ' lags']:
  """Σ_j Σ_t y_tj y_(t+l)j for the lags 1 to T - 1."""
  rounds = len(noise)
  spectrum = np.fft.rfft(noise, n=2 * rounds, axis=0)
  power = np.sum(spectrum.real**2 + spectrum.imag**2, axis=1)
  return np.fft.irfft(power, n=2 * rounds)[1:rounds]


def count_independent(record: Record) -> float:
  """Counts the rounds whose noise has as much to tell of its scale as this run's.

  Returns:
    T, or less if noise is correlated over rounds.
  """
  if record.noising is None:
    return record.num_rounds
  covariance = record.noising @ record.noising.T
  std = np.sqrt(np.diagonal(covariance))
  # Squares of normals correlate by the square of their correlation.
  squared = (covariance / np.outer(std, std)) ** 2
  return float(record.num_rounds**2 / squared.sum())
