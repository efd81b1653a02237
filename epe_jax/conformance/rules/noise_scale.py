"""Rules `noise_scale` and `tensor_noise`: is there as much noise as claimed?

One measurement tells how much noise is missing. The likely cause follows from how the
shortage changes with S, n and z, so claims with other values are measured too.
"""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import dataclasses
import math
from typing import NamedTuple

import numpy as np
from scipy import stats

from epe_jax.conformance import laws
from epe_jax.conformance.claim import Claim
from epe_jax.conformance.influences import HEAVY
from epe_jax.conformance.laws import ALPHA, TOLERANCE
from epe_jax.conformance.measurements import Measurements
from epe_jax.conformance.noise import Noise
from epe_jax.conformance.rule import Cause, Outcome, rule
from epe_jax.conformance.rules import participation, rounds
from epe_jax.conformance.session import NotChecked, OutOfTime

_FACTOR = 4
_VARIANCE = Cause(
  'variance_for_std',
  'a variance is passed where a standard deviation is wanted, or vice versa',
  'Pass the standard deviation z S.',
)
# By the quantity and the power to which it is missing from the noise.
_CAUSES = {
  ('clip_norm', -1.0): Cause(
    'noise_ignores_clip_norm',
    'the noise has standard deviation z, not z S',
    'Multiply the noise with the clip norm.',
  ),
  ('clip_norm', -0.5): _VARIANCE,
  ('clip_norm', 1.0): _VARIANCE,
  ('noise_multiplier', 1.0): _VARIANCE,
  ('num_clients', -1.0): Cause(
    'divided_by_n_twice',
    'the noise is divided by n twice: calibrated to the mean, and divided with '
    'the sum once more',
    'Add noise z S to the sum and divide once, or noise z S / n to the mean.',
  ),
  ('num_clients', -0.5): Cause(
    'divided_by_sqrt_n',
    'the noise of the mean is divided by √n, as if it averaged out; or each '
    'client adds z S / n where z S / √n adds up to z S',
    'Noise of the sum is z S, and of the mean z S / n.',
  ),
  ('noise_multiplier', -1.0): Cause(
    'noise_ignores_noise_multiplier',
    'the noise does not depend on z; or the factory does not pass it on',
    'Multiply the noise with z, and check that make(claim) uses the claim.',
  ),
  ('noise_multiplier', -0.5): _VARIANCE,
}
_NO_NOISE = Cause(
  'no_noise',
  'no noise is added, or it is switched off',
  'Add Gaussian noise of standard deviation z S to the sum.',
)
_SWITCHED_OFF = Cause(
  'noise_switched_off',
  'there is no noise at the claim, but some if it is changed: noise is switched '
  'off in small cohorts, or below some S or z',
  'Add noise to every release, or refuse to release.',
)
_FOLLOWS_UPDATES = Cause(
  'noise_follows_updates',
  'the noise grows with the updates of the round, such as with their largest '
  'norm, and is too small if they are small; its size reveals them, too',
  'Let the standard deviation be z S, whatever updates are.',
)
_TOO_LARGE = Cause(
  'too_much_noise',
  'there is more noise than the claim needs: a factor is applied twice, or to the '
  'noise alone',
  'Compare the standard deviation passed to the generator with z S.',
  severity='utility',
)
_CLASSICAL = Cause(
  'classical_noise',
  'the standard deviation is S √(2 ln(1.25/δ)) / ε, which is proven for ε < 1 only and '
  'too small for a large one',
  'Compute the noise of ε and δ exactly, as Claim.from_epsilon does.',
)
_STD_FOR_SCALE = Cause(
  'std_for_scale',
  'z S is the standard deviation of Laplace noise, where its scale is claimed: the '
  'standard deviation is √2 times the scale',
  'Pass the scale z S to the generator.',
)
# Numbers of machines whose square root is not a likely step size.
_ROOTS = (2, 3, 5, 6, 7, 8)
_ADD_TO_ALL = (
  'Add noise of the same standard deviation to every tensor released.'
)
_TENSOR_WITHOUT_NOISE = Cause(
  'tensor_without_noise',
  'noise is added to some tensors only, such as weights without biases',
  _ADD_TO_ALL,
)
_TENSOR_WITH_LESS_NOISE = Cause(
  'tensor_with_less_noise',
  'the noise of a tensor is scaled with its size or its own norm',
  _ADD_TO_ALL,
)


