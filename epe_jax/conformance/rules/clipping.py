"""Rules `clipping` and `arrives_whole`: the norm of what a client contributes."""

from __future__ import annotations

from collections.abc import Sequence
import math

import numpy as np

from epe_jax.conformance.influences import HEAVY, HUGE
from epe_jax.conformance.laws import ALPHA
from epe_jax.conformance.measurements import Measurements
from epe_jax.conformance.rule import Cause, Outcome, rule
from epe_jax.conformance.session import NotChecked, Vector

_SIZES = (1.02, 1.1, 1.3, 1.6, 2, 3, 5, 7, 10, 20, 30, 60, 100, 300)
"""Norms of updates from slightly to far too large, in clip norms."""

_NOT_CLIPPED = Cause(
  'not_clipped',
  'updates are not clipped, or not those that are averaged',
  'Clip the update of each client to norm S.',
)
_ANOTHER_NORM = Cause(
  'clipped_by_another_norm',
  'what is compared with S is not the claimed norm of the update (L2, if the claim '
  'has no other), or the update is not scaled by S over that norm',
  'Compare that norm of the whole update with S, and scale by S / norm if it is '
  'larger.',
)
_NOT_ALL_CLIPPED = Cause(
  'some_clients_not_clipped',
  'some clients of a round are not clipped',
  'Clip the update of each client to norm S.',
)
_NORM_OF_SOME = Cause(
  'norm_of_some_coordinates',
  'the norm that is compared with S is that of some coordinates, or an estimate '
  'of it',
  'Compare the norm of all coordinates with S.',
)
_HALF_STEPS = 'half-way between two steps of the grid'
_ROUNDED = Cause(
  'rounded_after_clipping',
  'updates are clipped, then rounded to the grid, which adds up to half a step to each '
  'of d coordinates: the sensitivity is S + √d g / 2 for a step g, and noise is for S',
  'Round towards zero, or clip to S - √d g / 2, or let the noise be for more.',
)
_AFTER_THE_MEAN = Cause(
  'clipped_after_the_mean',
  'the mean is clipped, not the update of each client: one client can turn '
  'all of it',
  'Clip the update of each client before the sum.',
)
_NOT_A_SUM = Cause(
  'not_a_sum',
  'the release is not a sum of clipped updates, but their median, a trimmed mean, a sum '
  'of those that resemble the others, or another function, in which one client may '
  'count for more than S / n',
  'Add noise for the sensitivity of that function, or release the sum.',
)
_CLIP_ONCE = (
  "Clip once, to S, after all scaling. This harms nobody's privacy, but noise is for S, "
  'and canaries of norm S arrive shrunk, so that audits underestimate ε.'
)
_CLIPPED_TWICE = Cause(
  'clipped_twice',
  'updates are clipped to a smaller norm than S, or twice',
  _CLIP_ONCE,
  severity='utility',
)


@rule
def clipping(m: Measurements) -> Outcome:
  """An update of any size moves the release no more than one of norm S."""
  m.check_quiet()
  m.check_level()
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
  # A norm of some coordinates only misses what lies in the others.
  parts = {
    f'in {name}': HUGE * part / m.claim.measure(part)
    for name, part in _list_parts(m.claim.sizes).items()
  }
  if m.claim.dim > 1:
    # Nor does a norm that leaves out small coordinates.
    parts |= {
      f'of norm S in coordinate 0 and {c:g} S in all': m.in_coordinate(0)
      + c * u
      for c in (0.3, 0.6, 1, 3)
    }
  if m.step and m.claim.norm == 2:
    parts[_HALF_STEPS] = _list_half_steps(m.claim.dim, m.step)
  influences = m.influences_of(
    [*updates.values(), *tensors.values()], m.background
  ) + m.influences_of([*parts.values()])
  probes = dict(zip([*updates, *tensors, *parts], influences))
  for place in {0, m.claim.num_clients - 1} - {m.place}:
    if count := m.counts[place]:
      moved = m.influence_of(HUGE * u, m.background, place=place)
      probes[f'in place {place}'] = moved * m.counts[m.place] / count
  probes['against all others'] = m.influence_of(HUGE * u, [-1e3 * u])
  among = {}
  if m.claim.num_clients > 2:
    among['of norm S between two halves of the others'] = m.influence_of(
      u, [u, -u]
    )
    # It decides on which side the mean is, and which norm is the median.
    for size, others in ((HUGE, [u, -u]), (-HUGE, [u, -u]), (1, [u / 10, u])):
      zeros = m.cohort(m.zero, others)
      moved = m.influence(m.cohort(size * u, others), zeros)
      among[f'of norm {size:g} S among two kinds of others'] = (
        moved / m.claim.distance
      )
  probes |= among
  excesses = [m.excess(x, m.noise, tests=len(probes)) for x in probes.values()]
  p = min(p for _, p in excesses)
  sizes = {name: m.claim.measure(x) for name, x in probes.items()}
  worst = max(sizes, key=lambda name: sizes[name])
  ordinary = m.claim.measure(m.base)
  measured = (
    f'an update {worst} moves the release by {sizes[worst]:.4g} × {m.unit}, one '
    f'of norm S by {ordinary:.4g}'
  )
  if p >= ALPHA:
    return Outcome(measured, p)
  first, second, equal, *_ = sizes.values()
  alike = max(sizes[name] for name in updates)
  num = len(m.claim.sizes)
  layers = num ** (1 / m.claim.norm)
  alone = max(sizes[name] for name in tensors)
  if m.claim.adjacency == 'replace':
    # Against its opposite, an update turns a mean that is clipped in any case.
    others = m.background
    first = m.claim.measure(
      m.influence(m.cohort(HUGE * u, others), m.cohort(m.zero, others))
    )
  if worst in among and sizes[worst] > 1.02 * alike:
    cause = _NOT_A_SUM
  elif sizes[worst] < 1.01 * sizes.get(_HALF_STEPS, 0):
    cause = _ROUNDED
  elif worst.startswith('in place') and sizes[worst] > 1.02 * alike:
    cause = _NOT_ALL_CLIPPED
  elif worst in parts and sizes[worst] > 1.02 * alike:
    cause = _NORM_OF_SOME
  elif first > 100 * second:
    cause = _NOT_CLIPPED
  elif m.claim.norm < math.inf and num > 1 and _is_near(equal, layers * alone):
    root = f'√{num}' if m.claim.norm == 2 else num
    cause = Cause(
      'per_layer_clipping',
      f'each of {num} tensors is clipped to S by itself, so that an update may '
      f'have norm S {root}, and the noise is for S',
      f'Clip tensors to S / {root}, or the whole update to S.',
    )
  elif abs(first - sizes['against all others']) < 1e-3 * max(first, ordinary):
    # The others change nothing, so clients are clipped one by one.
    cause = _ANOTHER_NORM
  elif m.claim.measure(m.influence_of(HUGE * u)) < 1.02 * ordinary:
    cause = _NOT_A_SUM  # A client that is alone counts as it should.
  else:
    cause = _AFTER_THE_MEAN
  return Outcome(measured, p, cause, max(mu for mu, _ in excesses))


