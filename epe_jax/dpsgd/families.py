"""Trade-off curves of subsampled mechanisms, and of any with a PLD.

A privacy loss distribution (PLD) is what dp_accounting computes of a mechanism. The
families are for `epsilon.family_bound`, which audits single steps of DP-SGD,
or whole runs.
"""

from collections.abc import Callable
import functools
import math
from typing import Any

import numpy as np
from scipy import special

from epe_jax.epsilon import checks
from epe_jax.epsilon.checks import check_delta
from epe_jax.epsilon.tradeoff import (
  Lines,
  MechanismFamily,
  epsilon_gdp,
  fnr_gdp,
  mu_of_epsilon,
)

# Beyond this many standard deviations a tail is below 1e-23.
_TAIL = 10.0
_PMF_SIZE, _NUM_LINES, _SMALLEST_DELTA = 1e5, 160, 1e-10
# A curve takes many guarantees of a PLD, each at the cost of its size.
_CURVE_PMF_SIZE = 1e4
# e^ε is finite up to here.
_OVERFLOW = 700.0


def subsampled_gaussian_family(
  sampling_probability: float, *, steps: int = 1
) -> MechanismFamily:
  """Gaussian mechanisms on a Poisson sample, with scores of a single step.

  With g the Gaussian curve and p the sampling probability, one direction has
  f(α) = p g(α) + (1-p)(1-α) and the other its inverse. The curve of both is
  the convex hull of the lower one: f up to the fixed point x of g, a line of
  slope -1 from there to f(x), then the inverse of f.

  Args:
    sampling_probability: p, in (0, 1]. 1 is the Gaussian mechanism.
    steps: number T >= 1 of steps whose ε is reported, by the PLD of dp_accounting
      if T > 1.

  Returns:
    The family. ε is exact for T = 1 or p = 1. Otherwise it is that of a PLD by
    connected dots, which is too large by a relative error of less than 1e-5.

  Raises:
    ValueError: an argument is out of range.

  References: Dong et al. (2019), section 4; Balle et al. (2018), theorem 8.
  """
  p = sampling_probability
  _check_sampling_probability(p)
  checks.check_integer('steps', steps)

  def fnr(noise_multiplier, log_fpr):
    return _subsampled_fnr(1 / noise_multiplier, p, log_fpr)

  def epsilon(noise_multiplier, delta):
    if p == 1:
      return float(epsilon_gdp(np.sqrt(steps) / noise_multiplier, delta))
    if steps == 1:
      return _subsampled_epsilon(1 / noise_multiplier, p, delta)
    return _subsampled_pld(noise_multiplier, p, steps).get_epsilon_for_delta(
      delta
    )

  return MechanismFamily('subsampled_gaussian', fnr, epsilon)


def subsampled_run_family(
  sampling_probability: float,
  *,
  steps: int,
  make_lines: Callable[[Any], Lines] | None = None,
) -> MechanismFamily:
  """Runs of T Gaussian steps on Poisson samples, with scores of a whole run.

  An attacker who sees all steps of a run, and one who sees its final model, are
  both bound by the curve of the T steps together, which has no formula.

  Args:
    sampling_probability: p, in (0, 1].
    steps: T >= 1.
    make_lines: PLD of the run -> lines; by default `envelope`. `algorithm_4` gives
      those of Nasr et al.

  Returns:
    The family. Its ε is that of `subsampled_gaussian_family`. Its curve is exact
    for p = 1; otherwise it is of a pessimistic PLD, and nowhere above that of the
    run.

  Raises:
    ValueError: an argument is out of range.

  References: Nasr et al. (2023), section 4.1 and appendix A.
  """
  p = sampling_probability
  epsilon = subsampled_gaussian_family(p, steps=steps).epsilon
  if p == 1:

    def fnr(noise_multiplier, log_fpr):
      return fnr_gdp(math.sqrt(steps) / noise_multiplier, log_fpr)

    return MechanismFamily('gaussian_run', fnr, epsilon)
  curve = pld_family(
    lambda z: _subsampled_pld(z, p, steps, size=_CURVE_PMF_SIZE),
    fnr_from=make_lines,
  )
  return MechanismFamily('subsampled_run', curve.fnr, epsilon)


def noise_of_epsilon(
  epsilon: float, delta: float, *, sampling_probability: float = 1.0
) -> float:
  """The noise multiplier at which one subsampled Gaussian step has a given ε.

  Args:
    epsilon: ε >= 0 of the step.
    delta: δ, in (0, 1), and below the sampling probability: from there on every
      step has ε = 0.
    sampling_probability: p of the Poisson sample, in (0, 1].

  Returns:
    The noise multiplier: inf for ε = 0, and 0 for ε = inf.

  Raises:
    ValueError: an argument is out of range.

  >>> noise = noise_of_epsilon(1.5, 1e-5, sampling_probability=0.25)
  >>> round(subsampled_gaussian_family(0.25).epsilon(noise, 1e-5), 6)
  1.5
  """
  p = sampling_probability
  _check_sampling_probability(p)
  check_delta(delta)
  if delta >= p:
    raise ValueError(
      f'delta={delta} must be below sampling_probability={p}: a step in which a '
      'canary takes part that seldom has ε = 0 at any noise.'
    )
  if epsilon == 0:
    return math.inf
  # ε of the step without sampling: log (1 + (e^ε - 1)/p).
  inner = epsilon + math.log1p(-(1 - p) * math.exp(-epsilon)) - math.log(p)
  mu = mu_of_epsilon(inner, delta / p)
  return 1 / mu if mu > 0 else math.inf


