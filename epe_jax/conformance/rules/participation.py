"""Rules `weights`, `dropout` and `add_or_remove`: weights and presence of clients."""

from __future__ import annotations

import contextlib

import numpy as np
from scipy import stats

from epe_jax.conformance import laws
from epe_jax.conformance.influences import HEAVY, HUGE
from epe_jax.conformance.laws import ALPHA
from epe_jax.conformance.measurements import Measurements
from epe_jax.conformance.rule import Cause, Outcome, rule
from epe_jax.conformance.session import NotChecked, OutOfTime, norm

_WEIGHT_ALIKE = (
  'Weight all clients alike; or cap weights at w, divide by n w, and keep the '
  'noise z S / n.'
)
_WEIGHTED_MEAN = Cause(
  'weighted_mean',
  'updates are weighted by examples, and the noise is that of an unweighted mean',
  _WEIGHT_ALIKE,
)
_NOISE_BY_WEIGHTS = Cause(
  'noise_depends_on_weights',
  'the noise shrinks when a weight grows',
  _WEIGHT_ALIKE,
)
_WEIGHT_OF_ZERO = Cause(
  'weight_of_zero',
  'a client that has no examples is not clipped, or has a factor of its own',
  'Clip its update as any other, or leave it out.',
)
_EXPECTED_NUMBER = (
  'Divide by the expected number of clients, or make noise that fits those '
  'that are left; or release nothing (raise Refused).'
)
_NOT_COUNTED = Cause(
  'dropout_not_counted',
  'the sum is divided by the clients that are left, and the noise by those '
  'that were expected',
  _EXPECTED_NUMBER,
)
_NOISE_MISSING = Cause(
  'dropped_noise_is_missing',
  'noise that dropped clients should have added is not made up for',
  _EXPECTED_NUMBER,
)
_MORE_NOT_COUNTED = Cause(
  'more_clients_than_expected',
  'with more clients than expected the noise is divided by their number, and the sum '
  'by the expected one',
  'Divide both by the same number, or take no more clients than expected.',
)
_REPEATED = Cause(
  'client_counted_twice',
  'some clients are in the sum more than once, such as those that fill a round up',
  'Fill a round up with zero updates.',
)
_LEFT_OUT = Cause(
  'client_left_out',
  'some clients of a round are not in the sum, such as those that do not fill a batch',
  'Sum over all clients.',
  severity='utility',
)
_UNLIKE = Cause(
  'clients_count_unlike',
  'the place of a client in the round decides how much it counts',
  'Give each client of a round the same factor.',
)
_COUNT_NOT_PRIVATE = Cause(
  'count_not_private',
  'the sum is divided by the number of clients present, which is exact',
  "Divide by the expected number, or claim adjacency='zero_out'.",
)
_WEIGHTS_NOT_PRIVATE = Cause(
  'weights_not_private',
  'weights are divided by their sum or by the largest: one client with many examples '
  'scales all others down',
  "Divide by a constant, or claim adjacency='zero_out'.",
)


@rule
def weights(m: Measurements) -> Outcome:
  """A client with many examples moves the release no more than S / n."""
  m.check_others()
  m.check_influence()
  u = HUGE * m.base_update
  # A mechanism may reject a huge weight and still accept a moderate one.
  options = (HEAVY, 3.0, 0.0)
  sizes, stds, excesses = {}, {}, []
  for weight in options:
    try:
      influence = m.influence_of(u, m.background, weight=weight)
      noise = m.sample_noise(m.cohort(m.zero, weight=weight))
    except NotChecked:
      if weight:
        raise
      break  # A weight of 0 may be refused.
    sizes[weight], stds[weight] = norm(influence), noise.common_std
    excesses.append(m.excess(influence, noise, tests=len(options)))
  p = min(p for _, p in excesses)
  usual = m.noise.common_std
  measured = 'influence of a client ' + ', '.join(
    f'{size / norm(m.base):.4g} × at weight {w:g}' for w, size in sizes.items()
  )
  measured += f'; noise {stds[HEAVY] / usual:.3g} × at {HEAVY:g}'
  # What clipping lets through at any weight is reported by `clipping`.
  plain = norm(m.influence_of(u, m.background))
  is_heavier = max(sizes.values()) > 1.02 * plain
  has_less_noise = min(stds.values()) < 0.9 * usual
  if p >= ALPHA or not (is_heavier or has_less_noise):
    return Outcome(measured, p)
  cause = _WEIGHTED_MEAN if is_heavier else _NOISE_BY_WEIGHTS
  if max(sizes[HEAVY], sizes[3.0]) <= 1.02 * plain and is_heavier:
    cause = _WEIGHT_OF_ZERO
  return Outcome(measured, p, cause, max(mu for mu, _ in excesses))


