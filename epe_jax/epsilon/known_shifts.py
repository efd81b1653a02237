"""ε of canaries that are shifted by known multiples of one unknown number.

A final model holds more of the canaries of some rounds than of others: momentum
adds an aggregate again and again, and the clip norm varies. What training leaves
of each canary is known up to one common factor, so that in units of the null's
standard deviation the scores are

  x_j ~ N(s μ_j, 1)   with known μ_j and unknown s.

An attacker who does not know the round of a canary distinguishes N(0, 1) from the
mixture of all N(s μ_j, 1). A single shift fitted to all gives too small an ε, because
ε at a small δ depends on the canaries that are shifted most. An attacker who knows
the round faces a Gaussian mechanism with μ = s μ_j.
"""

from typing import NamedTuple

from jaxtyping import Float, Int
import numpy as np
from scipy import special

from epe_jax.epsilon import (
  checks,
  diagnostics,
  gaussian_bound,
  monotone,
  two_gaussians,
)
from epe_jax.epsilon.types import (
  Assumption,
  Estimate,
  NullLaw,
  Real,
  Scores,
  Sphere,
  check_scores,
  list_assumptions,
  make_bound,
  scalar_or_array,
)

REJECTED_BELOW = 1e-3
"""Significance at which a test says that an estimate is not calibrated.

A report makes about ten such tests, so that one report in a hundred raises a doubt
by chance.
"""

# The ε of more audits than this are interpolated between nodes.
_MANY, _NODES = 128, 192


def location_mixture(
  scores: Scores, *, delta: float, confidence: float = 0.9
) -> Estimate:
  """ε between N(0, 1) and the mixture of N(ŝ μ_j, 1) over observed canaries.

  It is the ε of a canary of a random round, for an attacker who does not know
  which. If all shifts are equal and the null law is known it is `two_gaussian` with
  std='null'.

  Args:
    scores: with their `shift`; without it all are assumed to be shifted alike.

  Returns:
    A point estimate. For a single audit it has the interval of ε that follows
    from that of s, exact if scores are Gaussian with the null's spread.

  Raises:
    ValueError: also if there are too few scores.
  """
  return _estimate('location_mixture', scores, delta, confidence)


def most_exposed(
  scores: Scores, *, delta: float, confidence: float = 0.9
) -> Estimate:
  """ε between N(0, 1) and N(ŝ max μ_j, 1): that of the canary shifted most.

  It is the ε of a canary, or a client, of the round that leaves most in the model, for
  an attacker who knows that round. Otherwise as `location_mixture`.
  """
  return _estimate('most_exposed', scores, delta, confidence)


def location_mixture_bound(
  scores: Scores, *, delta: float, significance: float = 0.05
) -> Estimate:
  """Lower bound of the ε of `location_mixture`, from an exact bound of s.

  Returns:
    The bound, >= 0; but if the scores of any audit reject the assumptions, by
    `p_values`, it is a point estimate and its method ends in 'rejected'.
  """
  check_scores(scores, delta, significance=significance)
  s = lower_confidence_limit(fit_shift(scores), significance)
  rejected = diagnostics.name_rejected_null(scores)
  if any(np.any(np.asarray(p) < REJECTED_BELOW) for p in p_values(scores)):
    rejected = 'rejected'
  return make_bound(
    _epsilon_of(shift_of(scores), np.maximum(s, 0.0), delta),
    delta,
    'location_mixture_bound',
    significance=significance,
    assumes=_assumes(scores),
    rejected=rejected,
  )


def epsilon_mixture(
  shift: Float[np.ndarray, ' n'],
  delta: Real,
  weights: Float[np.ndarray, ' n'] | None = None,
) -> float | Float[np.ndarray, '...']:
  """ε between N(0, 1) and Σ w_j N(shift_j, 1), both directions, exactly, at each δ.

  Shifts are >= 0; weights are > 0 and add up to 1, or None for equal ones.

  >>> round(epsilon_mixture(np.array([1.0, 1.0]), 1e-5), 4)
  4.3772
  """
  delta = checks.check_numbers('delta', delta, '(0, 1)')
  shift = checks.check_numbers('shift', shift, '[0, inf)', is_vector=True)
  if weights is not None:
    weights = checks.check_numbers('weights', weights, '(0, 1]')
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
  """Smallest FNR, at each log FPR, of N(0, 1) against Σ w_j N(shift_j, 1).

  The likelihood ratio rises with the score, so that no other test is better than a
  threshold. Weights may be in any unit.
  """
  threshold = -special.ndtri_exp(log_fpr)
  missed = special.ndtr(threshold[..., None] - shifts)
  return missed @ (weights / np.sum(weights))


