"""Rules `wrap_around` and `rounding`: is the sum one of real numbers?"""

from __future__ import annotations

import numpy as np

from epe_jax.conformance.laws import ALPHA
from epe_jax.conformance.measurements import Measurements
from epe_jax.conformance.rule import Cause, Outcome, rule
from epe_jax.conformance.session import Cohort, NotChecked, norm

_WRAP_AROUND = Cause(
  'modular_wrap_around',
  'the sum of a coordinate leaves the range of integers that it is computed '
  'modulo, so that one client turns it around',
  'Let the range hold n S and noise on either side, 2 (n S + 8 z S) wide.',
)
_SATURATION = Cause(
  'saturation',
  'the sum of a coordinate is cut off, or clipped once more',
  'Let the range of a coordinate hold the sum of all clients.',
  severity='utility',
)
_LOW_PRECISION = Cause(
  'low_precision',
  'updates are summed in float16 or bfloat16, or on a coarse grid, which '
  'rounds small ones away',
  'Sum in float32 or float64. This harms training, and hides canaries from '
  'audits.',
  severity='utility',
)


@rule
def wrap_around(m: Measurements) -> Outcome:
  """k clients that agree move the release k times as far as one, up to k = n."""
  m.check_quiet()
  n = m.claim.num_clients
  if n > 1:
    m.check_counts()
  largest = int(np.argmax(m.claim.sizes))
  first = sum(m.claim.sizes[:largest])
  u = m.in_coordinate(first)
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
  if bad is None:
    return Outcome(
      f'{n} clients that agree move a coordinate by {measure(n):.4g} {m.unit}'
    )
  good = 1
  while bad - good > 1:
    middle = (bad + good) // 2
    good, bad = (middle, bad) if is_linear(middle) else (good, middle)
  influence = np.zeros(m.claim.dim)
  influence[first] = abs(measure(bad) - measure(good))
  mu, p = m.excess(influence, m.noise)
  measured = (
    f'{good} clients that agree move a coordinate by {measure(good):.4g} {m.unit}, '
    f'{bad} by {measure(bad):.4g}, and all {n} by {measure(n):.4g}'
  )
  if p < ALPHA:
    return Outcome(measured, p, _WRAP_AROUND, mu)
  return Outcome(measured, cause=_SATURATION)


@rule
def rounding(m: Measurements) -> Outcome:
  """A small update arrives even if the other updates are large."""
  m.check_others()
  # 1e-4 of the sum is far more than float32 rounds, and less than float16 does.
  size = min(1.0, 1e-4 * m.claim.num_clients)
  u = m.base_update
  alone = m.influence_of(size * u)
  probes = {
    'aligned with the others': m.influence_of(size * u, [u]),
    'among others': m.influence_of(size * u, [2 * b for b in m.background]),
  }
  if not norm(alone) > 0.01 * size * norm(u):
    raise NotChecked('small updates do not arrive even alone')
  errors = {k: norm(x - alone) / norm(alone) for k, x in probes.items()}
  worst = max(errors, key=lambda k: errors[k])
  measured = (
    f'an update of norm {size:.2g} S {worst} arrives with a relative error of '
    f'{errors[worst]:.2g}'
  )
  if errors[worst] < 0.15:
    return Outcome(measured)
  # What is lost may be far below the noise, as of a secure sum of many bits.
  error = max(float(np.abs(x - alone).max()) for x in probes.values())
  share = error / m.noise.common_std
  measured += f', {share:.2g} of the noise in a coordinate'
  return Outcome(measured, cause=None if share < 0.01 else _LOW_PRECISION)