class _Ratio(NamedTuple):
  """Noise over what the claim needs, 1 if it is right, under a changed claim."""

  changed: str
  factor: float
  ratio: float
  p_value: float
  claim: Claim


@rule
def noise_scale(m: Measurements) -> Outcome:
  """The noise is z times the influence of an ordinary client."""
  try:
    m.check_level()
  except NotChecked:
    if m.is_exact:
      measured = 'rounds whose updates differ by 1e-6 S never release the same'
      return Outcome(measured, 0.0, _NO_NOISE, math.inf)
    raise
  ratios, failed, late = [_measure_claim(m)], [], None
  for changed, claim, factor in _change_claim(m.claim):
    try:
      ratios.append(_measure_changed(m, changed, claim, factor))
    except OutOfTime as error:
      late = error
      break
    except NotChecked as error:
      failed.append(f'{changed} could not be changed ({error})')
  own = ratios[0]
  p = min(1.0, len(ratios) * min(ratio.p_value for ratio in ratios))
  measured = '; '.join(
    [f'noise / needed noise = {own.ratio:.4g} at the claim']
    + [f'{r.ratio:.4g} at {r.changed} × {r.factor:g}' for r in ratios[1:]]
    + failed
  )
  if p >= ALPHA:
    if late:
      raise late
    needed = _find_needed_share(m)
    if needed > 0.8:
      return Outcome(measured, p)
    measured += (
      f'; an attacker who sees all rounds has {needed:.3g} of the claimed μ'
    )
    return Outcome(measured, cause=_TOO_LARGE)
  # The report gives ε at the claim itself, so prefer that to a changed claim.
  worst = own
  if len(ratios) * own.p_value >= ALPHA:
    worst = min(ratios, key=lambda r: r.ratio)
  mu = math.inf
  if worst.ratio > 0:
    mu = m.claim.mu / worst.ratio
  at = '' if worst is own else f'{worst.changed} × {worst.factor:g}'
  cause = _FOLLOWS_UPDATES
  if not _follows_updates(m):
    precision = 3 / math.sqrt(2 * m.all_noise.num) + 2 * TOLERANCE
    cause = _find_cause(ratios, precision)
  return Outcome(measured, p, cause, mu, at)


@rule
def tensor_noise(m: Measurements) -> Outcome:
  """Each tensor has the noise that an update within it needs."""
  m.check_level()
  short, noise = sorted(m.short_tensors), m.all_noise
  if noise.common_std == 0:
    raise NotChecked('there is no noise; see noise_scale')
  allowed = m.allowed_by(noise)
  ps = [m.p_of_tensor(noise, k, allowed) for k in range(len(m.claim.shapes))]
  p = min(1.0, len(ps) * min(ps))
  if not short:
    return Outcome(f'noise of {len(ps)} tensors fits the influence in each', p)
  std, influence = noise.stds, m.tensor_influences
  shown = ', '.join(
    f'tensor {k} {tuple(m.claim.shapes[k])} has noise {std[k]:.3g}'
    for k in short[:4]
  )
  is_missing = any(std[k] <= 1e-3 * std.max() for k in short)
  return Outcome(
    f'{shown}, where others have {noise.common_std:.3g}, in units of the '
    'influence of one client',
    p,
    _TENSOR_WITHOUT_NOISE if is_missing else _TENSOR_WITH_LESS_NOISE,
    max(influence[k] / std[k] if std[k] > 0 else math.inf for k in short),
  )


