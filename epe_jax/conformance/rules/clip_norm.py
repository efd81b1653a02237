"""Rule `clip_norm`: a clip norm that adapts reveals something of clients, too."""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import math

from jaxtyping import Float
import numpy as np
from scipy import optimize, stats

from epe_jax.conformance.influences import HEAVY, HUGE
from epe_jax.conformance.laws import ALPHA
from epe_jax.conformance.measurements import Measurements
from epe_jax.conformance.rule import Cause, Outcome, rule
from epe_jax.conformance.session import Cohort, NotChecked, Vector

_RUNS = 24
_LEVELS = (1.2, 1.6, 1e3)

_FOLLOWS_NORMS = Cause(
  'clip_norm_from_unclipped_norms',
  'the clip norm is computed from norms of updates that are not clipped, '
  'without noise: one client sets it',
  'Adapt by the noisy share of updates below the clip norm (Andrew et al. '
  '2021, adaptive clipping), and account for it.',
)
_EXACT_BIT = Cause(
  'quantile_bit_without_noise',
  'the share of updates below the clip norm is used without noise: the clip '
  'norm tells on which side a client is',
  'Add Gaussian noise to the number of updates below the clip norm, and let '
  'the noise of the sum make up for it (Andrew et al. 2021, theorem 1).',
)
_WEIGHTED_BIT = Cause(
  'quantile_bits_by_weight',
  'updates below the clip norm are counted by their examples: one client with '
  'many sets the clip norm',
  'Count clients, or cap their weights and add noise for that.',
)
_NOISE_TOO_SMALL = Cause(
  'quantile_noise_too_small',
  'the noise of the quantile is too small, or not accounted for',
  'Give the sum z_Δ = (1/z² - 1/(2 σ_b)²)^(-1/2), where σ_b is the noise of '
  'the number of updates below the clip norm (Andrew et al. 2021, theorem 1).',
)


@rule
def clip_norm(m: Measurements) -> Outcome:
  """Release and public clip norm together reveal no more than 1/z."""
  if m.quiet().public_clip_norm is None:
    raise NotChecked('the mechanism publishes no clip_norm')
  m.check_others()
  m.check_gaussian()
  n, u = m.claim.num_clients, m.base_update
  runs = m.plan(0.03, rounds=1, max_runs=_RUNS)
  above, below = [HUGE * u] * n, [m.zero] * n
  high = _sample(m, above, runs)
  low = _sample(m, below, runs)
  if _is_constant(np.concatenate([high, low])):
    return Outcome('the public clip norm does not adapt')
  if _is_constant(high) and _is_constant(low):
    return _diagnose_exact(m, float(high[0]), float(low[0]))
  return _compare_with_noise(m, high, low, runs)


def _sample(
  m: Measurements,
  updates: Sequence[Vector],
  runs: int,
  *,
  weight: float = 1.0,
) -> Float[np.ndarray, 'R']:
  """Logarithm of the clip norm after one round, over that before it."""
  values = []
  cohort = Cohort(updates, [weight] + [1.0] * (len(updates) - 1))
  for _ in range(runs):
    run = m.session.start(m.claim)
    before = run.public_clip_norm
    run.release(cohort)
    after = run.public_clip_norm
    if not (before and after):
      raise NotChecked(f'clip_norm goes from {before} to {after}')
    values.append(math.log(after / before))
  return np.array(values)


def _is_constant(values: Float[np.ndarray, 'R']) -> bool:
  return bool(np.ptp(values) <= 1e-6 * max(1e-3, np.abs(values).max()))


