"""What a client contributes: of norm S at most, whole, and whatever it sends."""

from collections.abc import Iterator
import contextlib
import functools
import math

import numpy as np

from epe_jax.conformance import comparison
from epe_jax.conformance.laws import ALPHA
from epe_jax.conformance.measurements import (
  HEAVY,
  HUGE,
  Measurements,
  Probe,
)
from epe_jax.conformance.noise import norm
from epe_jax.conformance.rule import Outcome, require, rule
from epe_jax.conformance.session import (
  Cohort,
  NeverEnds,
  NotChecked,
  Vector,
)

_SIZES = (1.02, 1.1, 1.3, 1.6, 2, 3, 5, 7, 10, 20, 30, 60, 100, 300)
"""Norms of updates from slightly to far too large, in clip norms."""
# In float32 the square of this overflows, and not the sum of many.
_LARGE = 1e30
# Updates that are not finite.
_TESTS = 6


@rule('readable', 'level')
def clipping(m: Measurements) -> Outcome:
  """An update of any size moves the release no more than one of norm S."""
  kinds, names, probes = zip(*_list_probes(m))
  influences = m.influences(probes)
  judged = [comparison.compare(m, x, tests=len(probes)) for x in influences]
  p = min(p for _, p in judged)
  sizes = [m.claim.measure(x) for x in influences]
  worst = int(np.argmax(sizes))
  measured = (
    f'an update {names[worst]} moves the release by {sizes[worst]:.4g} × {m.unit}, one '
    f'of norm S by {m.claim.measure(m.base):.4g}'
  )
  if p >= ALPHA:
    return Outcome(measured, p)
  largest: dict[str, float] = {}
  for kind, size in zip(kinds, sizes):
    largest[kind] = max(size, largest.get(kind, 0.0))
  cause = _find_cause(m, kinds[worst], sizes[worst], largest)
  num = len(m.claim.sizes)
  details = {'num': num, 'root': f'√{num}' if m.claim.norm == 2 else num}
  return Outcome(measured, p, cause, max(mu for mu, _ in judged), '', details)


def _list_probes(m: Measurements) -> Iterator[tuple[str, str, Probe]]:
  """(kind, name, probe), a row for each update that has to be clipped."""
  u, others, claim = m.uniform, m.background, m.claim
  yield 'huge', f'of norm {HUGE:.0e} S', m.probe(HUGE * u, others)
  yield 'large', 'of norm 1e+03 S', m.probe(1e3 * u, others)
  yield 'equal', 'as large in each tensor', m.probe(HUGE * m.equal, others)
  for size in _SIZES:
    yield 'size', f'of norm {size:g} S', m.probe(size * u, others)
  for k in range(min(len(claim.sizes), 8)):
    name = f'within {m.name_tensor(k)}'
    yield 'tensor', name, m.probe(HUGE * m.in_tensor(k), others)
  # A norm of some coordinates only misses what lies in the others.
  for name, part in _list_parts(m).items():
    yield 'part', f'in {name}', m.probe(HUGE * part / claim.measure(part))
  # Nor does a norm that leaves out small coordinates.
  for c in (0.3, 0.6, 1, 3) if claim.dim > 1 else ():
    name = f'of norm S in coordinate 0 and {c:g} S in all'
    yield 'part', name, m.probe(m.in_coordinate(0) + c * u)
  if m.step and claim.norm == 2:
    probe = m.probe(_make_half_steps(claim.dim, m.step))
    yield 'half steps', 'half-way between two steps of the grid', probe
  suspects = sorted(m.find_suspects(HUGE) - {m.place})
  usual = m.count(m.place) if suspects else 0.0
  for place in suspects:
    if count := m.count(place):
      # As if it counted like the client in question.
      probe = m.probe(HUGE * u, others, place=place)
      distance = probe.distance * count / usual
      yield 'place', f'in place {place}', probe._replace(distance=distance)
  yield 'opposed', 'against all others', m.probe(HUGE * u, [-1e3 * u])
  # A clip that is centred at a model, and not at zero, moves by that on either side.
  centre = m.influence(Probe(m.cohort(HUGE * u), m.cohort(m.zero)))
  centre += m.influence(Probe(m.cohort(-HUGE * u), m.cohort(m.zero)))
  if 0.1 < (size := claim.measure(centre)) < math.inf:
    probe = m.probe(HUGE * np.sign(claim.unit) * centre / size)
    yield 'centre', 'away from where a clip is centred', probe
  if claim.num_clients > 2:
    name = 'of norm S between two halves of the others'
    yield 'among', name, m.probe(u, [u, -u])
    # It decides on which side the mean is, and which norm is the median.
    for size, rest in ((HUGE, [u, -u]), (-HUGE, [u, -u]), (1, [u / 10, u])):
      name = f'of norm {size:g} S among two kinds of others'
      zeros = m.cohort(m.zero, rest)
      probe = Probe(m.cohort(size * u, rest), zeros, claim.distance)
      yield 'among', name, probe


