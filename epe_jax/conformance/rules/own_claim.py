"""With the claimed noise, rounds with large updates are the same.

Influences are measured with next to no noise. Here all clients send updates under the
claim itself: neither the influence nor the noise may differ.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from epe_jax.conformance import comparison
from epe_jax.conformance.laws import ALPHA
from epe_jax.conformance.measurements import HUGE, Measurements
from epe_jax.conformance.rule import Outcome, rule
from epe_jax.conformance.session import Cohort, NotChecked

_RUNS, _GROWTH_RUNS, _GROWTH_ROUNDS = 24, 8, 8
# Noise and mean of large updates, and noise once the clip norm has grown.
_TESTS = 3
# Of the influence of a client, by which rounding may change it.
_ROUNDING = 0.005


@rule('readable', 'influence')
def own_claim(m: Measurements) -> Outcome:
  """Noise and influence do not depend on each other."""
  runs = m.plan(0.05, max_runs=_RUNS)
  large = m.cohort(HUGE * m.base_update, [HUGE * m.base_update])
  if outcome := _check_adapted(m, large, runs):
    return outcome
  noise = comparison.sample_noise(m, large, runs=runs)
  mu, p_noise = comparison.compare(m, m.base, noise)
  runs = len(noise.samples)
  if runs < 2:
    raise NotChecked('noise repeats between runs; see noise_between_runs')
  direction = m.layout.keep(m.base)
  length = float(np.linalg.norm(direction))
  n, std = m.claim.num_clients, comparison.measure_noise(m).common_std
  # Student's t of one number for each run, whatever their variance is. All clients
  # agree, so each has an n-th of the change; and what rounds one rounds all.
  along = noise.samples @ direction
  change, spread = float(np.mean(along)), float(np.std(along, ddof=1))
  beyond = max(0.0, abs(change) - _ROUNDING * n * length**2)
  t = beyond * math.sqrt(runs) / spread if spread else 0.0
  p_mean = 2 * float(stats.t.sf(t, runs - 1))
  p = min(1.0, _TESTS * min(p_noise, p_mean))
  share = 1 + change / (n * length**2) if length else 1.0
  measured = (
    f'with the claimed noise, {n} large updates have {share:.3g} '
    f'of the influence and {noise.common_std / std if std else 0:.3g} of the noise '
    'that were measured without'
  )
  if _TESTS * p_noise < ALPHA:
    return Outcome(measured, p, 'noise_depends_on_updates', mu)
  severity = 'privacy' if change > 0 else 'utility'
  cause = 'influence_depends_on_noise'
  return Outcome(measured, p, cause, severity=severity)


def _check_adapted(m: Measurements, large: Cohort, runs: int) -> Outcome | None:
  """The outcome if noise is short once the clip norm has grown; None if it is not."""
  num = min(_GROWTH_ROUNDS, m.max_rounds)
  if not m.publishes or num < 2:
    return None
  runs = min(runs, _GROWTH_RUNS)
  noise = comparison.sample_noise(m, large, runs=runs, rounds=num)
  if not np.all(np.isfinite(noise.samples)):
    return None  # A clip norm that grows so much is reported by `clip_norm`.
  run, without = m.quiet(), m.quiet()
  for _ in range(num - 1):
    run.release(large)
    without.release(large)
  moved = run.release(m.cohort(m.base_update))
  moved = moved - without.release(m.cohort(m.zero))
  mu, p = comparison.compare(m, moved, noise)
  if p >= ALPHA / _TESTS:
    return None
  std = comparison.measure_noise(m).common_std
  measured = (
    f'after {num} rounds of large updates noise is '
    f'{noise.common_std / std if std else 0:.3g} of what it is in the first, in clip '
    'norms of the round'
  )
  return Outcome(measured, _TESTS * p, 'noise_of_another_clip_norm', mu)
