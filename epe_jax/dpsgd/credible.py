"""Credible intervals of ε, from the joint posterior of both error rates.

Under independent Jeffreys priors the rates of a fixed threshold have posterior

  FPR ~ Beta(1/2 + fp, 1/2 + n0 - fp),  FNR ~ Beta(1/2 + fn, 1/2 + n1 - fn).

Each pair of rates determines a privacy parameter, the smallest whose trade-off
curve f allows it. This induces a posterior of the parameter, whose distribution
function at p is the mass of the rates that f_p allows. Separate limits of both
rates, as in Clopper-Pearson audits, cut off more than that.

A credible bound states a belief: on average over the prior it holds as often as
it says, but at a given ε it may fail more often.
"""

from collections.abc import Callable
import functools
from typing import NamedTuple

import numpy as np
from scipy import optimize, special

from epe_jax.dpsgd.uncorrected import Uncorrected
from epe_jax.epsilon import (
  cosine_null,
  diagnostics,
  lower_bounds,
  threshold,
  tradeoff,
)
from epe_jax.epsilon.lower_bounds import Explicit, Split
from epe_jax.epsilon.types import (
  Assumption,
  Estimate,
  Scores,
  check_scores,
  list_assumptions,
  make_bound,
)

SingleThreshold = Explicit | Split | Uncorrected

# Quantiles at these standard normal scores: 1e-15 to 1 - 1e-15.
_GRID = special.ndtr(np.linspace(-8, 8, 641))
_MAX_PARAMETER, _PRECISION = 1e12, 1e-9
# With so little noise, 1/1024, no curve changes any more.
_STRONGEST = 1024.0


class ConfusionCounts(NamedTuple):
  """The confusion matrix of the attack "in if score >= threshold".

  Attributes:
    false_positives: number of unobserved canaries guessed "in".
    negatives: number of unobserved canaries, >= 1; or 0 if `log_fpr` is given.
    false_negatives: number of observed canaries guessed "out".
    positives: number of observed canaries, >= 1.
    log_fpr: log of the FPR if it is known exactly, in which case the first two
      are ignored; None otherwise.
  """

  false_positives: int
  negatives: int
  false_negatives: int
  positives: int
  log_fpr: float | None = None


def epsilon_credible(
  scores: Scores,
  *,
  delta: float,
  multiplicity: SingleThreshold,
  significance: float = 0.05,
) -> Estimate:
  """Credible lower bound of the ε of (ε, δ)-DP, without a cap.

  If `scores.null` is given, the FPR is exact and the posterior is that of the FNR
  alone. An attack that is worse than chance proves nothing; in the source it proves
  as much as its reverse, so that the bound is positive even if nothing leaks.

  Args:
    scores: scores of canaries, any leading axes.
    delta: δ, in (0, 1).
    multiplicity: where the threshold comes from: one Explicit threshold; a Split,
      in which some scores choose the best for `gdp_bound`; or Uncorrected(), the
      one at which Clopper-Pearson limits give the very scores that are counted the
      largest ε, or for `gdp_credible` and `family_credible` the largest μ.
    significance: posterior probability that ε is below the bound, in (0, 1).

  Returns:
    A credible bound >= 0 whose confidence is its credibility, 1 - significance;
    a point estimate for Uncorrected(), and if the unobserved scores reject
    `scores.null`.

  Raises:
    ValueError: a setting is out of range.

  References: Zanella-Béguelin et al., "Bayesian Estimation of Differential Privacy"
  (2023).
  """
  settings = (scores, delta, significance, multiplicity)

  def find(counts, probability):
    curve = tradeoff.approximate_dp_curves(delta).fnr
    return find_quantile(counts, probability, curve)

  def at(log_fpr, fnr):
    return threshold.epsilon_at(log_fpr, np.log(fnr), delta, sides='both')

  return _estimate('epsilon_credible', (), find, at, *settings)


def gdp_credible(
  scores: Scores,
  *,
  delta: float,
  multiplicity: SingleThreshold,
  significance: float = 0.05,
) -> Estimate:
  """Credible lower bound of the ε of a Gaussian mechanism, from one of its μ.

  See `epsilon_credible` for the arguments, the result and the errors. The bound
  is for mechanisms whose trade-off curve is that of a Gaussian or above.

  References: section 4.2 of Nasr et al. (2023), equations (13) and (14).
  """

  def find(counts, probability):
    mu = find_quantile(counts, probability, tradeoff.fnr_gdp)
    return tradeoff.epsilon_gdp(mu, delta)

  shape = (Assumption.GAUSSIAN_CURVE,)
  settings = (scores, delta, significance, multiplicity)
  return _estimate('gdp_credible', shape, find, tradeoff.gdp_mu, *settings)


def family_credible(
  scores: Scores,
  *,
  family: tradeoff.MechanismFamily,
  delta: float,
  multiplicity: SingleThreshold,
  significance: float = 0.05,
) -> Estimate:
  """Credible lower bound of the ε of a mechanism of a family.

  It is `gdp_credible` for other curves, such as those of `families`. See
  `epsilon_credible` for the other arguments, the result and the errors.

  Args:
    scores: scores of canaries, any leading axes.
    family: from `epsilon.tradeoff` or `families`.
    delta: δ, in (0, 1).
    multiplicity: where the threshold comes from.
    significance: posterior probability that ε is below the bound, in (0, 1).

  Returns:
    The bound, for mechanisms whose curve is a member's or above; inf if every
    member has less posterior mass than `significance`.
  """
  curve = tradeoff.family_curves(family).fnr

  def find(counts, probability):
    strength = find_quantile(counts, probability, curve, limit=_STRONGEST)
    return tradeoff.epsilon_of_strength(family, strength, delta)

  settings = (scores, delta, significance, multiplicity)
  name = f'{family.name}_credible'
  shape = (Assumption.FAMILY,)
  return _estimate(name, shape, find, tradeoff.gdp_mu, *settings)


