"""How well a threshold on the score distinguishes who took part.

These are measures of the attack itself, before it is turned into an ε. A canary is
guessed "in" if its score is at least the threshold, and only thresholds that
separate distinct scores are realisable: tied canaries are guessed alike.
"""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float
import numpy as np
from scipy import optimize, special

from epe_jax.epsilon import cosine_null
from epe_jax.epsilon.types import Scores, check_confidence


class Roc(NamedTuple):
  """False and true positive rates of every realisable threshold.

  Attributes:
    threshold: [m], decreasing from infinity (nobody is guessed "in") to the lowest
      score (everybody is).
    fpr: [m] shares of the unobserved scores that are at least the threshold.
    tpr: [m] shares of the observed scores that are.
  """

  threshold: Float[np.ndarray, 'm']
  fpr: Float[np.ndarray, 'm']
  tpr: Float[np.ndarray, 'm']


class Quality(NamedTuple):
  """A measure of an attack, with its two-sided confidence interval.

  Attributes:
    value: the measure of the scores.
    interval: lower and upper limit.
    confidence: probability that the interval contains the true value.
    threshold: the lowest score that is guessed "in"; None if the measure has no
      threshold, and infinity if nobody is guessed "in".
  """

  value: float
  interval: tuple[float, float]
  confidence: float
  threshold: float | None = None


def roc(scores: Scores) -> Roc:
  """The receiver operating characteristic at its realisable thresholds.

  Args:
    scores: one audit, with unobserved scores.

  Returns:
    The curve, from (0, 0) to (1, 1). Tied scores give one point.

  Raises:
    ValueError: the scores have leading axes, or none are unobserved.

  >>> curve = roc(Scores(np.array([1.0, 2.0]), np.array([0.0, 1.0])))
  >>> curve.fpr, curve.tpr
  (array([0. , 0. , 0.5, 1. ]), array([0. , 0.5, 1. , 1. ]))
  """
  observed, unobserved = _sorted_groups(scores)
  threshold = np.unique(np.concatenate([observed, unobserved]))[::-1]
  rates = [
    1 - np.searchsorted(group, threshold) / group.size
    for group in (unobserved, observed)
  ]
  fpr, tpr = (np.concatenate([[0.0], rate]) for rate in rates)
  return Roc(np.concatenate([[np.inf], threshold]), fpr, tpr)


def auroc(scores: Scores, *, confidence: float = 0.95) -> Quality:
  """P(an observed score is above an unobserved one) + half that of a tie.

  It is the area under the ROC curve. The area under its concave hull, which some
  programs report, exceeds ½ without any leakage.

  Each limit is the farther of two. DeLong's variance on the logit scale holds for
  any law of scores and many canaries, but vanishes for scores that do not overlap.
  Newcombe's score interval, with the variance of exponential scores, holds then
  and for few canaries.

  Args:
    scores: one audit, with unobserved scores.
    confidence: of the two-sided interval, in (0, 1).

  Returns:
    The area under the ROC curve, without a threshold.

  Raises:
    ValueError: the scores have leading axes, none are unobserved, or confidence
      is out of range.

  Source: DeLong, DeLong, Clarke-Pearson (1988); Newcombe, "Confidence intervals
  for an effect size measure based on the Mann-Whitney statistic, part 2"
  (2006), method 5, after Hanley and McNeil (1982).
  """
  z = _two_sided_z(confidence)
  observed, unobserved = _sorted_groups(scores)
  wins = _mid_share(unobserved, observed)
  losses = _mid_share(observed, unobserved)
  area = float(np.mean(wins))
  low, high = _newcombe(area, z, observed.size, unobserved.size)
  if min(observed.size, unobserved.size) > 1 and 0 < area < 1:
    variance = np.var(wins, ddof=1) / observed.size
    variance += np.var(losses, ddof=1) / unobserved.size
    step = z * np.sqrt(variance) / (area * (1 - area))
    low = min(low, float(special.expit(special.logit(area) - step)))
    high = max(high, float(special.expit(special.logit(area) + step)))
  return Quality(area, (low, high), confidence)