def pld_family(
  audited: Callable[[float], Any],
  *,
  fnr_from: Callable[[Any], Lines] | None = None,
) -> MechanismFamily:
  """Mechanisms of any kind that have a PLD of dp_accounting.

  The curve is the envelope of the (ε, δ) guarantees on a grid of ε, a line
  each. It needs a PLD for every noise multiplier that the solver tries, about
  ten. A value_discretization_interval of 1e-3 is ten times as fast as the default,
  and the ε of 2500 steps is then too large by less than 0.1 %.

  Args:
    audited: noise multiplier -> pessimistic dp_accounting PrivacyLossDistribution of
      the mechanism.
    fnr_from: PLD -> lines; by default `envelope`. `algorithm_4` gives those of Nasr
      et al.

  Returns:
    The family.
  """
  make_lines = fnr_from or envelope

  # An estimate asks for the curve of one noise at several rates.
  @functools.lru_cache(maxsize=256)
  def lines(noise_multiplier):
    return make_lines(audited(noise_multiplier))

  def fnr(noise_multiplier, log_fpr):
    return lines(noise_multiplier).fnr(log_fpr)

  def epsilon(noise_multiplier, delta):
    return float(audited(noise_multiplier).get_epsilon_for_delta(delta))

  return MechanismFamily('pld', fnr, epsilon)


def envelope(privacy: Any) -> Lines:
  """Guarantees of a PLD on a grid of ε from 0 to where δ is negligible.

  Args:
    privacy: a dp_accounting PrivacyLossDistribution.

  Returns:
    The lines. Between grid points their curve is slightly too low.
  """
  top, delta = 1.0, privacy.get_delta_for_epsilon
  while delta(top) > _SMALLEST_DELTA and delta(2 * top) < delta(top):
    top *= 2
  grid = np.linspace(0.0, top, _NUM_LINES)
  if top < _OVERFLOW:
    return Lines(grid, np.asarray(delta(grid.tolist())))
  # One by one, because for a list of ε dp_accounting computes e^ε.
  return Lines(grid, np.array([delta(float(e)) for e in grid]))


def algorithm_4(*, delta: float, num_lines: int = 10) -> Callable[[Any], Lines]:
  """Algorithm 4 of Nasr et al.: guarantees at linearly spaced δ'.

  As printed it takes the smallest of the lines. But each line is a guarantee, so
  that all of them bound an attacker, and so does their maximum; which is also what
  approaches the curve in their figure 13.

  Args:
    delta: δ, in (0, 1/2); the δ' are num_lines values from δ to 1 - δ.
    num_lines: n, >= 1.

  Returns:
    A function from a PLD to its lines, for `pld_family`.

  Raises:
    ValueError: an argument is out of range.

  References: Nasr et al. (2023), appendix A.
  """
  checks.check_number('delta', delta, '(0, 0.5)')
  checks.check_integer('num_lines', num_lines)
  deltas = np.linspace(delta, 1 - delta, num_lines)

  def lines(privacy):
    epsilon = np.array([privacy.get_epsilon_for_delta(d) for d in deltas])
    finite = np.isfinite(epsilon)
    return Lines(epsilon[finite], deltas[finite])

  return lines


def _check_sampling_probability(p):
  checks.check_number('sampling_probability', p, '(0, 1]')


def _subsampled_fnr(mu, p, log_fpr):
  alpha = np.exp(log_fpr)
  fixed = special.ndtr(-mu / 2)
  corner = p * fixed + (1 - p) * (1 - fixed)

  def one_direction(log_alpha):
    gaussian = fnr_gdp(mu, log_alpha)
    return p * gaussian + (1 - p) * -np.expm1(log_alpha)

  flat = alpha > corner
  inverse = np.zeros_like(alpha)
  if np.any(flat):
    inverse[flat] = _inverse(
      one_direction, alpha[flat], special.log_ndtr(-mu / 2)
    )
  line = np.clip(fixed + corner - alpha, 0.0, 1.0)
  middle = np.where(alpha > fixed, line, one_direction(log_fpr))
  return np.where(flat, inverse, middle)


def _inverse(decreasing, target, log_top):
  """The x, at most e^log_top, at which a decreasing function of log x is given."""
  high = np.full_like(target, log_top)
  # e^-745 is the smallest float64.
  low = np.minimum(high, -745.0)
  for _ in range(64):
    middle = (low + high) / 2
    above = decreasing(middle) > target
    low, high = np.where(above, middle, low), np.where(above, high, middle)
  return np.exp(low)


def _subsampled_epsilon(mu, p, delta):
  """δ(ε) is p times that of the Gaussian at ε' = log(1 + (e^ε - 1)/p)."""
  if delta >= p:
    return 0.0
  inner = float(epsilon_gdp(mu, delta / p))
  return float(np.logaddexp(np.log1p(-p), np.log(p) + inner))


def _subsampled_pld(noise_multiplier, p, steps, *, size=_PMF_SIZE):
  # Imported late, because it is slow to load.
  from dp_accounting.pld import privacy_loss_distribution

  mu = 1 / noise_multiplier
  largest = np.logaddexp(np.log1p(-p), np.log(p) + mu * (mu / 2 + _TAIL))
  one = privacy_loss_distribution.from_gaussian_mechanism(
    noise_multiplier,
    sampling_prob=p,
    value_discretization_interval=max(1e-6, float(largest) / size),
  )
  return one.self_compose(steps)
