"""f-DP audits: bounds from the whole trade-off curve of a mechanism.

(ε, δ)-DP bounds the rates of an attacker by two lines, which touch the curve of a
Gaussian mechanism at two points; everywhere else even the best attack proves less
than ε. An audit that assumes the shape of the curve and bounds only its noise is
tight at any threshold. It assumes that the mechanism is a member of a family, with
some noise.

If an attack has upper limits α of its FPR and β of its FNR, then f(α) <= β,
because f falls. The noise is at most the largest for which this holds.

Source: Nasr et al., "Tight auditing of differentially private machine learning"
(2023), section 4.1 and appendix A.
"""

from __future__ import annotations

import functools
from typing import NamedTuple, get_args

from jaxtyping import Float
import numpy as np
from scipy import optimize, special

from epe_jax.epsilon import (
  band,
  corrections,
  cosine_null,
  diagnostics,
  intervals,
  rank_bound,
  threshold,
  threshold_bound,
  tradeoff_curves,
)
from epe_jax.epsilon.corrections import (
  Band,
  Bonferroni,
  Explicit,
  Multiplicity,
  MultiSplit,
  Split,
  Uncorrected,
)
from epe_jax.epsilon.types import (
  Assumption,
  Estimate,
  Scores,
  check_delta,
  check_significance,
  make_bound,
)

_BAND = Band()
_GAUSSIAN = tradeoff_curves.gaussian_family()
_PRECISION, _DOUBLINGS, _FAR = 1e-7, 40, 8.0


class Limits(NamedTuple):
  """Upper limits of both rates at some thresholds, [*batch, m] each.

  Attributes:
    log_fpr: log of the limit of the false positive rate.
    fnr: limit of the false negative rate.
  """

  log_fpr: Float[np.ndarray, '*batch m']
  fnr: Float[np.ndarray, '*batch m']


def gdp_bound(
  scores: Scores,
  *,
  delta: float,
  significance: float = 0.05,
  multiplicity: Multiplicity = _BAND,
) -> Estimate:
  """Lower bound of the ε of a Gaussian mechanism, from a lower bound of its μ.

  μ >= Φ⁻¹(1 - FPR) - Φ⁻¹(FNR), or 0, with Clopper-Pearson limits of the rates; ε at
  δ is then exact and has no cap. Each limit fails with probability
  significance/2; if `scores.dim` is given, the FPR is exact and the FNR has the
  whole significance. Band() without `scores.dim` tests both rates at once, and
  with them the area under the ROC curve (`rank_test`).

  Args:
    scores: scores of canaries, any leading axes.
    delta: δ, in (0, 1).
    significance: chance that the bound exceeds the true ε, in (0, 1).
    multiplicity: the correction for the choice of the threshold, an instance of a
      class of `strategies`. Uncorrected(), as in the paper, is the best of all
      thresholds without a correction, and the result is not a bound.

  Returns:
    The bound, >= 0, and inf if a cosine of 1 has no false positives. Its
    confidence is 1 - significance; it is a point estimate for Uncorrected() and if
    the unobserved scores reject `scores.dim`. It is valid for mechanisms whose
    curve is that of a Gaussian or above, an assumption that counts at thresholds
    cannot test.

  Raises:
    ValueError: a setting is out of range, multiplicity is unknown, or there are
      too few scores to split.

  Source: equation (12).

  >>> scores = Scores(np.linspace(2, 4, 1000), np.linspace(-1, 1, 1000))
  >>> bound = gdp_bound(scores, delta=1e-5, multiplicity=Explicit((1.5,)))
  >>> round(bound.epsilon, 2), bound.confidence
  (36.49, 0.95)
  """

  def solve(limits):
    return np.max(gdp_mu(*limits), axis=-1)

  def convert(mu):
    return tradeoff_curves.epsilon_gdp(mu, delta)

  settings = (scores, delta, significance, multiplicity)
  shape = Assumption.GAUSSIAN_CURVE
  return _estimate('gdp', shape, _GAUSSIAN, solve, convert, *settings)