def tpr_at_fpr(
  scores: Scores, fpr: float, *, confidence: float = 0.95
) -> Quality:
  """True positive rate at the lowest threshold whose FPR is at most `fpr`.

  The threshold is chosen on the unobserved scores alone, so the interval is the
  exact Clopper-Pearson one for the true rate at that threshold. The FPR is the
  share of the unobserved scores, unless `scores.dim` is given: then it is exact.

  Args:
    scores: one audit.
    fpr: the maximum false positive rate, in [0, 1].
    confidence: of the two-sided interval, in (0, 1).

  Returns:
    The true positive rate, and the lowest observed score that is guessed "in".

  Raises:
    ValueError: the scores have leading axes, or fpr or confidence is out of range.
  """
  if not 0 <= fpr <= 1:
    raise ValueError(f'fpr={fpr!r} must lie in [0, 1].')
  check_confidence(confidence)
  significance = 1 - confidence
  _check_one_audit(scores)
  if scores.dim is not None:
    above = scores.observed[
      scores.observed >= cosine_null.null_law(scores.dim).isf(fpr)
    ]
  else:
    unobserved = np.sort(scores.unobserved)
    # 0.29 of 100 is 28.999... in floating point, and means 29.
    allowed = int(np.floor(fpr * unobserved.size * (1 + 1e-12)))
    above = scores.observed
    if allowed < unobserved.size:
      edge = unobserved[unobserved.size - 1 - allowed]
      above = scores.observed[scores.observed > edge]
  true_positives, trials = above.size, scores.observed.size
  # For no true positive and for no false negative beta laws have no quantile.
  low = special.betaincinv(
    max(true_positives, 1), trials - true_positives + 1, significance / 2
  )
  high = special.betainccinv(
    true_positives + 1, max(trials - true_positives, 1), significance / 2
  )
  interval = (
    float(low) if true_positives else 0.0,
    float(high) if true_positives < trials else 1.0,
  )
  threshold = float(np.min(above, initial=np.inf))
  return Quality(true_positives / trials, interval, confidence, threshold)


def best_accuracy(scores: Scores, *, confidence: float = 0.95) -> Quality:
  """Largest (TPR + 1 - FPR)/2 over thresholds: the best balanced accuracy.

  It is ½ plus half the one-sided Kolmogorov-Smirnov distance. The accuracy at the
  best of many thresholds is biased upwards. The lower limit corrects for that by
  bands around both empirical distributions that hold at all thresholds together
  (Dvoretzky-Kiefer-Wolfowitz with Massart's constant). The upper limit needs no
  correction: at the truly best threshold the sample does no better than at its own
  best, so that Hoeffding's inequality at that one threshold suffices. Both limits
  hold for any number of canaries and any law.

  Args:
    scores: one audit, with unobserved scores.
    confidence: of the two-sided interval, in (0, 1).

  Returns:
    The accuracy in [½, 1], and the highest threshold that reaches it.

  Raises:
    ValueError: the scores have leading axes, none are unobserved, or confidence
      is out of range.

  Source: Massart, "The tight constant in the Dvoretzky-Kiefer-Wolfowitz
  inequality" (1990).
  """
  check_confidence(confidence)
  significance = 1 - confidence
  curve = roc(scores)
  gain = curve.tpr - curve.fpr
  best = int(np.argmax(gain))
  inverse = (1 / scores.observed.size, 1 / scores.unobserved.size)
  bands = sum(np.sqrt(np.log(4 / significance) / 2 * x) for x in inverse)
  point = np.sqrt(np.log(2 / significance) / 2 * sum(inverse))
  value = (1 + float(gain[best])) / 2
  interval = (
    max(float(value - bands / 2), 0.5),
    min(float(value + point / 2), 1.0),
  )
  return Quality(value, interval, confidence, float(curve.threshold[best]))


def _mid_share(ordered, values):
  """Share of the ordered scores below each value, ties counting half."""
  below = np.searchsorted(ordered, values, side='left')
  up_to = np.searchsorted(ordered, values, side='right')
  return (below + up_to) / (2 * ordered.size)


def _newcombe(area, z, num_observed, num_unobserved):
  """The two true areas that are z standard errors from the estimate."""
  excess = (num_observed + num_unobserved) / 2 - 1

  def variance(true):
    spread = (1 - true) / (2 - true) + true / (1 + true)
    product = num_observed * num_unobserved
    return true * (1 - true) * (1 + excess * spread) / product

  def gap(true):
    return (true - area) ** 2 - z**2 * variance(true)

  def crossing(low, high):
    return optimize.root_scalar(gap, bracket=(low, high), method='brentq').root

  # At 0 and 1 the variance is 0, which are roots too, but not these.
  tiny = 1e-15
  low = crossing(0.0, min(area, 1 - tiny)) if area > 0 else 0.0
  return low, crossing(max(area, tiny), 1.0) if area < 1 else 1.0


def _two_sided_z(confidence):
  check_confidence(confidence)
  return -special.ndtri((1 - confidence) / 2)


def _check_one_audit(scores):
  if scores.observed.ndim != 1:
    raise ValueError(
      f'observed has shape {scores.observed.shape}; give one audit, without '
      'leading axes.'
    )


def _sorted_groups(scores):
  _check_one_audit(scores)
  if not scores.unobserved.size:
    raise ValueError('unobserved is empty; an ROC curve needs both groups.')
  return np.sort(scores.observed), np.sort(scores.unobserved)
