"""ε of canaries that are shifted by known multiples of one unknown number.

A final model holds more of the canaries of some rounds than of others: momentum
adds an aggregate again and again, and the clip norm varies. What training leaves
of each canary is known up to one common factor, so that in units of the null's
standard deviation the scores are

  x_j ~ N(s μ_j, 1)   with known μ_j and unknown s.

An attacker who does not know the round of a canary distinguishes N(0, 1) from the
mixture of all N(s μ_j, 1). A single shift fitted to all, as for one Gaussian
mechanism, gives too small an ε, because ε at a small δ depends on the canaries
that are shifted most. An attacker who knows the round faces a Gaussian mechanism
with μ = s μ_j.
"""

from __future__ import annotations

from jaxtyping import Float
import numpy as np
from scipy import interpolate, special

from epe_jax.epsilon import (
  arguments,
  diagnostics,
  monotone,
  shift_fit,
  two_gaussians,
)
from epe_jax.epsilon.types import (
  Assumption,
  Estimate,
  Real,
  Scores,
  check_confidence,
  check_delta,
  check_scores,
  check_significance,
  make_bound,
  scalar_or_array,
)

_REJECTED = shift_fit.REJECTED_BELOW
# The ε of more audits than this are interpolated between nodes.
_MANY, _NODES = 128, 192


def location_mixture(
  scores: Scores, *, delta: float, confidence: float = 0.9
) -> Estimate:
  """ε between N(0, 1) and the mixture of N(ŝ μ_j, 1) over observed canaries.

  It is the ε of a canary of a random round, for an attacker who does not know
  which. If all shifts are equal it is `two_gaussians.two_gaussian` with std='null' or
  'pooled'.

  Args:
    scores: scores of canaries, any leading axes, with their `shift`; without it
      all canaries are assumed to be shifted alike.
    delta: δ, in (0, 1).
    confidence: of the two-sided interval, in (0, 1).

  Returns:
    A point estimate. For a single audit it has the interval of ε that follows
    from that of s, exact if scores are Gaussian with the null's spread.

  Raises:
    ValueError: a setting is out of range, or there are too few scores.
  """
  return _estimate(
    'location_mixture', scores, delta, confidence, shift_fit.shift_of(scores)
  )


def most_exposed(
  scores: Scores, *, delta: float, confidence: float = 0.9
) -> Estimate:
  """ε between N(0, 1) and N(ŝ max μ_j, 1): that of the canary shifted most.

  It is the ε of a canary, or a client, of the round that leaves most in the model, for an
  attacker who knows that round. See `location_mixture` for the arguments, the
  result and the errors.
  """
  largest = np.max(shift_fit.shift_of(scores), keepdims=True)
  return _estimate('most_exposed', scores, delta, confidence, largest)


def location_mixture_bound(
  scores: Scores, *, delta: float, significance: float = 0.05
) -> Estimate:
  """Lower bound of the ε of `location_mixture`, from an exact bound of s.

  Args:
    scores: as for `location_mixture`.
    delta: δ, in (0, 1).
    significance: chance that the bound exceeds the true ε, in (0, 1).

  Returns:
    The bound, >= 0. Its confidence is 1 - significance; but if the scores of any
    audit reject the assumptions, by `shift_fit.p_values`, it is a point
    estimate and its method ends in 'rejected'.

  Raises:
    ValueError: as `location_mixture`.
  """
  check_scores(scores, delta)
  check_significance(significance)
  s = shift_fit.lower_confidence_limit(
    shift_fit.fit_shift(scores), significance
  )
  rejected = diagnostics.name_rejected_null(scores)
  if any(np.any(np.asarray(p) < _REJECTED) for p in shift_fit.p_values(scores)):
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
  """True positive rates of the fitted mixture at given false positive rates.

  Args:
    scores: one audit.
    fpr: [m] false positive rates, in (0, 1).

  Returns:
    The true positive rates, [m].

  Raises:
    ValueError: there are too few scores.
  """
  s = np.abs(shift_fit.fit_shift(scores).s)
  z = -special.ndtri(np.asarray(fpr))[:, None]
  return np.mean(special.ndtr(s * shift_fit.shift_of(scores) - z), axis=1)


