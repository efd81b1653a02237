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

from jaxtyping import Float
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
from epe_jax.epsilon.checks import check_delta
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

_Curve = Callable[[np.ndarray], np.ndarray]
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
  reverse: bool = False,
) -> Estimate:
  """Credible lower bound of the ε of (ε, δ)-DP, without a cap.

  If `scores.null` is given, the FPR is exact and the posterior is that of the FNR
  alone.

  Args:
    scores: scores of canaries, any leading axes.
    delta: δ, in (0, 1).
    multiplicity: where the threshold comes from: one Explicit threshold; a Split,
      in which some scores choose the best for `gdp_bound`; or Uncorrected(), the
      one at which Clopper-Pearson limits give the very scores that are counted the
      largest ε, or for `gdp_credible` and `family_credible` the largest μ.
    significance: posterior probability that ε is below the bound, in (0, 1).
    reverse: whether an attack that is worse than chance proves as much as its
      reverse, as in the source. Then ε = 0 has no posterior mass, and the bound
      is positive even if nothing leaks. By default such an attack proves
      nothing.

  Returns:
    A credible bound >= 0 whose confidence is its credibility, 1 - significance;
    a point estimate for Uncorrected(), and if the unobserved scores reject
    `scores.null`.

  Raises:
    ValueError: a setting is out of range.

  References: Zanella-Béguelin et al., "Bayesian Estimation of Differential Privacy"
  (2023).
  """
  quantiles = functools.partial(epsilon_quantiles, delta=delta, reverse=reverse)
  settings = (scores, delta, significance, multiplicity)

  def at(log_fpr, fnr):
    return threshold.epsilon_at(log_fpr, np.log(fnr), delta, sides='both')

  return _estimate('epsilon_credible', (), quantiles, at, *settings)


def gdp_credible(
  scores: Scores,
  *,
  delta: float,
  multiplicity: SingleThreshold,
  significance: float = 0.05,
  reverse: bool = False,
) -> Estimate:
  """Credible lower bound of the ε of a Gaussian mechanism, from one of its μ.

  See `epsilon_credible` for the arguments, the result and the errors. The bound
  is for mechanisms whose trade-off curve is that of a Gaussian or above.

  References: section 4.2 of Nasr et al. (2023), equations (13) and (14).
  """

  def quantiles(counts, probabilities):
    mu = mu_quantiles(counts, probabilities, reverse=reverse)
    return np.asarray(tradeoff.epsilon_gdp(mu, delta))

  shape = (Assumption.GAUSSIAN_CURVE,)
  settings = (scores, delta, significance, multiplicity)
  at = tradeoff.gdp_mu
  return _estimate('gdp_credible', shape, quantiles, at, *settings)