def family_bound(
  scores: Scores,
  *,
  family: tradeoff_curves.Family,
  delta: float,
  significance: float = 0.05,
  multiplicity: Multiplicity = _BAND,
) -> Estimate:
  """Lower bound of the ε of a mechanism of a family, from an upper one of its noise.

  It is `gdp_bound` for other curves, such as those of `families`: of a
  subsampled Gaussian, or of any mechanism with a PLD. To audit a whole run by
  single steps, use a family whose curve is that of one step and whose ε is that of
  all steps.

  Args:
    scores: scores of canaries, any leading axes.
    family: from `tradeoff_curves` or `families`.
    delta: δ, in (0, 1).
    significance: chance that the bound exceeds the true ε, in (0, 1).
    multiplicity: as in `gdp_bound`. A split chooses the threshold that is best for
      `gdp_bound`, for any family.

  Returns:
    The bound, >= 0, with a confidence as in `gdp_bound`. It is valid if the
    mechanism is a member of the family, and inf if the scores reject every member
    of the family.

  Raises:
    ValueError: a setting is out of range, multiplicity is unknown, or there are
      too few scores to split.
  """

  def solve(limits):
    inverse = np.empty(limits.fnr.shape[:-1])
    for at in np.ndindex(inverse.shape):
      noise = max_noise(family, limits.log_fpr[at], limits.fnr[at])
      inverse[at] = 1 / noise if noise > 0 else np.inf
    return inverse

  def convert(inverse):
    epsilon = [
      epsilon_of_strength(family, float(x), delta) for x in np.ravel(inverse)
    ]
    return np.reshape(epsilon, inverse.shape)

  settings = (scores, delta, significance, multiplicity)
  shape = Assumption.FAMILY
  return _estimate(family.name, shape, family, solve, convert, *settings)


def gdp_mu(
  log_fpr: Float[np.ndarray, '*shape'], fnr: Float[np.ndarray, '*shape']
) -> Float[np.ndarray, '*shape']:
  """The smallest μ >= 0 of a Gaussian mechanism that allows given rates.

  Args:
    log_fpr: log of the false positive rate.
    fnr: false negative rate.

  Returns:
    μ; 0 for an attack no better than chance, inf for an FPR of 0.
  """
  informative = (log_fpr < 0) & (fnr < 1)
  with np.errstate(divide='ignore'):
    mu = -special.ndtri_exp(
      np.where(informative, log_fpr, -1.0)
    ) - special.ndtri(np.where(informative, fnr, 0.5))
  return np.where(informative, np.maximum(mu, 0.0), 0.0)


def max_noise(
  family: tradeoff_curves.Family,
  log_fpr: Float[np.ndarray, 'm'],
  fnr: Float[np.ndarray, 'm'],
) -> float:
  """The largest noise multiplier of a family that allows all given rates.

  Args:
    family: from `tradeoff_curves` or `families`.
    log_fpr: [m] logs of false positive rates, or of upper limits.
    fnr: [m] false negative rates, or upper limits.

  Returns:
    The noise multiplier, rounded up in the seventh digit; inf if the rates are no
    better than chance, 0 if no noise allows them: even without noise a Poisson
    sample of probability p has FNR >= (1-p)(1-FPR).
  """
  mu = gdp_mu(log_fpr, fnr)
  better = mu > 0
  if not np.any(better):
    return np.inf
  if np.any(np.isinf(mu)):
    return 0.0
  log_fpr, target = log_fpr[better], special.ndtri(fnr[better])

  # Cached, because a curve may take a tenth of a second.
  @functools.cache
  def slack(log_noise):
    min_fnr = family.fnr(float(np.exp(log_noise)), log_fpr)
    # Probits are nearly linear in 1/noise; the cap keeps them finite.
    min_fnr = np.clip(min_fnr, 1e-300, 1 - 1e-16)
    return float(np.min(target - special.ndtri(min_fnr)))

  start = -np.log(np.max(mu))
  sign = 1.0 if slack(start) >= 0 else -1.0
  low, high = start, start
  # With so little noise a Gaussian test has hardly a false negative: with less,
  # the curve does not change.
  lowest = -np.log(np.max(-special.ndtri_exp(log_fpr)) + _FAR)
  for _ in range(_DOUBLINGS):
    low, high = high, max(high + sign * np.log(2), lowest)
    if sign * slack(high) < 0:
      break
    if high == lowest:
      return 0.0
  else:
    return np.inf
  root = float(optimize.brentq(slack, low, high, xtol=_PRECISION))  # pyright: ignore
  return float(np.exp(root + _PRECISION))


def limit_rates_at(
  scores: Scores,
  thresholds: Float[np.ndarray, '*batch m'],
  significance: float,
  *,
  upper=intervals.clopper_pearson_upper,
) -> Limits:
  """Upper limits of both rates of the attack "in if score >= threshold".

  Args:
    scores: scores of canaries, any leading axes.
    thresholds: thresholds of each audit, chosen without these scores.
    significance: chance that one of the two limits at a threshold fails, in
      (0, 1).
    upper: (count, trials, significance) -> limit, as in `intervals`.

  Returns:
    The limits.
  """
  num = scores.observed.shape[-1]
  false_negatives = num - threshold.count_at_least(scores.observed, thresholds)
  false_positives = None
  if scores.dim is None:
    false_positives = threshold.count_at_least(scores.unobserved, thresholds)
  counts = threshold.ErrorCounts(thresholds, false_negatives, false_positives)
  return limit_rates(scores, counts, significance, upper=upper)


