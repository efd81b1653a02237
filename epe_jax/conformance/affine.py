"""Whether a release is a sum of updates plus noise.

One that is processed together with its noise hides what rules measure: rounded, with
coordinates left out, cut off, or scaled.
"""

from collections.abc import Sequence
import dataclasses
import math

from jaxtyping import Float
import numpy as np
from scipy import stats

from epe_jax.conformance import laws, samples
from epe_jax.conformance.laws import ALPHA, SUSPICION
from epe_jax.conformance.measurements import (
  HUGE,
  MIN_RUNS,
  Measurements,
  Probe,
  measured,
)
from epe_jax.conformance.noise import Noise, norm
from epe_jax.conformance.session import NotChecked

_MAX_RUNS = 16
# Coordinates of which some move others where these are mixed.
_MIXED = 4
# p-value from which on noise is not taken for that of mixed coordinates.
_DEPENDENT = 1e-3
# Runs of which the noise of each coordinate is known to a seventh.
_FOR_STDS = 50


def check_level(m: Measurements) -> None:
  """Raises NotChecked unless all runs have equally much noise, in all coordinates."""
  if is_masked(m):
    raise NotChecked(
      'random coordinates of a release are zero, with noise and updates; return '
      'what comes before they are left out'
    )
  check_rounding(m)
  check_processed(m)
  if is_filtered(m):
    raise NotChecked(
      'coordinates are mixed after the noise is added, such as by smoothing; return '
      'what comes before'
    )
  if is_preconditioned(m):
    raise NotChecked(
      'coordinates are scaled before updates are clipped, and back after the noise is '
      'added; return what comes before they are scaled back'
    )
  if samples.measure_level(m)[0] < ALPHA:
    raise NotChecked('the amount of noise is random; see noise_level')


def check_processed(m: Measurements) -> None:
  """Raises NotChecked if releases are cut off or scaled."""
  if is_processed(m):
    raise NotChecked(
      'releases are cut off or scaled after the noise is added; return what comes '
      'before'
    )


def check_influence(m: Measurements) -> None:
  """Raises NotChecked unless some client has an influence, not lost in rounding."""
  if m.is_readable and norm(m.base) == 0:
    raise NotChecked(
      'the first round is the same whatever one client sends, if the others '
      'send zeros'
    )
  check_rounding(m)


def check_rounding(m: Measurements) -> None:
  """Raises NotChecked if influences are lost as releases are rounded."""
  if not m.is_readable or m.step > m.claim.step:
    return  # What is sent is on the grid to which it is rounded.
  if m.rounding > 0.1:
    raise NotChecked(
      f'releases are rounded by {m.rounding:.2g} {m.unit} by the type of their numbers; '
      'return what is added to a model, not the model'
    )
  try:
    step, base = find_rounding_step(m), np.abs(m.base)
  except NotChecked:
    return  # A rule that needs an influence says so itself.
  if m.step:
    # Clients that agree are rounded alike, and their sum is coarser.
    step = min(step, m.step)
  if math.isinf(step):
    raise NotChecked(
      'the first round is the same whatever clients send; let each call of aggregate '
      'release a round, or claim calls_per_release, and return what comes before '
      'rounding'
    )
  if step and norm(np.maximum(base - step, 0)) <= 0.9 * norm(base):
    raise NotChecked(
      f'releases are rounded to {step:.2g} {m.unit}, in which the influence '
      'of a client is lost; return what comes before rounding'
    )


@measured
def find_rounding_step(m: Measurements) -> float:
  """Step of the grid of releases without noise, whatever clients send.

  It is 0 if there is no grid, and infinite if there is one number only.
  """
  values = []
  for _ in range(math.ceil(32 / m.claim.dim)):
    vector = m.rng.standard_normal(m.claim.dim)
    vector *= m.rng.uniform(0.3, 0.9) / m.claim.measure(vector)
    values.append(m.layout.keep(m.quiet().release(m.cohort(vector, [vector]))))
  return laws.find_divisor(np.concatenate(values))


