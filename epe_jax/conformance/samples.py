"""Samples of the noise of a mechanism under its claim, and what repeats in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import dataclasses
import functools
import math

from jaxtyping import Bool, Float
import numpy as np
from scipy import stats

from epe_jax.conformance import laws
from epe_jax.conformance.claim import Claim
from epe_jax.conformance.influences import HUGE, Influences
from epe_jax.conformance.laws import ALPHA
from epe_jax.conformance.noise import Noise, split
from epe_jax.conformance.session import Cohort, Make, NotChecked, Vector

_MAX_RUNS, MIN_RUNS = 100, 6
# Rounds within which a clip norm that adapts moves.
_TO_ADAPT = 6
# A noise multiplier by which a clip norm that adapts hardly moves at random.
_STEADY = 1e-3
AMPLE = 2000
"""Values of noise that tell its law."""
LEVEL_DIM = 32
"""Coordinates from which on the amount of noise of a run is known, whatever its law."""


class Samples(Influences):
  """Noise of many runs, sampled with zero updates under the claim itself."""

  def __init__(
    self, make: Make, claim: Claim, *, budget: float, rng: np.random.Generator
  ):
    super().__init__(make, claim, budget=budget, rng=rng)
    self._budget = budget

  def plan(self, share: float, *, rounds: int, max_runs: int) -> int:
    """Number of runs that fit into a share of the budget."""
    seconds = self.seconds_per_round * rounds
    return max(MIN_RUNS, min(max_runs, int(share * self._budget / seconds)))

  @functools.cached_property
  def seconds_per_round(self) -> float:
    """Seconds to make a mechanism and run a round of zero updates."""
    seconds = []
    # A machine that does something else for a moment does not count.
    for _ in range(3):
      before = self.session.elapsed
      self.session.start(self.claim).release(self.cohort(self.zero))
      seconds.append(self.session.elapsed - before)
    return min(seconds)

  def sample_rounds(
    self, runs: int, rounds: int, cohort: Cohort, claim: Claim | None = None
  ) -> Float[np.ndarray, 'R T k']:
    """Noise of the first rounds of fresh runs: releases less the quiet release."""
    claim = claim or self.claim
    keep = self.layout.keep
    run = self.quiet(claim)
    expected = np.stack([keep(run.release(cohort)) for _ in range(rounds)])
    if not self.is_readable:
      expected = np.zeros_like(expected)
    sampled = np.empty((runs, *expected.shape))
    for i in range(runs):
      run = self.session.start(claim)
      for t in range(rounds):
        sampled[i, t] = keep(run.release(cohort))
    return sampled - expected

  def release_afresh(self, cohort: Cohort, runs: int) -> Iterator[Vector]:
    """Releases of the first round of fresh runs under the claim."""
    for _ in range(runs):
      yield self.session.start(self.claim).release(cohort)

  @functools.cached_property
  def early_rounds(self) -> Float[np.ndarray, 'R T k']:
    """Noise of the first rounds of many runs: two, or more of few coordinates."""
    # Of few coordinates more rounds, so that equal noise is not an accident.
    rounds = max(2, math.ceil(16 / self.claim.dim))
    rounds = min(rounds, self.claim.max_rounds or rounds)
    runs = self.plan(0.35, rounds=rounds, max_runs=_MAX_RUNS)
    return self.sample_rounds(runs, rounds, self.cohort(self.zero))

  @functools.cached_property
  def adapts(self) -> bool:
    """Whether the public clip norm moves in some rounds of huge updates, or of zeros.

    Raises:
      NotChecked: the mechanism publishes one, and refuses such rounds.
    """
    norms = {self.quiet().public_clip_norm}
    if None in norms:
      return False
    for update in (self.zero, HUGE * self.uniform):
      run = self.quiet()
      for _ in range(min(_TO_ADAPT, self.claim.max_rounds or _TO_ADAPT)):
        run.release(self.cohort(update, [update]))
        norms.add(run.public_clip_norm)
    return len(norms) > 1

  @functools.cached_property
  def steady_claim(self) -> Claim:
    """The claim, with less noise if the public clip norm adapts.

    It follows noisy counts, and moves at random: then noise that a release has from
    earlier rounds, over its own clip norm, is another multiple in each run. With
    little noise all runs have the same clip norms.
    """
    try:
      adapts = self.adapts
    except NotChecked:
      adapts = False
    if not adapts:
      return self.claim
    z = min(self.claim.noise_multiplier, _STEADY)
    return dataclasses.replace(self.claim, noise_multiplier=z)

  def sample_steady(self, runs: int, rounds: int) -> Float[np.ndarray, 'R T k']:
    """Noise of the first rounds under `steady_claim`, times what it has less."""
    claim = self.steady_claim
    sampled = self.sample_rounds(runs, rounds, self.cohort(self.zero), claim)
    return sampled * (self.claim.noise_multiplier / claim.noise_multiplier)

  @functools.cached_property
  def steady_rounds(self) -> Float[np.ndarray, 'R T k']:
    """`early_rounds` in which all runs have the same clip norms; see `steady_claim`."""
    if self.steady_claim == self.claim:
      return self.early_rounds
    runs, rounds, _ = self.early_rounds.shape
    runs = self.plan(0.1, rounds=rounds, max_runs=runs)
    return self.sample_steady(runs, rounds)

  @functools.cached_property
  def unique_runs(self) -> Sequence[int]:
    """Runs whose first noise differs from that of every earlier run.

    They are all runs, unless `noise_between_runs` is broken by equal noise.
    """
    num = len(self.early_rounds)
    if self.repeats[0] >= ALPHA:
      return range(num)
    first = self.early_rounds[:, 0]
    std = float(np.sqrt(np.mean(first**2))) or 1.0
    _, equal = laws.p_of_repeats(first / std)
    return [i for i in range(num) if not equal[i, :i].any()]

  @functools.cached_property
  def noise_rows(
    self,
  ) -> tuple[Float[np.ndarray, 'n d'], tuple[np.ndarray, np.ndarray]]:
    """Noise with unit variances, and the run and the round that each row is of.

    Rows are those of single rounds, or whole runs if there are less than 8
    coordinates. Rows of zeros are left out.
    """
    samples = self.steady_rounds
    stds = np.sqrt(np.mean(samples**2, axis=(0, 1)))
    # Tensors with more noise than others must not dominate.
    tensors = split(stds, self.layout.kept_sizes)
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
    return rows[used], (run[used], t[used])

  @functools.cached_property
  def repeats(
    self,
  ) -> tuple[float, Bool[np.ndarray, 'n n'], tuple[np.ndarray, np.ndarray]]:
    """p-value of rows of different runs that are equal, which, and what they are."""
    rows, (run, t) = self.noise_rows
    if len(rows) < 2:
      return 1.0, np.zeros((len(rows),) * 2, bool), (run, t)
    p, equal = laws.p_of_repeats(rows)
    # Noise that a run uses twice is the subject of `rounds`.
    equal &= run[:, None] != run[None, :]
    return (p if equal.any() else 1.0), equal, (run, t)

  @functools.cached_property
  def all_noise(self) -> Noise:
    """Noise of the first round of runs that do not repeat one another."""
    samples = self.early_rounds[self.unique_runs, 0]
    return Noise(self.layout, samples, effective_share=self.effective_share)

  @functools.cached_property
  def ample_noise(self) -> Noise:
    """The same, of few coordinates from more runs, as far as time allows."""
    noise = self.all_noise
    missing = math.ceil(AMPLE / noise.samples.shape[1]) - len(noise.samples)
    if missing <= 0 or noise.common_std == 0 or self.repeats[0] < ALPHA:
      return noise
    runs = self.plan(0.1, rounds=1, max_runs=missing)
    more = self.sample_rounds(runs, 1, self.cohort(self.zero))[:, 0]
    samples = np.concatenate([noise.samples, more])
    return dataclasses.replace(noise, samples=samples)

  @functools.cached_property
  def effective_share(self) -> float:
    """Effective over nominal dimensions of the noise, 1 unless it is much less.

    If coordinates share random numbers, other rules have fewer independent values
    than coordinates.
    """
    noise = Noise(self.layout, self.early_rounds[self.unique_runs, 0])
    if len(noise.samples) < 2 or noise.common_std == 0:
      return 1.0
    rows = noise.standardized()
    p, effective = laws.p_of_sphericity(rows)
    share = effective / rows.shape[1]
    return min(1.0, share) if p < ALPHA and share < 0.9 else 1.0

  @functools.cached_property
  def level(self) -> tuple[float, float]:
    """p-value of runs with equally much noise, and its relative spread.

    The mean square of d independent values varies by (kurtosis - 1) / d. That is
    compared with its variance over runs, whatever the law of the values is.
    """
    return self.measure_level(self.early_rounds[self.unique_runs, 0])

  @functools.cached_property
  def law(self) -> tuple[float, str]:
    """p-value of noise that has the claimed law, and how it differs."""
    return self.measure_law(self.ample_noise)

  def measure_law(self, noise: Noise) -> tuple[float, str]:
    values = noise.standardized()
    # A grid is the same in all tensors if they have the same noise.
    if noise.is_isotropic:
      values = noise.make_gaussian(noise.samples / noise.common_std)
    claim = self.claim
    grid = claim.granularity / claim.clip_norm / noise.common_std
    return laws.p_of_law(values.ravel(), claim.noise, grid)

  def measure_level(
    self, samples: Float[np.ndarray, 'R k']
  ) -> tuple[float, float]:
    noise, runs = Noise(self.layout, samples), len(samples)
    if noise.common_std == 0 or runs < 6:
      return 1.0, 0.0
    rows = noise.standardized()
    means = np.mean(rows**2, axis=1)
    kurtosis = max(3.0, float(np.mean(rows**4)))
    dim = rows.shape[1] * self.effective_share
    variance = float(np.var(means, ddof=1))
    if dim < LEVEL_DIM or variance < 0.01:
      return 1.0, math.sqrt(variance)
    expected = (kurtosis - 1) / dim
    p = float(stats.chi2.sf((runs - 1) * variance / expected, runs - 1))
    return p, math.sqrt(variance)
