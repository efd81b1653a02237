"""What several rounds reveal of one client, and what a restored run repeats.

With influences m of a client on T rounds and the covariance Σ of their noise, the
attacker who weights rounds best has μ = sqrt(mᵀ Σ⁻¹ m). That is 1/z for momentum
after the noise, less for trees of noise, more for momentum before it, and infinite
if noise is used twice. Of a client that takes part more often, m is the sum.
"""

from collections.abc import Sequence
import contextlib
import copy
import functools
import math
from typing import NamedTuple

from jaxtyping import Float
import numpy as np

from epe_jax.conformance import comparison, laws, samples
from epe_jax.conformance.laws import ALPHA
from epe_jax.conformance.measurements import (
  HUGE,
  Measurements,
  measured,
)
from epe_jax.conformance.noise import norm, split
from epe_jax.conformance.rule import Outcome, require, rule
from epe_jax.conformance.session import (
  Cohort,
  NotChecked,
  check_finite,
)

_LONG_RUNS, _REPEATS = 2, 4
# Rounds in which later ones are compared with the first.
_MAX_LATER = 16
_LATE_RUNS = 16
# Arithmetic moves later rounds by no more than this, in influences of a client.
_MAX_CARRIED = 0.02
# Noise over what a client needs, which is rounding, in so many rounds.
_BARE, _MAX_BARE = 1e-3, 8


class _Worst(NamedTuple):
  """What rounds together reveal of a client of round `start`.

  μ is measured with other noise than that by which `start` was found to be the worst of
  many; its p-value is that of the largest with all of it.
  """

  mu: float
  p_value: float
  start: int
  rounds: int


class _Joint(NamedTuple):
  """What few rounds of many runs reveal, and as many rounds as can be of few.

  Attributes:
    impulse: influence of a client of round 0 on each round.
    samples: of noise.
    worst: client by each of these.
  """

  impulse: Float[np.ndarray, 'T d']
  samples: Sequence[Float[np.ndarray, '_ _ k']]
  worst: Sequence[_Worst]


@rule('rounds', 'gaussian noise', 'level')
def rounds(m: Measurements) -> Outcome:
  """All rounds together reveal no more of a client than 1/z."""
  m.session.check_constants()
  one_seed = len(samples.find_unique_runs(m)) == 1
  if not one_seed:
    require(m, 'runs that differ')
  if m.is_readable and _find_bare_round(m):
    raise NotChecked('a tensor has no noise in some rounds; see later_rounds')
  joint = measure_joint(m, one_seed=one_seed)
  p = min(1.0, len(joint.worst) * min(x.p_value for x in joint.worst))
  # Where several are significant, that of most rounds tells the whole μ.
  least = ALPHA / len(joint.worst)
  worst = min(joint.worst, key=lambda x: (max(x.p_value, least), -x.mu))
  lasting = [norm(x) for x in joint.impulse]
  measured = (
    f'a client {_describe(m, worst.start)} has μ of about {worst.mu:.3g} in {worst.rounds} '
    f'rounds, where 1/z = {1 / m.claim.noise_multiplier:.4g}; its influence is '
    + ', '.join(f'{x:.3g}' for x in lasting[:3])
    + ' in the rounds from its own on'
  )
  p_reuse, what, cause = _find_reuse(m, joint)
  p = min(1.0, 2 * p)
  if min(p, 2 * p_reuse) < ALPHA and not _add_up(m):
    raise NotChecked(
      'what clients of two rounds change does not add up, such as in a median of '
      'rounds, so that influences with noise are not those without'
    )
  if 2 * p_reuse < ALPHA:
    mu = math.inf if cause == 'noise_reused_between_rounds' else None
    return Outcome(what, min(1.0, 2 * p_reuse), cause, mu)
  if p >= ALPHA:
    return Outcome(measured, p)
  cause = 'noise_depends_between_rounds'
  if m.claim.participations > 1:
    cause = 'sensitivity_of_participations'
  elif max(lasting[1:]) > 1e-3:
    cause = 'momentum_before_noise'
  return Outcome(measured, p, cause, worst.mu)


