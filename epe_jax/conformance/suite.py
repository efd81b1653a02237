"""Checks a mechanism against all rules, in order of their worth."""

from __future__ import annotations

from collections.abc import Callable
import math

import numpy as np
from scipy import stats

from epe_jax import epsilon
from epe_jax.conformance import (
  adaptive_clip,
  arithmetic,
  clipping,
  independence,
  noise_scale,
  over_rounds,
  own_claim,
  participation,
  resume,
)
from epe_jax.conformance.claim import Claim
from epe_jax.conformance.findings import ALPHA, Report, Result
from epe_jax.conformance.measurements import Measurements
from epe_jax.conformance.session import Make, NotChecked
from epe_jax.epsilon.types import check_delta

Rule = Callable[[Measurements], Result]

RULES: dict[str, Rule] = {
  'noise_scale': noise_scale.check_noise_scale,
  'tensor_noise': noise_scale.check_tensor_noise,
  'clipping': clipping.check_clipping,
  'rounds': over_rounds.check_rounds,
  'weights': participation.check_weights,
  'dropout': participation.check_dropout,
  'noise_between_coordinates': independence.check_coordinates,
  'noise_between_runs': independence.check_runs,
  'noise_law': independence.check_law,
  'clip_norm': adaptive_clip.check_clip_norm,
  'resume': resume.check_resume,
  'memory': over_rounds.check_memory,
  'wrap_around': arithmetic.check_wrap_around,
  'arrives_whole': clipping.check_arrives_whole,
  'rounding': arithmetic.check_rounding,
  'add_or_remove': participation.check_add_or_remove,
  'own_claim': own_claim.check_own_claim,
}
"""Each rule by its key, in the order in which they are checked."""


def check(
  make: Make,
  claim: Claim,
  *,
  delta: float = 1e-5,
  budget: float = 60.0,
  seed: int = 0,
) -> Report:
  """Runs a mechanism under adversarial inputs and says which rules it breaks.

  Args:
    make: makes a fresh mechanism that fulfils a claim. It is called with other
      clip norms, noise multipliers and numbers of clients than those of `claim`.
    claim: what the mechanism promises.
    delta: δ of the reported ε, in (0, 1).
    budget: seconds that rounds may take, about. What does not fit is reported as
      not checked.
    seed: of the updates that are sent. The noise is the mechanism's own.

  Returns:
    A result for each rule. A correct mechanism breaks one by chance with a
    probability of at most 1e-5 each.

  Raises:
    TypeError: `make` returns no mechanism.
    ValueError: an argument is out of range, or a release has not the shapes of the
      claim.
    Exception: whatever the mechanism raises in the very first round, in which all
      clients send zeros.
  """
  check_delta(delta)
  if not 0 < budget < math.inf:
    raise ValueError(f'budget={budget}; give seconds > 0.')
  rng = np.random.default_rng(seed)
  m = Measurements(make, claim, budget=budget, rng=rng)
  # Errors that are not of adversarial input are the user's to see.
  first = m.session.start(claim).release(m.cohort(m.zero))
  if not np.all(np.isfinite(first)):
    raise ValueError(
      'a round in which all clients send zeros releases numbers that are not finite; '
      'nothing can be checked. Look for a division by a norm of zero.'
    )
  results = tuple(_judge(m, name, rule, delta) for name, rule in RULES.items())
  return Report(
    claim,
    results,
    delta,
    epsilon=_attempt(lambda: epsilon_of_mu(m.all_noise.mu(m.base), delta)),
    claimed_epsilon=epsilon_of_mu(1 / claim.noise_multiplier, delta),
    rounds=m.session.rounds,
    seconds=m.session.elapsed,
    resolution=_attempt(lambda: _resolve(m.noise.num)),
  )


def epsilon_of_mu(mu: float, delta: float) -> float:
  """ε of a Gaussian mechanism: N(0, 1) against N(μ, 1)."""
  if not math.isfinite(mu):
    return math.inf
  return float(epsilon.epsilon_two_gaussians(0.0, 1.0, mu, 1.0, delta))


def _judge(m: Measurements, name: str, rule: Rule, delta: float) -> Result:
  try:
    with np.errstate(all='ignore'):
      result = rule(m)
  except NotChecked as error:
    return Result(name, 'not checked', str(error))
  finding = result.finding
  if finding is None or finding.mu is None:
    return result
  finding = finding._replace(
    mu=float(finding.mu), epsilon=epsilon_of_mu(float(finding.mu), delta)
  )
  return result._replace(finding=finding)


def _attempt(measure: Callable[[], float]) -> float | None:
  try:
    return measure()
  except NotChecked:
    return None


def _resolve(num: int) -> float:
  """Shortage of noise that breaks `noise_scale` with probability 99 %."""
  # Four claims are compared, so each has a fourth of the chance of error.
  least = stats.chi2.ppf(ALPHA / 4, num) / stats.chi2.ppf(0.99, num)
  return 1 - math.sqrt(least)
