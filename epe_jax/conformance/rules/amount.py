"""Is there as much noise as claimed: in each run, for all, and in each tensor?

One measurement tells how much noise is missing. The likely cause follows from how the
shortage changes with S, n and z, so claims with other values are measured too.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
import math
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from epe_jax.conformance import affine, comparison, laws, samples
from epe_jax.conformance.claim import Claim
from epe_jax.conformance.laws import ALPHA, TOLERANCE
from epe_jax.conformance.measurements import HEAVY, HUGE, Measurements
from epe_jax.conformance.noise import Noise
from epe_jax.conformance.rule import Outcome, require, rule
from epe_jax.conformance.rules import clients, rounds
from epe_jax.conformance.session import (
  EARLY,
  FIRST,
  Cohort,
  NotChecked,
  OutOfTime,
)

_FACTOR = 4
_RUNS, _GROWTH_RUNS, _GROWTH_ROUNDS = 24, 8, 8
# Noise and mean of large updates, of one alone, and once the clip norm has grown.
_TESTS = 4
# Of the influence of a client, by which rounding may change it.
_ROUNDING = 0.005
# Share of the claimed μ up to which there is too much noise; the classical formula has
# 0.79 at ε = 1.
_WASTED = 0.75
# By the quantity and the power to which it is missing from the noise.
_CAUSES = {
  ('clip_norm', -1.0): 'noise_ignores_clip_norm',
  ('clip_norm', -0.5): 'variance_for_std',
  ('clip_norm', 1.0): 'variance_for_std',
  ('noise_multiplier', -1.0): 'noise_ignores_noise_multiplier',
  ('noise_multiplier', -0.5): 'variance_for_std',
  ('noise_multiplier', 1.0): 'variance_for_std',
  ('num_clients', -1.0): 'divided_by_n_twice',
  ('num_clients', -0.5): 'divided_by_sqrt_n',
}
# Numbers of machines whose square root is not a likely step size. That of 4 or 9 may
# as well be a constant.
_ROOTS = (2, 3, 5, 6, 7, 8)


@rule('many coordinates', 'noise')
def noise_level(m: Measurements) -> Outcome:
  """The noise of one run is as large as that of another."""
  p, spread = samples.measure_level(m)
  if p < ALPHA:
    affine.check_processed(m)
    affine.check_factor(m)
    affine.check_linear(m)
  measured = (
    f'the variance of noise differs between runs by {100 * spread:.2g} %'
  )
  return Outcome(measured, p, 'random_amount_of_noise')


class _Ratio(NamedTuple):
  """Noise over what the claim needs, 1 if it is right, under a changed claim."""

  changed: str
  factor: float
  ratio: float
  p_value: float
  claim: Claim


@rule()
def noise_scale(m: Measurements) -> Outcome:
  """The noise is z times the influence of an ordinary client."""
  try:
    require(m, 'level')
  except NotChecked:
    if affine.is_exact(m):
      measured = 'rounds whose updates differ by 1e-6 S never release the same'
      return Outcome(measured, 0.0, 'no_noise', math.inf)
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
    if needed > _WASTED:
      return Outcome(measured, p)
    measured += (
      f'; an attacker who sees all rounds has {needed:.3g} of the claimed μ'
    )
    return Outcome(measured, cause='too_much_noise')
  # The report gives ε at the claim itself, so prefer that to a changed claim.
  worst = own
  if len(ratios) * own.p_value >= ALPHA:
    worst = min(ratios, key=lambda r: r.ratio)
  mu = m.claim.mu / worst.ratio if worst.ratio > 0 else math.inf
  at = '' if worst is own else f'{worst.changed} × {worst.factor:g}'
  if _follows_updates(m):
    return Outcome(measured, p, 'noise_follows_updates', mu, at)
  if affine.skips_zeros(m):
    return Outcome(measured, p, 'zeros_not_counted', mu, at)
  precision = 3 / math.sqrt(2 * samples.measure_noise(m).num) + 2 * TOLERANCE
  causes, details = _find_causes(ratios, precision)
  return Outcome(measured, p, causes, mu, at, details)


@rule('constants')
def constants(m: Measurements) -> Outcome:
  """What is constant in some rounds is so in all, whatever other rules send."""
  num = int(m.session.is_constant.sum())
  places = m.session.moves & {FIRST, EARLY}
  if places:
    where = ' and in '.join(sorted(places))
    measured = f'{num:,} coordinates without noise, or all, move in {where}'
    if not m.is_readable:
      raise NotChecked(f'{measured}, and releases of the same updates differ')
    return Outcome(measured, cause='constant_that_moves', mu=math.inf)
  m.session.check_constants()
  return Outcome(f'{num:,} coordinates are the same whatever clients send')


@rule('level', 'noise')
def tensor_noise(m: Measurements) -> Outcome:
  """Each tensor has the noise that an update within it needs."""
  short = sorted(comparison.find_short_tensors(m))
  ps, noise = comparison.list_tensor_p_values(m), samples.measure_noise(m)
  p = min(1.0, len(ps) * min(ps))
  if not short:
    return Outcome(f'noise of {len(ps)} tensors fits the influence in each', p)
  std, influence = noise.stds, comparison.measure_tensor_influences(m)
  shown = ', '.join(
    f'{m.name_tensor(k)} {tuple(m.claim.shapes[k])} has noise {std[k]:.3g}'
    for k in short[:4]
  )
  is_missing = any(std[k] <= 1e-3 * std.max() for k in short)
  return Outcome(
    f'{shown}, where others have {noise.common_std:.3g}, in units of the '
    'influence of one client',
    p,
    'tensor_without_noise' if is_missing else 'tensor_with_less_noise',
    max(influence[k] / std[k] if std[k] > 0 else math.inf for k in short),
  )


def _find_needed_share(m: Measurements) -> float:
  """Largest μ of any client over the claimed one; 1 if too little noise is known."""
  claim, noise = m.claim, samples.measure_noise(m)
  if (
    not m.is_readable
    or noise.count(noise.samples.size) < 1000
    # Not all rounds of a client are seen.
    or (claim.participations - 1) * claim.min_separation >= m.max_rounds
  ):
    return 1.0
  influence = m.base
  if claim.measure(influence) < 0.99:
    # Ordinary clients may count for less than those with many examples.
    with contextlib.suppress(NotChecked):
      heavy = m.influence_of(m.base_update, weight=HEAVY)
      influence = max(influence, heavy, key=claim.measure)
  if claim.measure(influence) < 0.99:
    return 1.0  # Which `arrives_whole` reports.
  shares = [m.layout.length(influence) / noise.common_std / claim.mu]
  if shares[0] <= _WASTED:
    if samples.adapts(m):
      return 1.0  # A part of the claim is spent on the clip norm.
    early = samples.sample_early_rounds(m)
    first, second = early[:, 0], early[:, 1:2]
    if second.size:
      product = float(np.sum(first * second[:, 0]))
      sizes = np.linalg.norm(first) * np.linalg.norm(second)
      if abs(product) > 0.1 * sizes:
        return 1.0  # Correlated noise is that of more rounds than are run.
    with contextlib.suppress(NotChecked):
      joint = rounds.measure_joint(m).worst
      shares.append(max(x.mu for x in joint) / claim.mu)
    if claim.adjacency == 'add_or_remove' and claim.num_clients > 1:
      # A part of the claim may be spent on the count.
      shares.append(clients.measure_presence(m)[2] / claim.mu)
  return max(shares)


def _measure_claim(m: Measurements) -> _Ratio:
  noise = samples.measure_noise(m)
  if noise.common_std == 0:
    require(m, 'influence')
    if m.is_readable and not affine.is_exact(m):
      # Noise that follows updates is there as soon as they are not zero.
      tiny = 1e-6 * m.base_update
      cohort = m.cohort(tiny, [tiny])
      if not comparison.sample_noise(m, cohort, repair=False).common_std:
        raise NotChecked('noise is rounded away; return what comes before')
    return _Ratio('', 1, 0.0, 0.0, m.claim)
  if m.is_readable:
    mu, p = comparison.judge_ordinary(m)
  else:
    mu, p = _judge_by_claim(m.claim, noise)
  return _Ratio('', 1, m.claim.mu / mu if mu else math.inf, p, m.claim)


def _measure_changed(
  m: Measurements, changed: str, claim: Claim, factor: float
) -> _Ratio:
  runs, cohort = m.plan(0.03, max_runs=8), m.cohort(m.zero, claim=claim)
  sample = functools.partial(
    comparison.sample_noise, m, cohort, runs=runs, claim=claim
  )
  if m.is_readable:
    influence, noise = m.influence_of(m.base_update, claim=claim), sample()
    if noise.common_std == 0 and samples.measure_noise(m).step:
      raise NotChecked('noise is rounded away')
    mu = noise.mu(influence)
    p = noise.p_value(influence, comparison.claimed_mu(claim))
  else:
    mu, p = _judge_by_claim(claim, sample(repair=False))
  ratio = claim.mu / mu if mu > 0 else math.inf
  return _Ratio(changed, factor, ratio, p, claim)


def _judge_by_claim(claim: Claim, noise: Noise) -> tuple[float, float]:
  """μ and p-value of the claimed influence, where none can be read."""
  influence = noise.layout.factor * claim.mu * claim.noise_multiplier
  mu = influence / noise.common_std if noise.common_std else math.inf
  return mu, laws.p_of_mu(mu, comparison.claimed_mu(claim), num=noise.num)


def _follows_updates(m: Measurements) -> bool:
  """Whether there is more noise if all clients send updates of norm S."""
  usual = samples.measure_noise(m)
  try:
    u = m.base_update
    noise = comparison.sample_noise(m, m.cohort(u, [u]), repair=False)
  except (NotChecked, OutOfTime):
    return False
  if usual.common_std == 0:
    return noise.common_std > 0
  ratio = (noise.common_std / usual.common_std) ** 2
  return bool(ratio > 1.2 and stats.f.sf(ratio, noise.num, usual.num) < ALPHA)


def _change_claim(claim: Claim) -> Iterator[tuple[str, Claim, float]]:
  """(what is changed, the changed claim, by which factor)."""
  n, up, down = claim.num_clients, _FACTOR, 1 / _FACTOR
  for name, factor, of_step in [
    ('clip_norm', up, up),
    ('noise_multiplier', up, 1),
    # A few clients become more; many become fewer, which saves time.
    ('num_clients', up if n <= 25 else n // _FACTOR / n, 1),
    # Noise that grows too fast is short below; (z S)² is right at z S = 1.
    ('clip_norm', down, down),
    ('noise_multiplier', down, down),
  ]:
    value = getattr(claim, name) * factor
    if name == 'num_clients':
      value = round(value)
    step = claim.granularity * of_step
    changed = dataclasses.replace(claim, **{name: value}, granularity=step)
    yield name, changed, factor


def _compute_classical(claim: Claim) -> float:
  """Noise of the classical formula, over what the claim needs."""
  factor = claim.distance * math.sqrt(2 * math.log(1.25 / claim.delta))
  return factor / claim.epsilon / claim.noise_multiplier


def _compute_zcdp(claim: Claim) -> float:
  """Noise of ρ-zCDP for ρ = ε, over what the claim needs."""
  return claim.distance / math.sqrt(2 * claim.epsilon) / claim.noise_multiplier


def _find_causes(
  ratios: Sequence[_Ratio], precision: float
) -> tuple[Sequence[str], Mapping[str, Any]]:
  """All causes that explain the ratios, of which the first is at the claim."""
  own, others = ratios[0].ratio, ratios[1:]
  if own < 1e-3:
    is_none = all(r.ratio < 1e-3 for r in others)
    return ['no_noise' if is_none else 'noise_switched_off'], {}
  # Noise for an update against zero is half of what any two need.
  half = ratios[0].claim.distance == 2

  def fits(compute: Callable[[Claim], float], part: float = 1.0) -> bool:
    rests = (abs(r.ratio / part / compute(r.claim) - 1) for r in ratios)
    return max(rests) < precision + 0.02

  formulas = {
    'classical_noise': _compute_classical,
    'rho_for_epsilon': _compute_zcdp,
  }
  # Both are of Gaussian noise.
  if any(r.claim.noise == 'laplace' or not r.claim.epsilon for r in ratios):
    formulas = {}
  for cause, compute in formulas.items():
    if fits(compute):
      return [cause], {}
    if half and fits(compute, 0.5):
      return ['one_update_for_two', cause], {}
  if half and fits(lambda claim: 1.0, 0.5):
    return ['one_update_for_two'], {}
  causes, powers = [], {}
  for r in others:
    if math.isinf(r.ratio) or math.isinf(own):
      continue
    power = math.log(r.ratio / own) / math.log(r.factor) if r.ratio else -9.0
    half = round(2 * power) / 2
    if abs(power - half) < 0.15 and (r.changed, half) in _CAUSES:
      causes.append(_CAUSES[r.changed, half])
    elif abs(power) > 0.15:
      causes.append(f'wrong_power_of_{r.changed}')
      powers.setdefault(r.changed, power)
  if causes:
    return causes, powers
  is_laplace = ratios[0].claim.noise == 'laplace'
  if is_laplace and abs(own * math.sqrt(2) - 1) < precision:
    return ['std_for_scale'], {}
  if max(abs(r.ratio / own - 1) for r in others or ratios) > precision + 0.1:
    return ['too_small'], {}
  machines = round(own**-2)
  is_root = machines in _ROOTS and precision < 0.03
  if is_root and abs(own * math.sqrt(machines) - 1) < precision:
    return ['averaged_over_machines'], {'machines': machines}
  return ['too_small_by_a_factor'], {'factor': own}


@rule('readable', 'influence')
def own_claim(m: Measurements) -> Outcome:
  """With the claimed noise, rounds with large updates are the same.

  Influences are measured with next to no noise. Here all clients send updates under
  the claim itself: neither the influence nor the noise may differ.
  """
  runs = m.plan(0.05, max_runs=_RUNS)
  large = m.cohort(HUGE * m.base_update, [HUGE * m.base_update])
  if outcome := _check_adapted(m, large, runs):
    return outcome
  if outcome := _compare_noise_of_one(m):
    return outcome
  noise = comparison.sample_noise(m, large, runs=runs)
  mu, p_noise = comparison.compare(m, m.base, noise)
  runs = len(noise.samples)
  if runs < 2:
    raise NotChecked('noise repeats between runs; see noise_between_runs')
  direction = m.layout.keep(m.base)
  length = float(np.linalg.norm(direction))
  n, std = m.claim.num_clients, comparison.measure_noise(m).common_std
  # Student's t of one number for each run, whatever their variance is. All clients
  # agree, so each has an n-th of the change; and what rounds one rounds all.
  along = noise.samples @ direction
  change, spread = float(np.mean(along)), float(np.std(along, ddof=1))
  beyond = max(0.0, abs(change) - _ROUNDING * n * length**2)
  t = beyond * math.sqrt(runs) / spread if spread else 0.0
  p_mean = 2 * float(stats.t.sf(t, runs - 1))
  p = min(1.0, _TESTS * min(p_noise, p_mean))
  share = 1 + change / (n * length**2) if length else 1.0
  measured = (
    f'with the claimed noise, {n} large updates have {share:.3g} '
    f'of the influence and {noise.common_std / std if std else 0:.3g} of the noise '
    'that were measured without'
  )
  if _TESTS * p_noise < ALPHA:
    return Outcome(measured, p, 'noise_depends_on_updates', mu)
  severity = 'privacy' if change > 0 else 'utility'
  cause = 'influence_depends_on_noise'
  return Outcome(measured, p, cause, severity=severity)


def _compare_noise_of_one(m: Measurements) -> Outcome | None:
  """The outcome if the size of the noise tells of an update; None if it does not."""
  spread = clients.compare_spreads(m, m.cohort(HUGE * m.base_update), 0.02)
  if not spread or spread.epsilon <= m.claim.epsilon:
    return None
  if (p := _TESTS * spread.p_value) >= ALPHA:
    return None
  measured = (
    f'noise is {spread.ratio:.4g} × as large if one client sends a large update, which '
    'tells of it in all coordinates together'
  )
  return Outcome(measured, p, 'noise_follows_updates', epsilon=spread.epsilon)


def _check_adapted(m: Measurements, large: Cohort, runs: int) -> Outcome | None:
  """The outcome if noise is short once the clip norm has grown; None if it is not."""
  num = min(_GROWTH_ROUNDS, m.max_rounds)
  if not m.publishes or num < 2:
    return None
  runs = min(runs, _GROWTH_RUNS)
  noise = comparison.sample_noise(m, large, runs=runs, rounds=num)
  if not np.all(np.isfinite(noise.samples)):
    return None  # A clip norm that grows so much is reported by `clip_norm`.
  run, without = m.quiet(), m.quiet()
  for _ in range(num - 1):
    run.release(large)
    without.release(large)
  moved = run.release(m.cohort(m.base_update))
  moved = moved - without.release(m.cohort(m.zero))
  mu, p = comparison.compare(m, moved, noise)
  if p >= ALPHA / _TESTS:
    return None
  std = comparison.measure_noise(m).common_std
  measured = (
    f'after {num} rounds of large updates noise is '
    f'{noise.common_std / std if std else 0:.3g} of what it is in the first, in clip '
    'norms of the round'
  )
  return Outcome(measured, _TESTS * p, 'noise_of_another_clip_norm', mu)
