"""Rule `own_claim`: with the claimed noise, rounds with large updates are the same.

Influences are measured with next to no noise. Here all clients send updates under the
claim itself: neither the influence nor the noise may differ.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from epe_jax.conformance.influences import HUGE
from epe_jax.conformance.laws import ALPHA
from epe_jax.conformance.measurements import Measurements
from epe_jax.conformance.rule import Cause, Outcome, rule
from epe_jax.conformance.session import Cohort, NotChecked

_RUNS, _GROWTH_RUNS, _GROWTH_ROUNDS = 24, 8, 8

_BY_UPDATES = Cause(
  'noise_depends_on_updates',
  'the noise shrinks, or repeats, where updates are large or agree',
  'Let nothing in the noise depend on updates but what is private itself.',
)
_OF_ANOTHER_NORM = Cause(
  'noise_of_another_clip_norm',
  'the clip norm adapts, and the noise is that of the first one',
  'Let noise be z times the clip norm of the round.',
)
# Noise and mean of large updates, and noise once the clip norm has grown.
_TESTS = 3
# Of the influence of a client, by which rounding may change it.
_ROUNDING = 0.005


@rule
def own_claim(m: Measurements) -> Outcome:
  """Noise and influence do not depend on each other."""
  m.check_quiet()
  m.check_influence()
  u = m.base_update
  runs = m.plan(0.05, rounds=1, max_runs=_RUNS)
  large = m.cohort(HUGE * u, [HUGE * u])
  if outcome := _check_adapted(m, large, runs):
    return outcome
  noise = m.sample_noise(large, runs=runs)
  mu, p_noise = m.excess(m.base, noise)
  runs = len(noise.samples)
  if runs < 2:
    raise NotChecked('noise repeats between runs; see noise_between_runs')
  direction = m.layout.keep(m.base)
  length = float(np.linalg.norm(direction))
  n, std = m.claim.num_clients, m.noise.common_std
  change = 0.0
  if length:
    change = float(noise.samples.mean(axis=0) @ direction) / length
  # Student's t of one number for each run, whatever their variance is. All clients
  # agree, so each has an n-th of the change; and what rounds one rounds all.
  along = noise.samples @ direction
  spread = float(np.std(along, ddof=1))
  beyond = max(0.0, abs(float(np.mean(along))) - _ROUNDING * n * length**2)
  t = beyond * math.sqrt(runs) / spread if spread else 0.0
  p_mean = 2 * float(stats.t.sf(t, runs - 1))
  p = min(1.0, _TESTS * min(p_noise, p_mean))
  measured = (
    f'with the claimed noise, {n} large updates have {1 + change / (n * length):.3g} '
    f'of the influence and {noise.common_std / std if std else 0:.3g} of the noise '
    'that were measured without'
  )
  if p >= ALPHA:
    return Outcome(measured, p)
  if _TESTS * p_noise < ALPHA:
    return Outcome(measured, p, _BY_UPDATES, mu)
  cause = Cause(
    'influence_depends_on_noise',
    'the noise multiplier changes how updates are clipped or averaged, or updates '
    'are clipped together with the noise',
    'Let z decide about the noise alone.',
    severity='privacy' if change > 0 else 'utility',
  )
  return Outcome(measured, p, cause)


def _check_adapted(m: Measurements, large: Cohort, runs: int) -> Outcome | None:
  """The outcome if noise is short once the clip norm has grown; None if it is not."""
  num = min(_GROWTH_ROUNDS, m.max_rounds)
  if m.quiet().public_clip_norm is None or num < 2:
    return None
  noise = m.sample_noise(large, runs=min(runs, _GROWTH_RUNS), rounds=num)
  if not np.all(np.isfinite(noise.samples)):
    return None  # A clip norm that grows so much is reported by `clip_norm`.
  run, without = m.quiet(), m.quiet()
  for _ in range(num - 1):
    run.release(large)
    without.release(large)
  moved = run.release(m.cohort(m.base_update))
  mu, p = m.excess(moved - without.release(m.cohort(m.zero)), noise)
  if p >= ALPHA / _TESTS:
    return None
  std = m.noise.common_std
  measured = (
    f'after {num} rounds of large updates noise is '
    f'{noise.common_std / std if std else 0:.3g} of what it is in the first, in clip '
    'norms of the round'
  )
  return Outcome(measured, _TESTS * p, _OF_ANOTHER_NORM, mu)
