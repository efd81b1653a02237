"""Checks a mechanism against all rules, most important first."""

from __future__ import annotations

from collections.abc import Callable
import math
from typing import TypeVar

import numpy as np
from scipy import stats

from epe_jax.conformance.claim import Claim
from epe_jax.conformance.laws import ALPHA
from epe_jax.conformance.measurements import Measurements
from epe_jax.conformance.report import Report
from epe_jax.conformance.rule import Result
from epe_jax.conformance.rules import (
  arithmetic,
  clip_norm,
  clipping,
  independence,
  noise_level,
  noise_scale,
  own_claim,
  participation,
  processes,
  resume,
  rounds,
  zero_update,
)
from epe_jax.conformance.samples import LEVEL_DIM
from epe_jax.conformance.session import Make, NotChecked, OutOfTime
from epe_jax.epsilon import checks
from epe_jax.epsilon.checks import check_delta

T = TypeVar('T')

RULES = {
  rule.name: rule
  for rule in (
    noise_level.noise_level,
    noise_scale.noise_scale,
    noise_scale.tensor_noise,
    clipping.clipping,
    zero_update.not_finite,
    rounds.rounds,
    rounds.later_rounds,
    participation.weights,
    participation.dropout,
    participation.places,
    independence.noise_between_coordinates,
    independence.noise_between_runs,
    processes.noise_between_processes,
    independence.noise_law,
    independence.noise_grid,
    clip_norm.clip_norm,
    resume.resume,
    rounds.memory,
    arithmetic.wrap_around,
    clipping.arrives_whole,
    arithmetic.rounding,
    participation.add_or_remove,
    own_claim.own_claim,
    zero_update.zero_update,
  )
}
"""Each rule by its name, in the order in which they are checked."""

_OF_OTHERS = 'weights', 'dropout', 'places', 'rounding'
_OF_ROUNDS = 'rounds', 'later_rounds', 'memory', 'resume'


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
    delta: δ of the reported ε, in (0, 1); by default that of the claim.
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
  check_delta(delta)
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
  rng = np.random.default_rng(seed)
  m = Measurements(make, claim, budget=budget, rng=rng)
  m.session.name = name or m.session.name
  # An error on ordinary input is the user's to see.
  ordinary = m.cohort(m.uniform / 2, m.background)
  with np.errstate(all='ignore'):
    try:
      run = m.session.start(claim)
      publishes = run.public_clip_norm is not None
      first = run.release(ordinary)
    except NotChecked as error:
      raise ValueError(
        'nothing can be checked: in a round in which clients send updates of half the '
        f'clip norm {error}.'
      ) from error
    _attempt(m.try_zeros)
    _attempt(m.find_place)
    adapts = publishes and bool(_attempt(lambda: m.adapts))
  if not np.all(np.isfinite(first)):
    raise ValueError(
      'a round in which clients send updates of half the clip norm releases '
      'numbers that are not finite; nothing can be checked.'
    )
  results = tuple(
    Result(name, 'does not apply', why)
    if (why := _explain_exemption(name, claim, publishes, adapts))
    else rule.check(m, delta=delta)
    for name, rule in RULES.items()
  )
  return Report(
    claim,
    results,
    delta,
    epsilon=_attempt(
      lambda: claim.compute_epsilon(m.all_noise.mu(m.base), delta)
    ),
    claimed_epsilon=claim.compute_epsilon(claim.mu, delta),
    rounds=m.session.rounds,
    seconds=m.session.elapsed,
    resolution=_attempt(lambda: _resolve(m.noise.num)),
  )


def _explain_exemption(
  name: str, claim: Claim, publishes: bool, adapts: bool
) -> str | None:
  """Why a rule says nothing about such mechanisms; None if it has to hold."""
  if name == 'add_or_remove' and claim.adjacency != name:
    return 'the claim is not one of a client that is present or absent'
  if name in _OF_OTHERS and claim.num_clients == 1:
    return 'a round has one client'
  if name in _OF_ROUNDS and claim.max_rounds == 1:
    return 'a run has one round'
  if name == 'memory' and adapts:
    return 'the clip norm is public and adapts; see clip_norm'
  if name == 'clip_norm' and not publishes:
    return 'the mechanism publishes no clip_norm'
  if name == 'noise_between_coordinates' and claim.dim == 1:
    return 'there is one coordinate'
  if name == 'noise_level' and claim.dim < LEVEL_DIM:
    return (
      f'below {LEVEL_DIM} coordinates a random amount of noise is another law; see '
      'noise_law'
    )
  small = 1e-4 * claim.num_clients * claim.clip_norm
  if name == 'rounding' and claim.granularity > small:
    return 'a small update is less than a step of the claimed grid'
  return None


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