def _is_near(size: float, expected: float) -> bool:
  return abs(size / expected - 1) < 0.02


def _list_parts(sizes: Sequence[int]) -> dict[str, Vector]:
  """Ones in halves of the coordinates, one of each tensor, and single ones, by name."""
  dim = sum(sizes)
  if dim < 2:
    return {}
  index = np.arange(dim)
  masks = {
    'the first half of the coordinates': index < dim // 2,
    'the second half of the coordinates': index >= dim // 2,
    'every second coordinate': index % 2 == 0,
    'the other coordinates': index % 2 == 1,
    'the last coordinate of each tensor': np.isin(index + 1, np.cumsum(sizes)),
  }
  # Of a sample of half of them all ten are with a probability of 1e-3.
  some = np.random.default_rng(dim).integers(dim, size=8)
  for k in sorted({0, dim - 1, *some.tolist()}):
    masks[f'coordinate {k}'] = index == k
  return {name: mask.astype(float) for name, mask in masks.items()}


def _list_half_steps(dim: int, step: float) -> Vector:
  """An update of norm 1 whose coordinates are just above half-way between steps."""
  k = max(0.0, math.ceil(1 / (step * math.sqrt(dim)) - 0.501))
  size = (k + 0.501) * step
  return np.where(np.arange(dim) < math.floor(1 / size**2), size, 0.0)


@rule
def arrives_whole(m: Measurements) -> Outcome:
  """Some update of norm S arrives as it is, so that noise z S is not wasted."""
  m.check_quiet()
  m.check_level()
  size = m.claim.measure(m.base)
  if size < 0.99:
    # If weights are capped, an ordinary client counts for less.
    heavy = m.influence_of(m.base_update, weight=HEAVY)
    size = max(size, m.claim.measure(heavy))
  measured = f'an update of norm S arrives with norm {size:.4g} S at most'
  large = m.claim.measure(m.influence_of(HUGE * m.base_update))
  # A smooth clipping, or one that leaves room for rounding, wastes no noise.
  if max(size, large) >= 0.99 - m.step * math.sqrt(m.claim.dim):
    return Outcome(f'{measured}, a larger one with {large:.4g} S')
  u, n = m.base_update, m.claim.num_clients
  everyone = m.influence(m.cohort(u, [u]), m.cohort(m.zero))
  together = m.claim.measure(everyone) / n
  if together == 0:
    raise NotChecked('the first round is the same whatever clients send')
  if abs(together - size) > 0.01:
    raise NotChecked(
      f'{measured}, and {n} that agree with {together:.4g} S each: the release is '
      'no sum, but a median, a trimmed mean, or another function'
    )
  small = 20 * m.claim.measure(m.influence_of(m.base_update / 20))
  measured += f', one of S / 20 with {small:.4g} of that'
  cause = Cause('arrives_shrunk', 'none that is certain', _CLIP_ONCE, 'utility')
  if small >= 0.99 and abs(large - size) < 0.02 * size:
    cause = _CLIPPED_TWICE
  elif abs(small - size) < 0.02 * size:
    cause = Cause(
      'arrives_scaled',
      'all updates are scaled, before or after clipping; or the release is in other '
      f'units than step_size={m.claim.step_size:g} and release={m.claim.release!r} of '
      'the claim say',
      _CLIP_ONCE,
      'utility',
    )
  return Outcome(measured, cause=cause)
