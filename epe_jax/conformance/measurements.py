"""The noise of a mechanism, and p-values of influences against it."""

from __future__ import annotations

import dataclasses
import functools
import math

from jaxtyping import Float
import numpy as np

from epe_jax.conformance import laws
from epe_jax.conformance.claim import Claim
from epe_jax.conformance.influences import HUGE
from epe_jax.conformance.laws import ALPHA, TOLERANCE
from epe_jax.conformance.noise import Noise
from epe_jax.conformance.processing import Processing
from epe_jax.conformance.session import (
  Cohort,
  NotChecked,
  Vector,
  check_finite,
  norm,
)

_MAX_RUNS, _MAX_ROUNDS = 16, 32
MAX_LATER = 16
"""Rounds in which later ones are compared with the first."""
MAX_CARRIED = 0.02
"""Arithmetic moves later rounds by no more than this, in influences of a client."""
# Numbers in the influences of a client on all rounds.
_MAX_NUMBERS = 20_000_000


class Measurements(Processing):
  """All that rules measure; each measurement is made once, when it is first needed."""

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
      runs = self.plan(0.05, rounds=1, max_runs=_MAX_RUNS)
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
    rest = []
    for t in range(self.count_rounds(MAX_LATER)):
      # In units of the first clip norm: the two may differ afterwards.
      usual = kept.release_by_claim(zeros if t else whole)
      check_finite(usual, t)
      rest.append(clipped.release_by_claim(zeros if t else huge) - usual)
    return norm(np.array(rest[1:]))

  @property
  def max_rounds(self) -> int:
    """Maximum number of rounds of a long run."""
    allowed = self.claim.max_rounds or _MAX_ROUNDS
    in_time = int(0.3 * self._budget / (5 * self.seconds_per_round))
    in_space = _MAX_NUMBERS // self.claim.dim
    return min(allowed, in_time, in_space, _MAX_ROUNDS)