@measured
def is_exact(m: Measurements) -> bool:
  """Whether two rounds whose updates differ by 1e-6 of S never release the same.

  They are sought where rounding, or a sign, turns from one value to another: there
  noise would decide, whatever is left of it elsewhere.
  """
  if samples.measure_noise(m).common_std or not m.is_readable:
    return False
  u = m.in_coordinate(int(np.argmax(np.abs(m.base_update))))
  make = lambda size: m.cohort(size * u, [size * u])
  low, high = -1.0, 1.0
  first, last = (m.quiet().release(make(x)) for x in (low, high))
  if np.array_equal(first, last):
    return False
  while high - low > 1e-6:
    middle = (low + high) / 2
    released = m.quiet().release(make(middle))
    if np.array_equal(released, first):
      low = middle
    else:
      high, last = middle, released
  error = 0.1 * np.abs(last - first).max()
  return all(
    np.abs(x - expected).max() < error
    for size, expected in ((low, first), (high, last))
    for x in m.release_afresh(make(size), 20)
  )


@measured
def skips_zeros(m: Measurements) -> bool:
  """Whether a client counts for all among zeros, and for one among small updates."""
  n = m.claim.num_clients
  if not m.is_readable or n == 1:
    return False
  among_small = norm(m.influence_of(m.base_update, [1e-3 * m.uniform]))
  return abs(norm(m.base) / (n * among_small or math.inf) - 1) < 0.1


@measured
def is_masked(m: Measurements) -> bool:
  """Whether random coordinates of a release are zero, whatever clients send."""
  early = samples.sample_early_rounds(m)[:, 0]
  some = early[:, np.any(early != 0, axis=0)]
  share = float(np.mean(some == 0)) if some.size else 0.0
  drawn = some[some != 0]
  # Noise on a grid is zero now and then.
  if share < 0.01 or laws.find_step(drawn / np.sqrt(np.mean(drawn**2))):
    return False
  cohort = m.cohort(m.uniform, [m.uniform])
  num = 6 + 64 // m.claim.dim
  zeros = [np.mean(x == 0) for x in m.release_afresh(cohort, num)]
  return float(np.mean(zeros)) > share / 2


@measured
def is_filtered(m: Measurements) -> bool:
  """Whether an update in one coordinate moves others, whose noise is correlated."""
  if not m.is_readable:
    return False
  noise = samples.measure_noise(m)
  if noise.common_std == 0 or m.claim.dim == 1:
    return False
  rows = noise.standardized()
  tests = laws.p_of_dependence(rows), laws.p_of_smallest_variance(rows)[0]
  if min(tests) >= _DEPENDENT or samples.find_repeats(m).p_value < ALPHA:
    return False
  # Perhaps of one tensor alone, or of what two of them share.
  places = list(m.rng.integers(m.claim.dim, size=_MIXED))
  ends = np.cumsum(m.claim.sizes)
  places += [end - 1 for end in ends[:_MIXED]]
  if m.layout.kept_sizes == m.claim.sizes and rows.shape[1] == m.claim.dim:
    _, lag, _ = laws.p_of_lags(rows)
    alike = np.mean(rows * np.roll(rows, -lag, axis=1), axis=0)
    places.append(int(np.argmax(np.abs(alike))))
  # Where there is no noise, such as in a count, none was mixed.
  sizes = np.abs(noise.samples).max(axis=0)
  has_noise = sizes > 1e-3 * sizes.max()
  for k in places:
    moved = m.influence_of(m.in_coordinate(int(k)))
    others = np.where(np.arange(moved.size) == k, 0.0, moved)
    least = 0.02 * max(norm(moved), norm(m.base))
    if norm(m.layout.keep(others)[has_noise]) > least:
      return True
  return False


def check_linear(m: Measurements) -> None:
  """Raises NotChecked unless half an update moves releases half as far."""
  m.check_quiet()
  if m.step:
    return
  u = m.base_update
  half, whole = (m.influence_of(x) for x in (u / 2, u))
  if norm(2 * half - whole) > 0.05 * norm(whole):
    raise NotChecked(
      'half an update does not move releases half as far, so that they are no sum plus '
      'noise, whose law is not known; return what comes before'
    )


