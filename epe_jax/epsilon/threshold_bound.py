"""Valid lower bounds of ε from thresholds on the score.

A bound consists of two choices:

- trade-off curves, which say what a pair of error rates proves: those of any
  (ε, δ)-DP mechanism (`lower_bound`), of a Gaussian one (`gdp_bound`), or of another
  family (`family_bound`);
- a correction for the choice among many thresholds, one of the classes of
  `corrections`.

Limits α of the FPR and β of the FNR allow a mechanism with trade-off curve f only if
f(α) <= β, because f falls. (ε, δ)-DP bounds the rates by two lines, which touch the
curve of a Gaussian mechanism at two points; everywhere else even the best attack
proves less than ε. A bound that assumes the shape of the curve, and bounds only the
noise, is tight at any threshold.

The canaries of an audit must score independently in any case.

References: Jagielski et al. (2020); equation (1) of Andrew et al. (ICLR 2024); Nasr
et al., "Tight auditing of differentially private machine learning" (2023), section
4.1 and appendix A, for f-DP.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import NamedTuple, TypeAlias

from jaxtyping import Float
import numpy as np

from epe_jax.epsilon import (
  band,
  corrections,
  cosine_null,
  diagnostics,
  intervals,
  rank_bound,
  threshold,
  tradeoff_curves,
)
from epe_jax.epsilon.corrections import (
  Band,
  Correction,
  Counted,
)
from epe_jax.epsilon.types import (
  Assumption,
  Estimate,
  Scores,
  Sides,
  check_scores,
  check_sides,
  check_significance,
  make_bound,
)

Upper: TypeAlias = Callable[..., float | Float[np.ndarray, '...']]

_BAND = Band()
_GAUSSIAN = tradeoff_curves.gaussian_family()
CANDIDATES = 2000
"""The best of so many thresholds is practically as good as that of a million."""


def lower_bound(
  scores: Scores,
  *,
  delta: float,
  significance: float = 0.05,
  multiplicity: Correction = _BAND,
  sides: Sides = 'in',
) -> Estimate:
  """Lower bound of ε that exceeds the truth with probability <= significance.

  At a threshold with upper limits a of the FPR and b of the FNR, ε is at least

    log (1 - δ - b)/a,  and if sides='both' also  log (1 - δ - a)/b.

  Each of the two limits fails with probability significance/2, for either choice
  of sides. If `scores.null` is given, a is exactly the survival function of the
  cosine and b has the whole significance; unobserved scores are not needed. Band()
  without `scores.null` uses no such limits, but tests both rates at once
  (`rank_bound`).

  Only thresholds equal to a score are tried, and tied scores are guessed alike.

  If canaries leak unequally, as those of different rounds do, the bound is one of
  the ε of the most exposed canary, without which the rates could not be as good.

  Args:
    scores: scores of canaries, any leading axes.
    delta: δ, in (0, 1).
    significance: chance that the bound exceeds the true ε, in (0, 1).
    multiplicity: the correction for the choice of the threshold.
    sides: which guesses count. Those of 'both' help if the unobserved scores have
      a lower tail that no observed score reaches.

  Returns:
    The bound, >= 0. Its confidence is 1 - significance; it is a point estimate if
    `multiplicity` gives no guarantee, or if the unobserved scores reject
    `scores.null` (`diagnostics.is_null_rejected`).

  Raises:
    ValueError: a setting is out of range, multiplicity is not an instance of a class
      of `corrections`, or a group is too small to split.

  >>> scores = Scores(np.linspace(2, 4, 1000), np.linspace(-1, 1, 1000))
  >>> bound = lower_bound(scores, delta=1e-5)
  >>> round(bound.epsilon, 1), bound.confidence
  (6.5, 0.95)
  """
  check_scores(scores, delta)
  delta = float(delta)
  check_sides(sides)
  curves = _Curves(
    at=functools.partial(epsilon_at, delta=delta, sides=sides),
    test_ranks=functools.partial(
      rank_bound.epsilon_bound, delta=delta, sides=sides
    ),
    sides=sides,
    max_candidates=CANDIDATES,
  )
  return _bound(scores, curves, delta, significance, multiplicity)


def gdp_bound(
  scores: Scores,
  *,
  delta: float,
  significance: float = 0.05,
  multiplicity: Correction = _BAND,
) -> Estimate:
  """Lower bound of the ε of a Gaussian mechanism, from a lower bound of its μ.

  μ >= Φ⁻¹(1 - FPR) - Φ⁻¹(FNR), or 0, with Clopper-Pearson limits of the rates; ε at
  δ is then exact and has no cap. Each limit fails with probability
  significance/2; if `scores.null` is given, the FPR is exact and the FNR has the
  whole significance. Band() without `scores.null` tests both rates at once, and
  with them the area under the ROC curve (`rank_bound`).

  Args:
    scores: scores of canaries, any leading axes.
    delta: δ, in (0, 1).
    significance: chance that the bound exceeds the true ε, in (0, 1).
    multiplicity: the correction for the choice of the threshold, an instance of a
      class of `corrections`.

  Returns:
    The bound, >= 0, and inf if a cosine of 1 has no false positives. Its
    confidence is 1 - significance; it is a point estimate if `multiplicity` gives no
    guarantee, and if the unobserved scores reject `scores.null`. It is valid for mechanisms whose
    curve is that of a Gaussian or above, an assumption that counts at thresholds
    cannot test.

  Raises:
    ValueError: a setting is out of range, multiplicity is unknown, or there are
      too few scores to split.

  References: equation (12) of Nasr et al. (2023).

  >>> scores = Scores(np.linspace(2, 4, 1000), np.linspace(-1, 1, 1000))
  >>> explicit = corrections.Explicit((1.5,))
  >>> bound = gdp_bound(scores, delta=1e-5, multiplicity=explicit)
  >>> round(bound.epsilon, 2), bound.confidence
  (36.49, 0.95)
  """
  check_scores(scores, delta)
  curves = _Curves(
    at=mu_at,
    test_ranks=functools.partial(rank_bound.strength_bound, family=_GAUSSIAN),
    epsilon=lambda mu: tradeoff_curves.epsilon_gdp(mu, delta),
    name='gdp_',
    shape=(Assumption.GAUSSIAN_CURVE,),
  )
  return _bound(scores, curves, delta, significance, multiplicity)


def family_bound(
  scores: Scores,
  *,
  family: tradeoff_curves.MechanismFamily,
  delta: float,
  significance: float = 0.05,
  multiplicity: Correction = _BAND,
) -> Estimate:
  """Lower bound of the ε of a mechanism of a family, from an upper one of its noise.

  It is `gdp_bound` for other curves, such as those of `dpsgd.families`: of
  a subsampled Gaussian, or of any mechanism with a PLD. To audit a whole run by
  single steps, use a family whose curve is that of one step and whose ε is that of
  all steps.

  Args:
    scores: scores of canaries, any leading axes.
    family: from `tradeoff_curves` or `dpsgd.families`.
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
  check_scores(scores, delta)

  def solve(counted, upper):
    log_fpr, fnr = limit_rates(counted, upper)
    strength = np.empty(fnr.shape[:-1])
    for at in np.ndindex(strength.shape):
      noise = tradeoff_curves.max_noise(family, log_fpr[at], fnr[at])
      strength[at] = 1 / noise if noise > 0 else np.inf
    return strength

  def convert(strength):
    epsilon = [
      tradeoff_curves.epsilon_of_strength(family, float(x), delta)
      for x in np.ravel(strength)
    ]
    return np.reshape(epsilon, strength.shape)

  curves = _Curves(
    at=mu_at,
    test_ranks=functools.partial(rank_bound.strength_bound, family=family),
    solve=solve,
    epsilon=convert,
    name=f'{family.name}_',
    shape=(Assumption.FAMILY,),
  )
  return _bound(scores, curves, delta, significance, multiplicity)


