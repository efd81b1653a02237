"""Checks a mechanism against all rules, most important first."""

from collections.abc import Callable
import math
from typing import TypeVar

import numpy as np
from scipy import stats

from epe_jax.conformance import affine, comparison, samples
from epe_jax.conformance.claim import Claim
from epe_jax.conformance.laws import ALPHA
from epe_jax.conformance.measurements import Measurements
from epe_jax.conformance.report import Report
from epe_jax.conformance.rules import (
  amount,
  clients,
  clip_norm,
  clipping,
  noise,
  processes,
  rounds,
)
from epe_jax.conformance.session import Make, NotChecked, OutOfTime
from epe_jax.epsilon import checks

T = TypeVar('T')

# A noise multiplier that is told from none in float32.
_LEAST_NOISE = 1e-5

RULES = {
  rule.name: rule
  for rule in (
    amount.noise_level,
    amount.noise_scale,
    amount.tensor_noise,
    clipping.clipping,
    clipping.not_finite,
    rounds.rounds,
    rounds.later_rounds,
    clients.weights,
    clients.dropout,
    clients.places,
    noise.noise_between_coordinates,
    noise.noise_between_runs,
    processes.noise_between_processes,
    noise.noise_law,
    noise.noise_grid,
    clip_norm.clip_norm,
    rounds.resume,
    rounds.memory,
    clipping.wrap_around,
    clipping.arrives_whole,
    clipping.rounding,
    clients.add_or_remove,
    amount.own_claim,
    clipping.zero_update,
    # Last, as it sees what all others have sent.
    amount.constants,
  )
}
"""Each rule by its name, in the order in which they are checked."""


def check(
  make: Make,
  claim: Claim,
  *,
  delta: float | None = None,
  budget: float = 60.0,
  seed: int = 0,
  name: str | None = None,
) -> Report:
  """Runs a mechanism on adversarial inputs and reports the rules that it breaks.

  Args:
    make: returns a fresh mechanism that fulfils a claim. It is called with clip
      norms, noise multipliers and numbers of clients other than those of `claim`.
    claim: what the mechanism promises.
    delta: δ of the reported ε, as `Claim.delta`; by default that of the claim.
    budget: seconds that rounds may take, approximately; to start fresh processes
      may take as long again. What does not fit is reported as not checked.
    seed: of the updates that are sent. The noise is the mechanism's own.
    name: by which fresh processes import `make`, package.module:make or
      folder/file.py:make; by default that of `make`, if its module is not a script.

  Returns:
    A result for each rule. A rule breaks at p < 1e-7. Not all p-values are exact;
    docs/conformance.md has the measured rates of false alarms.

  Raises:
    TypeError: `make` returns something that is not a mechanism.
    ValueError: an argument is out of range, or a release has not the shapes of the
      claim.
    Exception: whatever the mechanism raises in the very first round, in which all
      clients send updates of half the clip norm.
  """
  delta = claim.delta if delta is None else delta
  claim.check_delta(delta)
  if not 0 < budget < math.inf:
    raise ValueError(f'budget={budget}; give seconds > 0.')
  checks.check_integer('seed', seed, 0, math.inf)
  std = claim.noise_multiplier * claim.clip_norm
  if claim.granularity > std:
    raise ValueError(
      f'granularity={claim.granularity:g} is more than the standard deviation of the '
      f'noise, z S = {std:g}, so that noise and influences cannot be told from '
      'rounding; claim a finer grid, or more noise.'
    )
  if claim.noise_multiplier < _LEAST_NOISE:
    raise ValueError(
      f'noise_multiplier={claim.noise_multiplier:g} is next to no noise; claim at least '
      f'{_LEAST_NOISE:g}.'
    )
  rng = np.random.default_rng(seed)
  m = Measurements(make, claim, budget=budget, rng=rng)
  m.session.name = name or m.session.name
  # An error on ordinary input is the user's to see.
  ordinary = m.cohort(m.uniform / 2, m.background)
  with np.errstate(all='ignore'):
    try:
      run = m.session.start(claim)
      m.publishes = run.public_clip_norm is not None
      first = run.release(ordinary)
    except NotChecked as error:
      raise ValueError(
        'nothing can be checked: in a round in which clients send updates of half the '
        f'clip norm {error}.'
      ) from error
    _attempt(m.try_zeros)
    _attempt(m.leave_out_constants)
    _attempt(m.find_grid)
    _attempt(m.find_place)
    _attempt(m.divide_by_rates)
    if m.publishes:
      _attempt(lambda: samples.adapts(m))
  if not np.all(np.isfinite(first)):
    raise ValueError(
      'a round in which clients send updates of half the clip norm releases '
      'numbers that are not finite; nothing can be checked.'
    )
  results = tuple(rule.check(m, delta=delta) for rule in RULES.values())
  return Report(
    claim,
    results,
    delta,
    epsilon=_attempt(lambda: _measure_epsilon(m, delta)),
    claimed_epsilon=claim.compute_epsilon(claim.mu, delta),
    rounds=m.session.rounds,
    seconds=m.session.elapsed,
    resolution=_attempt(lambda: _resolve(comparison.measure_noise(m).num)),
    num_constant=int(m.session.is_constant.sum()),
    has_rates=bool(np.ptp(m.session.rates)),
  )


def _measure_epsilon(m: Measurements, delta: float) -> float:
  """ε at the claim itself, of a client of norm S and ordinary weight."""
  with np.errstate(all='ignore'):
    affine.check_level(m)
    affine.check_influence(m)
  return m.claim.compute_epsilon(samples.measure_noise(m).mu(m.base), delta)


def _attempt(measure: Callable[[], T]) -> T | None:
  try:
    return measure()
  except (NotChecked, OutOfTime):
    return None


def _resolve(num: int) -> float:
  """Shortage of noise that breaks `noise_scale` with probability 99 %."""
  # Six claims are compared, so each has a sixth of the error probability.
  least = stats.chi2.ppf(ALPHA / 6, num) / stats.chi2.ppf(0.99, num)
  return 1 - math.sqrt(least)
