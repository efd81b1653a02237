"""Is noise fresh in every coordinate and run, of the claimed law, and of fine steps?"""

from collections.abc import Sequence
import itertools
import math
from typing import NamedTuple

from jaxtyping import Float
import numpy as np
from scipy import stats

from epe_jax.conformance import affine, laws, samples
from epe_jax.conformance.comparison import claimed_mu
from epe_jax.conformance.laws import ALPHA
from epe_jax.conformance.measurements import Measurements
from epe_jax.conformance.noise import norm, split
from epe_jax.conformance.rule import Outcome, rule
from epe_jax.conformance.session import Cohort, NotChecked, Vector

# Coordinates from which on cosines have their law, if noise is not Gaussian, too.
_CORRELATED, _FEWEST = 32, 8
_GRID_RUNS, _MOST_RUNS = 100, 2000
# Times the noise, from which on what is released with it takes digits from it.
_FAR = 1e4
# Share of numbers without updates that have finer last bits than those with them.
_FEW_BITS = 0.02
# Standard deviations within which a number is next to 0, and near it.
_NEXT_TO_0, _NEAR_0 = 1e-6, 0.1
# Coordinates whose last bits are compared, in so many rounds at most.
_LAST_BITS, _MOST_ROUNDS = 64, 10**9


@rule()
def noise_between_runs(m: Measurements) -> Outcome:
  """No run repeats the noise of another."""
  rows, run, t = samples.list_rows(m)
  p_equal, equal = samples.find_repeats(m)
  num, dim = rows.shape
  if num < 2 or dim < 8:
    raise NotChecked('it needs noise of 8 coordinates, or of 8 rounds')
  pairs = run[:, None] < run[None, :]
  unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
  cosines = np.abs(unit @ unit.T)[pairs]
  largest, p_cosine = float(cosines.max()), 1.0
  independent = dim * samples.measure_effective_share(m)
  if independent >= _CORRELATED:
    # Few large values, of noise that is often 0, count as fewer coordinates.
    independent *= min(1.0, 3.5 / float(np.mean(rows**4))) ** 2
    if int(independent) >= _FEWEST:
      p_cosine = laws.p_of_cosine(
        largest, dim=int(independent), pairs=cosines.size
      )
  p = min(1.0, 2 * min(p_equal, p_cosine))
  if p >= ALPHA:
    return Outcome(
      f'noise of {len(samples.sample_steady_rounds(m))} runs has a correlation of '
      f'{largest:.3f} at most between runs',
      p,
    )
  affine.check_processed(m)
  same_round = equal[pairs & (t[:, None] == t[None, :])]
  num_equal = int(np.sum(equal[pairs])) if 2 * p_equal < ALPHA else 0
  measured = (
    f'{num_equal:,} of {cosines.size:,} pairs of releases of different runs have '
    f'the same noise; the largest correlation is {largest:.3f}'
  )
  if not num_equal:
    return Outcome(measured, p, 'shared_part')
  cause = 'fixed_seed' if np.mean(same_round) > 0.99 else 'few_seeds'
  details = {'seeds': cosines.size / num_equal}
  return Outcome(measured, p, cause, math.inf, details=details)