class Limits(NamedTuple):
  """Upper limits of both rates at some thresholds, [*batch, m] each.

  Attributes:
    log_fpr: log of the limit of the false positive rate.
    fnr: limit of the false negative rate.
  """

  log_fpr: Float[np.ndarray, '*batch m']
  fnr: Float[np.ndarray, '*batch m']


def limit_rates(
  counted: Counted, upper: Upper = intervals.clopper_pearson_upper
) -> Limits:
  """Upper limits of both rates, from counts of errors.

  Args:
    counted: errors at some thresholds. Each of the two limits has half of their
      significance; if the null law is known, the FPR is exact and the FNR has all.
    upper: (count, trials, significance) -> the upper limit of a rate;
      `band.upper_limit` for limits that hold at all thresholds at once.
  """
  scores, errors, significance = counted
  if scores.has_known_null:
    log_fpr = cosine_null.null_distribution(scores.null).logsf(errors.threshold)
  else:
    assert errors.false_positives is not None, 'they are counted'
    significance = significance / 2
    size = scores.unobserved.shape[-1]
    log_fpr = np.log(upper(errors.false_positives, size, significance))
  num = scores.observed.shape[-1]
  fnr = upper(errors.false_negatives, num, significance)
  return Limits(np.asarray(log_fpr), np.asarray(fnr))