def compute_rates(
  scores: Scores, fpr: Float[np.ndarray, ' m']
) -> Float[np.ndarray, ' m']:
  """TPR of the fitted mixture of one audit at each FPR."""
  s = np.abs(fit_shift(scores).s)
  z = -special.ndtri(np.asarray(fpr))[:, None]
  return np.mean(special.ndtr(s * shift_of(scores) - z), axis=1)


def compute_curve(
  scores: Scores, deltas: Float[np.ndarray, ' m']
) -> Float[np.ndarray, 'lines=3 m']:
  """ε(δ) of `location_mixture` of one audit, and both limits of each ε, of 90 %."""
  fit = fit_shift(scores)
  ends = confidence_limits(fit, (1 - 0.9) / 2)
  unique, counts = np.unique(shift_of(scores), return_counts=True)
  pair = _pair(unique, counts / scores.observed.size)
  return np.stack(
    [
      monotone.solve_epsilon(pair, np.full(deltas.shape, s), deltas)
      for s in (abs(float(fit.s)), *ends)
    ]
  )


def _assumes(scores):
  shape = Assumption.GAUSSIAN_SCORES, Assumption.EQUAL_SPREAD
  return (*list_assumptions(scores), *shape)


def _estimate(method, scores, delta, confidence):
  check_scores(scores, delta, confidence=confidence)
  fit, shift = fit_shift(scores), shift_of(scores)
  if method == 'most_exposed':
    shift = np.max(shift, keepdims=True)
  factors, interval = np.abs(fit.s), None
  if factors.ndim == 0:
    # All three at once: a solution for many costs little more than for one.
    limits = confidence_limits(fit, (1 - confidence) / 2)
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
  if s.size <= _MANY:
    return monotone.solve_epsilon(pair, s.ravel(), delta).reshape(s.shape)
  return monotone.interpolate_epsilon(pair, s, delta, _NODES)


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


# The fit of s, its limits, and tests.


class Fit(NamedTuple):
  """The fitted factor s, and how accurately it is known.

  Attributes:
    s: [*batch], in units of the null's standard deviation; negative if canaries
      that took part score lower than others.
    scale: [*batch], 1 over the standard error of s.
    df: degrees of freedom of the fitted standard deviation, for which s times
      scale is a t statistic; inf if the null law is known.
  """

  s: Float[np.ndarray, '*batch']
  scale: Float[np.ndarray, '*batch']
  df: float


def fit_shift(scores: Scores) -> Fit:
  """Fits s by least squares, together with the null law if that is not known.

  Raises:
    ValueError: there are fewer than two unobserved scores to fit the spread of
      the null, or all scores of each group are equal.
  """
  shift = shift_of(scores)
  if scores.has_known_null:
    null_mean, null_std = two_gaussians.null_gaussian(scores)
    x = (scores.observed - null_mean[..., None]) / null_std[..., None]
    square = float(np.sum(shift**2))
    s = np.asarray(np.sum(shift * x, axis=-1) / square)
    return Fit(s, _find_scale(scores, s, square), np.inf)
  null = scores.unobserved
  total = shift.size + null.shape[-1]
  if null.shape[-1] < 2:
    raise ValueError(
      f'unobserved has {null.shape[-1]} scores, but their spread needs two. Use '
      'more canaries, or, if scores are cosines in R^d, give null=Sphere(d), on the '
      'command line --dim=D.'
    )
  # The regression x = m + s σ μ, with μ = 0 for those that took no part.
  pooled = np.concatenate([scores.observed, null], axis=-1)
  mu = np.concatenate([shift, np.zeros(null.shape[-1])])
  centred = mu - mu.mean()
  square = float(np.sum(centred**2))
  slope = np.sum(centred * pooled, axis=-1) / square
  rest = pooled - pooled.mean(axis=-1, keepdims=True)
  rest = rest - slope[..., None] * centred
  std = np.sqrt(np.sum(rest**2, axis=-1) / (total - 2))
  if not np.all(std > 0):
    raise ValueError(
      'the scores of an audit are all equal in each group, so their spread is 0 '
      'and ε is undefined: use more canaries.'
    )
  s = np.asarray(slope / std)
  return Fit(s, _find_scale(scores, s, square), float(total - 2))


def _find_scale(scores, s, square):
  """1 over the standard error of s, with what canaries of one vector share.

  A mean that is fitted too takes as much of what is shared as of the shifts: `square`
  is what is left of Σ μ².
  """
  shared = scores.overlap * square / np.sum(shift_of(scores) ** 2)
  return np.sqrt(square / (1 + s**2 * shared))


