"""Canaries that are shifted by known multiples of one unknown number.

A final model holds more of the canaries of some rounds than of others: momentum
adds an aggregate again and again, and the clip norm moves. What training leaves
of each canary is known up to one common factor, so scores in units of the null's
standard deviation are

  x_j ~ N(s μ_j, 1)   with μ_j known and s not.

An attacker who does not know the round of a canary tells N(0, 1) from the mixture
of all N(s μ_j, 1). One shift fitted to all, as of a single Gaussian mechanism, is
too small an ε, because ε at a small δ is about the canaries that stand out. An
attacker who knows the round meets a Gaussian mechanism with μ = s μ_j.
"""

from __future__ import annotations

from jaxtyping import Float
import numpy as np
from scipy import interpolate, special

from epe_jax.epsilon import (
  diagnostics,
  gaussian,
  monotone,
  shift_fit,
  shift_tests,
)
from epe_jax.epsilon.types import (
  Assumption,
  Estimate,
  Scores,
  check_delta,
  check_significance,
  make_bound,
  scalar_or_array,
)

_REJECTED = shift_tests.REJECTED_BELOW
# So many audits at once have ε by interpolation.
_MANY, _NODES = 128, 192


def location_mixture(
  scores: Scores, *, delta: float, confidence: float = 0.9
) -> Estimate:
  """ε between N(0, 1) and the mixture of N(ŝ μ_j, 1) over observed canaries.

  It is of a canary of a random round, if the attacker does not know which. If
  all shifts are alike it is `gaussian.two_gaussian` with the std of the null or
  the pooled one.

  Args:
    scores: scores of canaries, any leading axes, with their `shift`; without,
      all are taken to be shifted alike.
    delta: δ, in (0, 1).
    confidence: of the two-sided interval, in (0, 1).

  Returns:
    A point estimate; for a single audit with the interval of ε that follows
    from that of s, exact if scores are Gaussian with the null's spread.

  Raises:
    ValueError: if settings are out of range, or there are too few scores.
  """
  return _estimate(
    'location_mixture', scores, delta, confidence, shift_fit.shift_of(scores)
  )


def most_exposed(
  scores: Scores, *, delta: float, confidence: float = 0.9
) -> Estimate:
  """ε between N(0, 1) and N(ŝ max μ_j, 1): of the canary that is shifted most.

  It is of a canary, or a client, of the round of which most is left, to an
  attacker who knows that. See `location_mixture`.
  """
  largest = np.max(shift_fit.shift_of(scores), keepdims=True)
  return _estimate('most_exposed', scores, delta, confidence, largest)


def location_mixture_bound(
  scores: Scores, *, delta: float, significance: float = 0.05
) -> Estimate:
  """Lower bound of the ε of `location_mixture`, from an exact one of s.

  Args:
    scores: as for `location_mixture`.
    delta: δ, in (0, 1).
    significance: chance that the bound exceeds the true ε, in (0, 1).

  Returns:
    The bound, >= 0. Its confidence is 1 - significance; but if scores reject
    what it assumes, by `shift_tests.p_values` in any of the audits, it is a point
    estimate, and 'rejected' is part of its name.

  Raises:
    ValueError: as `location_mixture`.
  """
  check_delta(delta)
  check_significance(significance)
  s = shift_fit.lower_confidence_limit(
    shift_fit.fit_shift(scores), significance
  )
  rejected = diagnostics.name_rejected_null(scores)
  if any(
    np.any(np.asarray(p) < _REJECTED) for p in shift_tests.p_values(scores)
  ):
    rejected = 'rejected'
  return make_bound(
    _epsilon_of(shift_fit.shift_of(scores), np.maximum(s, 0.0), delta),
    delta,
    'location_mixture_bound',
    significance=significance,
    assumes=_assumes(scores),
    rejected=rejected,
  )


def compute_rates(
  scores: Scores, fpr: Float[np.ndarray, ' m']
) -> Float[np.ndarray, ' m']:
  """True positive rates of the fitted mixture at given false positive rates."""
  s = np.abs(shift_fit.fit_shift(scores).s)
  z = -special.ndtri(np.asarray(fpr))[:, None]
  return np.mean(special.ndtr(s * shift_fit.shift_of(scores) - z), axis=1)


