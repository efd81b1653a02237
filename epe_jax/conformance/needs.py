"""What rules need of a claim and a mechanism: a row for each need.

Rules that a claim exempts do not apply; those whose measurement cannot be made are not
checked, and may be broken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from epe_jax.conformance import affine, samples
from epe_jax.conformance.measurements import Measurements
from epe_jax.conformance.noise import norm
from epe_jax.conformance.session import NotChecked

Status = Literal['passed', 'broken', 'not checked', 'does not apply']
"""A rule that does not apply says nothing of such claims or mechanisms; one that was not
checked may be broken."""


class Need(NamedTuple):
  """What a rule needs.

  Attributes:
    status: of the rule without it.
    find_lack: says why it is missing, if it is; it may raise NotChecked.
  """

  status: Status
  find_lack: Callable[[Measurements], str | Literal[False] | None]


def _find_lack_of_influence(m: Measurements) -> str | None:
  if m.is_readable and norm(m.base) == 0:
    return (
      'the first round is the same whatever one client sends, if the others '
      'send zeros'
    )
  return affine.check_rounding(m)


NEEDS = {
  # Of the claim.
  'presence': Need(
    'does not apply',
    lambda m: (
      m.claim.adjacency != 'add_or_remove'
      and 'the claim is not one of a client that is present or absent'
    ),
  ),
  'others': Need(
    'does not apply',
    lambda m: m.claim.num_clients == 1 and 'a round has one client',
  ),
  'rounds': Need(
    'does not apply',
    lambda m: m.claim.max_rounds == 1 and 'a run has one round',
  ),
  'hidden clip norm': Need(
    'does not apply',
    lambda m: (
      m.publishes
      and samples.adapts(m)
      and 'the clip norm is public and adapts; see clip_norm'
    ),
  ),
  'public clip norm': Need(
    'does not apply',
    lambda m: not m.publishes and 'the mechanism publishes no clip_norm',
  ),
  'coordinates': Need(
    'does not apply', lambda m: m.claim.dim == 1 and 'there is one coordinate'
  ),
  'many coordinates': Need(
    'does not apply',
    lambda m: (
      m.claim.dim < samples.LEVEL_DIM
      and f'below {samples.LEVEL_DIM} coordinates a random amount of noise is another '
      'law; see noise_law'
    ),
  ),
  'fine grid': Need(
    'does not apply',
    lambda m: (
      m.step > 1e-4 * m.claim.num_clients
      and 'a small update is less than a step of the claimed grid'
    ),
  ),
  # Of what can be measured.
  'two clients': Need(
    'not checked',
    lambda m: m.claim.num_clients < 2 and 'it needs num_clients of 2 or more',
  ),
  'gaussian noise': Need(
    'not checked',
    lambda m: (
      m.claim.order == 1
      and 'several releases are judged with Gaussian noise only'
    ),
  ),
  'readable': Need('not checked', Measurements.check_quiet),
  'influence': Need('not checked', _find_lack_of_influence),
  'level': Need('not checked', affine.check_level),
  'noise': Need(
    'not checked',
    lambda m: (
      samples.measure_noise(m).common_std == 0
      and 'there is no noise; see noise_scale'
    ),
  ),
  'ample noise': Need(
    'not checked',
    lambda m: (
      samples.measure_ample_noise(m).samples.size < samples.AMPLE
      and f'it needs {samples.AMPLE:,} samples of noise'
    ),
  ),
  'runs that differ': Need(
    'not checked',
    lambda m: (
      samples.find_repeats(m).p_value < samples.ALPHA
      and 'noise repeats between runs; see noise_between_runs'
    ),
  ),
  'clients that count alike': Need(
    'not checked',
    lambda m: not m.count_alike and 'clients do not count alike; see places',
  ),
}


def require(m: Measurements, *names: str) -> None:
  """Raises NotChecked with the reason if something is missing."""
  for name in names:
    if why := NEEDS[name].find_lack(m):
      raise NotChecked(why)
