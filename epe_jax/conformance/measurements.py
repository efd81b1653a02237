"""The noise of a mechanism, and p-values of influences against it."""

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
from epe_jax.conformance.laws import ALPHA, TOLERANCE
from epe_jax.conformance.noise import Noise
from epe_jax.conformance.session import (
  Cohort,
  Make,
  NotChecked,
  Vector,
  norm,
)

_MAX_RUNS, _MIN_RUNS, _MAX_OTHER_RUNS, _MAX_ROUNDS = 100, 6, 16, 32
MAX_LATER = 16
"""Rounds in which later ones are compared with the first."""
MAX_CARRIED = 0.02
"""Arithmetic moves later rounds by no more than this, in influences of a client."""
# Coordinates from which on the amount of noise of a run is known.
_LEVEL_DIM = 32
# Numbers in the influences of a client on all rounds.
_MAX_NUMBERS = 20_000_000


class Measurements(Influences):
  """All that rules measure; each measurement is made once, when it is first needed.

  Noise is sampled with zero updates under the claim itself, unless a method says
  otherwise.
  """

  def __init__(
    self, make: Make, claim: Claim, *, budget: float, rng: np.random.Generator
  ):
    super().__init__(make, claim, budget=budget, rng=rng)
    self._budget = budget

  def plan(self, share: float, *, rounds: int, max_runs: int) -> int:
    """Number of runs that fit into a share of the budget."""
    seconds = self.seconds_per_round * rounds
    return max(_MIN_RUNS, min(max_runs, int(share * self._budget / seconds)))

  @functools.cached_property
  def seconds_per_round(self) -> float:
    """Seconds to make a mechanism and run a round of zero updates."""
    before = self.session.elapsed
    for _ in range(2):
      self.session.start(self.claim).release(self.cohort(self.zero))
    return (self.session.elapsed - before) / 2

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

  def sample_noise(
    self,
    cohort: Cohort,
    *,
    runs: int | None = None,
    rounds: int = 1,
    claim: Claim | None = None,
    repair: bool = True,
  ) -> Noise:
    """Noise of the first round, or a later one, under other conditions.

    Args:
      cohort: of each round.
      runs: number of samples; by default as many as time allows.
      rounds: that are run; the noise is that of the last one.
      claim: of the mechanism.
      repair: leave out what `tensor_noise` and `noise_between_coordinates` report;
        False if influences cannot be read.
    """
    if runs is None:
      runs = self.plan(0.05, rounds=1, max_runs=_MAX_OTHER_RUNS)
    samples = self.sample_rounds(runs, rounds, cohort, claim)[:, -1]
    if self.repeats[0] < ALPHA:
      # Equal noise is counted once; see `noise_between_runs`.
      scale = np.sqrt(np.mean(samples**2)) or 1.0
      samples = scale * np.unique(np.round(samples / scale, 4), axis=0)
    if not repair:
      return Noise(self.layout, samples)
    return Noise(
      self.layout,
      samples,
      self.short_tensors,
      self.effective_share,
      self.is_layered,
    )

  @functools.cached_property
  def is_layered(self) -> bool:
    """Whether tensors that have enough noise differ in it."""
    noise = dataclasses.replace(self.all_noise, repaired=self.short_tensors)
    return not noise.is_isotropic

  @functools.cached_property
  def early_rounds(self) -> Float[np.ndarray, 'R T k']:
    """Noise of the first rounds of many runs: two, or more of few coordinates."""
    # Of few coordinates more rounds, so that equal noise is no accident.
    rounds = max(2, math.ceil(16 / self.claim.dim))
    rounds = min(rounds, self.claim.max_rounds or rounds)
    runs = self.plan(0.35, rounds=rounds, max_runs=_MAX_RUNS)
    return self.sample_rounds(runs, rounds, self.cohort(self.zero))

  @functools.cached_property
  def unique_runs(self) -> Sequence[int]:
    """Runs whose first noise differs from that of every earlier run.

    They are all runs, unless `noise_between_runs` is broken by equal noise.
    """
    num = len(self.early_rounds)
    p, equal, (runs, rounds) = self.repeats
    if p >= ALPHA:
      return range(num)
    is_first = rounds == 0
    equal, runs = equal[np.ix_(is_first, is_first)], runs[is_first]
    repeated = [runs[i] for i in range(len(runs)) if equal[i, :i].any()]
    return [i for i in range(num) if i not in set(repeated)]

  @functools.cached_property
  def noise_rows(
    self,
  ) -> tuple[Float[np.ndarray, 'n d'], tuple[np.ndarray, np.ndarray]]:
    """Noise with unit variances, and the run and the round that each row is of.

    Rows are those of single rounds, or whole runs if there are less than 8
    coordinates. Rows of zeros are left out.
    """
    samples = self.early_rounds
    stds = np.sqrt(np.mean(samples**2, axis=(0, 1)))
    # Tensors with more noise than others must not dominate.
    tensors = np.split(stds, np.cumsum(self.layout.kept_sizes)[:-1])
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
    return self._measure_level(self.early_rounds[self.unique_runs, 0])

  def _measure_level(
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
    if dim < _LEVEL_DIM or variance < 0.01:
      return 1.0, math.sqrt(variance)
    expected = (kurtosis - 1) / dim
    p = float(stats.chi2.sf((runs - 1) * variance / expected, runs - 1))
    return p, math.sqrt(variance)

  def check_gaussian(self) -> None:
    """Checks that several releases together have a μ.

    Raises:
      NotChecked: they have none with such noise.
    """
    if self.claim.order == 1:
      raise NotChecked('several releases are judged with Gaussian noise only')

  def check_influence(self) -> None:
    """Checks that some client has an influence, which is not lost in rounding.

    Raises:
      NotChecked: it has none, or it is rounded too coarsely.
    """
    if self.is_readable and norm(self.base) == 0:
      raise NotChecked(
        'the first round is the same whatever one client sends, if the others '
        'send zeros'
      )
    self.check_rounding()

  def check_rounding(self) -> None:
    """Checks that influences are not lost as releases are rounded.

    Raises:
      NotChecked: they are rounded too coarsely.
    """
    if not self.is_readable:
      return
    try:
      step, base = self.rounding_step, np.abs(self.base)
    except NotChecked:
      return  # A rule that needs an influence says so itself.
    if self.claim.granularity:
      # Clients that agree are rounded alike, and their sum is coarser.
      step = min(step, self.claim.granularity / self.claim.clip_norm)
    if math.isinf(step):
      raise NotChecked(
        'the first round is the same whatever clients send; let each call of '
        'aggregate release a round, and return what comes before rounding'
      )
    if step and norm(np.maximum(base - step, 0)) <= 0.9 * norm(base):
      raise NotChecked(
        f'releases are rounded to {step:.2g} {self.unit}, in which the influence '
        'of a client is lost; return what comes before rounding'
      )

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
    multiples = sizes / gaps.min()
    is_grid = np.all(np.abs(multiples - np.rint(multiples)) < 0.02)
    return float(gaps.min()) if is_grid else 0.0

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
    return all(
      np.array_equal(x, expected)
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
    if num < _MIN_RUNS or not norms.all():
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
    if self._is_short_where_large(samples) or self._is_scaled_by_noise():
      return True
    u = self.base_update
    cohort, zeros = self.cohort(u, [u]), self.cohort(self.zero)
    keep = self.layout.keep
    quiet = keep(self.influence(cohort, zeros))
    direction = quiet / np.linalg.norm(quiet)
    runs = self.plan(0.03, rounds=1, max_runs=min(num, _MAX_OTHER_RUNS))
    releases = self.release_afresh(cohort, runs)
    noisy = [float(keep(x) @ direction) for x in releases]
    spread = float(np.std(noisy, ddof=1))
    missing = 0.8 * float(np.linalg.norm(quiet)) - float(np.mean(noisy))
    t = missing * math.sqrt(runs) / spread if spread else math.inf * missing
    if stats.t.sf(t, runs - 1) < ALPHA:
      return True
    k = int(np.argmax(np.abs(self.base_update[: self.layout.kept_sizes[0]])))
    one = self.in_coordinate(k)
    releases = self.release_afresh(self.cohort(one, [one]), runs)
    moved = [x[k] for x in releases]
    usual = float(np.mean(samples[:, k] ** 2))
    ratio = float(np.var(moved, ddof=1)) / usual if usual else 1.0
    return bool(stats.f.cdf(ratio, runs - 1, num) < ALPHA)

  def _is_scaled_by_noise(self) -> bool:
    """Whether the amount of noise is random, but not if next to none is claimed.

    So it is if the noisy sum is divided by a noisy count.
    """
    if self.level[0] >= ALPHA:
      return False
    multiplier = 1e-3 * min(1.0, self.claim.noise_multiplier)
    claim = dataclasses.replace(self.claim, noise_multiplier=multiplier)
    runs = len(self.unique_runs)
    faint = self.sample_rounds(runs, 1, self.cohort(self.zero), claim)[:, 0]
    return self._measure_level(faint)[0] >= ALPHA

  def _is_short_where_large(self, samples: Float[np.ndarray, 'R k']) -> bool:
    """Whether there is as much noise as claimed if next to none is, and else less."""
    z = self.claim.noise_multiplier
    base = self.layout.length(self.base) / (z * self.claim.mu)
    low = 0.01 * min(1.0, z) / math.sqrt(self.claim.dim)
    runs = self.plan(0.02, rounds=1, max_runs=8)

    def sample(multiplier: float) -> Float[np.ndarray, 'R k']:
      claim = dataclasses.replace(self.claim, noise_multiplier=multiplier)
      noise = self.sample_rounds(runs, 1, self.cohort(self.zero), claim)
      return noise[:, 0] / multiplier

    faint, loud = sample(low), sample(8 * z)
    square = float(np.mean(faint**2))
    error = 0.02 + 3 / math.sqrt(2 * faint.size)
    if not (square and abs(math.sqrt(square) / base - 1) < error):
      return False
    ratios = [
      stats.f.cdf(
        float(np.mean(x**2)) / square / 0.96,
        *(y.size * self.effective_share for y in (x, faint)),
      )
      for x in (samples / z, loud)
    ]
    return bool(min(ratios) < ALPHA)

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

  def check_processed(self) -> None:
    """Checks that releases are not cut off or scaled.

    Raises:
      NotChecked: they are.
    """
    if self.is_processed:
      raise NotChecked(
        'releases are cut off or scaled after the noise is added; return what comes '
        'before'
      )

  def check_level(self) -> None:
    """Checks that all runs have equally much noise, in all coordinates.

    Raises:
      NotChecked: they have not, so that nothing can be compared with it.
    """
    if self.is_masked:
      raise NotChecked(
        'random coordinates of a release are zero, with noise and updates; return '
        'what comes before they are left out'
      )
    self.check_rounding()
    self.check_processed()
    if self.level[0] < ALPHA:
      raise NotChecked('the amount of noise is random; see noise_level')

  @functools.cached_property
  def short_tensors(self) -> frozenset[int]:
    """Tensors with less noise than an update within them needs."""
    noise, allowed = self.all_noise, self.allowed_by(self.all_noise)
    return frozenset(
      k
      for k in range(len(self.claim.sizes))
      if self.p_of_tensor(noise, k, allowed) < ALPHA / len(self.claim.sizes)
    )

  def p_of_tensor(self, noise: Noise, k: int, allowed: float) -> float:
    """p-value of the noise in one tensor."""
    influence = self.tensor_influences[k]
    if noise.is_isotropic or influence < 1e-6:
      return 1.0
    if not noise.stds[k] > 1e-3 * noise.stds.max():
      return 0.0
    mu = influence / noise.stds[k]
    return laws.p_of_mu(mu, allowed, num=noise.count(noise.tensors[k].size))

  @functools.cached_property
  def tensor_influences(self) -> Float[np.ndarray, 'L']:
    """Largest influence in each tensor of ordinary updates of norm S."""
    largest = self.layout.length(self.base)
    norms = [self.layout.norms(influence) for _, influence in self.exact]
    for k in range(8, len(self.claim.sizes)):
      norms.append(self.layout.norms(self.influence_of(self.in_tensor(k))))
    return np.minimum(np.max(norms, axis=0), largest)

  @functools.cached_property
  def noise(self) -> Noise:
    """Noise of ordinary rounds, without what `tensor_noise` reports.

    Raises:
      NotChecked: there is no noise.
    """
    self.check_level()
    if self.all_noise.common_std == 0:
      raise NotChecked('there is no noise; see noise_scale')
    return dataclasses.replace(self.all_noise, repaired=self.short_tensors)

  def allowed_by(self, noise: Noise) -> float:
    """Largest μ that other rules allow: that of ordinary clients if it is larger.

    What is wrong for all clients is reported once, by `noise_scale`. Their μ is
    measured, so its upper bound is allowed.
    """
    common = noise.common_std
    if common == 0:
      return math.inf
    measured = self.layout.length(self.base) / common
    p = laws.p_of_mu(measured, self.claimed_mu, num=noise.num)
    if p >= ALPHA:
      return self.claimed_mu
    return 1.02 * laws.upper_mu(measured, num=noise.num)

  @functools.cached_property
  def allowed_mu(self) -> float:
    """Largest μ that rules allow in ordinary rounds; see `allowed_by`."""
    if self.common_p_value >= ALPHA:
      return self.claimed_mu
    num = self.noise.num
    if not self.noise.is_isotropic:
      num = min(self.noise.count(t.size) for t in self.noise.tensors)
    return 1.02 * laws.upper_mu(self.common_mu, num=num)

  @property
  def claimed_mu(self) -> float:
    """μ of one round by the claim, with the tolerance for arithmetic."""
    return (1 + TOLERANCE) * self.claim.mu

  def excess(
    self, influence: Vector, noise: Noise, *, tests: int = 1
  ) -> tuple[float, float]:
    """Compares an influence with the noise.

    Args:
      influence: of one client in a round.
      noise: in such rounds.
      tests: number of influences that the rule compares.

    Returns:
      μ, and the p-value of the hypothesis that it is at most the allowed one.
    """
    mu, allowed = noise.mu(influence), self.allowed_mu
    if math.isinf(allowed):
      return mu, 1.0
    return mu, min(1.0, tests * noise.p_value(influence, allowed))

  @functools.cached_property
  def common_mu(self) -> float:
    """μ of an ordinary client whose update has norm S."""
    if self.all_noise.common_std == 0:
      return math.inf
    return self.noise.mu(self.base)

  @functools.cached_property
  def common_p_value(self) -> float:
    """Probability of this μ or more although the claim holds."""
    if math.isinf(self.common_mu):
      return 0.0
    return self.noise.p_value(self.base, self.claimed_mu)

  def count_rounds(self, most: int = _MAX_ROUNDS) -> int:
    """Number of rounds of a long run, at most so many.

    Raises:
      NotChecked: there is no second one.
    """
    num = min(self.max_rounds, most)
    if num < 2:
      raise NotChecked('it needs two rounds or more, and time for them')
    return num

  @functools.cached_property
  def carried_rest(self) -> float:
    """How much more an update that is clipped moves later rounds than one that is not."""
    huge, whole = (self.cohort(f * self.base_update) for f in (HUGE, 1.0))
    zeros, clipped, kept = self.cohort(self.zero), self.quiet(), self.quiet()
    rest = [
      clipped.release(zeros if t else huge)
      - kept.release(zeros if t else whole)
      for t in range(self.count_rounds(MAX_LATER))
    ]
    return norm(np.array(rest[1:]))

  @functools.cached_property
  def adapts(self) -> bool:
    """Whether the public clip norm moves, after rounds of huge updates or of zeros."""
    run = self.quiet()
    norms = {run.public_clip_norm}
    for update in (HUGE * self.base_update, self.zero):
      for _ in range(min(2, self.max_rounds)):
        run.release(self.cohort(update, [update]))
        norms.add(run.public_clip_norm)
    return len(norms) > 1

  @property
  def max_rounds(self) -> int:
    """Maximum number of rounds of a long run."""
    allowed = self.claim.max_rounds or _MAX_ROUNDS
    in_time = int(0.3 * self._budget / (5 * self.seconds_per_round))
    in_space = _MAX_NUMBERS // self.claim.dim
    return min(allowed, in_time, in_space, _MAX_ROUNDS)