def _find_cause(
  m: Measurements, kind: str, worst: float, largest: dict[str, float]
) -> str:
  """The cause by the kind of the worst probe, and the largest size of each kind."""
  u, others, ordinary = m.uniform, m.background, m.claim.measure(m.base)
  num = len(m.claim.sizes)
  layered = num ** (1 / m.claim.norm) * largest['tensor']
  first = largest['huge']
  if m.claim.adjacency == 'replace':
    # Against its opposite, an update turns a mean that is clipped in any case.
    cohort, zeros = m.cohort(HUGE * u, others), m.cohort(m.zero, others)
    first = m.claim.measure(m.influence(Probe(cohort, zeros)))
  whole = [largest[x] for x in ('huge', 'large', 'equal', 'size')]
  is_other = worst > 1.02 * max(whole)
  if kind == 'among' and is_other:
    return 'not_a_sum'
  if kind == 'centre' and largest['opposed'] < 2.02:
    return 'clipped_around_another_point'
  if worst < 1.01 * largest.get('half steps', 0):
    return 'rounded_after_clipping'
  if kind == 'place' and is_other:
    return 'some_clients_not_clipped'
  is_unscaled = m.layout.norms(m.influence_of(HUGE * m.equal)) > 100 * ordinary
  if is_unscaled.any() and not is_unscaled.all():
    return 'some_tensors_not_clipped'
  if kind in ('part', 'half steps') and is_other:
    return 'norm_of_some_coordinates'
  if first > 100 * largest['large']:
    return 'not_clipped'
  is_layered = abs(largest['equal'] / layered - 1) < 0.02
  if m.claim.norm < math.inf and num > 1 and is_layered:
    # A tensor that is small is not clipped, however large another one is.
    small = m.in_tensor(1) / 2
    moved = m.influence_of(HUGE * m.in_tensor(0) + small)
    is_whole = m.layout.norms(moved)[1] > 0.8 * m.layout.norms(small)[1]
    return 'per_layer_clipping' if is_whole else 'norm_of_some_coordinates'
  if abs(first - largest['opposed']) < 1e-3 * max(first, ordinary):
    # The others change nothing, so clients are clipped one by one.
    return 'clipped_by_another_norm'
  if m.claim.measure(m.influence_of(HUGE * u)) < 1.02 * ordinary:
    return 'not_a_sum'  # A client that is alone counts as it should.
  return 'clipped_after_the_mean'


def _list_parts(m: Measurements) -> dict[str, Vector]:
  """Ones in halves of the coordinates, one of each tensor, and single ones, by name."""
  dim = m.claim.dim
  if dim < 2:
    return {}
  index = np.arange(dim)
  masks = {
    'the first half of the coordinates': index < dim // 2,
    'the second half of the coordinates': index >= dim // 2,
    'every second coordinate': index % 2 == 0,
    'the other coordinates': index % 2 == 1,
    'the last coordinate of each tensor': np.isin(
      index + 1, np.cumsum(m.claim.sizes)
    ),
  }
  # Of a sample of half of them all ten are with a probability of 1e-3.
  some = np.random.default_rng(dim).integers(dim, size=8)
  for k in sorted({0, dim - 1, *some.tolist()}):
    masks[f'coordinate {k}'] = index == k
  return {name: mask.astype(float) for name, mask in masks.items()}