def limit_rates(
  scores: Scores,
  counts: threshold.ErrorCounts,
  significance: float,
  *,
  upper=intervals.clopper_pearson_upper,
) -> Limits:
  """Upper limits of both rates, from counts of errors.

  Args:
    scores: scores of canaries, any leading axes.
    counts: errors at some thresholds.
    significance: chance that one of the two limits at a threshold fails, in
      (0, 1).
    upper: (count, trials, significance) -> limit, as in `intervals`.

  Returns:
    The limits.
  """
  share = significance / 2 if scores.dim is None else significance
  fnr = np.asarray(
    upper(counts.false_negatives, scores.observed.shape[-1], share)
  )
  if scores.dim is not None:
    law = cosine_null.null_law(scores.dim)
    return Limits(np.asarray(law.logsf(counts.threshold)), fnr)
  fpr = upper(counts.false_positives, scores.unobserved.shape[-1], share)
  return Limits(np.log(np.asarray(fpr)), fnr)


def choose_threshold(
  scores: Scores, significance: float
) -> Float[np.ndarray, '*batch 1']:
  """The observed score with the largest limit of μ.

  Args:
    scores: scores of canaries, any leading axes.
    significance: chance that one of the two limits at a threshold fails, in
      (0, 1).
  """
  candidates, _ = threshold.find_realisable(scores.observed)
  mu = gdp_mu(*limit_rates_at(scores, candidates, significance))
  best = np.argmax(mu, axis=-1, keepdims=True)
  return np.take_along_axis(candidates, best, axis=-1)


def broadcast_thresholds(
  scores: Scores, given: Explicit
) -> Float[np.ndarray, '*batch m']:
  """The given thresholds, for each audit.

  Args:
    scores: scores of canaries, any leading axes.
    given: the thresholds.
  """
  values = np.asarray(given.thresholds, dtype=np.float64)
  return np.broadcast_to(values, (*scores.observed.shape[:-1], values.size))


def epsilon_of_strength(
  family: tradeoff_curves.Family, strength: float, delta: float
) -> float:
  """The ε that a member of a family reports.

  Args:
    family: from `tradeoff_curves` or `families`.
    strength: 1/noise, >= 0; at inf no member has an ε.
    delta: δ, in (0, 1).

  Returns:
    ε; 0 and inf for a strength of 0 and inf.
  """
  if strength == 0 or np.isinf(strength):
    return strength
  return family.epsilon(1 / strength, delta)


def _estimate(
  name, shape, family, solve, convert, scores, delta, significance, multiplicity
):
  """Solves limits [*batch, m] for a parameter [*batch], and that for ε."""
  check_delta(delta)
  check_significance(significance)
  corrections.check_multiplicity(multiplicity, get_args(Multiplicity))
  if isinstance(multiplicity, MultiSplit):
    # ε is monotone in the parameter, so its median is that of the medians.
    parameter = np.median(
      [
        solve(_limits(scores, significance / 2, split))
        for split in corrections.draw_splits(multiplicity)
      ],
      axis=0,
    )
  elif multiplicity == Band() and scores.dim is None:
    parameter = rank_bound.strength_bound(
      scores, family, significance=significance
    )
  else:
    parameter = solve(_limits(scores, significance, multiplicity))
  correction = f'clopper_pearson_{type(multiplicity).__name__.lower()}'
  if multiplicity == Band() and scores.dim is None:
    correction = 'rank_test'
  valid = multiplicity != Uncorrected()
  return make_bound(
    convert(np.asarray(parameter)),
    delta,
    f'{name}_{correction}',
    significance=significance,
    assumes=(*threshold_bound.counted_assumptions(scores), shape),
    kind='confidence bound' if valid else 'point estimate',
    rejected=diagnostics.name_rejected_null(scores),
  )


def _limits(scores, significance, multiplicity):
  """Limits of the rates that hold together, except for Uncorrected()."""
  match multiplicity:
    case Explicit(thresholds):
      each = broadcast_thresholds(scores, multiplicity)
      return limit_rates_at(scores, each, significance / len(thresholds))
    case Bonferroni(num):
      counts = threshold.count_at_fixed_ranks(scores, num)
      share = significance / counts.threshold.shape[-1]
      return limit_rates(scores, counts, share)
    case Split():
      choose, held_out = corrections.partition(scores, multiplicity)
      best = choose_threshold(choose, significance)
      return limit_rates_at(held_out, best, significance)
    case Band() | Uncorrected():
      candidates, _ = threshold.find_realisable(scores.observed)
      upper = intervals.clopper_pearson_upper
      if multiplicity == Band():
        upper = band.upper_limit
      return limit_rates_at(scores, candidates, significance, upper=upper)
  raise AssertionError(f'{multiplicity!r} was checked, but has no limits')