def epsilon_mixture(
  shift: Float[np.ndarray, ' n'],
  delta: float,
  weights: Float[np.ndarray, ' n'] | None = None,
) -> float:
  """ε between N(0, 1) and Σ w_j N(shift_j, 1), both directions, exactly.

  Args:
    shift: of each component, >= 0.
    delta: δ, in (0, 1).
    weights: of each, summing to 1; None for equal ones.

  >>> round(epsilon_mixture(np.array([1.0, 1.0]), 1e-5), 4)
  4.3772
  """
  check_delta(delta)
  pair = _pair(np.asarray(shift, np.float64), weights)
  return float(monotone.solve_epsilon(pair, np.ones(1), delta)[0])


def compute_curve(
  scores: Scores,
  deltas: Float[np.ndarray, ' m'],
  *,
  confidence: float = 0.9,
) -> Float[np.ndarray, 'lines=3 m']:
  """ε(δ) of `location_mixture`, and the lower and upper limit of each ε.

  Args:
    scores: one audit.
    deltas: each in (0, 1).
    confidence: of the two-sided interval, in (0, 1).
  """
  found = shift_fit.fit_shift(scores)
  ends = shift_fit.confidence_limits(found, (1 - confidence) / 2)
  unique, counts = np.unique(shift_fit.shift_of(scores), return_counts=True)
  pair = _pair(unique, counts / scores.observed.size)
  return np.stack(
    [
      monotone.solve_epsilon(pair, np.full(deltas.shape, s), deltas)
      for s in (abs(float(found.s)), *ends)
    ]
  )


def _assumes(scores):
  known = (Assumption.COSINE_NULL,) if scores.dim is not None else ()
  return (
    Assumption.INDEPENDENT,
    *known,
    Assumption.GAUSSIAN_SCORES,
    Assumption.EQUAL_SPREAD,
  )


def _estimate(method, scores, delta, confidence, shift):
  check_delta(delta)
  check_significance(1 - confidence)
  found = shift_fit.fit_shift(scores)
  interval = None
  if found.s.ndim == 0:
    interval = _interval(found, shift, delta, (1 - confidence) / 2)
  return Estimate(
    scalar_or_array(_epsilon_of(shift, np.abs(found.s), delta)),
    delta,
    method,
    confidence=None,
    assumes=_assumes(scores),
    interval=interval,
  )


def _interval(found, shift, delta, tail):
  low, high = _epsilon_of(
    shift, np.array(shift_fit.confidence_limits(found, tail)), delta
  )
  return float(low), float(high)


def _epsilon_of(shift, s, delta):
  """ε at each s, [*batch]."""
  s = np.asarray(s, np.float64)
  unique, counts = np.unique(shift, return_counts=True)
  if unique.size == 1:
    return np.asarray(
      gaussian.epsilon_two_gaussians(0, 1, s * unique[0], 1, delta)
    )
  pair = _pair(unique, counts / shift.size)
  flat = s.ravel()
  if flat.size <= _MANY:
    return monotone.solve_epsilon(pair, flat, delta).reshape(s.shape)
  nodes = np.linspace(flat.min(), flat.max(), _NODES)
  known = monotone.solve_epsilon(pair, nodes, delta)
  smooth = interpolate.PchipInterpolator(nodes, known)
  return np.maximum(smooth(flat), 0.0).reshape(s.shape)


def _pair(shift, weights):
  """N(0, 1) and the mixture of N(s shift_j, 1)."""
  if weights is None:
    weights = np.full(shift.size, 1 / shift.size)
  log_weights = np.log(weights)

  def log_ratio(x, s):
    m = s[..., None] * shift
    return monotone.log_sum(log_weights + m * (x[..., None] - m / 2))

  def tails(x):
    return special.log_ndtr(x), special.log_ndtr(-x)

  def shifted_tails(x, s):
    z = x[..., None] - s[..., None] * shift
    below, above = (
      monotone.log_sum(log_weights + special.log_ndtr(y)) for y in (z, -z)
    )
    return below, above

  def bracket(s, delta):
    low = special.ndtri(delta)
    return low, s * np.max(shift) - low

  return monotone.MonotonePair(log_ratio, tails, shifted_tails, bracket)