def _make_half_steps(dim: int, step: float) -> Vector:
  """An update of norm 1 whose coordinates are just above half-way between steps."""
  k = max(0.0, math.ceil(1 / (step * math.sqrt(dim)) - 0.501))
  size = (k + 0.501) * step
  return np.where(np.arange(dim) < math.floor(1 / size**2), size, 0.0)


@rule('readable', 'level')
def not_finite(m: Measurements) -> Outcome:
  """NaN, inf, or numbers whose square overflows, move the release no more than S."""
  u, others = m.uniform, m.background
  if comparison.judge(m, m.probe(HUGE * np.sign(u), others)).p_value < ALPHA:
    raise NotChecked('large updates are not clipped; see clipping')
  index, dim = np.arange(m.claim.dim), m.claim.dim
  some = int(m.rng.integers(dim))
  put = lambda x, k, u: np.where(index == k, x, u)
  kinds = {
    f'numbers of {_LARGE:g}': [_LARGE / m.claim.clip_norm * np.sign(u)],
    'an inf': [put(math.inf, some, u)],
    'a NaN': [put(math.nan, some, u)],
    # Which a norm that is NaN lets through, if only the NaN is replaced by zero.
    f'a NaN, and norm {HUGE:.0e} S': [
      put(math.nan, k, HUGE * u) for k in sorted({0, some, dim - 1})
    ],
  }
  shown, p = [], 1.0
  for name, updates in kinds.items():
    m.session.spend(0)
    zeros = m.cohort(m.zero, others)
    probes = [
      Probe(m.cohort(u, others), zeros, m.claim.distance) for u in updates
    ]
    try:
      judged = [comparison.judge(m, x, tests=_TESTS) for x in probes]
    except NeverEnds as error:
      return Outcome(f'with {name} in an update {error}', cause='never_ends')
    except NotChecked:
      shown.append(f'{name} is refused')
      continue
    worst = min(judged, key=lambda x: (x.p_value, -x.mu))
    shown.append(f'{name} moves the release by {worst.size:.4g} {m.unit}')
    if worst.p_value < ALPHA:
      measured = f'an update with {shown[-1]}'
      return Outcome(measured, worst.p_value, 'not_finite_enters', worst.mu)
    p = min(p, worst.p_value)
  return Outcome(f'an update with {", ".join(shown)}', p)


@rule()
def zero_update(m: Measurements) -> Outcome:
  """A round of zero updates ends, and releases finite numbers."""
  if m.zero_error is None:
    return Outcome('rounds in which all clients send zeros are released')
  if m.zero_error.startswith('the mechanism refuses'):
    raise NotChecked(m.zero_error)
  measured = (
    f'if all clients send zeros, {m.zero_error}. All other rules are checked with '
    'updates of 1e-12 S in place of zeros'
  )
  return Outcome(measured, cause='zero_update_fails')


@rule('readable', 'level')
def arrives_whole(m: Measurements) -> Outcome:
  """Some update of norm S arrives as it is, so that noise z S is not wasted."""
  u, n, claim = m.base_update, m.claim.num_clients, m.claim
  size = claim.measure(m.base)
  if size < 0.99:
    # If weights are capped, an ordinary client counts for less.
    size = max(size, claim.measure(m.influence_of(u, weight=HEAVY)))
  measured = f'an update of norm S arrives with norm {size:.4g} S at most'
  large = claim.measure(m.influence_of(HUGE * u))
  # A smooth clipping, or one that leaves room for rounding, wastes no noise.
  if max(size, large) >= 0.99 - m.step * math.sqrt(claim.dim):
    return Outcome(f'{measured}, a larger one with {large:.4g} S')
  everyone = m.influence(Probe(m.cohort(u, [u]), m.cohort(m.zero)))
  together = claim.measure(everyone) / n
  if together == 0:
    raise NotChecked('the first round is the same whatever clients send')
  if abs(together - size) > 0.01:
    raise NotChecked(
      f'{measured}, and {n} that agree with {together:.4g} S each: the release is '
      'no sum, but a median, a trimmed mean, or another function'
    )
  small = 20 * claim.measure(m.influence_of(u / 20))
  measured += f', one of S / 20 with {small:.4g} of that'
  cause = 'arrives_shrunk'
  if small >= 0.99 and abs(large - size) < 0.02 * size:
    cause = 'clipped_twice'
  elif abs(small - size) < 0.02 * size:
    cause = 'arrives_scaled'
  details = {'step_size': claim.step_size, 'release': claim.release}
  return Outcome(measured, cause=cause, details=details)