@rule('rounds', 'level', 'readable')
def later_rounds(m: Measurements) -> Outcome:
  """An update that is clipped moves no later round, and is clipped in each."""
  num = _count_rounds(m, _MAX_LATER)
  if bare := _find_bare_round(m):
    return Outcome(bare, 0.0, 'tensor_without_noise', math.inf)
  huge, zeros = m.cohort(HUGE * m.base_update), m.cohort(m.zero)
  nothing = _release(m, [zeros] * num)
  # Rounds that may clip by another norm than the first one, or not at all.
  whole = m.cohort(m.base_update)
  often = _release(m, [huge] * num) - _release(m, [whole] * num)
  suspect = int(np.argmax(np.linalg.norm(often, axis=1)))
  late = {}
  for t in sorted({0, suspect, num - 1}):
    late[t] = _release(m, [zeros] * t + [huge])[-1] - nothing[t]
  carried = _measure_carried_rest(m)
  worst = max(late, key=lambda t: norm(late[t]))
  first = norm(late[0])
  measured = (
    f'an update that is clipped moves the following {num - 1} rounds by '
    f'{carried:.2g} {m.unit} more than one that is not; in round {worst} it moves '
    f'its own by {norm(late[worst]):.4g}, in round 0 by {first:.4g}'
  )
  if carried > _MAX_CARRIED:
    return Outcome(
      measured, cause='clipped_rest_is_kept', mu=_add_to_own_round(m, carried)
    )
  if norm(late[worst]) <= 1.02 * first:
    return Outcome(measured)
  # Noise that grows alike, as with a learning rate, hides it as well.
  runs = m.plan(0.1, rounds=worst + 1, max_runs=_LATE_RUNS)
  noise = comparison.sample_noise(m, zeros, runs=runs, rounds=worst + 1)
  mu, p = comparison.compare(m, late[worst], noise)
  if p >= ALPHA:
    return Outcome(measured, p)
  return Outcome(measured, p, 'clipping_ends', mu)


@measured
def _find_bare_round(m: Measurements) -> str:
  """Says which tensor that clients move has no noise in a later round; '' if none."""
  num, zeros = _count_rounds(m, _MAX_BARE), m.cohort(m.zero)

  def measure(runs: int) -> Float[np.ndarray, 'L T']:
    tensors = split(m.sample_rounds(runs, num, zeros), m.layout.kept_sizes)
    squares = [np.mean(t**2, axis=(0, 2)) for t in tensors]
    return np.sqrt(np.stack(squares)) / m.claim.noise_multiplier

  stds = measure(1)
  for k, t in np.argwhere((stds < _BARE) & (stds[:, :1] > 0)):
    sent, before = m.cohort(m.in_tensor(int(k))), [zeros] * int(t)
    moved = _release(m, [*before, sent])[-1] - _release(m, [*before, zeros])[-1]
    influence = m.layout.norms(moved)[k]
    # A few numbers are small by chance, but not often.
    if influence > _MAX_CARRIED and measure(_REPEATS)[k, t] < _BARE * influence:
      return f'in round {t} {m.name_tensor(int(k))} has no noise, and clients move it'
  return ''


@rule('rounds', 'hidden clip norm', 'readable')
def memory(m: Measurements) -> Outcome:
  """No later round reveals a client's effect on others."""
  num = _count_rounds(m, 4)
  if _measure_carried_rest(m) > _MAX_CARRIED:
    raise NotChecked('what is clipped is kept; see later_rounds')

  whole, huge = m.base_update, HUGE * m.base_update
  others = [4 * b for b in m.background]

  def move(
    first: Cohort, other: Cohort, later: Cohort
  ) -> Float[np.ndarray, 'T d']:
    """What later rounds tell of which of two rounds was the first one."""
    rest = [later] * (num - 1)
    return (_release(m, [first, *rest]) - _release(m, [other, *rest]))[1:]

  among = functools.partial(m.cohort, others=others)
  extra = norm(
    move(among(huge), among(m.zero), among(m.zero))
    - move(m.cohort(huge), m.cohort(m.zero), m.cohort(m.zero))
  )
  measured = (
    f'beyond its own share, a client moves the following {num - 1} rounds by '
    f'{extra:.2g} {m.unit}'
  )
  if extra >= 0.01:
    if extra < 4 * math.sqrt(num) * m.rounding:
      raise NotChecked(f'{measured}, no more than what releases are rounded by')
    # Of two updates that are released alike, a release tells later rounds nothing.
    if norm(move(among(huge), among(whole), among(m.zero))) < 0.01:
      raise NotChecked(
        f'{measured}, as what was released tells. Without noise that is the sum: make '
        'sure that what later rounds follow, such as rates or a clip norm, is computed '
        'with it, or return what comes before'
      )
    mu = _add_to_own_round(m, extra)
    return Outcome(measured, cause='state_without_noise', mu=mu)
  if m.claim.num_clients > 1:
    with contextlib.suppress(NotChecked):
      # Whoever is taken for the one that is absent has sent something. What momentum
      # keeps may be divided by the number of those who are present.
      first, nobody = m.cohort(huge, [huge]), m.cohort(m.zero)
      usual = move(first, nobody, nobody)
      absent = move(first, nobody, m.cohort(None))
      n = m.claim.num_clients
      stale = min(norm(absent - c * usual) for c in (1, n / (n - 1)))
      measured += f', and by {stale:.2g} {m.unit} if it is absent from them'
      if stale >= 0.01:
        mu = _add_to_own_round(m, stale)
        return Outcome(measured, cause='stale_update', mu=mu)
  return Outcome(measured)