def find_quantile(
  counts: ConfusionCounts,
  probability: float,
  curve: Callable[[float, np.ndarray], np.ndarray],
  *,
  limit: float = _MAX_PARAMETER,
) -> float:
  """Posterior quantile of the parameter p of a curve f_p.

  Args:
    counts: errors at a threshold that was chosen without looking at them.
    probability: in (0, 1).
    curve: (p >= 0, log FPR) -> smallest FNR, decreasing in p.
    limit: the largest p to try.

  Returns:
    The smallest p >= 0 whose curve allows this posterior mass; inf if none does up
    to the limit, as where an exact FPR is 0.

  >>> counts = ConfusionCounts(159, 1000, 159, 1000)
  >>> round(find_quantile(counts, 0.5, tradeoff.fnr_gdp), 2)
  2.0
  """
  posterior = _Posterior(counts)

  def allowed(parameter):
    with np.errstate(divide='ignore', under='ignore'):
      return posterior.allowed_mass(functools.partial(curve, parameter))

  if allowed(0.0) >= probability:
    return 0.0
  high = 1.0
  while allowed(high) < probability:
    high *= 2
    if high > limit:
      return np.inf
  low = high / 2 if high > 1 else 0.0
  excess = lambda p: allowed(p) - probability
  return float(optimize.brentq(excess, low, high, xtol=_PRECISION))  # pyright: ignore


class _Posterior:
  """The joint posterior of (FPR, FNR), and the mass that a curve allows."""

  def __init__(self, counts):
    fp, n0, fn, n1, log_fpr = counts
    self.fnr = 0.5 + fn, 0.5 + n1 - fn
    self.log_fpr = log_fpr
    if log_fpr is None:
      self.fpr = 0.5 + fp, 0.5 + n0 - fp
      self.fpr_nodes = _beta_nodes(*self.fpr)
      self.fnr_nodes = _beta_nodes(*self.fnr)

  def allowed_mass(self, curve: Callable[[np.ndarray], np.ndarray]) -> float:
    """P(FNR >= f(FPR))."""
    if self.log_fpr is None:
      return float(1 - self._below(curve))
    below = special.betainc(*self.fnr, curve(np.array([self.log_fpr]))[0])
    return float(1 - below)

  def _below(self, curve):
    """P(FNR < f(FPR)) as the Stieltjes integral of F_fnr(f(α)) dF_fpr(α).

    Nodes are the quantiles of the FPR together with f of the quantiles of the
    FNR, f being its own inverse: between two nodes neither factor changes by
    more than one part in a hundred, however different their scales are.
    """
    swept = np.sort(curve(np.log(self.fnr_nodes)))
    nodes = np.sort(np.concatenate([[0.0], self.fpr_nodes, swept, [1.0]]))
    mass = np.diff(special.betainc(*self.fpr, nodes))
    value = special.betainc(*self.fnr, curve(np.log(nodes)))
    return np.sum(mass * (value[1:] + value[:-1]) / 2)


def _beta_nodes(a, b):
  return special.betaincinv(a, b, _GRID)


def _estimate(name, shape, find, at, scores, delta, significance, multiplicity):
  check_scores(scores, delta, significance=significance)
  lower_bounds.check_multiplicity(multiplicity, Explicit, Split, Uncorrected)
  counts = _count_errors(scores, multiplicity, significance, at)
  # Audits with equal counts have equal posteriors.
  bounds = {c: find(c, significance) for c in set(counts)}
  batch = scores.observed.shape[:-1]
  epsilon = np.reshape([bounds[c] for c in counts], batch)
  strategy = type(multiplicity).__name__.lower()
  return make_bound(
    epsilon,
    delta,
    f'{name}_{strategy}',
    significance=significance,
    assumes=(*list_assumptions(scores), *shape),
    kind='credible_bound' if multiplicity.is_valid else 'point_estimate',
    rejected=diagnostics.name_rejected_null(scores),
  )


def _count_errors(scores, multiplicity, significance, at):
  """Counts of each audit, in the order of the flattened leading axes."""
  if isinstance(multiplicity, Explicit) and len(multiplicity.thresholds) != 1:
    raise ValueError(
      f'thresholds={multiplicity.thresholds!r} must be a single one: the posterior '
      'is that of the rates at one threshold.'
    )
  if isinstance(multiplicity, Uncorrected):
    best = _find_best(scores, significance, at)
    counted = threshold.count_at(scores, best)
  else:
    counted, _ = multiplicity.count_errors(
      scores,
      significance,
      lambda x: _find_best(x, significance, tradeoff.gdp_mu),
      'in',
    )
  scores, at, missed, wrong = counted
  n0, n1 = scores.unobserved.shape[-1], scores.observed.shape[-1]
  false_negatives = map(int, missed.ravel())
  if scores.has_known_null:
    law = cosine_null.null_distribution(scores.null)
    logs = map(float, np.ravel(law.logsf(at)))
    return [
      ConfusionCounts(0, 0, fn, n1, log)
      for fn, log in zip(false_negatives, logs)
    ]
  assert wrong is not None, 'they are counted'
  false_positives = map(int, wrong.ravel())
  return [
    ConfusionCounts(fp, n0, fn, n1)
    for fp, fn in zip(false_positives, false_negatives)
  ]


def _find_best(scores, significance, at):
  return lower_bounds.find_best(
    scores, lambda x: at(*lower_bounds.limit_rates(x, significance))
  )