@rule('coordinates', 'level', 'noise', 'ample noise')
def noise_between_coordinates(m: Measurements) -> Outcome:
  """Coordinates have independent noise, and each has some."""
  noise = samples.measure_noise(m)
  rows = noise.standardized()
  p_mean, mean = _test_mean(m)
  if p_mean < ALPHA:
    measured = f'noise has a mean of {mean:.3g} of its root mean square'
    return Outcome(measured, p_mean, 'noise_has_a_mean')
  dim = rows.shape[1]
  p_bare, num_bare = _count_bare(m)
  p_bare = min(1.0, 8 * p_bare)
  if p_bare < ALPHA:
    measured = (
      f'{num_bare:,} of {noise.samples.size:,} numbers of the noise are zero, and '
      'clients move what is released there'
    )
    return Outcome(measured, p_bare, 'number_without_noise', math.inf)
  p_lag, lag, correlation = laws.p_of_lags(rows)
  sizes = laws.spread_sizes(rows)
  p_size, size_lag, of_sizes = laws.p_of_lags(sizes)
  p_sizes, effective_sizes = 1.0, float(dim)
  if dim >= samples.LEVEL_DIM:
    p_sizes, effective_sizes = laws.p_of_dependent_sizes(sizes)
  p_shape, effective = laws.p_of_sphericity(rows)
  p_least, worst, variance = laws.p_of_smallest_variance(rows)
  p_sum, place, sum_variance, num_quiet = _find_quiet_sum(m)
  sum_name = _name_sum(m, place)
  p = min(p_mean, 8 * min(p_lag, p_size, p_sizes, p_shape, p_least, p_sum), 1.0)
  measured = (
    f'noise has {effective:,.0f} effective of {dim:,} dimensions; the '
    f'largest correlation of coordinates is {correlation:.3f}, {lag} apart; the '
    f'least variance is {variance:.2f} of the mean'
  )
  if p >= ALPHA:
    return Outcome(measured, p)
  if 8 * p_sum < ALPHA:
    measured += (
      f'; the sum of {sum_name} has {sum_variance:.2g} of the variance of '
      'independent noise'
    )
    # Each sum without noise takes a dimension; numbers that serve twice take more.
    if sum_variance < 0.5 and effective + num_quiet > 0.9 * dim:
      if not _moves_sum(m, place):
        raise NotChecked(
          f'{measured}, and clients do not move it either, as if releases were centred; '
          'return what comes before'
        )
      std = math.sqrt(sum_variance)
      mu = noise.mu(m.base) / std if std > 1e-3 else math.inf
      return Outcome(measured, p, 'direction_without_noise', mu)
  if 8 * p_least < ALPHA and variance < 1e-6:
    cause, mu = 'coordinate_without_noise', math.inf
  elif 8 * min(p_lag, p_shape, p_least, p_sum) >= ALPHA:
    measured += (
      f'; sizes have {effective_sizes:,.0f} effective dimensions, and a correlation of '
      f'{of_sizes:.3f}, {size_lag} apart'
    )
    affine.check_linear(m)
    cause, mu, lag = 'sizes_depend', None, size_lag
  elif max(abs(correlation), 1 - effective / dim) <= 0.02:
    cause, mu = 'uneven_noise', None
  elif _differs_in_amount_alone(rows):
    sums = np.sum((noise.samples / m.claim.noise_multiplier) ** 2, axis=0)
    sums /= m.layout.factor**2
    least = dim * float(stats.chi2.cdf(sums.min(), len(noise.samples)))
    if least >= ALPHA:
      measured += (
        '; they differ in their noise, and each has what the claim needs'
      )
      return Outcome(measured, min(1.0, least))
    cause, mu = 'uneven_noise', None
  else:
    # A client may spend its norm where the noise cancels.
    cause, mu = 'noise_reused_between_parameters', _measure_quietest(m, lag)
  details = {'coordinate': worst, 'where': _name_tensors(m, lag)}
  return Outcome(measured, p, cause, mu, details=details)


