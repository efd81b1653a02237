"""Rules `zero_update` and `not_finite`: updates that no honest client means to send."""

from __future__ import annotations

import math

import numpy as np

from epe_jax.conformance.influences import HUGE
from epe_jax.conformance.laws import ALPHA
from epe_jax.conformance.measurements import Measurements
from epe_jax.conformance.rule import Cause, Outcome, rule
from epe_jax.conformance.session import NeverEnds, NotChecked, norm

_FAILS = Cause(
  'zero_update_fails',
  'an update is divided by its norm, which is 0',
  'Divide by max(norm, 1e-12), or scale by min(1, S / norm) where norm > S only. '
  'Until then, that a round fails tells that an update was zero.',
  severity='utility',
)
_ENTERS = Cause(
  'not_finite_enters',
  'a norm that is NaN, or overflows to inf, fails the comparison with S, so that the '
  'update is not clipped',
  'Drop an update whose norm is not finite, or refuse the round; compute norms in '
  'float64.',
)
_HANGS = Cause(
  'never_ends',
  'what the mechanism repeats until a number is small, or large, never is with such an '
  'update',
  'Drop an update whose norm is not finite, or refuse the round. Until then, one client '
  'can stop all training.',
  severity='utility',
)
_LARGE = 1e30


@rule
def zero_update(m: Measurements) -> Outcome:
  """A round of zero updates ends, and releases finite numbers."""
  if m.zero_error is None:
    return Outcome('rounds in which all clients send zeros are released')
  if m.zero_error.startswith('the mechanism refuses'):
    raise NotChecked(m.zero_error)
  measured = (
    f'if all clients send zeros, {m.zero_error}. All other rules are checked with '
    'updates of 1e-12 S in place of zeros'
  )
  return Outcome(measured, cause=_FAILS)


@rule
def not_finite(m: Measurements) -> Outcome:
  """NaN, inf, or numbers whose square overflows, move the release no more than S."""
  m.check_quiet()
  m.check_level()
  u, others = m.uniform, m.background
  first = np.arange(m.claim.dim) == 0
  if m.excess(m.influence_of(HUGE * u, others), m.noise)[1] < ALPHA:
    raise NotChecked('large updates are not clipped; see clipping')
  # In float32 the square of this overflows, and not the sum of many.
  large = _LARGE / m.claim.clip_norm * np.sign(u)
  updates = {
    f'numbers of {_LARGE:g}': large,
    'an inf': np.where(first, math.inf, u),
    'a NaN': np.where(first, math.nan, u),
  }
  shown, p = [], 1.0
  for name, update in updates.items():
    m.session.spend(0)
    try:
      moved = m.influence(m.cohort(update, others), m.cohort(m.zero, others))
    except NeverEnds as error:
      return Outcome(f'with {name} in an update {error}', cause=_HANGS)
    except NotChecked:
      shown.append(f'{name} is refused')
      continue
    shown.append(f'{name} moves the release by {norm(moved):.4g} {m.unit}')
    mu, p_moved = m.excess(moved, m.noise, tests=len(updates))
    if p_moved < ALPHA:
      return Outcome(f'an update with {shown[-1]}', p_moved, _ENTERS, mu)
    p = min(p, p_moved)
  return Outcome(f'an update with {", ".join(shown)}', p)
