"""Rules `rounds` and `memory`: what all rounds together reveal of one client.

With influences m of a client on T rounds and the covariance Σ of their noise, the
attacker who weights rounds best has μ = sqrt(mᵀ Σ⁻¹ m). That is 1/z for momentum
after the noise, less for trees of noise, more for momentum before it, and infinite
if noise is used twice. Of a client that takes part more often, m is the sum.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from jaxtyping import Float
import numpy as np

from epe_jax.conformance import laws
from epe_jax.conformance.claim import Claim
from epe_jax.conformance.influences import HUGE
from epe_jax.conformance.laws import ALPHA
from epe_jax.conformance.measurements import (
  MAX_CARRIED,
  MAX_LATER,
  Measurements,
)
from epe_jax.conformance.rule import Cause, Outcome, rule
from epe_jax.conformance.session import NotChecked, check_finite, norm

_LONG_RUNS = 2

_REUSED = Cause(
  'noise_reused_between_rounds',
  'noise is drawn once and used again, or its key or seed is not advanced: the '
  'difference of two releases has no noise',
  'Draw noise afresh in every round.',
)
_MOMENTUM = Cause(
  'momentum_before_noise',
  'momentum, or another sum over rounds, is applied to updates before noise is '
  'added, so that a client is released again in each later round',
  'Add noise first, and apply momentum to the noisy mean.',
)
_DEPENDENT = Cause(
  'noise_depends_between_rounds',
  'noise of a round can be predicted from that of others, or fades',
  'Draw independent noise, or account for its covariance.',
)
_REST_KEPT = Cause(
  'clipped_rest_is_kept',
  'what clipping cuts off is kept, and released in later rounds (error feedback)',
  'Drop what is cut off, or clip it and account for it in each round.',
)
_CLIPPING_ENDS = Cause(
  'clipping_ends',
  'updates are clipped in the first rounds only, or to a norm that grows',
  'Clip to S in every round.',
)
_PARTICIPATIONS = Cause(
  'sensitivity_of_participations',
  'the sensitivity of all rounds of a client is larger than accounted for: the matrix '
  'by which noise is correlated is not the one whose columns were normalized, or '
  'clients return sooner or more often, or momentum comes before the noise',
  'Compute the norm of the sum of the columns C e_t over the rounds t of a client, '
  'where C times the noise is independent, and let the noise be z times as much.',
)
_STATE = Cause(
  'state_without_noise',
  'something that is computed from updates without noise decides how later '
  'rounds treat others, such as a clip norm that adapts',
  'Add noise to what a state is updated with. If that is done, publish the clip '
  'norm as the attribute clip_norm, so that it can be judged.',
)


class _Joint(NamedTuple):
  """What rounds together reveal of a client of round `start`."""

  mu: float
  p_value: float
  start: int
  rounds: int


class _Influences(NamedTuple):
  """Influence of a client of round 0 on each round, and of one in every round."""

  impulse: Float[np.ndarray, 'T d']
  steady: Float[np.ndarray, 'T d']


@rule
def rounds(m: Measurements) -> Outcome:
  """All rounds together reveal no more of a client than 1/z."""
  m.check_gaussian()
  m.check_level()
  one_seed = len(m.unique_runs) == 1
  if not one_seed and m.repeats[0] < ALPHA:
    raise NotChecked('noise repeats between runs; see noise_between_runs')
  influences, samples, joint = _measure_joint(m, one_seed=one_seed)
  p = min(1.0, len(joint) * min(j.p_value for j in joint))
  # Where several are significant, that of most rounds tells the whole μ.
  least = ALPHA / len(joint)
  worst = min(joint, key=lambda j: (max(j.p_value, least), -j.mu))
  lasting = [norm(x) for x in influences.impulse]
  measured = (
    f'a client {_describe(m.claim, worst.start)} has μ = {worst.mu:.4g} in {worst.rounds} '
    f'rounds, where 1/z = {1 / m.claim.noise_multiplier:.4g}; its influence is '
    + ', '.join(f'{x:.3g}' for x in lasting[:3])
    + ' in the rounds from its own on'
  )
  if p >= ALPHA:
    return Outcome(measured, p)
  for sampled in samples:
    if reused := _find_reuse(sampled):
      measured = f'rounds {reused[0]} and {reused[1]} have the same noise'
      return Outcome(measured, p, _REUSED, math.inf)
  cause = _MOMENTUM if max(lasting[1:]) > 1e-3 else _DEPENDENT
  if m.claim.participations > 1:
    cause = _PARTICIPATIONS
  return Outcome(measured, p, cause, worst.mu)


@rule
def later_rounds(m: Measurements) -> Outcome:
  """An update that is clipped moves no later round, and is clipped in each."""
  m.check_level()
  num = m.count_rounds(MAX_LATER)
  m.check_quiet()
  huge, zeros = m.cohort(HUGE * m.base_update), m.cohort(m.zero)
  run = m.quiet()
  nothing = [run.release(zeros) for _ in range(num)]
  late = {}
  for t in sorted({0, *(2**i for i in range(10) if 2**i < num), num - 1}):
    run = m.quiet()
    for _ in range(t):
      run.release(zeros)
    late[t] = run.release(huge) - nothing[t]
  carried = m.carried_rest
  worst = max(late, key=lambda t: norm(late[t]))
  first = norm(late[0])
  measured = (
    f'an update that is clipped moves the following {num - 1} rounds by '
    f'{carried:.2g} {m.unit} more than one that is not; in round {worst} it moves '
    f'its own by {norm(late[worst]):.4g}, in round 0 by {first:.4g}'
  )
  if carried > MAX_CARRIED:
    # A lower bound, if noise is fresh in each round.
    mu = math.hypot(m.common_mu, carried / m.noise.common_std)
    return Outcome(measured, cause=_REST_KEPT, mu=mu)
  mu, p = m.excess(late[worst], m.noise)
  if norm(late[worst]) <= 1.02 * first or p >= ALPHA:
    return Outcome(measured)
  return Outcome(measured, p, _CLIPPING_ENDS, mu)


@rule
def memory(m: Measurements) -> Outcome:
  """No later round reveals what a client did to the others in its own."""
  num = m.count_rounds(4)
  m.check_quiet()
  if m.carried_rest > MAX_CARRIED:
    raise NotChecked('what is clipped is kept; see later_rounds')
  influences = []
  for others in ([m.zero], [4 * b for b in m.background]):
    run, without = m.quiet(), m.quiet()
    differences = []
    for t in range(num):
      update = HUGE * m.base_update if t == 0 else m.zero
      differences.append(
        run.release(m.cohort(update, others))
        - without.release(m.cohort(m.zero, others))
      )
    influences.append(np.stack(differences[1:]))
  extra = norm(influences[1] - influences[0])
  measured = (
    f'beyond its own share, a client moves the following {num - 1} rounds by '
    f'{extra:.2g} {m.unit}'
  )
  if extra < 0.01:
    return Outcome(measured)
  # A lower bound: later rounds reveal this in addition to the client's own round.
  mu = math.hypot(m.common_mu, extra / m.noise.common_std)
  return Outcome(measured, cause=_STATE, mu=mu)


def measure_joint_mu(m: Measurements) -> float:
  """Largest μ of a client of some round, over all rounds that time allows.

  Raises:
    NotChecked: influences cannot be read.
  """
  _, _, joint = _measure_joint(m)
  return max(j.mu for j in joint)


def _measure_joint(
  m: Measurements, *, one_seed: bool = False
) -> tuple[_Influences, list[Float[np.ndarray, '_ _ k']], list[_Joint]]:
  """What few rounds of many runs reveal, and as many rounds as can be of few.

  Args:
    m: what is measured.
    one_seed: whether all runs have the same noise, so that one tells all.

  Returns:
    Influences, the samples of noise, and the worst client by each of these.
  """
  num = m.count_rounds()
  early = m.steady_rounds
  stds = [float(np.std(x[:, 0])) for x in (early, m.early_rounds)]
  error = 0.1 + 5 / math.sqrt(2 * early[:, 0].size)
  if not abs(stds[0] - stds[1]) <= error * stds[1]:
    raise NotChecked(
      'the clip norm adapts, and noise of the first round is not in proportion to '
      'noise_multiplier'
    )
  influences = _measure_influences(m, num)
  samples = [early[: 1 if one_seed else None, :num]]
  # A covariance of rounds needs many more coordinates than rounds.
  long = min(num, sum(m.layout.kept_sizes) // 4)
  if long > 2:
    runs = 1 if one_seed else _LONG_RUNS
    samples.append(m.sample_steady(runs, long))
  return influences, samples, [_find_worst(m, x, influences) for x in samples]


def _measure_influences(m: Measurements, num: int) -> _Influences:
  m.check_quiet()
  run, pulse, steady = m.quiet(), m.quiet(), m.quiet()
  with_client, without = m.cohort(m.base_update), m.cohort(m.zero)
  impulses, all_rounds = [], []
  for t in range(num):
    nothing = run.release(without)
    impulses.append(pulse.release(with_client if t == 0 else without) - nothing)
    all_rounds.append(steady.release(with_client) - nothing)
    check_finite(nothing, t)
  return _Influences(np.stack(impulses), np.stack(all_rounds))


def _find_worst(
  m: Measurements, sampled: Float[np.ndarray, 'R T k'], influences: _Influences
) -> _Joint:
  """The client whose round reveals most, over all rounds sampled."""
  num_rounds = sampled.shape[1]
  scales = _scale_tensors(m)
  stds = np.repeat(scales, m.layout.kept_sizes)
  is_usable = np.repeat(
    [k not in m.noise.repaired for k in range(len(scales))],
    m.layout.kept_sizes,
  )
  rows = (sampled / stds).transpose(0, 2, 1)[:, is_usable]
  rows = rows.reshape(-1, num_rounds)
  num = int(len(rows) * m.effective_share)
  if not m.noise.is_isotropic:
    # The scale of each tensor is estimated: the smallest tensor limits precision.
    num = min(len(sampled) * size for size in m.layout.kept_sizes)
  best = _Joint(0.0, 1.0, 0, num_rounds)
  if num < 2 * num_rounds:
    return best
  covariance = rows.T @ rows / len(rows)
  # The precision of float32: closer than this, noise counts as the same.
  ridge = 1e-12 * np.trace(covariance) / num_rounds
  covariance += ridge * np.eye(num_rounds)
  whiten = np.linalg.inv(np.linalg.cholesky(covariance))
  stds = np.repeat(scales, m.claim.sizes)
  options = _shift(m.claim, influences, num_rounds, stds)
  for start, vectors in options:
    mu = norm(whiten @ vectors)
    p = 1.0
    if not math.isinf(m.allowed_mu):
      p = laws.p_of_mu(mu, m.allowed_mu, num=num, rounds=num_rounds)
      p = min(1.0, len(options) * p)
    if (p, -mu) < (best.p_value, -best.mu):
      best = _Joint(mu, p, start, num_rounds)
  return best


def _shift(
  claim: Claim,
  influences: _Influences,
  num: int,
  scales: Float[np.ndarray, 'd'],
) -> list[tuple[int, Float[np.ndarray, 'T r']]]:
  """Influences of a client from each round on, if later rounds are like the first.

  It takes part as often and as soon again as the claim allows. Influences are over
  `scales`, and in a basis of at most T coordinates.
  """
  impulse, steady = influences.impulse[:num], influences.steady[:num]
  # μ depends on inner products of rounds only, which a rotation keeps.
  _, triangle = np.linalg.qr((impulse / scales).T)
  rotated = triangle.T
  options = [(0, rotated)]
  if norm(steady - np.cumsum(impulse, axis=0)) < 0.01 * norm(steady):
    options = []
    for start in range(num):
      moved = np.zeros_like(rotated)
      taken = range(start, num, claim.min_separation)[: claim.participations]
      for t in taken:
        moved[t:] += rotated[: num - t]
      options.append((start, moved))
  elif claim.participations > 1:
    raise NotChecked(
      'the influences of several rounds of a client do not add up'
    )
  return options


def _describe(claim: Claim, start: int) -> str:
  if claim.participations == 1:
    return f'of round {start}'
  return (
    f'of round {start} and every {claim.min_separation} after it, '
    f'{claim.participations} in all at most,'
  )


def _scale_tensors(m: Measurements) -> Float[np.ndarray, 'L']:
  """Noise of each tensor over the common noise."""
  stds = m.noise.stds / m.noise.common_std
  stds[list(m.noise.repaired)] = 1.0
  return np.ones_like(stds) if m.noise.is_isotropic else stds


def _find_reuse(
  sampled: Float[np.ndarray, 'R T k'],
) -> tuple[int, int] | None:
  """Two rounds of one run whose noise is the same, up to its sign."""
  unit = sampled / np.linalg.norm(sampled, axis=2, keepdims=True)
  for run in unit:
    cosines = np.triu(np.abs(run @ run.T), 1)
    first, second = np.unravel_index(np.argmax(cosines), cosines.shape)
    if cosines[first, second] > 0.9999:
      return int(first), int(second)
  return None
