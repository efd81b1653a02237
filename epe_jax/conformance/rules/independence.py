"""Rules about the noise itself: fresh in every coordinate and run, and of its law."""

from __future__ import annotations

import itertools
import math

import numpy as np
from scipy import stats

from epe_jax.conformance import laws
from epe_jax.conformance.laws import ALPHA
from epe_jax.conformance.measurements import Measurements
from epe_jax.conformance.noise import Noise
from epe_jax.conformance.rule import Cause, Outcome, rule
from epe_jax.conformance.samples import AMPLE
from epe_jax.conformance.session import NotChecked

# Coordinates from which on cosines have their law, if noise is not Gaussian, too.
_CORRELATED, _FEWEST = 32, 8
_GRID_RUNS = 100

_FIXED_SEED = Cause(
  'fixed_seed',
  'the noise has a fixed seed, so that anyone who knows it, or sees two runs, can '
  'subtract the noise',
  'Seed from the operating system (secrets.randbits(128)), not by a constant.',
)
_SHARED_PART = Cause(
  'shared_part',
  'part of the noise is shared between runs',
  'Draw all noise afresh.',
)
_GRID = Cause(
  'noise_on_a_grid',
  'noise is a multiple of a step, and updates are not: what is left of a release '
  'after division by that step is that of the updates',
  'Round updates to the grid before noise is added.',
)
_ENDS_EARLY = Cause(
  'noise_ends_early',
  'noise is made of float32 uniform numbers, and there are 2^23: it has an end, '
  'beyond which only the update of a client can move a release',
  'Draw noise in float64, or sum several draws.',
)
_NO_NOISE_IN_SUM = Cause(
  'direction_without_noise',
  'noise is centred, or projected: what a client changes in one direction is '
  'released with little noise, or none',
  'Add independent noise to every coordinate, and subtract no mean from it.',
)
_UNEVEN = Cause(
  'uneven_noise',
  'coordinates have different variances, or are slightly correlated',
  'Draw independent noise of one variance.',
)
_HAS_MEAN = Cause(
  'noise_has_a_mean',
  'the noise has a mean other than 0, which protects nobody and counts as noise where '
  'its size is measured',
  'Draw noise of mean 0.',
)
_NOT_GAUSSIAN = Cause(
  'not_gaussian',
  'it has another law, is cut off, wraps around, or its scale changes between '
  'rounds',
  'Draw noise of the claimed law, or account for the law that it has.',
)


@rule
def noise_between_runs(m: Measurements) -> Outcome:
  """No run repeats the noise of another."""
  rows, _ = m.noise_rows
  p_equal, equal, (run, t) = m.repeats
  num, dim = rows.shape
  if num < 2 or dim < 8:
    raise NotChecked('it needs noise of 8 coordinates, or of 8 rounds')
  pairs = run[:, None] < run[None, :]
  unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
  cosines = np.abs(unit @ unit.T)[pairs]
  largest, p_cosine = float(cosines.max()), 1.0
  if dim * m.effective_share >= _CORRELATED:
    # Few large values, of noise that is often 0, count as fewer coordinates.
    share = min(1.0, 3.5 / float(np.mean(rows**4))) ** 2
    independent = int(dim * m.effective_share * share)
    if independent >= _FEWEST:
      p_cosine = laws.p_of_cosine(largest, dim=independent, pairs=cosines.size)
  p = min(1.0, 2 * min(p_equal, p_cosine))
  if p >= ALPHA:
    return Outcome(
      f'noise of {len(m.steady_rounds)} runs has a correlation of {largest:.3f} '
      'at most between runs',
      p,
    )
  same_round = equal[pairs & (t[:, None] == t[None, :])]
  num_equal = int(np.sum(equal[pairs])) if 2 * p_equal < ALPHA else 0
  if num_equal and np.mean(same_round) > 0.99:
    cause = _FIXED_SEED
  elif num_equal:
    num_seeds = cosines.size / num_equal
    cause = Cause(
      'few_seeds',
      f'noise is drawn from about {num_seeds:.0f} seeds, or from a clock; two '
      'releases with equal noise reveal the difference of their data',
      'Seed once from the operating system with 128 bits, and go on from there.',
    )
  else:
    cause = _SHARED_PART
  measured = (
    f'{num_equal:,} of {cosines.size:,} pairs of releases of different runs have '
    f'the same noise; the largest correlation is {largest:.3f}'
  )
  return Outcome(measured, p, cause, math.inf if num_equal else None)


