"""Rules `rounds` and `memory`: what all rounds together tell of one.

With influences m of a client on T rounds and the covariance Σ of their noise, the
attacker who weighs rounds best has μ = sqrt(mᵀ Σ⁻¹ m). That is 1/z for momentum
after the noise, less for trees of noise, more for momentum before it, and infinite
where noise is used twice.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from jaxtyping import Float
import numpy as np

from epe_jax.conformance import laws
from epe_jax.conformance.findings import (
  ALPHA,
  TOLERANCE,
  Result,
  break_rule,
  hold,
)
from epe_jax.conformance.inputs import HUGE
from epe_jax.conformance.measurements import Measurements
from epe_jax.conformance.session import NotChecked, norm

_LONG_RUNS = 2


class _Joint(NamedTuple):
  """What rounds tell together of a client of one of them."""

  mu: float
  p_value: float
  start: int
  rounds: int


def check_rounds(m: Measurements) -> Result:
  """Rule: all rounds together tell no more of a client than 1/z."""
  early, one_seed = m.early_rounds, len(m.unique_runs) == 1
  if one_seed:
    early = early[:1]
  elif len(m.unique_runs) < len(early):
    raise NotChecked('noise repeats between runs; see noise_between_runs')
  rounds = m.max_rounds
  if rounds < 2:
    raise NotChecked('it needs two rounds or more, and time for them')
  influences = _measure_influences(m, rounds)
  samples = [early]
  if rounds > 2:
    runs = 1 if one_seed else _LONG_RUNS
    samples.append(m.sample_rounds(runs, rounds, m.cohort(m.zero)))
  judged = [_judge(m, sampled, influences) for sampled in samples]
  p = min(1.0, len(judged) * min(j.p_value for j in judged))
  worst = min(judged, key=lambda j: (j.p_value, -j.mu))
  lasting = [norm(x) for x in influences.impulse]
  z = m.claim.noise_multiplier
  measured = (
    f'a client of round {worst.start} has μ = {worst.mu:.4g} in {worst.rounds} '
    f'rounds, where 1/z = {1 / z:.4g}; its influence is '
    + ', '.join(f'{x:.3g}' for x in lasting[:3])
    + ' in the rounds from its own on'
  )
  if p >= ALPHA:
    return hold('rounds', measured, p)
  reused = next((r for s in samples if (r := _find_reuse(s))), None)
  if reused:
    cause = 'noise_reused_between_rounds'
    measured = f'rounds {reused[0]} and {reused[1]} have the same noise'
    likely = (
      'noise is drawn once and used again, or its key or seed is not advanced: the '
      'difference of two releases has no noise'
    )
    cure = 'Draw noise afresh in every round.'
  elif len(lasting) > 1 and max(lasting[1:]) > 1e-3:
    cause = 'momentum_before_noise'
    likely = (
      'momentum, or another sum over rounds, is applied to updates before noise is '
      'added, so that a client is released again in each later round'
    )
    cure = 'Add noise first, and apply momentum to the noisy mean.'
  else:
    cause = 'noise_depends_between_rounds'
    likely = 'noise of a round can be predicted from that of others, or fades'
    cure = 'Draw independent noise, or account for its covariance.'
  return break_rule(
    'rounds',
    cause,
    measured,
    likely=likely,
    cure=cure,
    mu=math.inf if reused else worst.mu,
    p_value=p,
  )


def check_memory(m: Measurements) -> Result:
  """Rule: no later round shows what a client did to the others in its own."""
  if m.quiet().public_clip_norm is not None:
    raise NotChecked('the clip norm is public; see clip_norm')
  rounds = min(4, m.max_rounds)
  if rounds < 2:
    raise NotChecked('it needs two rounds or more')
  m.check_quiet()
  influences = []
  for others in ([m.zero], [4 * b for b in m.background]):
    run, without = m.quiet(), m.quiet()
    differences = []
    for t in range(rounds):
      update = HUGE * m.base_update if t == 0 else m.zero
      differences.append(
        run.release(m.cohort(update, others))
        - without.release(m.cohort(m.zero, others))
      )
    influences.append(np.stack(differences[1:]))
  extra = norm(influences[1] - influences[0])
  measured = (
    f'beyond its own share, a client moves the following {rounds - 1} rounds by '
    f'{extra:.2g} {m.unit}'
  )
  if extra < 0.01:
    return hold('memory', measured)
  return break_rule(
    'memory',
    'state_without_noise',
    measured,
    likely=(
      'something that is computed from updates without noise decides how later '
      'rounds treat others, such as a clip norm that adapts'
    ),
    cure=(
      'Add noise to what a state is updated with. If that is done, publish the clip '
      'norm as the attribute clip_norm, so that it can be judged.'
    ),
    # At least: later rounds tell this on top of what its own round tells.
    mu=math.hypot(m.common_mu, extra / m.noise.common_std),
  )


class _Influences(NamedTuple):
  """Influence of a client of round 0 on each round, and of one in every round."""

  impulse: Float[np.ndarray, 'T d']
  steady: Float[np.ndarray, 'T d']


def _measure_influences(m: Measurements, rounds: int) -> _Influences:
  m.check_quiet()
  run, pulse, steady = m.quiet(), m.quiet(), m.quiet()
  with_client, without = m.cohort(m.base_update), m.cohort(m.zero)
  impulses, all_rounds = [], []
  for t in range(rounds):
    nothing = run.release(without)
    impulses.append(pulse.release(with_client if t == 0 else without) - nothing)
    all_rounds.append(steady.release(with_client) - nothing)
  return _Influences(np.stack(impulses), np.stack(all_rounds))


def _judge(
  m: Measurements, sampled: Float[np.ndarray, 'R T k'], influences: _Influences
) -> _Joint:
  """μ of the client whose round tells most, over all rounds sampled."""
  rounds = sampled.shape[1]
  scales = _scales(m)
  stds = np.repeat(scales, m.layout.kept_sizes)
  is_usable = np.repeat(
    [k not in m.noise.repaired for k in range(len(scales))],
    m.layout.kept_sizes,
  )
  rows = (sampled / stds).transpose(0, 2, 1)[:, is_usable].reshape(-1, rounds)
  num = int(len(rows) * m.effective_share)
  if not m.noise.is_isotropic:
    # Scales of tensors are estimated, so the smallest says how well.
    num = min(len(sampled) * size for size in m.layout.kept_sizes)
  if num < 2 * rounds:
    return _Joint(0.0, 1.0, 0, rounds)
  covariance = rows.T @ rows / len(rows)
  # The limit of float32: below it noise is the same, not nearly the same.
  covariance += 1e-12 * np.trace(covariance) / rounds * np.eye(rounds)
  whiten = np.linalg.inv(np.linalg.cholesky(covariance))
  best = _Joint(0.0, 1.0, 0, rounds)
  options = _shift(influences, rounds)
  wide = np.repeat(scales, m.claim.sizes)
  for start, vectors in options:
    mu = norm(whiten @ (vectors / wide))
    claimed = (1 + TOLERANCE) / m.claim.noise_multiplier
    if m.common_p_value >= ALPHA:
      p = laws.p_of_mu(mu, claimed, num=num, rounds=rounds)
      p = min(1.0, len(options) * p)
    else:
      p = float(mu <= 1.2 * m.common_mu)
    if (p, -mu) < (best.p_value, -best.mu):
      best = _Joint(mu, p, start, rounds)
  return best


def _shift(
  influences: _Influences, rounds: int
) -> list[tuple[int, Float[np.ndarray, 'T d']]]:
  """Influences of a client of each round, if later rounds are like the first."""
  impulse, steady = influences.impulse[:rounds], influences.steady[:rounds]
  options = [(0, impulse)]
  if norm(steady - np.cumsum(impulse, axis=0)) < 0.01 * norm(steady):
    for start in range(1, rounds):
      moved = np.zeros_like(impulse)
      moved[start:] = impulse[: rounds - start]
      options.append((start, moved))
  return options


def _scales(m: Measurements) -> Float[np.ndarray, 'L']:
  """Noise of each tensor over the common one."""
  stds = m.noise.stds / m.noise.common_std
  for k in m.noise.repaired:
    stds[k] = 1.0
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
