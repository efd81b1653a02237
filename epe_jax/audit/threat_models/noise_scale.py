"""How large the noise of a run is, measured by the residuals of its releases.

Residual scores are inner products with noise, in units of the measured noise and not
of the claimed one: too low a claim would make unobserved canaries look exposed. The
cosine of an unobserved canary with a residual has one law, whatever the residual is.
"""

from typing import NamedTuple

import numpy as np
from scipy import special

from epe_jax.audit.record import Record

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
  """

  ratio: float
  standard_error: float
  is_steady: bool

  @property
  def is_as_claimed(self) -> bool:
    """Whether the ratio is 1, by chance or up to rounding."""
    error = max(_STANDARD_ERRORS * self.standard_error, _ROUNDING)
    return abs(self.ratio - 1) < error


def measure_noise(record: Record) -> NoiseScale | None:
  """Compares the residuals of releases with the claimed noise.

  Args:
    record: the record of a run.

  Returns:
    The scale; None if no round has both numbers.
  """
  rounds = record.rounds
  if rounds is None:
    return None
  claimed = np.asarray(rounds.noise_std, np.float64)
  if record.noising is not None:
    claimed = claimed * np.linalg.norm(record.noising, axis=1)
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
  return NoiseScale(
    ratio, float(np.sqrt(spread / independent)) / 2, bool(is_steady)
  )


def count_independent(record: Record) -> float:
  """Counts the rounds whose noise has as much to tell of its scale as this run's.

  Args:
    record: the record of a run.

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