@rule('noise', 'ample noise')
def noise_grid(m: Measurements) -> Outcome:
  """Noise lies on no grid that updates do not lie on, and does not end too early."""
  noise = samples.measure_noise(m)
  if noise.effective_share < 1 or samples.find_repeats(m).p_value < ALPHA:
    raise NotChecked('noise repeats; see the rules of that')
  # As released: what a quiet round has is subtracted from samples of noise.
  runs = min(len(noise.samples), m.plan(0.03, max_runs=_GRID_RUNS))
  # A small tensor has few values among those of others.
  parts = [None, *range(len(noise.tensors))]
  zeros = [*m.release_afresh(m.cohort(m.zero), runs)]
  offset = _find_offset(m, zeros)
  counted = [_count_values(m, zeros, offset, part) for part in parts]
  part = next((i for i, x in enumerate(counted) if x.are_few), 0)
  values, where = counted[part], parts[part]
  p = values.p_value
  step = noise.step
  if m.step and _lies_on(noise.samples, m.step):
    step = m.step  # Finer than a grid that is seen without the claim.
  if not step:
    shown = (
      f'{values.num:.2g} values'
      if values.num
      else 'more values than can be counted'
    )
    if values.are_few:
      # Updates by which values spread no further, if these are on the same grid.
      most = min(1.0, 0.3 * noise.common_std * math.sqrt(m.claim.dim))
      update = 2 * most * m.background[0]
      others = [*m.release_afresh(m.cohort(update), runs)]
      others = _count_values(m, others, offset, where)
      p = min(1.0, len(parts) * laws.p_of_fewer_values(values, others))
      more = f'{others.num:.2g} values' if others.num else 'far more'
      if p < ALPHA:
        affine.check_processed(m)
      place = '' if where is None else f' in {m.name_tensor(where)}'
      measured = (
        f'noise has {shown}{place}, and releases of updates have {more}'
      )
      return Outcome(measured, p, 'noise_of_few_values', math.inf)
    measured = f'noise has {shown}'
    if p >= ALPHA or m.claim.noise != 'gaussian':
      return _compare_last_bits(m, measured) or Outcome(measured, p)
    # What only a client can move beyond the end tells that it was there.
    end = laws.FLOAT32_END
    floor = float(stats.norm.sf(end - claimed_mu(m.claim) * m.claim.distance))
    measured += (
      ', as few as uniform float32 numbers give: none is beyond '
      f'{end} std, so that no ε holds at δ below {floor:.1e}'
    )
    if m.claim.delta > floor:
      return _compare_last_bits(m, measured) or Outcome(measured)
    affine.check_processed(m)
    return Outcome(measured, p, 'noise_ends_early', math.inf)
  measured = (
    f'noise is on a grid of step {step:.3g} {m.unit}, '
    f'{step / noise.common_std:.2g} of its std'
  )
  # Updates are rounded to that grid too, or one can tell them from the noise.
  (released,) = m.release_afresh(m.cohort(m.uniform, m.background), 1)
  # A model that is released with them need not be.
  released = released - m.quiet().release(m.cohort(m.zero))
  if _lies_on(m.layout.keep(released), step):
    return Outcome(f'{measured}, and so are releases')
  measured += ', and releases are not'
  return Outcome(measured, 0.0, 'noise_on_a_grid', math.inf)


def _count_bare(m: Measurements) -> tuple[float, int]:
  """p-value of so many numbers next to 0, and how many; of none if all are left out."""
  noise = samples.measure_noise(m)
  if noise.step or m.claim.noise in ('discrete_gaussian', 'skellam'):
    return 1.0, 0
  stds = np.repeat(noise.stds, m.layout.kept_sizes)
  kept = noise.samples[:, stds > 1e-3 * noise.stds.max()]
  steps = np.rint(np.abs(kept[kept != 0]) / (_NEXT_TO_0 * noise.common_std))
  num = int(np.sum(kept == 0) + np.sum(steps == 0))
  # On a fine grid others are as frequent.
  others = steps[(steps > 0) & (steps < _NEAR_0 / _NEXT_TO_0)].astype(int)
  usual = np.unique(others, return_counts=True)[1].max(initial=1)
  rate = max(10 * _NEXT_TO_0, 3 * int(usual) / kept.size)
  p = float(stats.binom.sf(num - 1, kept.size, min(1.0, rate)))
  if p >= ALPHA:
    return p, num
  # A number that is left out is zero whatever clients send.
  sent = m.cohort(m.uniform, [m.uniform])
  zeros = sum(int(np.sum(x == 0)) for x in m.release_afresh(sent, len(kept)))
  return (1.0 if zeros > num / 4 else p), num


def _differs_in_amount_alone(rows: Float[np.ndarray, 'n d']) -> bool:
  """Whether coordinates are independent once each has unit variance."""
  alone = laws.standardize(rows)
  if alone.shape != rows.shape or len(rows) < 50:
    return False
  return laws.p_of_dependence(alone) >= ALPHA


