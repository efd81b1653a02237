"""Rules on noise itself: fresh in every coordinate and every run, and Gaussian."""

from __future__ import annotations

import itertools

import numpy as np

from epe_jax.conformance import laws
from epe_jax.conformance.findings import ALPHA, Result, break_rule, hold
from epe_jax.conformance.measurements import Measurements
from epe_jax.conformance.session import NotChecked

_ALIKE = 0.99


def check_runs(m: Measurements) -> Result:
  """Rule: no run repeats the noise of another."""
  # Tensors with more noise than others must not decide about all.
  stds = np.repeat(m.all_noise.stds, m.layout.kept_sizes)
  some = np.flatnonzero(stds > 0)[:4096]
  samples = m.early_rounds[..., some] / stds[some]
  runs, rounds, dim = samples.shape
  rows = samples.reshape(runs * rounds, dim)
  lengths = np.linalg.norm(rows, axis=1)
  if dim * m.effective_share < 8 or not np.all(lengths > 0):
    raise NotChecked('there is no noise, or it has less than 8 coordinates')
  unit = rows / lengths[:, None]
  run = np.repeat(np.arange(runs), rounds)
  pairs = run[:, None] < run[None, :]
  cosines = np.abs(unit @ unit.T)[pairs]
  largest = float(cosines.max())
  independent = max(2, int(dim * m.effective_share))
  p = laws.p_of_cosine(largest, dim=independent, pairs=cosines.size)
  measured = (
    f'noise of {runs} runs of {rounds} rounds has a correlation of '
    f'{largest:.3f} at most'
  )
  if p >= ALPHA:
    return hold('noise_between_runs', measured, p)
  same_round = pairs & (
    np.tile(np.arange(rounds), runs)[:, None]
    == np.tile(np.arange(rounds), runs)[None, :]
  )
  share = float(np.mean(np.abs(unit @ unit.T)[same_round] > _ALIKE))
  anywhere = float(np.mean(cosines > _ALIKE))
  if share > 0.99:
    cause, likely, cure = (
      'fixed_seed',
      'the noise has a fixed seed, so that whoever knows it, or sees two runs, can '
      'subtract the noise',
      'Seed from the operating system (secrets.randbits(128)), not by a constant.',
    )
  elif anywhere > 0:
    cause, likely, cure = (
      'few_seeds',
      f'noise is drawn from about {1 / anywhere:.0f} seeds, or from a clock; two '
      'releases with equal noise reveal the difference of their data',
      'Seed once from the operating system with 128 bits, and go on from there.',
    )
  else:
    cause, likely, cure = (
      'shared_part',
      'part of the noise is shared between runs',
      'Draw all noise afresh.',
    )
  equal = int(np.sum(cosines > _ALIKE))
  measured = (
    f'{equal:,} of {cosines.size:,} pairs of releases of different runs have the '
    f'same noise; the largest correlation is {largest:.3f}'
  )
  return break_rule(
    'noise_between_runs',
    cause,
    measured,
    likely=likely,
    cure=cure,
    mu=np.inf if equal else None,
    p_value=p,
  )


def check_coordinates(m: Measurements) -> Result:
  """Rule: coordinates have independent noise, and each has some."""
  noise = m.all_noise
  if noise.samples.size < 2000 or noise.samples.shape[1] < 16:
    raise NotChecked('it needs 16 coordinates and 2,000 samples of noise')
  if noise.common_std == 0:
    raise NotChecked('there is no noise')
  rows = noise.standardized()
  p_lag, lag, correlation = laws.p_of_lags(rows)
  p_shape, effective = laws.p_of_sphericity(rows)
  p_least, worst, variance = laws.p_of_smallest_variance(rows)
  p = min(1.0, 3 * min(p_lag, p_shape, p_least))
  measured = (
    f'noise has {effective:,.0f} effective of {rows.shape[1]:,} dimensions; the '
    f'largest correlation of coordinates is {correlation:.3f}, {lag} apart; the '
    f'least variance is {variance:.2f} of the mean'
  )
  if p >= ALPHA:
    return hold('noise_between_coordinates', measured, p)
  is_empty = 3 * p_least < ALPHA and variance < 1e-6
  if is_empty:
    cause, likely, cure = (
      'coordinate_without_noise',
      f'coordinate {worst} of those with noise has none: noise is masked or sparse',
      'Add noise to every coordinate released.',
    )
  elif max(abs(correlation), 1 - effective / rows.shape[1]) > 0.02:
    where = _name_tensors(m, lag)
    cause, likely, cure = (
      'noise_reused_between_parameters',
      f'the same random numbers serve several coordinates{where}: a key or seed is '
      'used again for each tensor, or noise is broadcast',
      'Use a key of its own for each tensor, and draw the full shape.',
    )
  else:
    cause, likely, cure = (
      'uneven_noise',
      'coordinates have different variances, or are slightly correlated',
      'Draw independent noise of one variance.',
    )
  return break_rule(
    'noise_between_coordinates',
    cause,
    measured,
    likely=likely,
    cure=cure,
    # A client may spend its norm where noise cancels.
    mu=None if cause == 'uneven_noise' else np.inf,
    p_value=p,
  )


def check_law(m: Measurements) -> Result:
  """Rule: noise is Gaussian, as the claimed ε assumes."""
  noise = m.all_noise
  if noise.samples.size < 2000 or noise.common_std == 0:
    raise NotChecked('it needs 2,000 samples of noise')
  if m.effective_share < 1:
    raise NotChecked('noise repeats; see noise_between_coordinates')
  p, what = laws.p_of_gaussian(noise.standardized().ravel())
  if p >= ALPHA:
    return hold('noise_law', 'noise looks Gaussian', p)
  return break_rule(
    'noise_law',
    'not_gaussian',
    f'noise is not Gaussian: {what}',
    likely=(
      'it has another law, is cut off, wraps around, or its scale changes between '
      'rounds'
    ),
    cure='Draw Gaussian noise, or account for the law that it has.',
    p_value=p,
  )


def _name_tensors(m: Measurements, lag: int) -> str:
  offsets = np.cumsum([0, *m.layout.kept_sizes])[:-1]
  total = sum(m.layout.kept_sizes)
  for a, b in itertools.combinations(range(len(offsets)), 2):
    if lag in (offsets[b] - offsets[a], total - offsets[b] + offsets[a]):
      return f' (tensor {b} repeats tensor {a})'
  return ''
