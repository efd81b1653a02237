"""Rules `clipping` and `arrives_whole`: the norm of what a client contributes."""

from __future__ import annotations

import math

from epe_jax.conformance.findings import ALPHA, Result, break_rule, hold
from epe_jax.conformance.inputs import HEAVY, HUGE
from epe_jax.conformance.measurements import Measurements
from epe_jax.conformance.session import norm

_SIZES = (1.02, 1.1, 1.3, 1.6, 2, 3, 5, 7, 10, 20, 30, 60, 100, 300)
"""Norms of updates that are hardly too large or much, in clip norms."""


def check_clipping(m: Measurements) -> Result:
  """Rule: an update of any size moves the release no more than one of norm S."""
  u = m.uniform
  updates = {
    f'of norm {HUGE:.0e} S': HUGE * u,
    'of norm 1e+03 S': 1e3 * u,
    'as large in each tensor': HUGE * m.equal,
    **{f'of norm {size:g} S': size * u for size in _SIZES},
  }
  tensors = {
    f'within tensor {k}': HUGE * m.in_tensor(k)
    for k in range(min(len(m.claim.sizes), 8))
  }
  influences = m.influences_of(
    [*updates.values(), *tensors.values()], m.background
  )
  probes = dict(zip([*updates, *tensors], influences))
  probes['against all others'] = m.influence_of(HUGE * u, [-1e3 * u])
  judged = {
    name: m.excess(x, m.noise, tests=len(probes)) for name, x in probes.items()
  }
  p = min(p for _, p in judged.values())
  sizes = {name: norm(x) for name, x in probes.items()}
  worst = max(sizes, key=lambda name: sizes[name])
  ordinary = norm(m.base)
  measured = (
    f'an update {worst} moves the release by {sizes[worst]:.4g} × {m.unit}, one '
    f'of norm S by {ordinary:.4g}'
  )
  if p >= ALPHA:
    return hold('clipping', measured, p)
  mu = max(mu for mu, _ in judged.values())
  first, second, equal, *_ = sizes.values()
  num = len(m.claim.sizes)
  alone = max(sizes[name] for name in tensors)
  if first > 100 * second:
    cause, likely, cure = (
      'not_clipped',
      'updates are not clipped, or not those that are averaged',
      'Clip the update of each client to norm S.',
    )
  elif num > 1 and abs(equal / (alone * math.sqrt(num)) - 1) < 0.02:
    cause, likely, cure = (
      'per_layer_clipping',
      f'each of {num} tensors is clipped to S by itself, so that an update may '
      f'have norm S √{num}, and the noise is for S',
      f'Clip tensors to S / √{num}, or the whole update to S.',
    )
  elif abs(first - sizes['against all others']) < 1e-3 * max(first, ordinary):
    # The others change nothing, so clients are clipped one by one.
    cause, likely, cure = (
      'clipped_by_another_norm',
      'what is compared with S is not the L2 norm of the update, or the update is '
      'not scaled by S over that norm',
      'Compare the L2 norm of the whole update with S, and scale by S / norm if it '
      'is larger.',
    )
  else:
    cause, likely, cure = (
      'clipped_after_the_mean',
      'the mean is clipped, not the update of each client: one client can turn '
      'all of it',
      'Clip the update of each client before the sum.',
    )
  return break_rule(
    'clipping', cause, measured, likely=likely, cure=cure, mu=mu, p_value=p
  )


def check_arrives_whole(m: Measurements) -> Result:
  """Rule: some update of norm S arrives as it is, so that z S is not wasted."""
  size = norm(m.base)
  if size < 0.99:
    # Where weights are capped, an ordinary client counts for less.
    heavy = m.influence_of(m.base_update, weight=HEAVY)
    size = max(size, norm(heavy))
  measured = f'an update of norm S arrives with norm {size:.4g} S at most'
  if size >= 0.99:
    return hold('arrives_whole', measured)
  return break_rule(
    'arrives_whole',
    'clipped_twice',
    measured,
    likely=(
      'updates are clipped twice, to a smaller norm than S, or are scaled before '
      'or after clipping; or the release is in other units than step_size='
      f'{m.claim.step_size:g} and release={m.claim.release!r} of the claim say'
    ),
    cure=(
      "Clip once, to S, after all scaling. This harms nobody's privacy, but noise "
      'is for S, and canaries of norm S arrive shrunk, so that audits '
      'underestimate ε.'
    ),
    severity='utility',
  )