def compute_overlap(
  shift: Float[np.ndarray, ' n1'],
  vector: Int[np.ndarray, ' n1'],
  null: NullLaw,
) -> float:
  """`Scores.overlap` of canaries with shifts μ, each in the vector of that number.

  Unless the null law is `Sphere`, it is 0.
  """
  if not isinstance(null, Sphere):
    return 0.0
  of_vector = np.bincount(vector, shift**2)
  # Of canaries alone in their vectors it is 0 but for rounding.
  others = max(0.0, np.sum(of_vector**2) - np.sum(shift**4))
  return float(others / (null.dim * np.sum(shift**2)))


def shift_of(scores: Scores) -> Float[np.ndarray, ' n1']:
  """The shift μ of each observed canary, up to a factor; 1 if none is given."""
  if scores.shift is not None:
    return scores.shift
  return np.ones(scores.observed.shape[-1])


def lower_confidence_limit(fit: Fit, significance: float) -> Real:
  """Lower limit of s, of each audit, that exceeds s with that chance."""
  if np.isinf(fit.df):
    return fit.s + special.ndtri(significance) / fit.scale
  t = fit.s * fit.scale
  limit = gaussian_bound.noncentrality_lower(t, fit.df, significance)
  return np.asarray(limit) / fit.scale


def confidence_limits(fit: Fit, tail: float) -> tuple[float, float]:
  """Lower and upper limit of |s| of one audit; each fails with chance `tail`."""
  mirrored = fit._replace(s=-fit.s)
  low, high = (
    float(lower_confidence_limit(fit, tail)),
    -float(lower_confidence_limit(mirrored, tail)),
  )
  ends = sorted((abs(low), abs(high)))
  return (0.0 if low <= 0 <= high else ends[0]), ends[1]


class PValues(NamedTuple):
  """P-values of what `location_mixture` assumes, [*batch] each.

  Attributes:
    spread: of the test that observed scores, less their shifts, have the spread
      of unobserved ones; 1 for fewer than two observed scores.
    shape: of Anderson and Darling's test that they are Gaussian; 1 for fewer than
      eight.
  """

  spread: float | Float[np.ndarray, '*batch']
  shape: float | Float[np.ndarray, '*batch']


def p_values(scores: Scores) -> PValues:
  """Tests what `location_mixture` assumes of these scores."""
  num = scores.observed.shape[-1]
  batch = scores.observed.shape[:-1]
  rest = residuals(scores)
  if num < 2 or not np.all(np.ptp(rest, axis=-1) > 0):
    one = scalar_or_array(np.ones(batch))
    return PValues(scalar_or_array(np.full(batch, float(num < 2))), one)
  square = np.sum(rest**2, axis=-1)
  if scores.has_known_null:
    below = special.chdtr(num - 1, square)
    above = special.chdtrc(num - 1, square)
  else:
    df = scores.unobserved.shape[-1] - 1
    below = special.fdtr(num - 1, df, square / (num - 1))
    above = special.fdtrc(num - 1, df, square / (num - 1))
  spread = np.minimum(1.0, 2 * np.minimum(below, above))
  shape = np.ones(batch)
  if num >= diagnostics.MIN_SCORES:
    centred = rest - rest.mean(axis=-1, keepdims=True)
    z = np.sort(centred, axis=-1) / np.std(rest, axis=-1, ddof=1)[..., None]
    a = diagnostics.a_squared(special.log_ndtr(z), special.log_ndtr(-z))
    shape = np.asarray(diagnostics.p_value_fitted(a, num))
  return PValues(scalar_or_array(spread), scalar_or_array(shape))


def compare_with_expected(scores: Scores) -> tuple[float, float]:
  """Compares the fitted factor ŝ of one audit with 1, for shifts known absolutely.

  They are in units of the null's standard deviation. The difference is in standard
  errors, with its two-sided p-value.
  """
  fit = fit_shift(scores)
  z = float((fit.s - 1) * fit.scale)
  if not np.isinf(fit.df):
    # As the standard deviation is estimated, the error of ŝ grows with ŝ.
    z /= float(np.sqrt(1 + (fit.s * fit.scale) ** 2 / (2 * fit.df)))
  return z, float(2 * special.ndtr(-abs(z)))


def residuals(scores: Scores) -> Float[np.ndarray, '*batch n1']:
  """Observed scores less their fitted shifts, in units of the null's std."""
  mean, std = two_gaussians.null_gaussian(scores)
  if not scores.has_known_null:
    num = scores.unobserved.shape[-1]
    std = std * np.sqrt(num / (num - 1))
  x = (scores.observed - mean[..., None]) / std[..., None]
  shift = shift_of(scores)
  s = np.sum(shift * x, axis=-1) / np.sum(shift**2)
  return x - s[..., None] * shift