@rule('readable', 'zeros that count')
def wrap_around(m: Measurements) -> Outcome:
  """k clients that agree move the release k times as far as one, up to k = 2 n."""
  n = m.claim.num_clients
  if n > 1:
    require(m, 'clients that count alike')
  largest = int(np.argmax(m.claim.sizes))
  first = sum(m.claim.sizes[:largest])
  u = m.in_coordinate(first)

  @functools.cache
  def release(k: int, present: int) -> float:
    updates = [u] * k + [m.zero] * (present - k)
    cohort = Cohort(updates, [1.0] * present)
    return float(m.quiet().release(cohort)[first])

  # What is released if all send zeros may be a model.
  measure = lambda k, present: release(k, present) - release(0, present)

  def is_linear(k: int, present: int) -> bool:
    step = measure(1, present)
    return abs(measure(k, present) - k * step) < (0.02 * k + 0.05) * step

  step = measure(1, n)
  if not 0.05 < step < 20:
    raise NotChecked(
      f'an update of norm S in one coordinate moves it by {step:.3g} of that'
    )
  present, bad = n, next((k for k in (n, n // 2) if not is_linear(k, n)), None)
  if bad is None and n > 1:
    # More clients than expected may be refused.
    with contextlib.suppress(NotChecked):
      present, bad = 2 * n, None if is_linear(2 * n, 2 * n) else 2 * n
  if bad is None:
    return Outcome(
      f'{n} clients that agree move a coordinate by {measure(n, n):.4g} {m.unit}'
    )
  good = 1
  while bad - good > 1:
    middle = (bad + good) // 2
    if is_linear(middle, present):
      good = middle
    else:
      bad = middle
  influence = np.zeros(m.claim.dim)
  influence[first] = abs(measure(bad, present) - measure(good, present))
  mu, p = comparison.compare(m, influence)
  shown = (
    f'{measure(good, present):.4g} {m.unit}, {bad} by {measure(bad, present):.4g}, and '
    f'all {present} by {measure(present, present):.4g}'
  )
  measured = f'{good} clients that agree move a coordinate by {shown}'
  if p < ALPHA:
    return Outcome(measured, p, 'modular_wrap_around', mu)
  # That twice as many clients are too many costs nobody's privacy.
  return Outcome(measured, cause='saturation' if present == n else ())


@rule('others', 'fine grid', 'zeros that count')
def rounding(m: Measurements) -> Outcome:
  """A small update arrives even if the other updates are large."""
  # 1e-4 of the sum is far more than float32 rounds, and less than float16 does.
  size, u = min(1.0, 1e-4 * m.claim.num_clients), m.base_update
  alone = m.influence_of(size * u)
  probes = {
    'aligned with the others': m.influence_of(size * u, [u]),
    'among others': m.influence_of(size * u, [2 * b for b in m.background]),
  }
  if not norm(alone) > 0.01 * size * norm(u):
    raise NotChecked('small updates do not arrive even alone')
  errors = {k: norm(x - alone) / norm(alone) for k, x in probes.items()}
  worst = max(errors, key=lambda k: errors[k])
  measured = (
    f'an update of norm {size:.2g} S {worst} arrives with a relative error of '
    f'{errors[worst]:.2g}'
  )
  if errors[worst] < 0.15:
    return Outcome(measured)
  # What is lost may be far below the noise, as of a secure sum of many bits.
  error = max(float(np.abs(x - alone).max()) for x in probes.values())
  share = error / comparison.measure_noise(m).common_std
  measured += f', {share:.2g} of the noise in a coordinate'
  return Outcome(measured, cause='low_precision' if share >= 0.01 else ())