@rule
def noise_between_coordinates(m: Measurements) -> Outcome:
  """Coordinates have independent noise, and each has some."""
  m.check_level()
  noise = m.ample_noise
  _check_size(noise)
  if noise.common_std == 0:
    raise NotChecked('there is no noise')
  rows = noise.standardized()
  p_mean, mean = _test_mean(m)
  if p_mean < ALPHA:
    measured = f'noise has a mean of {mean:.3g} of its root mean square'
    return Outcome(measured, p_mean, _HAS_MEAN)
  dim = rows.shape[1]
  p_lag, lag, correlation = laws.p_of_lags(rows)
  p_shape, effective = laws.p_of_sphericity(rows)
  p_least, worst, variance = laws.p_of_smallest_variance(rows)
  p_sum, sum_name, sum_variance, num_quiet = _find_quiet_sum(m)
  p = min(1.0, p_mean, 5 * min(p_lag, p_shape, p_least, p_sum))
  measured = (
    f'noise has {effective:,.0f} effective of {dim:,} dimensions; the '
    f'largest correlation of coordinates is {correlation:.3f}, {lag} apart; the '
    f'least variance is {variance:.2f} of the mean'
  )
  if p >= ALPHA:
    return Outcome(measured, p)
  if 5 * p_sum < ALPHA:
    measured += (
      f'; the sum of {sum_name} has {sum_variance:.2g} of the variance of '
      'independent noise'
    )
  # Each sum without noise takes a dimension; numbers that serve twice take more.
  is_whole = effective + num_quiet > 0.9 * dim
  if 5 * p_sum < ALPHA and sum_variance < 0.5 and is_whole:
    cause = _NO_NOISE_IN_SUM
    mu = math.inf if sum_variance < 1e-6 else None
    return Outcome(measured, p, cause, mu)
  if 5 * p_least < ALPHA and variance < 1e-6:
    cause = Cause(
      'coordinate_without_noise',
      f'coordinate {worst} of those with noise has none: noise is masked or sparse',
      'Add noise to every coordinate released.',
    )
  elif max(abs(correlation), 1 - effective / dim) > 0.02:
    where = _name_tensors(m, lag)
    cause = Cause(
      'noise_reused_between_parameters',
      f'the same random numbers serve several coordinates{where}: a key or seed is '
      'used again for each tensor, or noise is broadcast',
      'Use a key of its own for each tensor, and draw the full shape.',
    )
  else:
    cause = _UNEVEN
  # A client may spend its norm where the noise cancels.
  return Outcome(measured, p, cause, None if cause is _UNEVEN else math.inf)


@rule
def noise_grid(m: Measurements) -> Outcome:
  """Noise lies on no grid that updates do not lie on, and does not end too early."""
  noise = m.ample_noise
  if noise.common_std == 0:
    raise NotChecked('there is no noise')
  _check_size(noise)
  if m.effective_share < 1 or m.repeats[0] < ALPHA:
    raise NotChecked('noise repeats; see the rules of that')
  # As released: what a quiet round has is subtracted from samples of noise.
  zeros = m.cohort(m.zero)
  runs = min(len(noise.samples), m.plan(0.03, rounds=1, max_runs=_GRID_RUNS))
  released = np.stack([*map(m.layout.keep, m.release_afresh(zeros, runs))])
  values, p = laws.count_values(released)
  shown = (
    'more values than can be counted'
    if values is None
    else f'{values:.2g} values'
  )
  measured = f'noise has {shown}'
  if not noise.step:
    if p >= ALPHA or m.claim.noise != 'gaussian':
      return Outcome(measured, p)
    # What only a client can move beyond the end tells that it was there.
    end = laws.FLOAT32_END
    floor = float(stats.norm.sf(end - m.claimed_mu * m.claim.distance))
    measured += (
      f', as few as uniform float32 numbers give: none is beyond {end} std, so that no '
      f'ε holds at δ below {floor:.1e}'
    )
    if m.claim.delta > floor:
      return Outcome(measured)
    return Outcome(measured, p, _ENDS_EARLY, math.inf)
  measured = (
    f'noise is on a grid of step {noise.step:.3g} {m.unit}, '
    f'{noise.step / noise.common_std:.2g} of its std'
  )
  # Updates are rounded to that grid too, or one can tell them from the noise.
  run = m.session.start(m.claim)
  steps = (
    m.layout.keep(run.release(m.cohort(m.uniform, m.background))) / noise.step
  )
  if np.abs(steps - np.rint(steps)).max() < 0.02:
    return Outcome(f'{measured}, and so are releases')
  return Outcome(f'{measured}, and releases are not', 0.0, _GRID, math.inf)


