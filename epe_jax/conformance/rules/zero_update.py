"""Rule `zero_update`: a client that has nothing to send does no harm."""

from __future__ import annotations

from epe_jax.conformance.measurements import Measurements
from epe_jax.conformance.rule import Cause, Outcome, rule
from epe_jax.conformance.session import NotChecked

_FAILS = Cause(
  'zero_update_fails',
  'an update is divided by its norm, which is 0',
  'Divide by max(norm, 1e-12), or scale by min(1, S / norm) where norm > S only. '
  'Until then, that a round fails tells that an update was zero.',
  severity='utility',
)


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