def _find_needed_share(m: Measurements) -> float:
  """Largest μ of any client over the claimed one; 1 if too little noise is known."""
  noise = m.all_noise
  if not m.is_readable or noise.count(noise.samples.size) < 1000:
    return 1.0
  claim, influence = m.claim, m.base
  if (claim.participations - 1) * claim.min_separation >= m.max_rounds:
    return 1.0  # Not all rounds of a client are seen.
  if claim.measure(influence) < 0.99:
    # Ordinary clients may count for less than those with many examples.
    with contextlib.suppress(NotChecked):
      heavy = m.influence_of(m.base_update, weight=HEAVY)
      influence = max(influence, heavy, key=claim.measure)
  if claim.measure(influence) < 0.99:
    return 1.0  # Which `arrives_whole` reports.
  shares = [m.layout.length(influence) / noise.common_std / claim.mu]
  if shares[0] <= 0.8:
    if m.adapts:
      return 1.0  # A part of the claim is spent on the clip norm.
    first, second = m.early_rounds[:, 0], m.early_rounds[:, 1:2]
    if second.size:
      product = float(np.sum(first * second[:, 0]))
      sizes = np.linalg.norm(first) * np.linalg.norm(second)
      if abs(product) > 0.1 * sizes:
        return 1.0  # Correlated noise is that of more rounds than are run.
    with contextlib.suppress(NotChecked):
      shares.append(rounds.measure_joint_mu(m) / claim.mu)
    if claim.adjacency == 'add_or_remove' and claim.num_clients > 1:
      # A part of the claim may be spent on the count.
      shares.append(participation.measure_presence(m)[2] / claim.mu)
  return max(shares)


def _measure_claim(m: Measurements) -> _Ratio:
  noise = m.all_noise
  if noise.common_std == 0:
    m.check_influence()
    if m.is_readable and not m.is_exact:
      # Noise that follows updates is there as soon as they are not zero.
      tiny = 1e-6 * m.base_update
      cohort = m.cohort(tiny, [tiny])
      if m.sample_noise(cohort, repair=False).common_std == 0:
        raise NotChecked('noise is rounded away; return what comes before')
    return _Ratio('', 1, 0.0, 0.0, m.claim)
  if m.is_readable:
    if m.common_mu == 0:
      return _Ratio('', 1, math.inf, 1.0, m.claim)
    return _Ratio('', 1, m.claim.mu / m.common_mu, m.common_p_value, m.claim)
  # An influence that cannot be read is taken from the claim.
  mu = _read_claim(m.claim, noise)
  p = laws.p_of_mu(mu, m.claimed_mu, num=noise.num)
  return _Ratio('', 1, m.claim.mu / mu, p, m.claim)


def _measure_changed(
  m: Measurements, changed: str, claim: Claim, factor: float
) -> _Ratio:
  runs = m.plan(0.03, rounds=1, max_runs=8)
  cohort = m.cohort(m.zero, claim=claim)
  allowed = (1 + TOLERANCE) * claim.mu
  if m.is_readable:
    influence = m.influence_of(m.base_update, claim=claim)
    noise = m.sample_noise(cohort, runs=runs, claim=claim)
    if noise.common_std == 0 and m.all_noise.step:
      raise NotChecked('noise is rounded away')
    mu, p = noise.mu(influence), noise.p_value(influence, allowed)
  else:
    noise = m.sample_noise(cohort, runs=runs, claim=claim, repair=False)
    mu = _read_claim(claim, noise) if noise.common_std > 0 else math.inf
    p = laws.p_of_mu(mu, allowed, num=noise.num)
  ratio = claim.mu / mu if mu > 0 else math.inf
  return _Ratio(changed, factor, ratio, p, claim)


def _read_claim(claim: Claim, noise: Noise) -> float:
  """μ of the largest influence that the claim allows."""
  largest = claim.mu * claim.noise_multiplier
  return noise.layout.factor * largest / noise.common_std