@rule
def noise_law(m: Measurements) -> Outcome:
  """Noise has the law that the claimed ε assumes, Gaussian by default."""
  m.check_level()
  noise = m.ample_noise
  if noise.common_std == 0:
    raise NotChecked('there is no noise')
  _check_size(noise)
  if m.effective_share < 1:
    raise NotChecked('noise repeats; see noise_between_coordinates')
  if _test_mean(m)[0] < ALPHA:
    raise NotChecked('noise has a mean; see noise_between_coordinates')
  name = m.claim.noise.replace('_', ' ').title()
  p, difference = m.law
  if p >= ALPHA:
    return Outcome(f'noise looks {name}', p)
  return Outcome(f'noise is not {name}: {difference}', p, _NOT_GAUSSIAN)


def _check_size(noise: Noise) -> None:
  """Checks that there are enough samples for the law of the noise."""
  if noise.samples.size < AMPLE:
    raise NotChecked(f'it needs {AMPLE:,} samples of noise')


def _test_mean(m: Measurements) -> tuple[float, float]:
  """p-value of the mean of the noise, as one of five tests, and the mean."""
  rows = m.ample_noise.standardized()
  mean, num = float(np.mean(rows)), m.ample_noise.count(rows.size)
  return min(1.0, 10 * float(stats.norm.sf(abs(mean) * math.sqrt(num)))), mean


def _find_quiet_sum(m: Measurements) -> tuple[float, str, float, int]:
  """p-value of the sum of coordinates that varies least, its name, its variance.

  And the number of independent sums, of all tensors, that have little noise.
  """
  noise = m.ample_noise
  found, num_quiet = [], 0
  for k, (tensor, shape) in enumerate(zip(noise.tensors, m.claim.shapes)):
    if not noise.stds[k] > 1e-3 * noise.stds.max() or tensor.shape[1] < 2:
      continue
    rows = noise.make_gaussian(tensor / noise.stds[k])
    sums = {f'tensor {k}': rows.sum(axis=1)}
    if rows.shape[1] == math.prod(shape):
      whole = rows.reshape(len(rows), *shape)
      for axis, size in enumerate(shape):
        if 1 < size < rows.shape[1]:
          sums[f'tensor {k} along axis {axis}'] = whole.sum(axis=axis + 1)
    quiet = [0]
    for name, x in sums.items():
      x = x.reshape(len(rows), -1)
      variance = float(np.mean(x**2)) * x.shape[1] / rows.shape[1]
      # Coordinates that share numbers are fewer; see `effective_share`.
      num = max(1, int(x.size * m.effective_share))
      found.append((float(stats.chi2.cdf(num * variance, num)), name, variance))
      if variance < 0.5:
        quiet.append(x.shape[1])
    num_quiet += max(quiet)
  if not found:
    return 1.0, '', 1.0, 0
  p, name, variance = min(found)
  return min(1.0, len(found) * p), name, variance, num_quiet


def _name_tensors(m: Measurements, lag: int) -> str:
  """Names two tensors whose offsets differ by a lag, if there are such."""
  offsets = np.cumsum([0, *m.layout.kept_sizes])[:-1]
  total = sum(m.layout.kept_sizes)
  for a, b in itertools.combinations(range(len(offsets)), 2):
    if lag in (offsets[b] - offsets[a], total - offsets[b] + offsets[a]):
      return f' (tensor {b} repeats tensor {a})'
  return ''
