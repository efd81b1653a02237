"""Rule `noise_level`: every run has equally much noise."""

from __future__ import annotations

from epe_jax.conformance.laws import ALPHA
from epe_jax.conformance.measurements import Measurements
from epe_jax.conformance.rule import Cause, Outcome, rule
from epe_jax.conformance.session import NotChecked

_RANDOM = Cause(
  'random_amount_of_noise',
  'noise is multiplied with a random number, or is the product of random vectors '
  '(of rank one): some releases have much less than others',
  'Draw independent Gaussian noise of standard deviation z S in each coordinate.',
)


@rule
def noise_level(m: Measurements) -> Outcome:
  """The noise of one run is as large as that of another."""
  noise = m.all_noise
  if noise.common_std == 0:
    raise NotChecked('there is no noise')
  p, spread = m.level
  if p < ALPHA:
    m.check_processed()
  measured = (
    f'the variance of noise differs between runs by {100 * spread:.2g} %'
  )
  return Outcome(measured, p, None if p >= ALPHA else _RANDOM)
