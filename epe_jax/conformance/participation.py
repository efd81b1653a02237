"""Rules `weights`, `dropout` and `add_or_remove`: who takes part, counting how much."""

from __future__ import annotations

from epe_jax.conformance.findings import ALPHA, Result, break_rule, hold
from epe_jax.conformance.inputs import HEAVY, HUGE
from epe_jax.conformance.measurements import Measurements
from epe_jax.conformance.session import NotChecked, norm


def check_weights(m: Measurements) -> Result:
  """Rule: a client with many examples moves the release no more than S / n."""
  _need_others(m)
  u = HUGE * m.base_update
  # One that is far too heavy may be cut off where one that is not quite is kept.
  weights = (HEAVY, 3.0)
  sizes, judged = {}, {}
  for weight in weights:
    influence = m.influence_of(u, m.background, weight=weight)
    noise = m.sample_noise(m.cohort(m.zero, weight=weight))
    sizes[weight] = norm(influence), noise.common_std
    judged[weight] = m.excess(influence, noise, tests=len(weights))
  p = min(p for _, p in judged.values())
  ordinary = norm(m.base)
  measured = 'influence of a client ' + ', '.join(
    f'{sizes[w][0] / ordinary:.4g} × at weight {w:g}' for w in weights
  )
  measured += (
    f'; noise {sizes[HEAVY][1] / m.noise.common_std:.3g} × at {HEAVY:g}'
  )
  # Clipping that fails for all is reported once.
  plain = norm(m.influence_of(u, m.background))
  is_heavier = any(size > 1.02 * plain for size, _ in sizes.values())
  has_less_noise = any(
    std < 0.9 * m.noise.common_std for _, std in sizes.values()
  )
  if p >= ALPHA or not (is_heavier or has_less_noise):
    return hold('weights', measured, p)
  return break_rule(
    'weights',
    'weighted_mean' if is_heavier else 'noise_depends_on_weights',
    measured,
    likely=(
      'updates are weighted by examples, and the noise is that of an unweighted '
      'mean'
      if is_heavier
      else 'the noise shrinks when a weight grows'
    ),
    cure=(
      'Weight all clients alike; or cap weights at w, divide by n w, and keep the '
      'noise z S / n.'
    ),
    mu=max(mu for mu, _ in judged.values()),
    p_value=p,
  )


def check_dropout(m: Measurements) -> Result:
  """Rule: the claim holds in rounds in which clients have dropped out."""
  _need_others(m)
  n = m.claim.num_clients
  options = sorted({max(1, n // 2), 1}, reverse=True)
  shown, judged = {}, {}
  for present in options:
    try:
      influence = m.influence_of(m.base_update, present=present)
      noise = m.sample_noise(m.cohort(m.zero, present=present))
    except NotChecked:
      if shown:
        break
      raise
    shown[present] = norm(influence), noise.common_std
    judged[present] = m.excess(influence, noise, tests=len(options))
  p = min(p for _, p in judged.values())
  ordinary, usual = norm(m.base), m.noise.common_std
  measured = 'with ' + ', with '.join(
    f'{present} of {n} clients influence is {size / ordinary:.4g} × and noise '
    f'{std / usual:.3g} × that of {n}'
    for present, (size, std) in shown.items()
  )
  if p >= ALPHA:
    return hold('dropout', measured, p)
  has_more_influence = any(x > 1.02 * ordinary for x, _ in shown.values())
  return break_rule(
    'dropout',
    'dropout_not_counted' if has_more_influence else 'dropped_noise_is_missing',
    measured,
    likely=(
      'the sum is divided by the clients that are left, and the noise by those '
      'that were expected'
      if has_more_influence
      else 'noise that dropped clients should have added is not made up for'
    ),
    cure=(
      'Divide by the expected number of clients, or make noise that fits those '
      'that are left; or release nothing (raise Refused).'
    ),
    mu=max(mu for mu, _ in judged.values()),
    p_value=p,
  )


def check_add_or_remove(m: Measurements) -> Result:
  """Rule: presence itself moves the release no more than S / n."""
  if m.claim.adjacency != 'add_or_remove':
    raise NotChecked("only for claims with adjacency='add_or_remove'")
  _need_others(m)
  u, others = m.base_update, [-m.base_update]
  influence = m.influence(m.cohort(HUGE * u, others), m.cohort(None, others))
  mu, p = m.excess(influence, m.noise)
  measured = (
    f'a client against all others moves the release by {norm(influence):.4g} '
    f'{m.unit} if it comes or stays away'
  )
  if p >= ALPHA:
    return hold('add_or_remove', measured, p)
  return break_rule(
    'add_or_remove',
    'count_not_private',
    measured,
    likely='the sum is divided by the number of clients present, which is exact',
    cure="Divide by the expected number, or claim adjacency='zero_out'.",
    mu=mu,
    p_value=p,
  )


def _need_others(m: Measurements) -> None:
  if m.claim.num_clients < 2:
    raise NotChecked('it needs num_clients of 2 or more')