@rule
def dropout(m: Measurements) -> Outcome:
  """The claim holds in rounds of fewer clients than expected, and of more."""
  m.check_others()
  m.check_influence()
  m.check_counts()
  n = m.claim.num_clients
  options = [*sorted({max(1, n // 2), 1}, reverse=True), 2 * n]
  shown, excesses, refusal, late = {}, [], None, None
  for present in options:
    try:
      influence = m.influence_of(m.base_update, present=present)
      noise = m.sample_noise(m.cohort(m.zero, present=present))
    except OutOfTime as error:
      late = error
      break
    except NotChecked as error:
      refusal = refusal or NotChecked(f'with {present} of {n} clients {error}')
      continue
    shown[present] = norm(influence), noise.common_std
    excesses.append(m.excess(influence, noise, tests=len(options)))
  if late and all(p >= ALPHA for _, p in excesses):
    raise late
  # More clients alone say nothing of those that drop out.
  if refusal and set(shown) <= {2 * n} and all(p >= ALPHA for _, p in excesses):
    raise refusal
  p = min(p for _, p in excesses)
  ordinary, usual = norm(m.base), m.noise.common_std
  measured = 'with ' + ', with '.join(
    f'{present} of {n} clients influence is {size / ordinary:.4g} × and noise '
    f'{std / usual:.3g} × that of {n}'
    for present, (size, std) in shown.items()
  )
  if p >= ALPHA:
    return Outcome(measured, p)
  has_more_influence = any(x > 1.02 * ordinary for x, _ in shown.values())
  cause = _NOT_COUNTED if has_more_influence else _NOISE_MISSING
  if all(p >= ALPHA for present, (_, p) in zip(shown, excesses) if present < n):
    cause = _MORE_NOT_COUNTED
  return Outcome(measured, p, cause, max(mu for mu, _ in excesses))


@rule
def places(m: Measurements) -> Outcome:
  """Clients count alike, wherever they are among those of a round."""
  m.check_others()
  m.check_influence()
  counts = m.counts
  low, high = min(counts.values()), max(counts.values())
  measured = 'a client moves the release by ' + ', '.join(
    f'{size:.3g} {m.unit} in place {place}' for place, size in counts.items()
  )
  if m.count_alike:
    return Outcome(measured)
  if low == 0:
    return Outcome(measured, cause=_LEFT_OUT)
  influence = m.base * high / low
  mu, p = m.excess(influence, m.noise)
  if p >= ALPHA:
    return Outcome(measured, p)
  ratio = high / low
  is_whole = ratio > 1.9 and abs(ratio - round(ratio)) < 0.02 * ratio
  return Outcome(measured, p, _REPEATED if is_whole else _UNLIKE, mu)


@rule
def add_or_remove(m: Measurements) -> Outcome:
  """Presence itself moves the release no more than S / n."""
  if m.claim.adjacency != 'add_or_remove':
    raise NotChecked("only for claims with adjacency='add_or_remove'")
  size, weight, mu, p = measure_presence(m)
  measured = (
    f'a client of weight {weight:g} against all others moves the release by '
    f'{size:.4g} {m.unit} if it comes or stays away'
  )
  if p >= ALPHA:
    return Outcome(measured, p)
  cause = _COUNT_NOT_PRIVATE if weight == 1 else _WEIGHTS_NOT_PRIVATE
  return Outcome(measured, p, cause, mu)


def measure_presence(m: Measurements) -> tuple[float, float, float, float]:
  """What the presence of a client reveals: influence, weight of the client, μ and p.

  Raises:
    NotChecked: influences cannot be read.
  """
  m.check_others()
  u, others = m.base_update, [-m.base_update]
  without = m.cohort(None, others)
  moved = {1.0: m.influence(m.cohort(HUGE * u, others), without)}
  with contextlib.suppress(NotChecked):
    heavy = m.cohort(HUGE * u, others, weight=HEAVY)
    moved[HEAVY] = m.influence(heavy, without)
  weight = max(moved, key=lambda w: norm(moved[w]) / (1.02 if w > 1 else 1))
  influence = moved[weight]
  mu, p = m.excess(influence, m.noise, tests=2)
  # Noise of a count multiplies what all clients send, so it is seen where they agree.
  direction = m.layout.keep(influence)
  runs = m.plan(0.05, rounds=1, max_runs=100)
  released = m.release_afresh(without, runs)
  along = np.std([m.layout.keep(x) @ direction for x in released], ddof=1)
  ratio = float(along / np.linalg.norm(direction) / m.noise.common_std)
  if stats.f.sf(ratio**2, runs - 1, m.noise.num) < 1e-3:
    mu /= ratio
    p = min(1.0, 2 * laws.p_of_mu(mu, m.allowed_mu, num=runs - 1))
  return norm(influence), weight, mu, p