def list_assumptions(scores: Scores) -> tuple[Assumption, ...]:
  """What limits from counts of canaries assume.

  Args:
    scores: whose null law is known or not.
  """
  if not scores.has_known_null:
    return (Assumption.INDEPENDENT,)
  return Assumption.INDEPENDENT, Assumption.COSINE_NULL


class _Curves(NamedTuple):
  """What pairs of error rates prove, by the trade-off curves of some mechanisms.

  Attributes:
    at: (counted, upper) -> the strength of the leak at each threshold, by limits of
      rates as in `limit_rates`.
    test_ranks: (scores, significance=...) -> a lower bound of the strength from one
      test of both rates at all thresholds.
    solve: (counted, upper) -> the strength that all thresholds prove together; None
      for the largest of `at`.
    epsilon: strength -> ε.
    name: prefix of the method.
    shape: what is assumed of the curves.
    sides: which guesses count.
    max_candidates: number of thresholds that a split chooses from; None for all.
  """

  at: Callable[[Counted, Upper], Float[np.ndarray, '*batch m']]
  test_ranks: Callable[..., Float[np.ndarray, '*batch']]
  solve: Callable[[Counted, Upper], Float[np.ndarray, '*batch']] | None = None
  epsilon: Callable = lambda strength: strength
  name: str = ''
  shape: tuple[Assumption, ...] = ()
  sides: Sides = 'in'
  max_candidates: int | None = None


def _bound(
  scores: Scores,
  curves: _Curves,
  delta: float,
  significance: float,
  multiplicity: Correction,
) -> Estimate:
  """The bound of ε that curves give, under a correction for many thresholds."""
  check_significance(significance)
  corrections.check_multiplicity(multiplicity)
  is_band = isinstance(multiplicity, Band)
  choose = functools.partial(
    find_best, at=curves.at, max_candidates=curves.max_candidates
  )
  if is_band and not scores.has_known_null:
    method = 'rank_test'
    strength = curves.test_ranks(scores, significance=significance)
  else:
    method = f'clopper_pearson_{type(multiplicity).__name__.lower()}'
    counted = multiplicity.count_errors(
      scores, significance, choose, curves.sides
    )
    upper = band.upper_limit if is_band else intervals.clopper_pearson_upper
    if curves.solve is not None:
      strength = curves.solve(counted, upper)
    else:
      strength = np.max(curves.at(counted, upper), axis=-1)
  return make_bound(
    curves.epsilon(np.asarray(strength)),
    delta,
    f'{curves.name}{method}',
    significance=significance,
    assumes=(*list_assumptions(scores), *curves.shape),
    kind='confidence_bound' if multiplicity.is_valid else 'point_estimate',
    rejected=diagnostics.name_rejected_null(scores),
  )


def find_best(
  scores: Scores,
  significance: float,
  at: Callable[..., Float[np.ndarray, '*batch m']],
  max_candidates: int | None = None,
) -> Float[np.ndarray, '*batch 1']:
  """The realisable threshold at which a leak seems strongest.

  Args:
    scores: scores of canaries, any leading axes.
    significance: chance that the limits at a threshold fail, in (0, 1).
    at: counted errors -> the strength of the leak at each threshold.
    max_candidates: number of thresholds to try; None for all.
  """
  counted = corrections.count_realisable(scores, significance, max_candidates)
  best = np.argmax(at(counted), axis=-1, keepdims=True)
  return np.take_along_axis(counted.errors.threshold, best, axis=-1)


def epsilon_at(
  counted: Counted,
  upper: Upper = intervals.clopper_pearson_upper,
  *,
  delta: float,
  sides: Sides,
) -> Float[np.ndarray, '*batch m']:
  """ε of (ε, δ)-DP at each threshold, by limits of rates as in `limit_rates`."""
  log_fpr, fnr = limit_rates(counted, upper)
  return threshold.epsilon_at(log_fpr, np.log(fnr), delta, sides=sides)


def mu_at(
  counted: Counted, upper: Upper = intervals.clopper_pearson_upper
) -> Float[np.ndarray, '*batch m']:
  """μ of a Gaussian mechanism at each threshold, likewise."""
  return tradeoff_curves.gdp_mu(*limit_rates(counted, upper))