def _follows_updates(m: Measurements) -> bool:
  """Whether there is more noise if all clients send updates of norm S."""
  usual = m.all_noise
  try:
    u = m.base_update
    noise = m.sample_noise(m.cohort(u, [u]), repair=False)
  except (NotChecked, OutOfTime):
    return False
  if usual.common_std == 0:
    return noise.common_std > 0
  ratio = (noise.common_std / usual.common_std) ** 2
  return bool(ratio > 1.2 and stats.f.sf(ratio, noise.num, usual.num) < ALPHA)


def _change_claim(claim: Claim) -> list[tuple[str, Claim, float]]:
  """(what is changed, the changed claim, by which factor)."""
  n, step = claim.num_clients, claim.granularity
  up, down = _FACTOR, 1 / _FACTOR
  changes = [
    ('clip_norm', claim.clip_norm * up, step * up),
    ('noise_multiplier', claim.noise_multiplier * up, step),
    # A few clients become more; many become fewer, which saves time.
    ('num_clients', n * _FACTOR if n <= 25 else n // _FACTOR, step),
    # Noise that grows too fast is short below; (z S)² is right at z S = 1.
    ('clip_norm', claim.clip_norm * down, step * down),
    ('noise_multiplier', claim.noise_multiplier * down, step * down),
  ]
  return [
    (
      name,
      dataclasses.replace(claim, **{name: value}, granularity=step),
      value / getattr(claim, name),
    )
    for name, value, step in changes
  ]


def _compute_classical(claim: Claim) -> float:
  """Noise of the classical formula, over what the claim needs."""
  factor = claim.distance * math.sqrt(2 * math.log(1.25 / claim.delta))
  return factor / claim.epsilon / claim.noise_multiplier


def _find_cause(ratios: Sequence[_Ratio], precision: float) -> Cause:
  """All causes that explain the ratios, as one; the first is at the claim."""
  own, others = ratios[0].ratio, ratios[1:]
  if own < 1e-3 and all(r.ratio < 1e-3 for r in others):
    return _NO_NOISE
  if own < 1e-3:
    return _SWITCHED_OFF
  if all(
    abs(r.ratio / _compute_classical(r.claim) - 1) < precision + 0.02
    for r in ratios
  ):
    return _CLASSICAL
  causes = []
  for r in others:
    if math.isinf(r.ratio) or math.isinf(own):
      continue
    power = math.log(r.ratio / own) / math.log(r.factor) if r.ratio else -9.0
    half = round(2 * power) / 2
    if abs(power - half) < 0.15 and (r.changed, half) in _CAUSES:
      causes.append(_CAUSES[r.changed, half])
    elif abs(power) > 0.15:
      causes.append(
        Cause(
          f'wrong_power_of_{r.changed}',
          f'the noise has {r.changed} to a power that is wrong by {power:.2g}',
          f'Check how {r.changed} enters the noise.',
        )
      )
  if causes:
    causes = list({cause.key: cause for cause in causes}.values())
    return Cause(
      causes[0].key,
      '; and '.join(cause.likely for cause in causes),
      ' '.join(dict.fromkeys(cause.cure for cause in causes)),
    )
  if (
    ratios[0].claim.noise == 'laplace'
    and abs(own * math.sqrt(2) - 1) < precision
  ):
    return _STD_FOR_SCALE
  machines = round(own**-2)
  # A square root of 4 or 9 may as well be a constant, or a step size.
  is_root = machines in _ROOTS and precision < 0.03
  if not is_root or abs(own * math.sqrt(machines) - 1) >= precision:
    return Cause(
      'too_small_by_a_factor',
      f'the noise is short by the factor {own:.3g} whatever S, n and z are: a '
      'constant, or a step size that is applied to one of sum and noise',
      'Compare the standard deviation passed to the generator with z S.',
    )
  return Cause(
    'averaged_over_machines',
    f'noise is short by 1/√{machines} whatever S, n and z are: it is added on '
    f'{machines} machines and averaged (or in {machines} parts)',
    'Let one machine add the noise after the sum over machines, or let each '
    'of m add √m times as much to its mean.',
  )
