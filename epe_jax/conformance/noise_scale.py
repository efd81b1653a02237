"""Rules `noise_scale` and `tensor_noise`: is there as much noise as is claimed?

One measurement says how much is missing. Why it is missing is told by how that
changes with S, n and z, so claims with other values are measured too.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

from epe_jax.conformance import laws
from epe_jax.conformance.claim import Claim
from epe_jax.conformance.findings import (
  ALPHA,
  TOLERANCE,
  Result,
  break_rule,
  hold,
)
from epe_jax.conformance.measurements import Measurements
from epe_jax.conformance.session import NotChecked

_FACTOR = 4
_CAUSES = {
  ('clip_norm', -1.0): (
    'noise_ignores_clip_norm',
    'the noise has standard deviation z, not z S',
    'Multiply the noise with the clip norm.',
  ),
  ('clip_norm', -0.5): (
    'variance_for_std',
    'a variance is passed where a standard deviation is wanted, or vice versa',
    'Pass the standard deviation z S.',
  ),
  ('num_clients', -1.0): (
    'divided_by_n_twice',
    'the noise is divided by n twice: calibrated to the mean, and divided with '
    'the sum once more',
    'Add noise z S to the sum and divide once, or noise z S / n to the mean.',
  ),
  ('num_clients', -0.5): (
    'divided_by_sqrt_n',
    'the noise of the mean is divided by √n, as if it averaged out; or each '
    'client adds z S / n where z S / √n adds up to z S',
    'Noise of the sum is z S, and of the mean z S / n.',
  ),
  ('noise_multiplier', -1.0): (
    'noise_ignores_noise_multiplier',
    'the noise does not depend on z; or the factory does not pass it on',
    'Multiply the noise with z, and check that make(claim) uses the claim.',
  ),
  ('noise_multiplier', -0.5): (
    'variance_for_std',
    'a variance is passed where a standard deviation is wanted, or vice versa',
    'Pass the standard deviation z S.',
  ),
}


class _Ratio(NamedTuple):
  """Noise over what the claim needs: 1 where it is right."""

  changed: str
  factor: float
  ratio: float
  p_value: float


def check_noise_scale(m: Measurements) -> Result:
  """Rule: noise is z times what an ordinary client can do to the release."""
  ratios, failed = [_measure_claim(m)], []
  for changed, claim, factor in _other_claims(m.claim):
    try:
      ratios.append(_measure_other(m, changed, claim, factor))
    except NotChecked as error:
      failed.append(f'{changed} could not be changed ({error})')
  p = min(1.0, len(ratios) * min(ratio.p_value for ratio in ratios))
  measured = '; '.join(
    [f'noise / needed noise = {ratios[0].ratio:.4g} at the claim']
    + [f'{r.ratio:.4g} at {r.changed} × {r.factor:g}' for r in ratios[1:]]
    + failed
  )
  if p >= ALPHA:
    return hold('noise_scale', measured, p)
  causes = _find_causes(ratios)
  # The claim itself, of which the report has the same ε, unless it is another that
  # fails.
  worst = ratios[0]
  if len(ratios) * worst.p_value >= ALPHA:
    worst = min(ratios, key=lambda r: r.ratio)
  return break_rule(
    'noise_scale',
    causes[0][0],
    measured,
    likely='; and '.join(likely for _, likely, _ in causes),
    cure=' '.join(dict.fromkeys(cure for _, _, cure in causes)),
    mu=1 / (m.claim.noise_multiplier * worst.ratio)
    if worst.ratio > 0
    else math.inf,
    p_value=p,
    at='' if worst is ratios[0] else f'{worst.changed} × {worst.factor:g}',
  )


def check_tensor_noise(m: Measurements) -> Result:
  """Rule: each tensor has the noise that an update within it needs."""
  short, noise = sorted(m.short_tensors), m.all_noise
  if noise.common_std == 0:
    raise NotChecked('there is no noise; see noise_scale')
  allowed = m.allowed_by(noise)
  ps = [m.p_of_tensor(noise, k, allowed) for k in range(len(m.claim.shapes))]
  p = min(1.0, len(ps) * min(ps))
  if not short:
    text = f'noise of {len(ps)} tensors fits the influence in each'
    return hold('tensor_noise', text, p)
  std, influence = noise.stds, m.tensor_influences
  mus = [influence[k] / std[k] if std[k] > 0 else math.inf for k in short]
  shown = ', '.join(
    f'tensor {k} {tuple(m.claim.shapes[k])} has noise {std[k]:.3g}'
    for k in short[:4]
  )
  is_missing = any(std[k] <= 1e-3 * std.max() for k in short)
  return break_rule(
    'tensor_noise',
    'tensor_without_noise' if is_missing else 'tensor_with_less_noise',
    f'{shown}, where others have {noise.common_std:.3g}, in units of the '
    'influence of one client',
    likely=(
      'noise is added to some tensors only, such as weights without biases'
      if is_missing
      else 'the noise of a tensor is scaled with its size or its own norm'
    ),
    cure='Add noise of the same standard deviation to every tensor released.',
    mu=max(mus),
    p_value=p,
  )


def _measure_claim(m: Measurements) -> _Ratio:
  # The influence is 1 by the claim if it cannot be read.
  z, noise = m.claim.noise_multiplier, m.all_noise
  if noise.common_std == 0:
    return _Ratio('', 1, 0.0, 0.0)
  if m.is_readable:
    return _Ratio('', 1, 1 / (z * m.common_mu), m.common_p_value)
  mu = 1 / noise.common_std
  p = laws.p_of_mu(mu, (1 + TOLERANCE) / z, num=noise.num)
  return _Ratio('', 1, noise.common_std / z, p)


def _measure_other(
  m: Measurements, changed: str, claim: Claim, factor: float
) -> _Ratio:
  runs = m.plan(0.03, rounds=1, max_runs=8)
  cohort = m.cohort(m.zero, claim=claim)
  z, allowed = claim.noise_multiplier, (1 + TOLERANCE) / claim.noise_multiplier
  if m.is_readable:
    influence = m.influence_of(m.base_update, claim=claim)
    noise = m.sample_noise(cohort, runs=runs, claim=claim)
    mu, p = noise.mu(influence), noise.p_value(influence, allowed)
  else:
    # Then the influence is taken to be what it should be.
    noise = m.sample_unjudged(cohort, runs, claim)
    mu = 1 / noise.common_std if noise.common_std > 0 else math.inf
    p = laws.p_of_mu(mu, allowed, num=noise.num)
  return _Ratio(changed, factor, 1 / (z * mu) if mu > 0 else math.inf, p)


def _other_claims(claim: Claim) -> list[tuple[str, Claim, float]]:
  n = claim.num_clients
  # Few clients become more; many become fewer, for the sake of time.
  other = n * _FACTOR if n <= 25 else n // _FACTOR
  changes = {
    'clip_norm': claim.clip_norm * _FACTOR,
    'noise_multiplier': claim.noise_multiplier * _FACTOR,
    'num_clients': other,
  }
  return [
    (name, dataclasses.replace(claim, **{name: value}), value / old)
    for name, value in changes.items()
    for old in [getattr(claim, name)]
  ]


def _find_causes(ratios: list[_Ratio]) -> list[tuple[str, str, str]]:
  """Key, cause and cure of each cause that explains the ratios."""
  own = ratios[0].ratio
  if own < 1e-3 and all(r.ratio < 1e-3 for r in ratios):
    return [
      (
        'no_noise',
        'no noise is added, or it is switched off',
        'Add Gaussian noise of standard deviation z S to the sum.',
      )
    ]
  causes = []
  for r in ratios[1:]:
    power = math.log(r.ratio / own) / math.log(r.factor) if r.ratio else -9.0
    half = round(2 * power) / 2
    if abs(power - half) < 0.15 and (r.changed, half) in _CAUSES:
      causes.append(_CAUSES[r.changed, half])
    elif abs(power) > 0.15:
      causes.append(
        (
          f'wrong_power_of_{r.changed}',
          f'the noise has {r.changed} to a power that is wrong by {power:.2g}',
          f'Check how {r.changed} enters the noise.',
        )
      )
  if causes:
    return list(dict.fromkeys(causes))
  machines = round(own**-2)
  if machines >= 2 and abs(own * math.sqrt(machines) - 1) < 0.03:
    also = ''
    if machines == 4:
      also = '; or half the sensitivity is used, as for S / 2'
    return [
      (
        'averaged_over_machines',
        f'noise is short by 1/√{machines} whatever S, n and z are: it is added on '
        f'{machines} machines and averaged (or in {machines} parts){also}',
        'Let one machine add the noise after the sum over machines, or let each '
        'of m add √m times as much to its mean.',
      )
    ]
  return [
    (
      'too_small_by_a_factor',
      f'the noise is short by the factor {own:.3g} whatever S, n and z are: a '
      'constant, or a step size that is applied to one of sum and noise',
      'Compare the standard deviation passed to the generator with z S.',
    )
  ]
