"""Compares the influence of a client with the noise: μ and its p-value."""

import dataclasses
import math
from typing import NamedTuple

from jaxtyping import Float
import numpy as np

from epe_jax.conformance import affine, laws, samples
from epe_jax.conformance.claim import Claim
from epe_jax.conformance.laws import ALPHA, TOLERANCE
from epe_jax.conformance.measurements import Measurements, Probe, measured
from epe_jax.conformance.noise import Noise, norm
from epe_jax.conformance.session import Cohort, NotChecked, Vector

_MAX_RUNS = 16


class Judged(NamedTuple):
  """Size of an influence, noise in such rounds, and the comparison of the two."""

  size: float
  noise: Noise
  mu: float
  p_value: float


def judge(
  m: Measurements,
  probe: Probe,
  noise_in: Cohort | None = None,
  *,
  tests: int = 1,
) -> Judged:
  """Measures a probe, and noise in rounds of a cohort, by default ordinary ones."""
  influence = m.influence(probe)
  noise = measure_noise(m) if noise_in is None else sample_noise(m, noise_in)
  mu, p = compare(m, influence, noise, tests=tests)
  return Judged(norm(influence), noise, mu, p)


def compare(
  m: Measurements,
  influence: Vector,
  noise: Noise | None = None,
  *,
  tests: int = 1,
) -> tuple[float, float]:
  """Compares an influence with the noise, by default that of ordinary rounds.

  Returns:
    μ, and the p-value of the hypothesis that it is at most the allowed one, if a
    rule compares so many influences.
  """
  noise = noise or measure_noise(m)
  mu, allowed = noise.mu(influence), find_allowed_mu(m)
  if math.isinf(allowed):
    return mu, 1.0
  return mu, min(1.0, tests * noise.p_value(influence, allowed))


def sample_noise(
  m: Measurements,
  cohort: Cohort,
  *,
  runs: int | None = None,
  rounds: int = 1,
  claim: Claim | None = None,
  repair: bool = True,
) -> Noise:
  """Noise of the last of some rounds of a cohort, under another claim.

  Unless influences cannot be read, what `tensor_noise` and `noise_between_coordinates`
  report is left out (`repair`). There are as many runs as time allows by default.
  """
  if runs is None:
    runs = m.plan(0.05, max_runs=_MAX_RUNS)
  sampled = m.sample_rounds(runs, rounds, cohort, claim)[:, -1]
  if samples.find_repeats(m).p_value < ALPHA:
    # Equal noise is counted once; see `noise_between_runs`.
    scale = np.sqrt(np.mean(sampled**2)) or 1.0
    sampled = scale * np.unique(np.round(sampled / scale, 4), axis=0)
  noise = Noise(m.layout, sampled)
  if not repair:
    return noise
  # Whether tensors that have enough noise differ in it, a larger sample tells.
  usual = dataclasses.replace(
    samples.measure_noise(m), repaired=find_short_tensors(m)
  )
  return dataclasses.replace(
    noise,
    repaired=usual.repaired,
    effective_share=usual.effective_share,
    is_layered=not usual.is_isotropic,
  )


@measured
def measure_noise(m: Measurements) -> Noise:
  """Noise of ordinary rounds, without what `tensor_noise` reports.

  Raises:
    NotChecked: there is none, or nothing can be compared with it.
  """
  affine.check_level(m)
  noise = samples.measure_noise(m)
  if noise.common_std == 0:
    raise NotChecked('there is no noise; see noise_scale')
  return dataclasses.replace(noise, repaired=find_short_tensors(m))


@measured
def find_short_tensors(m: Measurements) -> frozenset[int]:
  """Tensors with less noise than an update within them needs."""
  ps = list_tensor_p_values(m)
  return frozenset(k for k, p in enumerate(ps) if p < ALPHA / len(ps))


@measured
def list_tensor_p_values(m: Measurements) -> list[float]:
  """p-values of the noise in each tensor."""
  noise = samples.measure_noise(m)
  allowed = _find_allowed_mu_of(m, noise)
  p_values = []
  for k, tensor in enumerate(noise.tensors):
    influence = measure_tensor_influences(m)[k]
    if noise.is_isotropic or influence < 1e-6:
      p_values.append(1.0)
    elif not noise.stds[k] > 1e-3 * noise.stds.max():
      p_values.append(0.0)
    else:
      mu = influence / noise.stds[k]
      p = laws.p_of_mu(mu, allowed, num=noise.count(tensor.size))
      p_values.append(p)
  return p_values


@measured
def measure_tensor_influences(m: Measurements) -> Float[np.ndarray, 'L']:
  """Largest influence in each tensor of ordinary updates of norm S."""
  largest = m.layout.length(m.base)
  norms = [m.layout.norms(influence) for _, influence in m.exact]
  for k in range(8, len(m.claim.sizes)):
    norms.append(m.layout.norms(m.influence_of(m.in_tensor(k))))
  return np.minimum(np.max(norms, axis=0), largest)


def claimed_mu(claim: Claim) -> float:
  """μ of one round by the claim, with the tolerance for arithmetic."""
  return (1 + TOLERANCE) * claim.mu


def _find_allowed_mu_of(m: Measurements, noise: Noise) -> float:
  if noise.common_std == 0:
    return math.inf
  mu = m.layout.length(m.base) / noise.common_std
  p = laws.p_of_mu(mu, claimed_mu(m.claim), num=noise.num)
  return _allow(m.claim, mu, p, noise.num)


@measured
def find_allowed_mu(m: Measurements) -> float:
  """Largest μ that rules allow in ordinary rounds."""
  (mu, p), noise = judge_ordinary(m), measure_noise(m)
  num = noise.num
  if not noise.is_isotropic:
    num = min(noise.count(t.size) for t in noise.tensors)
  return _allow(m.claim, mu, p, num)


def _allow(claim: Claim, mu: float, p: float, num: int) -> float:
  """Largest μ that rules allow: that of ordinary clients if it is larger.

  What is wrong for all clients is reported once, by `noise_scale`. Their μ is
  measured with so many values of noise, so its upper bound is allowed.
  """
  return claimed_mu(claim) if p >= ALPHA else 1.02 * laws.upper_mu(mu, num=num)


@measured
def judge_ordinary(m: Measurements) -> tuple[float, float]:
  """μ of an ordinary client whose update has norm S, and its p-value by the claim."""
  if samples.measure_noise(m).common_std == 0:
    return math.inf, 0.0
  noise = measure_noise(m)
  return noise.mu(m.base), noise.p_value(m.base, claimed_mu(m.claim))
