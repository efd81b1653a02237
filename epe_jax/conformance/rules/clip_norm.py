"""A clip norm that adapts reveals something of clients, too."""

from collections.abc import Sequence
import contextlib
import math
from typing import NamedTuple

from jaxtyping import Float
import numpy as np

from epe_jax.conformance import comparison
from epe_jax.conformance.laws import ALPHA
from epe_jax.conformance.measurements import HEAVY, HUGE, Measurements
from epe_jax.conformance.rule import Outcome, rule
from epe_jax.conformance.session import Cohort, NotChecked, Vector
from epe_jax.epsilon import gaussian_bound

_RUNS = 24
_LEVELS = (1.2, 1.6, 1e3)


class _Shift(NamedTuple):
  """How far so many clients shift the logarithm of the clip norm, from b to a."""

  a: Float[np.ndarray, 'R']
  b: Float[np.ndarray, 'R']
  clients: int

  @property
  def mu(self) -> float:
    """Shift by one client over the noise."""
    if _is_constant(np.concatenate([self.a, self.b])):
      return 0.0  # At a bound of the clip norm.
    std = math.sqrt((np.var(self.a, ddof=1) + np.var(self.b, ddof=1)) / 2)
    shift = abs(self.a.mean() - self.b.mean()) / self.clients
    return float(shift / std) if std else math.inf

  def bound_mu(self, level: float) -> float:
    """Lower confidence bound of μ, by Student's t."""
    if math.isinf(self.mu):
      return math.inf
    runs = len(self.a)
    scale = self.clients * math.sqrt(runs / 2)
    bound = gaussian_bound.noncentrality_lower(
      self.mu * scale, 2 * runs - 2, level / 2
    )
    return max(0.0, float(bound)) / scale


@rule('public clip norm', 'two clients', 'gaussian noise')
def clip_norm(m: Measurements) -> Outcome:
  """Release and public clip norm together reveal no more than 1/z."""
  n, u = m.claim.num_clients, m.base_update
  runs = m.plan(0.03, max_runs=_RUNS)
  high = _sample(m, [HUGE * u] * n, runs)
  low = _sample(m, [m.zero] * n, runs)
  if _is_constant(np.concatenate([high, low])):
    return Outcome('the public clip norm does not adapt')
  if _is_constant(high) and _is_constant(low):
    return _diagnose_exact(m, float(high[0]), float(low[0]))
  # If a client comes or goes, a centred bit changes by 1/2, another one by 1 if the
  # client is below the clip norm. If a client changes sides, both change by 1.
  shifts, half = [_Shift(high, low, 2 * n)], max(1, n // 2)
  with contextlib.suppress(NotChecked):
    for whole, update in ((high, HUGE * u), (low, m.zero)):
      some = _sample(m, [update] * (n - half), runs)
      shifts.append(_Shift(whole, some, half))
  # That of a single client is measured with a larger error than that of many.
  mu = max(shift.mu for shift in shifts)
  # A bit that is weighted by examples counts for many clients.
  weighted = []
  with contextlib.suppress(NotChecked):
    heavy, light = (
      _sample(m, [update] + [m.zero] * (n - 1), runs, weight=HEAVY)
      for update in (HUGE * u, m.zero)
    )
    weighted = [_Shift(heavy, light, 1)]
  level = ALPHA / 4 / len(shifts + weighted)
  bounds = [shift.bound_mu(level) for shift in shifts + weighted]
  is_weighted = bool(weighted) and bounds[-1] > 2 * mu
  if is_weighted:
    mu = weighted[0].mu
  claimed = comparison.claimed_mu(m.claim)
  rest = math.sqrt(max(0.0, claimed**2 - max(bounds) ** 2))
  own_mu, own_p = comparison.judge_ordinary(m)
  p = 1.0
  if own_p >= ALPHA:
    noise = comparison.measure_noise(m)
    p = noise.p_value(m.base, rest) if rest > 0 else 0.0
  elif max(bounds) > 0:
    p = float(max(bounds) <= claimed)
  mu = max(mu, *bounds)
  together = math.hypot(mu, own_mu)
  measured = (
    f'the clip norm tells of a client with μ = {mu:.3g} (at least '
    f'{max(bounds):.3g}), the release with {own_mu:.4g}, both with '
    f'{together:.4g}, where 1/z = {1 / m.claim.noise_multiplier:.4g}'
  )
  cause = (
    'quantile_bits_by_weight' if is_weighted else 'quantile_noise_too_small'
  )
  # The other half of the error probability is spent on the bounds.
  return Outcome(measured, min(1.0, 2 * p), cause, together)


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
  u = m.base_update
  # Above the clip norm, all levels have the same bit.
  others = [0.5 * u, 2.0 * u] * ((m.claim.num_clients - 1) // 2)
  after = [_sample(m, [c * u, *others], 1)[0] for c in _LEVELS]
  factors = ', '.join(f'{math.exp(x):.4g}' for x in after)
  measured = (
    'after one round the clip norm is multiplied with '
    f'{math.exp(high):.4g} in every run if all updates are large, with '
    f'{math.exp(low):.4g} if all are zero; with {factors} if one update has '
    f'{", ".join(f"{c:g}" for c in _LEVELS)} clip norms among others'
  )
  cause = 'clip_norm_from_unclipped_norms'
  if _is_constant(np.array(after)):
    cause = 'quantile_bit_without_noise'
  return Outcome(measured, cause=cause, mu=math.inf)