def _compare_last_bits(m: Measurements, measured: str) -> Outcome | None:
  """The outcome if last bits of releases tell sums from zeros; None if they do not.

  A sum and noise of float32 add up to a multiple of the last bit of the larger of the
  two, so that a small release with a fine last bit tells that there was no update. That of
  float64 numbers is too fine to be looked at.

  Raises:
    NotChecked: they may, and it takes too many rounds to say.
  """
  claim = m.claim
  if claim.noise != 'gaussian' or not m.is_readable:
    return None
  released = m.session.start(claim).release_as_is(m.cohort(m.zero))
  if not np.array_equal(released.astype(np.float32), released):
    return None
  # Each client has a coordinate of its own, and the event is one of that coordinate.
  num = min(claim.num_clients, claim.dim, _LAST_BITS)
  updates = [*np.eye(num, claim.dim)]
  updates += [m.zero] * (claim.num_clients - num)
  sent = Cohort(updates, [1.0] * len(updates))

  def look(cohort: Cohort, runs: int) -> Float[np.ndarray, 'R k']:
    releases = [
      m.session.start(claim).release_as_is(cohort)[:num] for _ in range(runs)
    ]
    return laws.find_last_bits(np.stack(releases))

  few = max(8, math.ceil(400 / num))
  end = look(sent, few).min()
  share = float(np.mean(look(m.cohort(m.zero), few) < end))
  # So many that none is expected less often than once in 10^9.
  least = share * math.exp(-claim.epsilon) / 2
  if share < _FEW_BITS:
    return None
  needed = max(400.0, 21 / least) / num if least else math.inf
  if needed > m.plan(0.15, max_runs=_MOST_ROUNDS):
    raise NotChecked(
      f'{measured}; {share:.2g} of all numbers are no multiple of 2^{end:.0f} if clients '
      f'send zeros, and whether S there tells more than ε, takes {needed:.2g} rounds of '
      'sum and noise in float32; add them in float64, or raise the budget'
    )
  without, those = (
    look(m.cohort(m.zero), few * 10) < end,
    look(sent, math.ceil(needed)) < end,
  )
  hits, others = int(without.sum()), int(those.sum())
  p = laws.p_of_fewer_hits(
    *(hits, without.size, others, those.size, claim.epsilon, claim.delta)
  )
  measured += (
    f'; {hits / without.size:.2g} of all numbers are no multiple of 2^{end:.0f} if clients '
    f'send zeros, and {others} of {those.size:,} if one sends S there'
  )
  if p >= ALPHA:
    return None
  affine.check_processed(m)
  return Outcome(measured, p, 'last_bits_tell', math.inf)


def _measure_quietest(m: Measurements, lag: int) -> float | None:
  """μ of a client that changes what has least noise; None if that has enough.

  That is sought in known noise and measured in other noise: combinations of few
  coordinates, the difference of two, or one frequency of all.
  """
  noise = samples.measure_noise(m)
  known = noise.samples / noise.common_std
  runs = m.plan(0.1, max_runs=_MOST_RUNS)
  other = m.sample_rounds(runs, 1, m.cohort(m.zero))[:, 0] / noise.common_std
  dim = known.shape[1]
  index = np.arange(dim)
  behind = np.roll(known, -lag, axis=1)
  sign = np.sign(np.sum(known * behind)) or 1.0
  power = np.mean(np.abs(np.fft.rfft(known, axis=1)) ** 2, axis=0)
  alike = int(np.argmin(np.mean((known - sign * behind) ** 2, axis=0)))
  pair = (index == alike) - sign * (index == (alike + lag) % dim)
  wave = np.cos(2 * np.pi * np.argmin(power) * index / dim)
  directions = [pair, wave]
  if len(known) > 4 * dim:
    directions.append(np.linalg.eigh(known.T @ known)[1][:, 0])
  stds = [
    float(np.std(other @ direction) / np.linalg.norm(direction))
    for direction in directions
  ]
  least = min(stds)
  if least < 1e-3:
    return math.inf
  mu = noise.mu(m.base) / least
  return mu if mu > claimed_mu(m.claim) else None


def _lies_on(values: Float[np.ndarray, '...'], step: float) -> bool:
  steps = values / step
  return bool(np.abs(steps - np.rint(steps)).max() < 0.02)


def _find_offset(
  m: Measurements, releases: Sequence[Vector]
) -> Float[np.ndarray, 'k']:
  """What is released with noise, where float64 has few digits left for that; else 0."""
  one, other, *_ = map(m.layout.keep, releases)
  if norm(one) < _FAR * norm(one - other):
    return np.zeros_like(one)
  return m.layout.keep(m.quiet().release(m.cohort(m.zero)))


def _count_values(
  m: Measurements,
  releases: Sequence[Vector],
  offset: Float[np.ndarray, 'k'],
  tensor: int | None,
) -> laws.Values:
  """Distinct values of releases, of all coordinates or of a tensor."""
  rows = np.stack([*map(m.layout.keep, releases)])
  if tensor is not None:
    rows = split(rows, m.layout.kept_sizes)[tensor]
    (offset,) = split(offset[None], m.layout.kept_sizes)[tensor]
  return laws.count_values(rows, offset)


