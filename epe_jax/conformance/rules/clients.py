"""Weights, places and presence of clients."""

import contextlib
import functools
import math
from typing import NamedTuple

import numpy as np
from scipy import optimize, stats

from epe_jax.conformance import comparison, laws
from epe_jax.conformance.laws import ALPHA
from epe_jax.conformance.measurements import (
  HEAVY,
  HUGE,
  Measurements,
  Probe,
)
from epe_jax.conformance.noise import norm
from epe_jax.conformance.rule import Outcome, require, rule
from epe_jax.conformance.session import Cohort, NotChecked, OutOfTime


@rule('others', 'influence', 'level')
def weights(m: Measurements) -> Outcome:
  """A client with many examples moves the release no more than S / n."""
  u = HUGE * m.base_update
  # A mechanism may reject a huge weight and still accept a moderate one.
  options, judged = (HEAVY, 3.0, 0.0), {}
  for weight in options:
    probe = m.probe(u, m.background, weight=weight)
    noise_in = m.cohort(m.zero, weight=weight)
    try:
      judged[weight] = comparison.judge(m, probe, noise_in, tests=len(options))
    except NotChecked:
      # Of the positive ones the last may not be refused, too.
      if weight == 3.0 and HEAVY not in judged:
        raise
  usual = comparison.measure_noise(m).common_std
  sizes = {weight: x.size for weight, x in judged.items()}
  stds = {weight: x.noise.common_std for weight, x in judged.items()}
  measured = 'influence of a client ' + ', '.join(
    f'{size / norm(m.base):.4g} × at weight {w:g}' for w, size in sizes.items()
  )
  heaviest = max(judged)
  measured += f'; noise {stds[heaviest] / usual:.3g} × at {heaviest:g}'
  # What clipping lets through at any weight is reported by `clipping`.
  plain = norm(m.influence_of(u, m.background))
  cause = ''
  if max(sizes[w] for w in judged if w) > 1.02 * plain:
    cause = 'weighted_mean'
  elif max(sizes.values()) > 1.02 * plain:
    cause = 'weight_of_zero'
  elif min(stds.values()) < 0.9 * usual:
    cause = 'noise_depends_on_weights'
  p = min(x.p_value for x in judged.values())
  return Outcome(measured, p, cause, max(x.mu for x in judged.values()))


