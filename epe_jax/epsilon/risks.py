"""What a trade-off curve means for a person: risks by the best attack."""

from typing import NamedTuple

import numpy as np
from scipy import special

from epe_jax.epsilon import checks
from epe_jax.epsilon.tradeoff import Curve
from epe_jax.epsilon.types import Real, scalar_or_array


class Risks(NamedTuple):
  """Probabilities for the best attack; of a Gaussian mechanism with the shape of μ.

  Attributes:
    accuracy: of guesses whether a person took part, at even odds, in [0.5, 1].
    advantage: the largest TPR - FPR, in [0, 1].
    tpr: share of participants that the attack names at the given FPR.
    posterior: probability that a person named by the attack took part, at that FPR
      and a given prior probability.
    reconstruction: largest probability of naming a secret of a person who took
      part, such as an attribute or the whole record, where without the release it
      is the given one.
  """

  accuracy: Real
  advantage: Real
  tpr: Real
  posterior: Real
  reconstruction: Real


def compute_risks(
  mu: Real, *, fpr: float = 0.01, prior: float = 0.01, baseline: float = 0.001
) -> Risks:
  """Computes what μ-Gaussian DP allows, or a Gaussian attack achieves.

  Args:
    mu: μ >= 0, any shape; inf means no privacy.
    fpr: share of non-participants that the attack names, in (0, 1).
    prior: probability that a person took part, before anything is seen, in (0, 1).
    baseline: probability of guessing the secret of a person without the release,
      in (0, 1).

  Returns:
    The risks; each rises with μ, so that limits of μ are limits of the risks.

  References: Dong, Roth, Su (2022), section 2; Kulynych, Gomez, Kaissis, Hsu, Calmon,
  Troncoso, "Unifying re-identification, attribute inference, and data reconstruction
  risks in differential privacy" (2025).

  >>> [round(x, 3) for x in compute_risks(1.0)]
  [0.691, 0.383, 0.092, 0.085, 0.018]
  """
  _check_probabilities(fpr=fpr, prior=prior, baseline=baseline)
  mu = checks.check_numbers('mu', mu, '[0, inf]')
  tpr = special.ndtr(special.ndtri(fpr) + mu)
  found = special.ndtr(special.ndtri(baseline) + mu)
  return _risks(special.ndtr(mu / 2), tpr, found, fpr, prior)


def compute_risks_of_curve(
  fnr: Curve,
  *,
  fpr: float = 0.01,
  prior: float = 0.01,
  baseline: float = 0.001,
) -> Risks:
  """Computes what any trade-off curve allows, as `compute_risks` of a Gaussian one.

  The curve may have lower values than the smallest FNR, which only raises risks.

  >>> risks = compute_risks_of_curve(lambda log_fpr: -np.expm1(log_fpr))
  >>> [round(float(x), 3) for x in risks]
  [0.5, 0.0, 0.01, 0.01, 0.001]
  """
  _check_probabilities(fpr=fpr, prior=prior, baseline=baseline)
  rates = np.geomspace(1e-12, 1, 1001)
  # The sum of errors is convex: its least lies next to the least of a grid.
  for _ in range(3):
    errors = rates + fnr(np.log(rates))
    best = int(np.argmin(errors))
    low, high = rates[max(best - 1, 0)], rates[min(best + 1, rates.size - 1)]
    rates = np.linspace(low, high, 101)
  tpr, found = 1 - fnr(np.log([fpr, baseline]))
  return _risks(1 - float(np.min(errors)) / 2, tpr, found, fpr, prior)


def _risks(accuracy, tpr, found, fpr, prior):
  named = prior * tpr + (1 - prior) * fpr
  values = (accuracy, 2 * accuracy - 1, tpr, prior * tpr / named, found)
  return Risks(*map(scalar_or_array, values))


def _check_probabilities(**probabilities: float) -> None:
  for name, value in probabilities.items():
    checks.check_number(name, value, '(0, 1)')