@rule('level', 'noise', 'ample noise')
def noise_law(m: Measurements) -> Outcome:
  """Noise has the law that the claimed ε assumes, Gaussian by default."""
  noise = samples.measure_noise(m)
  if noise.effective_share < 1:
    raise NotChecked('noise repeats; see noise_between_coordinates')
  if _test_mean(m)[0] < ALPHA:
    raise NotChecked('noise has a mean; see noise_between_coordinates')
  name = m.claim.noise.replace('_', ' ').title()
  p, difference = samples.compare_law(m, noise)
  if p >= ALPHA:
    return Outcome(f'noise looks {name}', p)
  affine.check_linear(m)
  return Outcome(f'noise is not {name}: {difference}', p, 'not_gaussian')


def _test_mean(m: Measurements) -> tuple[float, float]:
  """p-value of the mean of the noise, as one of eight tests, and the mean."""
  noise = samples.measure_noise(m)
  rows = noise.standardized()
  mean, num = float(np.mean(rows)), noise.count(rows.size)
  return min(1.0, 16 * float(stats.norm.sf(abs(mean) * math.sqrt(num)))), mean


class _Sum(NamedTuple):
  """Of a tensor, or of all; over all coordinates, or along an axis."""

  tensor: int | None = None
  axis: int | None = None


def _name_sum(m: Measurements, place: _Sum) -> str:
  if place.tensor is None:
    return 'all coordinates'
  along = '' if place.axis is None else f' along axis {place.axis}'
  return m.name_tensor(place.tensor) + along


def _moves_sum(m: Measurements, place: _Sum) -> bool:
  """Whether a client that changes all coordinates alike moves such sums."""

  def add_up(vector: Vector) -> Float[np.ndarray, '...']:
    if place.tensor is None:
      return vector.sum(keepdims=True)
    part = m.layout.split(vector)[place.tensor]
    shape = m.claim.shapes[place.tensor]
    return part.reshape(shape).sum(axis=place.axis, keepdims=True)

  k = place.tensor
  update = np.abs(m.uniform if k is None else m.in_tensor(k))
  moved = add_up(m.influence_of(update))
  return norm(moved) > 1e-3 * norm(add_up(update))


def _find_quiet_sum(m: Measurements) -> tuple[float, _Sum, float, int]:
  """p-value of the sum of coordinates that varies least, which it is, its variance.

  And the number of independent sums, of all tensors, that have little noise.
  """
  noise = samples.measure_noise(m)
  found, num_quiet = [], 0
  if len(noise.tensors) > 1:
    rows = noise.standardized()
    variance = float(np.mean(rows.sum(axis=1) ** 2)) / rows.shape[1]
    num = max(1, int(len(rows) * noise.effective_share))
    p = float(stats.chi2.cdf(num * variance, num))
    found.append((p, _Sum(), variance))
  for k, (tensor, shape) in enumerate(zip(noise.tensors, m.claim.shapes)):
    if not noise.stds[k] > 1e-3 * noise.stds.max() or tensor.shape[1] < 2:
      continue
    rows = noise.make_gaussian(tensor / noise.stds[k])
    sums = {_Sum(k): rows.sum(axis=1)}
    if rows.shape[1] == math.prod(shape):
      whole = rows.reshape(len(rows), *shape)
      for axis, size in enumerate(shape):
        if 1 < size < rows.shape[1]:
          sums[_Sum(k, axis)] = whole.sum(axis=axis + 1)
    quiet = [0]
    for place, x in sums.items():
      x = x.reshape(len(rows), -1)
      variance = float(np.mean(x**2)) * x.shape[1] / rows.shape[1]
      # Coordinates that share numbers are fewer.
      num = max(1, int(x.size * noise.effective_share))
      p = float(stats.chi2.cdf(num * variance, num))
      found.append((p, place, variance))
      if variance < 0.5:
        quiet.append(x.shape[1])
    num_quiet += max(quiet)
  p, place, variance = min(
    found, key=lambda x: x[0], default=(1.0, _Sum(), 1.0)
  )
  return min(1.0, max(1, len(found)) * p), place, variance, num_quiet


def _name_tensors(m: Measurements, lag: int) -> str:
  """Names two tensors whose offsets differ by a lag, if there are such."""
  *offsets, total = np.cumsum([0, *m.layout.kept_sizes])
  for a, b in itertools.combinations(range(len(offsets)), 2):
    if lag in (offsets[b] - offsets[a], total - offsets[b] + offsets[a]):
      return f' ({m.name_tensor(b)} repeats {m.name_tensor(a)})'
  return ''
