"""Whether releases are processed after the noise is added, which hides what rules measure."""

from __future__ import annotations

import dataclasses
import functools
import math

from jaxtyping import Float
import numpy as np
from scipy import stats

from epe_jax.conformance import laws
from epe_jax.conformance.laws import ALPHA, SUSPICION
from epe_jax.conformance.noise import Noise
from epe_jax.conformance.samples import AMPLE, LEVEL_DIM, MIN_RUNS, Samples
from epe_jax.conformance.session import NotChecked, norm

_MAX_RUNS = 16


class Processing(Samples):
  """What is rounded, left out, cut off or scaled in a release together with its noise."""

  @functools.cached_property
  def rounding_step(self) -> float:
    """Step of the grid of releases without noise, whatever clients send.

    It is 0 if there is no grid, and infinite if there is one number only.
    """
    values = []
    for _ in range(math.ceil(32 / self.claim.dim)):
      vector = self._rng.standard_normal(self.claim.dim)
      vector *= self._rng.uniform(0.3, 0.9) / self.claim.measure(vector)
      released = self.quiet().release(self.cohort(vector, [vector]))
      values.append(self.layout.keep(released))
    # Without noise next to nothing is left of it; float32 rounds to 1e-7.
    sizes = np.abs(np.concatenate(values))
    fine = 1e-4 * float(np.sqrt(np.mean(sizes**2)))
    gaps = np.diff(np.unique(np.append(sizes, 0.0)))
    gaps = gaps[gaps > fine]
    if not gaps.size:
      return math.inf
    # The greatest common divisor, as the least gap may be several steps.
    step, rests = float(gaps.min()), gaps
    while rests.size:
      step = float(rests.min())
      rests = np.abs(gaps - step * np.rint(gaps / step))
      rests = rests[rests > max(fine, 0.02 * step)]
    multiples = sizes / step
    is_grid = np.all(np.abs(multiples - np.rint(multiples)) < 0.02)
    return step if is_grid else 0.0

  @functools.cached_property
  def is_exact(self) -> bool:
    """Whether two rounds whose updates differ by 1e-6 of S never release the same.

    They are sought where rounding, or a sign, turns from one value to another: there
    noise would decide, whatever is left of it elsewhere.
    """
    if self.all_noise.common_std or not self.is_readable:
      return False
    u = self.in_coordinate(int(np.argmax(np.abs(self.base_update))))
    make = lambda size: self.cohort(size * u, [size * u])
    low, high = -1.0, 1.0
    first, last = (self.quiet().release(make(x)) for x in (low, high))
    if np.array_equal(first, last):
      return False
    while high - low > 1e-6:
      middle = (low + high) / 2
      released = self.quiet().release(make(middle))
      if np.array_equal(released, first):
        low = middle
      else:
        high, last = middle, released
    error = 0.1 * np.abs(last - first).max()
    return all(
      np.abs(x - expected).max() < error
      for size, expected in ((low, first), (high, last))
      for x in self.release_afresh(make(size), 20)
    )

  @functools.cached_property
  def is_masked(self) -> bool:
    """Whether random coordinates of a release are zero, whatever clients send."""
    samples = self.early_rounds[:, 0]
    some = samples[:, np.any(samples != 0, axis=0)]
    share = float(np.mean(some == 0)) if some.size else 0.0
    drawn = some[some != 0]
    # Noise on a grid is zero now and then.
    if share < 0.01 or laws.find_step(drawn / np.sqrt(np.mean(drawn**2))):
      return False
    cohort = self.cohort(self.uniform, [self.uniform])
    num = 6 + 64 // self.claim.dim
    zeros = [np.mean(x == 0) for x in self.release_afresh(cohort, num)]
    return float(np.mean(zeros)) > share / 2

  @functools.cached_property
  def is_processed(self) -> bool:
    """Whether releases are cut off, or scaled, together with their noise.

    A mechanism that refuses what is sent to find out is taken at its word.
    """
    try:
      return self._is_scaled() or self._is_cut_off()
    except NotChecked:
      return False

  def _is_scaled(self) -> bool:
    """Whether releases are scaled, as a whole or in each coordinate.

    Then all releases have the same norm or are signs, n clients that agree move a
    noisy release less than one without noise, a coordinate that they move has less
    noise, or noise falls short only where it is large.
    """
    samples = self.early_rounds[self.unique_runs, 0]
    norms = np.linalg.norm(samples, axis=1)
    num = len(samples)
    if num < MIN_RUNS or not norms.all():
      return False
    if self.layout.kept_sizes != self.claim.sizes:
      norms = [*map(norm, self.release_afresh(self.cohort(self.zero), 8))]
    sizes = np.abs(samples)
    if samples.size >= 20 and np.ptp(sizes) < 1e-6 * sizes.max():
      return True  # Signs.
    if self.claim.dim > 1 and np.ptp(norms) < 1e-6 * np.mean(norms):
      return True
    if not self.is_readable or norm(self.base) == 0:
      return False
    # Of few numbers the law of all tells more than the amount in each run.
    noise = self.ample_noise if self.claim.dim < MIN_RUNS else self.all_noise
    if self._is_random(noise):
      return self._is_scaled_by_noise(len(noise.samples))
    if self._is_short_where_large(samples):
      return True
    u = self.base_update
    cohort, zeros = self.cohort(u, [u]), self.cohort(self.zero)
    keep = self.layout.keep
    quiet = keep(self.influence(cohort, zeros))
    direction = quiet / np.linalg.norm(quiet)
    runs = self.plan(0.03, rounds=1, max_runs=min(num, _MAX_RUNS))
    releases = self.release_afresh(cohort, runs)
    noisy = [float(keep(x) @ direction) for x in releases]
    spread = float(np.std(noisy, ddof=1))
    missing = 0.8 * float(np.linalg.norm(quiet)) - float(np.mean(noisy))
    t = missing * math.sqrt(runs) / spread if spread else math.inf * missing
    if stats.t.sf(t, runs - 1) < SUSPICION:
      return True
    k = int(np.argmax(np.abs(self.base_update[: self.layout.kept_sizes[0]])))
    one = self.in_coordinate(k)
    releases = self.release_afresh(self.cohort(one, [one]), runs)
    moved = [x[k] for x in releases]
    usual = float(np.mean(samples[:, k] ** 2))
    ratio = float(np.var(moved, ddof=1)) / usual if usual else 1.0
    return bool(stats.f.cdf(ratio, runs - 1, num) < SUSPICION)

  def _is_scaled_by_noise(self, runs: int) -> bool:
    """Whether an amount of noise that is random is not if next to none is claimed.

    So it is if the noisy sum is divided by a noisy count.
    """
    multiplier = 1e-3 * min(1.0, self.claim.noise_multiplier)
    claim = dataclasses.replace(self.claim, noise_multiplier=multiplier)
    faint = self.sample_rounds(runs, 1, self.cohort(self.zero), claim)[:, 0]
    noise = Noise(self.layout, faint)
    if noise.common_std == 0:
      return False
    return not self._is_random(noise)

  def _is_random(self, noise: Noise) -> bool:
    """Whether runs have more noise and less, or noise has not the claimed law."""
    if noise.samples.shape[1] >= LEVEL_DIM:
      is_measured = noise is self.all_noise
      level = self.level if is_measured else self.measure_level(noise.samples)
      return level[0] < ALPHA
    if noise.samples.shape[1] < MIN_RUNS and noise.samples.size >= AMPLE:
      return self.measure_law(noise)[0] < SUSPICION
    rows = noise.standardized()
    # Its law is that of many coordinates.
    if min(rows.shape) < MIN_RUNS or np.any(np.ptp(rows, axis=1) == 0):
      return False
    return bool(stats.bartlett(*rows).pvalue < SUSPICION)

  def _is_short_where_large(self, samples: Float[np.ndarray, 'R k']) -> bool:
    """Whether there is as much noise as claimed if next to none is, and else less."""
    z = self.claim.noise_multiplier
    base = self.layout.length(self.base) / (z * self.claim.mu)
    low = 0.01 * min(1.0, z) / math.sqrt(self.claim.dim)
    runs = self.plan(0.02, rounds=1, max_runs=max(8, 256 // self.claim.dim))

    def sample(multiplier: float) -> Float[np.ndarray, 'R k']:
      claim = dataclasses.replace(self.claim, noise_multiplier=multiplier)
      noise = self.sample_rounds(runs, 1, self.cohort(self.zero), claim)
      return noise[:, 0] / multiplier

    faint, loud = sample(low), sample(8 * z)
    square = float(np.mean(faint**2))
    error = 0.02 + 5 / math.sqrt(2 * faint.size)
    if not (square and abs(math.sqrt(square) / base - 1) < error):
      return False
    ratios = [
      stats.f.cdf(
        float(np.mean(x**2)) / square / 0.96,
        *(y.size * self.effective_share for y in (x, faint)),
      )
      for x in (samples / z, loud)
    ]
    return bool(min(ratios) < SUSPICION)

  def _is_cut_off(self) -> bool:
    """Whether a value that all noise stays below is one that updates reach and keep."""
    samples = np.abs(self.early_rounds[self.unique_runs, 0])
    bound = float(samples.max())
    if (
      not self.is_readable
      or np.mean(samples > 0.999 * bound) < 3 / samples.size
    ):
      return False
    k = int(np.argmax(self.base_update**2))
    reached = []
    for share in (0.5, 1.0):
      u = share * self.in_coordinate(k)
      moved = self.influence(self.cohort(u, [u]), self.cohort(self.zero))
      reached.append(abs(float(moved[k])))
    return reached[1] < 1.5 * reached[0] and reached[1] <= 1.01 * bound