def check_factor(m: Measurements) -> None:
  """Raises NotChecked if releases of the same updates are multiples of each other."""
  if m.is_readable:
    return
  u = m.uniform
  one, other = (m.quiet().release(m.cohort(u, [u])) for _ in range(2))
  cosine = float(one @ other) / (norm(one) * norm(other) or math.inf)
  if cosine > 1 - 1e-6:
    raise NotChecked(
      'sum and noise are multiplied with a factor that is random, or follows from the '
      'release; return what comes before'
    )


@measured
def is_preconditioned(m: Measurements) -> bool:
  """Whether large updates move coordinates of a tensor further if these have more noise."""
  noise = samples.measure_noise(m)
  is_whole = m.layout.kept_sizes == m.claim.sizes
  if not (m.is_readable and is_whole and len(noise.samples) >= _FOR_STDS):
    return False
  stds = np.sqrt(np.mean(noise.samples**2, axis=0))
  least, start = 1 + 10 / math.sqrt(2 * len(noise.samples)), 0
  for size in m.claim.sizes:
    order = start + np.argsort(stds[start : start + size])
    start, num = start + size, min(3, size // 2)
    ends = order[:num].tolist(), order[size - num :].tolist()
    low, high = (float(np.mean(stds[k])) if num else 1.0 for k in ends)
    if high < least * low or not low:
      continue
    moved = [
      np.mean([abs(m.influence_of(HUGE * m.in_coordinate(i))[i]) for i in k])
      for k in ends
    ]
    if moved[1] > math.sqrt(high / low) * moved[0]:
      return True
  return False


@measured
def is_processed(m: Measurements) -> bool:
  """Whether releases are cut off, or scaled, together with their noise.

  Then all releases have the same norm or are signs, n clients that agree move a
  noisy release less than one without noise, a coordinate that they move has less
  noise, or noise falls short only where it is large. A mechanism that refuses what is
  sent to find out is assumed not to do so.
  """
  try:
    return _is_scaled(m)
  except NotChecked:
    return False


def _is_scaled(m: Measurements) -> bool:
  first = samples.sample_early_rounds(m)[:, 0]
  is_nothing = np.all(first == 0, axis=1)
  # On a coarse grid, few numbers are as often zero as they are any other.
  others = np.unique(first[~is_nothing], axis=0, return_counts=True)[1]
  if np.sum(is_nothing) > 3 * others.max(initial=0) and not np.all(is_nothing):
    return True  # Some rounds are left out, as if by what they would release.
  unique = samples.list_unique_samples(m)
  norms = np.linalg.norm(unique, axis=1)
  if len(unique) < MIN_RUNS or not norms.all():
    return False
  if m.layout.kept_sizes != m.claim.sizes:
    nothing = m.quiet().release(m.cohort(m.zero))
    releases = [*m.release_afresh(m.cohort(m.zero), 8)]
    norms = [norm(x - nothing) for x in releases]
    if _have_one_size(m, [norm(x) for x in releases]):
      return True
  sizes = np.abs(unique)
  low, high = np.quantile(sizes, (0.1, 0.9))
  if sizes.size >= 20 and high - low < 1e-3 * high:
    return True  # Signs, or the first step of Adam.
  if _have_one_size(m, norms):
    return True
  if not m.is_readable or norm(m.base) == 0:
    return False
  noise = samples.measure_noise(m)
  if _is_random(m, noise):
    # If next to none is claimed it is not, if a noisy sum is over a noisy count.
    faint = Noise(m.layout, _sample(m, 1e-3, len(noise.samples)))
    return faint.common_std > 0 and not _is_random(m, faint)
  return _is_short_where_large(m, unique) or _moves_less(m, unique)


def _have_one_size(
  m: Measurements, norms: Sequence[float] | Float[np.ndarray, 'n']
) -> bool:
  """Whether releases of several coordinates all have the same norm."""
  return m.claim.dim > 1 and bool(np.ptp(norms) < 1e-6 * np.mean(norms))


def _sample(
  m: Measurements, multiplier: float, runs: int
) -> Float[np.ndarray, 'R k']:
  """Noise if that much is claimed, in units of min(1, z)."""
  multiplier *= min(1.0, m.claim.noise_multiplier)
  claim = dataclasses.replace(m.claim, noise_multiplier=multiplier)
  return m.sample_rounds(runs, 1, m.cohort(m.zero), claim)[:, 0]


def _is_random(m: Measurements, noise: Noise) -> bool:
  """Whether runs have more noise and less, or noise deviates from the claimed law."""
  if noise.samples.shape[1] >= samples.LEVEL_DIM:
    return samples.compare_levels(m, noise.samples)[0] < ALPHA
  if noise.samples.shape[1] < MIN_RUNS and noise.samples.size >= samples.AMPLE:
    return samples.compare_law(m, noise)[0] < SUSPICION
  rows = noise.standardized()
  # Its law is that of many coordinates.
  if min(rows.shape) < MIN_RUNS or np.any(np.ptp(rows, axis=1) == 0):
    return False
  return bool(stats.bartlett(*rows).pvalue < SUSPICION)


def _is_short_where_large(
  m: Measurements, unique: Float[np.ndarray, 'R k']
) -> bool:
  """Whether there is as much noise as claimed if next to none is, and else less."""
  z = m.claim.noise_multiplier
  base = m.layout.length(m.base) / (z * m.claim.mu)
  runs = m.plan(0.02, max_runs=max(8, 256 // m.claim.dim))
  low, high = 0.01 / math.sqrt(m.claim.dim), 8 * max(1.0, z)
  faint, loud = (_sample(m, x, runs) / (x * min(1.0, z)) for x in (low, high))
  square = float(np.mean(faint**2))
  error = 0.02 + 5 / math.sqrt(2 * faint.size)
  if not (square and abs(math.sqrt(square) / base - 1) < error):
    return False
  share = samples.measure_effective_share(m)
  ratios = [
    stats.f.cdf(
      float(np.mean(x**2)) / square / 0.96,
      *(y.size * share for y in (x, faint)),
    )
    for x in (unique / z, loud)
  ]
  if min(ratios) >= SUSPICION:
    return False
  return any(_is_cut_off(m, x) for x in (unique, loud))


def _is_cut_off(m: Measurements, sampled: Float[np.ndarray, 'R k']) -> bool:
  """Whether noise has another law than the claimed one, or the same norm in all runs.

  A formula by which it is too small where much is claimed leaves it its law.
  """
  if _have_one_size(m, np.linalg.norm(sampled, axis=1)):
    return True
  return samples.compare_law(m, Noise(m.layout, sampled))[0] < SUSPICION


def _moves_less(m: Measurements, unique: Float[np.ndarray, 'R k']) -> bool:
  """Whether clients that agree move noisy releases less, or leave less noise."""
  u, keep = m.base_update, m.layout.keep
  cohort = m.cohort(u, [u])
  quiet = keep(m.influence(Probe(cohort, m.cohort(m.zero))))
  nothing = keep(m.quiet().release(m.cohort(m.zero)))
  direction = quiet / np.linalg.norm(quiet)
  runs = m.plan(0.03, max_runs=min(len(unique), _MAX_RUNS))
  noisy = [
    float((keep(x) - nothing) @ direction)
    for x in m.release_afresh(cohort, runs)
  ]
  spread = float(np.std(noisy, ddof=1))
  missing = 0.8 * float(np.linalg.norm(quiet)) - float(np.mean(noisy))
  t = missing * math.sqrt(runs) / spread if spread else math.inf * missing
  if stats.t.sf(t, runs - 1) < SUSPICION:
    return True
  # Kept where it is in the vector, too.
  k = int(np.argmax(np.abs(u[: -(-m.layout.kept_sizes[0] // 2)])))
  one = m.in_coordinate(k)
  moved = [x[k] for x in m.release_afresh(m.cohort(one, [one]), runs)]
  usual = float(np.mean(unique[:, k] ** 2))
  ratio = float(np.var(moved, ddof=1)) / usual if usual else 1.0
  return bool(stats.f.cdf(ratio, runs - 1, len(unique)) < SUSPICION)
