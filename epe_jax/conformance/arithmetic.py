"""Rules `wrap_around` and `rounding`: is the sum that of real numbers?"""

from __future__ import annotations

import numpy as np

from epe_jax.conformance.findings import ALPHA, Result, break_rule, hold
from epe_jax.conformance.measurements import Measurements
from epe_jax.conformance.session import Cohort, NotChecked, norm


def check_wrap_around(m: Measurements) -> Result:
  """Rule: k clients that agree move the release k times as far, up to all n."""
  m.check_quiet()
  n = m.claim.num_clients
  largest = int(np.argmax(m.claim.sizes))
  first = sum(m.claim.sizes[:largest])
  u = np.zeros(m.claim.dim)
  u[first] = 1 - 1e-6
  released = {0: 0.0}

  def measure(k: int) -> float:
    if k not in released:
      updates = [u] * k + [m.zero] * (n - k)
      release = m.quiet().release(Cohort(updates, [1.0] * n))
      released[k] = float(release[first])
    return released[k]

  step = measure(1)
  if not 0.05 < step < 20:
    raise NotChecked(
      f'an update of norm S in one coordinate moves it by {step:.3g} of that'
    )
  is_linear = lambda k: (
    abs(measure(k) - k * step) < 0.02 * k * step + 0.05 * step
  )
  bad = next((k for k in (n, n // 2) if not is_linear(k)), None)
  whole = (
    f'{n} clients that agree move a coordinate by {measure(n):.4g} {m.unit}'
  )
  if bad is None:
    return hold('wrap_around', whole)
  good = 1
  while bad - good > 1:
    middle = (bad + good) // 2
    good, bad = (middle, bad) if is_linear(middle) else (good, middle)
  jump = abs(measure(bad) - measure(good))
  influence = np.zeros(m.claim.dim)
  influence[first] = jump
  mu, p = m.excess(influence, m.noise)
  measured = (
    f'{good} clients that agree move a coordinate by {measure(good):.4g} {m.unit}, '
    f'{bad} by {measure(bad):.4g}, and all {n} by {measure(n):.4g}'
  )
  if p < ALPHA:
    return break_rule(
      'wrap_around',
      'modular_wrap_around',
      measured,
      likely=(
        'the sum of a coordinate leaves the range of integers that it is computed '
        'modulo, so that one client turns it around'
      ),
      cure='Let the range hold n S and noise on either side, 2 (n S + 8 z S) wide.',
      mu=mu,
      p_value=p,
    )
  return break_rule(
    'wrap_around',
    'saturation',
    measured,
    likely='the sum of a coordinate is cut off, or clipped once more',
    cure='Let the range of a coordinate hold the sum of all clients.',
    severity='utility',
  )


def check_rounding(m: Measurements) -> Result:
  """Rule: a small update arrives though the other updates are large."""
  if m.claim.num_clients < 2:
    raise NotChecked('it needs num_clients of 2 or more')
  # 1e-4 of the sum is far more than float32 rounds, and less than float16 does.
  size = min(1.0, 1e-4 * m.claim.num_clients)
  u = m.base_update
  alone = m.influence_of(size * u)
  sizes = {
    'aligned with the others': m.influence_of(size * u, [u]),
    'among others': m.influence_of(size * u, [2 * b for b in m.background]),
  }
  if not norm(alone) > 0.01 * size:
    raise NotChecked('small updates do not arrive even alone')
  errors = {k: norm(x - alone) / norm(alone) for k, x in sizes.items()}
  worst = max(errors, key=lambda k: errors[k])
  measured = (
    f'an update of norm {size:.2g} S {worst} arrives with a relative error of '
    f'{errors[worst]:.2g}'
  )
  if errors[worst] < 0.15:
    return hold('rounding', measured)
  return break_rule(
    'rounding',
    'low_precision',
    measured,
    likely=(
      'updates are summed in float16 or bfloat16, or on a coarse grid, which '
      'rounds small ones away'
    ),
    cure=(
      'Sum in float32 or float64. This harms training, and hides canaries from '
      'audits.'
    ),
    severity='utility',
  )
