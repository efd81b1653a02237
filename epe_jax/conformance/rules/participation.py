"""Rules `weights`, `dropout` and `add_or_remove`: weights and presence of clients."""

from __future__ import annotations

from epe_jax.conformance.influences import HEAVY, HUGE
from epe_jax.conformance.laws import ALPHA
from epe_jax.conformance.measurements import Measurements
from epe_jax.conformance.rule import Cause, Outcome, rule
from epe_jax.conformance.session import NotChecked, norm

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


@rule
def weights(m: Measurements) -> Outcome:
  """A client with many examples moves the release no more than S / n."""
  m.check_others()
  m.check_influence()
  u = HUGE * m.base_update
  # A mechanism may reject a huge weight and still accept a moderate one.
  options = (HEAVY, 3.0)
  sizes, stds, excesses = {}, {}, []
  for weight in options:
    influence = m.influence_of(u, m.background, weight=weight)
    noise = m.sample_noise(m.cohort(m.zero, weight=weight))
    sizes[weight], stds[weight] = norm(influence), noise.common_std
    excesses.append(m.excess(influence, noise, tests=len(options)))
  p = min(p for _, p in excesses)
  usual = m.noise.common_std
  measured = 'influence of a client ' + ', '.join(
    f'{sizes[w] / norm(m.base):.4g} × at weight {w:g}' for w in options
  )
  measured += f'; noise {stds[HEAVY] / usual:.3g} × at {HEAVY:g}'
  # What clipping lets through at any weight is reported by `clipping`.
  plain = norm(m.influence_of(u, m.background))
  is_heavier = max(sizes.values()) > 1.02 * plain
  has_less_noise = min(stds.values()) < 0.9 * usual
  if p >= ALPHA or not (is_heavier or has_less_noise):
    return Outcome(measured, p)
  cause = _WEIGHTED_MEAN if is_heavier else _NOISE_BY_WEIGHTS
  return Outcome(measured, p, cause, max(mu for mu, _ in excesses))


@rule
def dropout(m: Measurements) -> Outcome:
  """The claim holds in rounds in which clients have dropped out."""
  m.check_others()
  m.check_influence()
  m.check_counts()
  n = m.claim.num_clients
  options = sorted({max(1, n // 2), 1}, reverse=True)
  shown, excesses = {}, []
  for present in options:
    try:
      influence = m.influence_of(m.base_update, present=present)
      noise = m.sample_noise(m.cohort(m.zero, present=present))
    except NotChecked:
      if shown:
        break
      raise
    shown[present] = norm(influence), noise.common_std
    excesses.append(m.excess(influence, noise, tests=len(options)))
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
  m.check_others()
  u, others = m.base_update, [-m.base_update]
  influence = m.influence(m.cohort(HUGE * u, others), m.cohort(None, others))
  mu, p = m.excess(influence, m.noise)
  measured = (
    f'a client against all others moves the release by {norm(influence):.4g} '
    f'{m.unit} if it comes or stays away'
  )
  if p >= ALPHA:
    return Outcome(measured, p)
  return Outcome(measured, p, _COUNT_NOT_PRIVATE, mu)