@rule('others', 'influence', 'clients that count alike', 'level')
def dropout(m: Measurements) -> Outcome:
  """The claim holds in rounds of fewer clients than expected, and of more."""
  n = m.claim.num_clients
  options = [*sorted({n - 1, max(1, n // 2), 1}, reverse=True), 2 * n]
  judged, huge, refusal, late = {}, {}, None, None
  # What clipping lets through in any round is reported by `clipping`.
  most = 1.02 * max(
    norm(m.influence_of(HUGE * m.base_update, place=place))
    for place in {0, m.place, n - 1}
  )
  for present in options:
    probe, clipped = (
      m.probe(size * m.base_update, present=present) for size in (1.0, HUGE)
    )
    noise_in = m.cohort(m.zero, present=present)
    tests = 2 * len(options)
    try:
      judged[present] = comparison.judge(m, probe, noise_in, tests=tests)
      influence = m.influence(clipped)
      if norm(influence) > most:
        noise = judged[present].noise
        huge[present] = comparison.compare(m, influence, noise, tests=tests)
    except OutOfTime as error:
      late = error
      break
    except NotChecked as error:
      refusal = refusal or NotChecked(f'with {present} of {n} clients {error}')
  both = [*huge.items(), *((k, x[2:]) for k, x in judged.items())]
  p = min((p for _, (_, p) in both), default=1.0)
  if late and p >= ALPHA:
    raise late
  # More clients alone say nothing of those that drop out.
  if refusal and set(judged) <= {2 * n} and p >= ALPHA:
    raise refusal
  ordinary, usual = norm(m.base), comparison.measure_noise(m).common_std
  measured = 'with ' + ', with '.join(
    f'{present} of {n} clients influence is {x.size / ordinary:.4g} × and noise '
    f'{x.noise.common_std / usual:.3g} × that of {n}'
    for present, x in judged.items()
  )
  mu, worst = max(((mu, k) for k, (mu, p) in both), default=(0.0, n))
  if all(x.p_value >= ALPHA for x in judged.values()):
    cause = 'clip_norm_of_presence'
    measured += f'; with {worst}, an update to be clipped has μ = {mu:.4g}' * (
      p < ALPHA
    )
  elif all(x.p_value >= ALPHA for k, x in judged.items() if k < n):
    cause = 'more_clients_than_expected'
  elif any(x.size > 1.02 * ordinary for x in judged.values()):
    cause = 'dropout_not_counted'
  else:
    cause = 'dropped_noise_is_missing'
  return Outcome(measured, p, cause, mu)


@rule('others', 'influence')
def places(m: Measurements) -> Outcome:
  """Clients count alike, wherever they are among those of a round."""
  low, high = min(m.counts.values()), max(m.counts.values())
  measured = 'a client moves the release by ' + ', '.join(
    f'{size:.3g} {m.unit} in place {place}' for place, size in m.counts.items()
  )
  if m.count_alike:
    return Outcome(measured)
  if low == 0:
    return Outcome(measured, cause='client_left_out')
  ratio = high / low
  mu, p = comparison.compare(m, m.base * ratio)
  is_whole = ratio > 1.9 and abs(ratio - round(ratio)) < 0.02 * ratio
  cause = 'client_counted_twice' if is_whole else 'clients_count_unlike'
  return Outcome(measured, p, cause, mu)


@rule('presence')
def add_or_remove(m: Measurements) -> Outcome:
  """Presence itself moves the release no more than S / n."""
  size, weight, mu, p = measure_presence(m)
  measured = (
    f'a client of weight {weight:g} against all others moves the release by '
    f'{size:.4g} {m.unit} if it comes or stays away'
  )
  cause = 'count_not_private' if weight == 1 else 'weights_not_private'
  known = max(m.claim.epsilon, m.claim.compute_epsilon(mu, m.claim.delta))
  spread = compare_spreads(m, m.cohort(None))
  if spread and spread.epsilon > known:
    measured += (
      f'; the noise alone is {spread.ratio:.4g} × as large without it, which tells of '
      'it in all coordinates together'
    )
    if 2 * spread.p_value < ALPHA:
      p = min(1.0, 2 * spread.p_value)
      cause = 'spread_not_private'
      return Outcome(measured, p, cause, mu, epsilon=spread.epsilon)
  return Outcome(measured, p, cause, mu)


class Spread(NamedTuple):
  """Noise of a round over the usual one, the ε that it tells, and the p-value of that."""

  ratio: float
  epsilon: float
  p_value: float


def compare_spreads(
  m: Measurements, cohort: Cohort, share: float = 0.05
) -> Spread | None:
  """Whether what a client does scales the noise; None where that is not known."""
  if m.claim.noise != 'gaussian' or m.claim.epsilon >= laws.MAX_EPSILON:
    return None
  usual = comparison.measure_noise(m)
  try:
    runs = m.plan(share, max_runs=100)
    noise = comparison.sample_noise(m, cohort, runs=runs)
  except (NotChecked, OutOfTime):
    return None
  if not noise.common_std or not usual.is_isotropic:
    return None
  ratio = noise.common_std / usual.common_std
  tell = functools.partial(
    laws.epsilon_of_spreads, dim=m.claim.dim, delta=m.claim.delta
  )
  # The largest ratio that keeps the claim.
  allowed = optimize.root_scalar(
    lambda log: (
      min(tell(math.exp(log)), 2 * laws.MAX_EPSILON) - m.claim.epsilon
    ),
    bracket=(0.0, 20.0),
  ).root
  excess = math.exp(2 * (abs(math.log(ratio)) - allowed))
  nums = (noise.num, usual.num)
  p = 2 * stats.f.sf(excess, *(nums if ratio > 1 else nums[::-1]))
  return Spread(ratio, tell(ratio), float(min(1.0, p)))


def measure_presence(m: Measurements) -> tuple[float, float, float, float]:
  """What the presence of a client reveals: influence, weight of the client, μ and p.

  Raises:
    NotChecked: influences cannot be read, or there is no second client.
  """
  require(m, 'two clients')
  u, others = m.base_update, [-m.base_update]
  without = m.cohort(None, others)
  moved = {1.0: m.influence(Probe(m.cohort(HUGE * u, others), without))}
  with contextlib.suppress(NotChecked):
    heavy = m.cohort(HUGE * u, others, weight=HEAVY)
    moved[HEAVY] = m.influence(Probe(heavy, without))
  weight = max(moved, key=lambda w: norm(moved[w]) / (1.02 if w > 1 else 1))
  influence = moved[weight]
  mu, p = comparison.compare(m, influence, tests=2)
  # Noise of a count multiplies what all clients send, so it is seen where they agree.
  direction = m.layout.keep(influence)
  runs = m.plan(0.05, max_runs=100)
  released = m.release_afresh(without, runs)
  along = np.std([m.layout.keep(x) @ direction for x in released], ddof=1)
  noise = comparison.measure_noise(m)
  ratio = float(along / np.linalg.norm(direction) / noise.common_std)
  if stats.f.sf(ratio**2, runs - 1, noise.num) < 1e-3:
    mu /= ratio
    allowed = comparison.find_allowed_mu(m)
    p = min(1.0, 2 * laws.p_of_mu(mu, allowed, num=runs - 1))
  return norm(influence), weight, mu, p
