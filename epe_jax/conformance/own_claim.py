"""Rule `own_claim`: with the claimed noise, rounds of busy clients are the same.

Influences are read with next to no noise. Here all clients send updates, and the
noise is that of the claim: neither the influence nor the noise may differ.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from epe_jax.conformance.findings import ALPHA, Result, break_rule, hold
from epe_jax.conformance.inputs import HUGE
from epe_jax.conformance.measurements import Measurements
from epe_jax.conformance.noise import Noise


def check_own_claim(m: Measurements) -> Result:
  """Rule: noise and influence do not depend on each other."""
  m.check_quiet()
  u = m.base_update
  cohort = m.cohort(HUGE * u, [HUGE * u])
  runs = m.plan(0.05, rounds=1, max_runs=16)
  residuals = m.sample_rounds(runs, 1, cohort)[:, 0]
  noise = Noise(m.layout, residuals, m.short_tensors, m.effective_share)
  mu, p_noise = m.excess(m.base, noise)
  direction = m.layout.keep(m.base)
  length = float(np.linalg.norm(direction))
  n, std = m.claim.num_clients, m.noise.common_std
  change = float(residuals.mean(axis=0) @ direction) / length if length else 0.0
  # Everybody agrees, so a client has a share of n in the change.
  z_score = change * math.sqrt(runs) / std if std else 0.0
  p_mean = 2 * float(stats.norm.sf(abs(z_score)))
  p = min(1.0, 2 * min(p_noise, p_mean))
  measured = (
    f'with the claimed noise, {n} large updates have {1 + change / (n * length):.3g} '
    f'of the influence and {noise.common_std / std if std else 0:.3g} of the noise '
    'that were measured without'
  )
  if p >= ALPHA:
    return hold('own_claim', measured, p)
  if 2 * p_noise < ALPHA:
    return break_rule(
      'own_claim',
      'noise_depends_on_updates',
      measured,
      likely='the noise shrinks, or repeats, where updates are large or agree',
      cure='Let nothing in the noise depend on updates but what is private itself.',
      mu=mu,
      p_value=p,
    )
  return break_rule(
    'own_claim',
    'influence_depends_on_noise',
    measured,
    likely=(
      'the noise multiplier changes how updates are clipped or averaged, or updates '
      'are clipped together with the noise'
    ),
    cure='Let z decide about the noise alone.',
    severity='privacy' if change > 0 else 'utility',
    p_value=p,
  )