@rule('rounds', 'readable')
def resume(m: Measurements) -> Outcome:
  """A round that is run again with other data has other noise."""
  zeros = m.cohort(m.zero)
  # Other data in one coordinate, which are subtracted as they are without noise.
  other = m.cohort(m.in_coordinate(0))
  # In the round that is repeated, as rates may be scheduled.
  m.check_quiet()
  moved, unmoved = m.quiet(), m.quiet()
  for quiet in (moved, unmoved):
    quiet.release(zeros)
  expected = moved.release(other) - unmoved.release(zeros)
  differences, after = [], []
  # Noise of few coordinates on a grid repeats by chance, but not so often.
  for _ in range(max(_REPEATS, 64 // m.claim.dim)):
    run, resumed = m.session.start(m.claim), m.session.start(m.claim)
    if not all(hasattr(run.mechanism, x) for x in ('save', 'restore')):
      raise NotChecked('the mechanism has no save() and restore(state)')
    first = run.release(zeros)
    with m.session.call('save or restore'):
      state = run.mechanism.save()  # pyright: ignore[reportAttributeAccessIssue]
      # As a file is, which shares nothing with the run that goes on.
      with contextlib.suppress(Exception):
        state = copy.deepcopy(state)
      resumed.mechanism.restore(state)  # pyright: ignore[reportAttributeAccessIssue]
    resumed.rounds = run.rounds
    clip_norm = run.public_clip_norm
    if clip_norm != resumed.public_clip_norm:
      raise NotChecked(f'a run with clip norm {clip_norm} resumes with another')
    again = resumed.release(other) - expected
    differences.append(m.layout.keep(run.release(zeros) - again))
    after.append((m.layout.keep(again), m.layout.keep(first)))
  rest = np.stack(differences)
  usual = comparison.measure_noise(m).common_std
  std = float(np.sqrt(np.mean(rest**2) / 2))
  measured = (
    f'releases of a round and of its repetition after restore differ by noise of '
    f'{std / usual if usual else 0:.3g} × the usual'
  )
  # A fiftieth of the usual noise is far below any fresh noise, and rounds after the
  # first may well have less new noise than the first.
  p = min(1.0, 2 * _p_of_no_noise(std, usual / 50, rest.size))
  if p >= ALPHA and samples.find_repeats(m).p_value >= ALPHA:
    # A seed that restoring sets is that of every restored run, or of the first round.
    again, first = np.swapaxes(np.array(after), 0, 1)
    pairs = [again[1:] - again[:-1], again - first]
    std = min(float(np.sqrt(np.mean(x**2) / 2)) for x in pairs)
    p_seed = 2 * _p_of_no_noise(std, usual / 50, pairs[0].size)
    if p_seed < ALPHA:
      measured = (
        'the noise after restore is that of another run, or of the first round'
      )
      return Outcome(measured, p_seed, 'seeded_at_restore', math.inf)
    p = min(p, p_seed)
  return Outcome(measured, p, 'noise_replayed_after_restore', math.inf)


def _p_of_no_noise(std: float, least: float, num: int) -> float:
  return laws.p_of_mu(1 / std if std else math.inf, 1 / least, num=num)


def _add_to_own_round(m: Measurements, moved: float) -> float:
  """μ of a client's own round and what moves later ones, if their noise is fresh."""
  std = comparison.measure_noise(m).common_std
  return math.hypot(comparison.judge_ordinary(m)[0], moved / std)


def _count_rounds(m: Measurements, most: int) -> int:
  """Number of rounds of a long run; raises NotChecked if there is no second one."""
  num = min(m.max_rounds, most)
  if num < 2:
    raise NotChecked('it needs two rounds or more, and time for them')
  return num


def _release(
  m: Measurements, cohorts: Sequence[Cohort]
) -> Float[np.ndarray, 'T d']:
  """Releases of a run with next to no noise."""
  run = m.quiet()
  released = np.stack([run.release(cohort) for cohort in cohorts])
  m.session.check_constants()
  return released


@measured
def _measure_carried_rest(m: Measurements) -> float:
  """How much more an update that is clipped moves later rounds than one that is not."""
  huge, whole = (m.cohort(f * m.base_update) for f in (HUGE, 1.0))
  zeros, nothing = m.cohort(m.zero), m.quiet()
  clipped, kept = m.quiet(), m.quiet()
  rest, own = [], []
  for t in range(_count_rounds(m, _MAX_LATER)):
    # In units of the first clip norm: they may differ afterwards.
    usual = kept.release_by_claim(zeros if t else whole)
    check_finite(usual, t)
    rest.append(clipped.release_by_claim(zeros if t else huge) - usual)
    own.append(usual - nothing.release_by_claim(zeros))
  # A smooth clip lets more of a large update through, and a server may keep that.
  share = float(np.sum(rest[0] * own[0])) / (norm(own[0]) ** 2 or 1.0)
  # More than as much again was not clipped, and a large multiple of rounding is large.
  share = min(max(share, -1.0), 1.0)
  return norm(np.array(rest[1:]) - share * np.array(own[1:]))


def measure_joint(m: Measurements, *, one_seed: bool = False) -> _Joint:
  """Measures what all rounds reveal; of runs of one seed, one tells all.

  Raises:
    NotChecked: influences cannot be read.
  """
  num = _count_rounds(m, m.max_rounds)
  early = samples.sample_steady_rounds(m)
  usual = np.std(samples.sample_early_rounds(m)[:, 0])
  error = 0.1 + 5 / math.sqrt(2 * early[:, 0].size)
  if not abs(np.std(early[:, 0]) - usual) <= error * usual:
    raise NotChecked(
      'the clip norm adapts, and noise of the first round is not in proportion to '
      'noise_multiplier'
    )
  m.check_quiet()
  run, pulse, always = m.quiet(), m.quiet(), m.quiet()
  with_client, without = m.cohort(m.base_update), m.cohort(m.zero)
  impulse, steady = [], []
  for t in range(num):
    nothing = run.release(without)
    impulse.append(pulse.release(without if t else with_client) - nothing)
    steady.append(always.release(with_client) - nothing)
    check_finite(nothing, t)
  m.session.check_constants()
  impulse, steady = np.stack(impulse), np.stack(steady)
  sampled = [early[: 1 if one_seed else None, :num]]
  # A covariance of rounds needs many more coordinates than rounds.
  long = min(num, sum(m.layout.kept_sizes) // 4)
  if long > 2:
    runs = 1 if one_seed else _LONG_RUNS
    sampled.append(samples.sample_steadily(m, runs, long))
  worst = [_find_worst(m, x, impulse, steady) for x in sampled]
  return _Joint(impulse, sampled, worst)


def _find_worst(
  m: Measurements,
  sampled: Float[np.ndarray, 'R T k'],
  impulse: Float[np.ndarray, 'N d'],
  steady: Float[np.ndarray, 'N d'],
) -> _Worst:
  """The client whose round reveals most, over all rounds sampled."""
  noise, num_rounds = comparison.measure_noise(m), sampled.shape[1]
  scales = noise.stds / noise.common_std
  scales[list(noise.repaired)] = 1.0
  if noise.is_isotropic:
    scales = np.ones_like(scales)
  kept = m.layout.kept_sizes
  is_usable = np.repeat(
    [k not in noise.repaired for k in range(len(scales))], kept
  )
  rows = (sampled / np.repeat(scales, kept)).transpose(0, 2, 1)[:, is_usable]
  rows = rows.reshape(-1, num_rounds)
  num = int(len(rows) * samples.measure_effective_share(m))
  if not noise.is_isotropic:
    # The scale of each tensor is estimated: the smallest tensor limits precision.
    num = min(len(sampled) * size for size in kept)
  if num < 2 * num_rounds:
    return _Worst(0.0, 1.0, 0, num_rounds)
  stds = np.repeat(scales, m.claim.sizes)
  options = _shift(m, impulse[:num_rounds] / stds, steady[:num_rounds] / stds)
  allowed = comparison.find_allowed_mu(m)
  sizes = np.array(_measure_sizes(rows, options))
  p_values = [
    1.0
    if math.isinf(allowed)
    else laws.p_of_mu(size, allowed, num=num, rounds=num_rounds)
    for size in sizes
  ]
  worst = min(range(len(options)), key=lambda i: (p_values[i], -sizes[i]))
  p = min(1.0, len(options) * p_values[worst])
  mu, halves = sizes[worst], (rows[::2], rows[1::2])
  if num >= 8 * num_rounds:
    one, other = (np.array(_measure_sizes(x, options)) for x in halves)
    mu = (other[np.argmax(one)] + one[np.argmax(other)]) / 2
    num //= 2
  # The mean of the inverse of a Wishart matrix.
  mu *= math.sqrt(max(0, num - num_rounds - 1) / num)
  return _Worst(float(mu), p, worst, num_rounds)


def _measure_sizes(
  rows: Float[np.ndarray, 'n T'], options: Sequence[Float[np.ndarray, 'T r']]
) -> list[float]:
  """sqrt(mᵀ Σ̂⁻¹ m) of influences m, with the covariance of rows."""
  num_rounds = rows.shape[1]
  covariance = rows.T @ rows / len(rows)
  # The precision of float32: closer than this, noise counts as the same.
  ridge = 1e-12 * np.trace(covariance) / num_rounds
  covariance += ridge * np.eye(num_rounds)
  whiten = np.linalg.inv(np.linalg.cholesky(covariance))
  return [norm(whiten @ vectors) for vectors in options]


def _shift(
  m: Measurements,
  impulse: Float[np.ndarray, 'N d'],
  steady: Float[np.ndarray, 'N d'],
) -> list[Float[np.ndarray, 'N r']]:
  """Influences of a client from each round on, if later rounds are like the first.

  It takes part as often and as soon again as the claim allows. They are in a basis of
  at most T coordinates.
  """
  # μ depends on inner products of rounds only, which a rotation keeps.
  _, triangle = np.linalg.qr(impulse.T)
  rotated, num, claim = triangle.T, len(impulse), m.claim
  if norm(steady - np.cumsum(impulse, axis=0)) >= 0.01 * norm(steady):
    if claim.participations > 1:
      raise NotChecked(
        'the influences of several rounds of a client do not add up'
      )
    return [rotated]
  options = []
  for start in range(num):
    moved = np.zeros_like(rotated)
    taken = range(start, num, claim.min_separation)[: claim.participations]
    for t in taken:
      moved[t:] += rotated[: num - t]
    options.append(moved)
  return options


def _add_up(m: Measurements) -> bool:
  """Whether clients of the first two rounds move releases as the sum of both does."""
  u, zeros = m.cohort(m.base_update), m.cohort(m.zero)
  num = min(4, m.max_rounds)
  nothing, first, second, both = (
    _release(m, [*cohorts, zeros, zeros][:num])
    for cohorts in ([zeros, zeros], [u, zeros], [zeros, u], [u, u])
  )
  rest = both - first - second + nothing
  return norm(rest) < 0.02 * norm(both - nothing)


def _describe(m: Measurements, start: int) -> str:
  if m.claim.participations == 1:
    return f'of round {start}'
  return (
    f'of round {start} and every {m.claim.min_separation} after it, '
    f'{m.claim.participations} in all at most,'
  )


def _find_reuse(m: Measurements, joint: _Joint) -> tuple[float, str, str]:
  """p-value of noise of a round that is used again, in any order and of any sign.

  Returns:
    The p-value, in words what is used again, and the cause.
  """
  if samples.measure_noise(m).step:
    return 1.0, '', ''  # On a grid, values are equal by chance.
  found = [(1.0, '', '')]
  for sampled in joint.samples:
    if sampled[:, 0].size < samples.LEVEL_DIM:
      continue
    for is_scaled in (False, True):
      p, first, second = laws.p_of_equal_sizes(sampled, is_scaled=is_scaled)
      what = f'rounds {first} and {second} have the same noise'
      found.append((p, what, 'noise_reused_between_rounds'))
  # Rounds may resemble each other where they are, as by momentum, and only there.
  rows, run, t = samples.list_rows(m)
  first, second = rows[t == 0], rows[t == 1]
  is_paired = np.array_equal(run[t == 0], run[t == 1])
  is_independent = samples.measure_effective_share(m) == 1
  is_independent &= samples.find_repeats(m).p_value >= ALPHA
  if rows.shape[1] >= samples.LEVEL_DIM and is_paired and is_independent:
    p, lag = laws.p_of_lags_between(first, second)
    what = (
      f'noise of round 1 depends on that of round 0, {lag} coordinates away'
    )
    found.append((p, what, 'noise_depends_between_rounds'))
    p, effective = laws.p_of_dependence_between(first, second)
    what = (
      f'noise of rounds 0 and 1 has {effective:,.0f} effective dimensions, each of them '
      f'{first.shape[1]:,}: one is made of the other'
    )
    found.append((p, what, 'noise_depends_between_rounds'))
  # What is used again also depends.
  p, what, cause = next(
    (x for x in found[1:] if x[0] < ALPHA / len(found)), min(found)
  )
  return min(1.0, len(found) * p), what, cause