def epsilon_mixture(
  shift: Float[np.ndarray, ' n'],
  delta: Real,
  weights: Float[np.ndarray, ' n'] | None = None,
) -> float | Float[np.ndarray, '...']:
  """ε between N(0, 1) and Σ w_j N(shift_j, 1), both directions, exactly.

  Args:
    shift: [n] mean of each component, >= 0.
    delta: δ, in (0, 1), any shape.
    weights: [n] weight > 0 of each component, adding up to 1; None for equal ones.

  Returns:
    ε >= 0 at each δ.

  Raises:
    ValueError: an argument is out of range, or weights do not add up to 1.

  >>> round(epsilon_mixture(np.array([1.0, 1.0]), 1e-5), 4)
  4.3772
  """
  delta = arguments.check_numbers('delta', delta, '(0, 1)')
  shift = arguments.check_numbers('shift', shift, '[0, inf)', is_vector=True)
  if weights is not None:
    weights = arguments.check_numbers('weights', weights, '(0, 1]')
    if weights.shape != shift.shape or abs(np.sum(weights) - 1) > 1e-9:
      raise ValueError(
        f'weights have shape {weights.shape} and add up to '
        f'{np.sum(weights):.12g}; give one for each of the {shift.size} shifts, '
        'that add up to 1.'
      )
  pair = _pair(shift, weights)
  epsilon = monotone.solve_epsilon(pair, np.ones(delta.size), delta.ravel())
  return scalar_or_array(epsilon.reshape(delta.shape))


def fnr_mixture(
  shifts: Float[np.ndarray, ' n'],
  weights: Float[np.ndarray, ' n'],
  log_fpr: Float[np.ndarray, ' m'],
) -> Float[np.ndarray, ' m']:
  """Smallest false negative rate of N(0, 1) against Σ w_j N(shift_j, 1).

  Args:
    shifts: [n] mean of each component, >= 0.
    weights: [n] weight of each component, > 0, in any unit.
    log_fpr: [m] log of false positive rates.

  Returns:
    The rates, [m]: the likelihood ratio rises with the score, so that no other
    test is better than a threshold.
  """
  threshold = -special.ndtri_exp(log_fpr)
  missed = special.ndtr(threshold[..., None] - shifts)
  return missed @ (weights / np.sum(weights))


def compute_curve(
  scores: Scores,
  deltas: Float[np.ndarray, ' m'],
  *,
  confidence: float = 0.9,
) -> Float[np.ndarray, 'lines=3 m']:
  """ε(δ) of `location_mixture`, and the lower and upper limit of each ε.

  Args:
    scores: one audit.
    deltas: [m] values of δ, each in (0, 1).
    confidence: of the two-sided interval, in (0, 1).

  Returns:
    ε, its lower limits and its upper limits: three rows of [m].

  Raises:
    ValueError: confidence is out of range, or there are too few scores.
  """
  check_confidence(confidence)
  fit = shift_fit.fit_shift(scores)
  ends = shift_fit.confidence_limits(fit, (1 - confidence) / 2)
  unique, counts = np.unique(shift_fit.shift_of(scores), return_counts=True)
  pair = _pair(unique, counts / scores.observed.size)
  return np.stack(
    [
      monotone.solve_epsilon(pair, np.full(deltas.shape, s), deltas)
      for s in (abs(float(fit.s)), *ends)
    ]
  )


def _assumes(scores):
  null = (Assumption.COSINE_NULL,) if scores.has_known_null else ()
  return (
    Assumption.INDEPENDENT,
    *null,
    Assumption.GAUSSIAN_SCORES,
    Assumption.EQUAL_SPREAD,
  )


def _estimate(method, scores, delta, confidence, shift):
  check_delta(delta)
  check_confidence(confidence)
  fit = shift_fit.fit_shift(scores)
  factors, interval = np.abs(fit.s), None
  if factors.ndim == 0:
    # All three at once: a solution for many costs little more than for one.
    limits = shift_fit.confidence_limits(fit, (1 - confidence) / 2)
    epsilon, low, high = map(
      float, _epsilon_of(shift, np.array([factors, *limits]), delta)
    )
    interval = low, high
  else:
    epsilon = _epsilon_of(shift, factors, delta)
  return Estimate(
    scalar_or_array(epsilon),
    delta,
    method,
    confidence=None,
    assumes=_assumes(scores),
    interval=interval,
  )


def _epsilon_of(shift, s, delta):
  """ε at each s, [*batch]."""
  s = np.asarray(s, np.float64)
  unique, counts = np.unique(shift, return_counts=True)
  if unique.size == 1:
    return np.asarray(
      two_gaussians.epsilon_two_gaussians(0, 1, s * unique[0], 1, delta)
    )
  pair = _pair(unique, counts / shift.size)
  flat = s.ravel()
  if flat.size <= _MANY:
    return monotone.solve_epsilon(pair, flat, delta).reshape(s.shape)
  nodes = np.linspace(flat.min(), flat.max(), _NODES)
  epsilon = monotone.solve_epsilon(pair, nodes, delta)
  smooth = interpolate.PchipInterpolator(nodes, epsilon)
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