def _diagnose_exact(m: Measurements, high: float, low: float) -> Outcome:
  """Tells whether a clip norm without noise follows norms, or only bits."""
  n, u = m.claim.num_clients, m.base_update
  # Above the clip norm, all levels have the same bit.
  spread = [0.5 * u, 2.0 * u]
  others = [spread[i % 2] for i in range((n - 1) // 2 * 2)]
  after = [_sample(m, [c * u, *others], 1)[0] for c in _LEVELS]
  follows_norms = not _is_constant(np.array(after))
  factors = ', '.join(f'{math.exp(x):.4g}' for x in after)
  measured = (
    'after one round the clip norm is multiplied with '
    f'{math.exp(high):.4g} in every run if all updates are large, with '
    f'{math.exp(low):.4g} if all are zero; with {factors} if one update has '
    f'{", ".join(f"{c:g}" for c in _LEVELS)} clip norms among others'
  )
  cause = _FOLLOWS_NORMS if follows_norms else _EXACT_BIT
  return Outcome(measured, cause=cause, mu=math.inf)


def _compare_with_noise(
  m: Measurements,
  high: Float[np.ndarray, 'R'],
  low: Float[np.ndarray, 'R'],
  runs: int,
) -> Outcome:
  """Compares how far many clients shift the clip norm with its noise."""
  n, u = m.claim.num_clients, m.base_update
  half = max(1, n // 2)
  # If a client comes or goes, a centred bit changes by 1/2, another one by 1 if the
  # client is below the clip norm. If a client changes sides, both change by 1.
  shifts = [(high, low, 2 * n)]
  try:
    for whole, update in ((high, HUGE * u), (low, m.zero)):
      some = _sample(m, [update] * (n - half), runs)
      shifts.append((whole, some, half))
  except NotChecked:
    pass
  # A bit that is weighted by examples counts for many clients.
  num = len(shifts)
  with contextlib.suppress(NotChecked):
    heavy, light = (
      _sample(m, [update] + [m.zero] * (n - 1), runs, weight=HEAVY)
      for update in (HUGE * u, m.zero)
    )
    shifts.append((heavy, light, 1))
  level = ALPHA / 4 / len(shifts)
  bounds = [_lower_mu(a, b, clients, level) for a, b, clients in shifts]
  mus = [_mu(a, b, clients) for a, b, clients in shifts]
  # That of a single client is measured with a larger error than that of many.
  measured_mu = max(mus[:num])
  is_weighted = max(bounds[num:], default=0.0) > 2 * measured_mu
  if is_weighted:
    measured_mu = mus[-1]
  rest = math.sqrt(max(0.0, m.claimed_mu**2 - max(bounds) ** 2))
  p = 1.0
  if m.common_p_value >= ALPHA:
    p = m.noise.p_value(m.base, rest) if rest > 0 else 0.0
  elif max(bounds) > 0:
    p = float(max(bounds) <= m.claimed_mu)
  together = math.hypot(measured_mu, m.common_mu)
  measured = (
    f'the clip norm tells of a client with μ = {measured_mu:.3g} (at least '
    f'{max(bounds):.3g}), the release with {m.common_mu:.4g}, both with '
    f'{together:.4g}, where 1/z = {1 / m.claim.noise_multiplier:.4g}'
  )
  # The other half of the error probability is spent on the bounds.
  if p >= ALPHA / 2:
    return Outcome(measured, min(1.0, 2 * p))
  cause = _WEIGHTED_BIT if is_weighted else _NOISE_TOO_SMALL
  return Outcome(measured, p, cause, together)


def _mu(
  a: Float[np.ndarray, 'R'], b: Float[np.ndarray, 'R'], clients: int
) -> float:
  std = math.sqrt((np.var(a, ddof=1) + np.var(b, ddof=1)) / 2)
  return float(abs(a.mean() - b.mean()) / clients / std) if std else math.inf


def _lower_mu(
  a: Float[np.ndarray, 'R'],
  b: Float[np.ndarray, 'R'],
  clients: int,
  level: float,
) -> float:
  """Lower confidence bound of the shift by one client, by Student's t."""
  runs = len(a)
  mu = _mu(a, b, clients)
  if math.isinf(mu):
    return math.inf
  t = mu * clients * math.sqrt(runs / 2)
  tail = lambda shift: stats.nct.sf(t, 2 * runs - 2, shift) - level / 2
  if not tail(0.0) < 0:
    return 0.0
  shift = float(optimize.root_scalar(tail, bracket=(0.0, t)).root)
  return float(shift / clients / math.sqrt(runs / 2))