def family_credible(
  scores: Scores,
  *,
  family: tradeoff.MechanismFamily,
  delta: float,
  multiplicity: SingleThreshold,
  significance: float = 0.05,
  reverse: bool = False,
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
    reverse: whether an attack that is worse than chance proves something.

  Returns:
    The bound, for mechanisms whose curve is a member's or above; inf if every
    member has less posterior mass than `significance`.
  """
  curve = tradeoff.family_curves(family)

  def quantiles(counts, probabilities):
    strengths = _quantiles(
      counts, probabilities, curve.fnr, reverse, limit=_STRONGEST
    )
    return np.asarray(tradeoff.epsilon_of_strength(family, strengths, delta))

  settings = (scores, delta, significance, multiplicity)
  name = f'{family.name}_credible'
  shape = (Assumption.FAMILY,)
  return _estimate(name, shape, quantiles, tradeoff.gdp_mu, *settings)


def epsilon_quantiles(
  counts: ConfusionCounts,
  probabilities: Float[np.ndarray, 'm'],
  *,
  delta: float,
  reverse: bool = False,
) -> Float[np.ndarray, 'm']:
  """Posterior quantiles of the ε of (ε, δ)-DP.

  Two of them are a credible interval.

  Args:
    counts: errors at a threshold that was thresholds without looking at them.
    probabilities: [m], in (0, 1).
    delta: δ, in (0, 1).
    reverse: see `epsilon_credible`.

  Returns:
    ε >= 0 at each probability; inf where an exact FPR of 0 leaves no limit.

  Raises:
    ValueError: an argument is out of range.

  >>> counts = ConfusionCounts(0, 1000, 0, 1000)
  >>> print(epsilon_quantiles(counts, np.array([0.05]), delta=1e-5).round(3))
  [7.207]
  """
  check_delta(delta)
  curve = tradeoff.approximate_dp_curves(delta).fnr
  return _quantiles(counts, probabilities, curve, reverse)


def mu_quantiles(
  counts: ConfusionCounts,
  probabilities: Float[np.ndarray, 'm'],
  *,
  reverse: bool = False,
) -> Float[np.ndarray, 'm']:
  """Posterior quantiles of the μ of μ-Gaussian DP.

  See `epsilon_quantiles` for the arguments, the result and the errors.

  >>> counts = ConfusionCounts(159, 1000, 159, 1000)
  >>> print(mu_quantiles(counts, np.array([0.05, 0.5]))[1].round(2))
  2.0
  """
  return _quantiles(counts, probabilities, tradeoff.fnr_gdp, reverse)


def _quantiles(counts, probabilities, curve, reverse, *, limit=_MAX_PARAMETER):
  """Smallest parameters p for which curve(p, ·) allows the mass asked for."""
  _check(counts, probabilities)
  posterior = _Posterior(counts)

  def allowed(parameter):
    with np.errstate(divide='ignore', under='ignore'):
      return posterior.allowed_mass(
        functools.partial(curve, parameter), reverse
      )

  return np.array([_smallest(allowed, p, limit) for p in probabilities])


def _smallest(allowed, probability, limit):
  if allowed(0.0) >= probability:
    return 0.0
  high = 1.0
  while allowed(high) < probability:
    high *= 2
    if high > limit:
      return np.inf
  low = high / 2 if high > 1 else 0.0
  return optimize.brentq(
    lambda p: allowed(p) - probability, low, high, xtol=_PRECISION
  )


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

  def allowed_mass(self, curve: _Curve, reverse: bool) -> float:
    """P(FNR >= f(FPR)); with `reverse` also FNR <= 1 - f(1 - FPR)."""
    if self.log_fpr is not None:
      mass = 1 - self._below_at(curve, self.log_fpr)
      if reverse:
        rest = np.log(-np.expm1(self.log_fpr))
        mass -= 1 - special.betainc(*self.fnr, 1 - curve(np.array([rest]))[0])
      return float(mass)
    mass = 1 - self._below(curve, self.fpr, self.fnr, *self._nodes())
    if reverse:
      # By symmetry: the same below the curve, for the rates of the reverse.
      fpr, fnr = self.fpr[::-1], self.fnr[::-1]
      nodes = (1 - self.fpr_nodes)[::-1], (1 - self.fnr_nodes)[::-1]
      mass -= self._below(curve, fpr, fnr, *nodes)
    return float(mass)

  def _nodes(self):
    return self.fpr_nodes, self.fnr_nodes

  def _below_at(self, curve, log_fpr):
    return special.betainc(*self.fnr, curve(np.array([log_fpr]))[0])

  def _below(self, curve, fpr, fnr, fpr_nodes, fnr_nodes):
    """P(FNR < f(FPR)) as the Stieltjes integral of F_fnr(f(α)) dF_fpr(α).

    Nodes are the quantiles of the FPR together with f of the quantiles of the
    FNR, f being its own inverse: between two nodes neither factor changes by
    more than one part in a hundred, however different their scales are.
    """
    swept = np.sort(curve(np.log(fnr_nodes)))
    nodes = np.sort(np.concatenate([[0.0], fpr_nodes, swept, [1.0]]))
    mass = np.diff(special.betainc(*fpr, nodes))
    value = special.betainc(*fnr, curve(np.log(nodes)))
    return np.sum(mass * (value[1:] + value[:-1]) / 2)


def _beta_nodes(a, b):
  return special.betaincinv(a, b, _GRID)


def _estimate(
  name, shape, quantiles, at, scores, delta, significance, multiplicity
):
  check_scores(scores, delta, significance=significance)
  lower_bounds.check_multiplicity(multiplicity, Explicit, Split, Uncorrected)
  counts = _count_errors(scores, multiplicity, significance, at)
  # Audits with equal counts have equal posteriors.
  bounds = {c: quantiles(c, np.array([significance]))[0] for c in set(counts)}
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


def _check(counts, probabilities):
  fp, n0, fn, n1, log_fpr = counts
  if not (0 <= fn <= n1 and n1 >= 1):
    raise ValueError(f'{counts} needs 0 <= false_negatives <= positives.')
  if log_fpr is None and not (0 <= fp <= n0 and n0 >= 1):
    raise ValueError(f'{counts} needs 0 <= false_positives <= negatives.')
  if log_fpr is not None and not log_fpr <= 0:
    raise ValueError(f'log_fpr={log_fpr} is the log of no probability.')
  if not np.all((probabilities > 0) & (probabilities < 1)):
    raise ValueError(f'probabilities={probabilities} must lie in (0, 1).')
