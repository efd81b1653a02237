"""The noise of many runs with zero updates under the claim, and what repeats in it."""

from collections.abc import Sequence
import dataclasses
import math
from typing import NamedTuple

from jaxtyping import Bool, Float
import numpy as np
from scipy import stats

from epe_jax.conformance import laws
from epe_jax.conformance.claim import Claim
from epe_jax.conformance.laws import ALPHA
from epe_jax.conformance.measurements import (
  HUGE,
  MIN_RUNS,
  Measurements,
  measured,
)
from epe_jax.conformance.noise import Noise, split
from epe_jax.conformance.session import NotChecked

_MAX_RUNS = 100
# Rounds within which a clip norm that adapts moves.
_TO_ADAPT = 6
# A noise multiplier by which a clip norm that adapts hardly moves at random.
_STEADY = 1e-3
# Values of noise by which a tenth less of it is found.
_ENOUGH = 4000
AMPLE = 2000
"""Values of noise that tell its law."""
LEVEL_DIM = 32
"""Coordinates from which on the amount of noise of a run is known, whatever its law."""


@measured
def sample_early_rounds(m: Measurements) -> Float[np.ndarray, 'R T k']:
  """Noise of the first rounds of many runs: two, or more of few coordinates."""
  # Of few coordinates more rounds, so that equal noise is not an accident.
  rounds = max(2, math.ceil(16 / m.claim.dim))
  rounds = min(rounds, m.claim.max_rounds or rounds)
  runs = m.plan(0.35, rounds=rounds, max_runs=_MAX_RUNS)
  return m.sample_rounds(runs, rounds, m.cohort(m.zero))


@measured
def adapts(m: Measurements) -> bool:
  """Whether the public clip norm moves in some rounds of huge updates, or of zeros.

  That of a mechanism that refuses such rounds is assumed not to.
  """
  norms = {m.quiet().public_clip_norm}
  if None in norms:
    return False
  try:
    for update in (m.zero, HUGE * m.uniform):
      run = m.quiet()
      for _ in range(min(_TO_ADAPT, m.claim.max_rounds or _TO_ADAPT)):
        run.release(m.cohort(update, [update]))
        norms.add(run.public_clip_norm)
  except NotChecked:
    return False
  return len(norms) > 1


def sample_steadily(
  m: Measurements, runs: int, rounds: int
) -> Float[np.ndarray, 'R T k']:
  """Noise of the first rounds, in which all runs have the same clip norms.

  One that adapts follows noisy counts: then noise that a release has from earlier
  rounds, over its own clip norm, is another multiple in each run. With little noise,
  which is then scaled to the claimed one, clip norms do not move at random.
  """
  steady = _make_steady_claim(m)
  sampled = m.sample_rounds(runs, rounds, m.cohort(m.zero), steady)
  return sampled * (m.claim.noise_multiplier / steady.noise_multiplier)


@measured
def _make_steady_claim(m: Measurements) -> Claim:
  z = min(m.claim.noise_multiplier, _STEADY if adapts(m) else math.inf)
  return dataclasses.replace(m.claim, noise_multiplier=z)


@measured
def sample_steady_rounds(m: Measurements) -> Float[np.ndarray, 'R T k']:
  """As `sample_early_rounds`, where all runs have the same clip norms."""
  early = sample_early_rounds(m)
  if _make_steady_claim(m) == m.claim:
    return early
  runs, rounds, _ = early.shape
  return sample_steadily(m, m.plan(0.1, rounds=rounds, max_runs=runs), rounds)


@measured
def find_unique_runs(m: Measurements) -> Sequence[int]:
  """Runs whose first noise differs from that of every earlier run.

  They are all runs, unless `noise_between_runs` is broken by equal noise.
  """
  first = sample_early_rounds(m)[:, 0]
  if find_repeats(m).p_value >= ALPHA:
    return range(len(first))
  std = float(np.sqrt(np.mean(first**2))) or 1.0
  _, equal = laws.p_of_repeats(first / std)
  return [i for i in range(len(first)) if not equal[i, :i].any()]


class Rows(NamedTuple):
  """Noise with unit variances, and the run and the round that each row is of.

  A row is that of a round, or of a run if there are less than 8 coordinates. Rows of
  zeros are left out.
  """

  values: Float[np.ndarray, 'n d']
  run: np.ndarray
  t: np.ndarray


@measured
def list_rows(m: Measurements) -> Rows:
  """The noise of all runs and rounds."""
  samples = sample_steady_rounds(m)
  stds = np.sqrt(np.mean(samples**2, axis=(0, 1)))
  # Tensors with more noise than others must not dominate.
  tensors = split(stds, m.layout.kept_sizes)
  stds = np.concatenate(
    [np.full(t.size, math.sqrt(np.mean(t**2))) for t in tensors]
  )
  some = np.flatnonzero(stds > 0)[:4096]
  samples = samples[..., some] / stds[some]
  runs, rounds, dim = samples.shape
  if dim < 8:
    samples, rounds = samples.reshape(runs, 1, -1), 1
  rows = samples.reshape(runs * rounds, -1)
  run, t = np.divmod(np.arange(len(rows)), rounds)
  used = np.any(rows != 0, axis=1)
  return Rows(rows[used], run[used], t[used])


class Repeats(NamedTuple):
  """p-value of rows of different runs that are equal, and which are."""

  p_value: float
  equal: Bool[np.ndarray, 'n n']


@measured
def find_repeats(m: Measurements) -> Repeats:
  """Compares the noise of runs. What a run uses twice is the subject of `rounds`."""
  rows, run, _ = list_rows(m)
  if len(rows) < 2:
    return Repeats(1.0, np.zeros((len(rows),) * 2, bool))
  p, equal = laws.p_of_repeats(rows)
  equal &= run[:, None] != run[None, :]
  return Repeats(p if equal.any() else 1.0, equal)


@measured
def list_unique_samples(m: Measurements) -> Float[np.ndarray, 'R k']:
  """Noise of the first round of runs that do not repeat one another."""
  return sample_early_rounds(m)[find_unique_runs(m), 0]


@measured
def measure_noise(m: Measurements) -> Noise:
  """The noise of an ordinary round; of few coordinates from more runs, if time allows."""
  share = measure_effective_share(m)
  noise = Noise(m.layout, list_unique_samples(m), effective_share=share)
  missing = math.ceil(_ENOUGH / noise.samples.shape[1]) - len(noise.samples)
  if missing <= 0 or not noise.common_std or find_repeats(m).p_value < ALPHA:
    return noise
  runs = m.plan(0.1, max_runs=missing)
  more = m.sample_rounds(runs, 1, m.cohort(m.zero))[:, 0]
  samples = np.concatenate([noise.samples, more])
  return dataclasses.replace(noise, samples=samples)


@measured
def measure_effective_share(m: Measurements) -> float:
  """Effective over nominal dimensions of the noise, 1 unless it is much less.

  If coordinates share random numbers, other rules have fewer independent values
  than coordinates.
  """
  noise = Noise(m.layout, list_unique_samples(m))
  if len(noise.samples) < 2 or noise.common_std == 0:
    return 1.0
  rows = noise.standardized()
  p, effective = laws.p_of_sphericity(rows)
  share = effective / rows.shape[1]
  return min(1.0, share) if p < ALPHA and share < 0.9 else 1.0


@measured
def measure_level(m: Measurements) -> tuple[float, float]:
  """p-value of runs with equally much noise, and its relative spread."""
  return compare_levels(m, list_unique_samples(m))


def compare_levels(
  m: Measurements, samples: Float[np.ndarray, 'R k']
) -> tuple[float, float]:
  """The same of other samples.

  The mean square of d independent values varies by (kurtosis - 1) / d. That is
  compared with its variance over runs, whatever the law of the values is.
  """
  noise, runs = Noise(m.layout, samples), len(samples)
  if noise.common_std == 0 or runs < MIN_RUNS:
    return 1.0, 0.0
  rows = noise.standardized()
  means = np.mean(rows**2, axis=1)
  kurtosis = max(3.0, float(np.mean(rows**4)))
  dim = rows.shape[1] * measure_effective_share(m)
  variance = float(np.var(means, ddof=1))
  if dim < LEVEL_DIM or variance < 0.01:
    return 1.0, math.sqrt(variance)
  expected = (kurtosis - 1) / dim
  p = float(stats.chi2.sf((runs - 1) * variance / expected, runs - 1))
  return p, math.sqrt(variance)


def compare_law(m: Measurements, noise: Noise) -> tuple[float, str]:
  """p-value of noise that has the claimed law, and how it differs."""
  values = noise.standardized()
  # A grid is the same in all tensors if they have the same noise.
  if noise.is_isotropic:
    values = noise.make_gaussian(noise.samples / noise.common_std)
  grid = m.claim.step / noise.common_std
  return laws.p_of_law(values.ravel(), m.claim.noise, grid)
