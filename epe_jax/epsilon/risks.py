"""What a leak means for a person, in probabilities instead of ε.

All follow from the trade-off curve. For a Gaussian one they are functions of μ, each
of which rises with it, so that limits of μ are limits of the risks.

References: Dong, Roth, Su (2022), section 2; Kulynych, Gomez, Kaissis, Hsu, Calmon,
Troncoso, "Unifying re-identification, attribute inference, and data reconstruction
risks in differential privacy" (2025), for 1 - f at the chance of success without
the release.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from jaxtyping import Float
import numpy as np
from scipy import special

from epe_jax.epsilon import arguments
from epe_jax.epsilon.types import Real, scalar_or_array

Curve: TypeAlias = Callable[[Float[np.ndarray, ' m']], Float[np.ndarray, ' m']]
"""log FPR -> the smallest FNR."""


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
    mu: μ >= 0, any shape; inf is no privacy.
    fpr: share of non-participants that the attack names, in (0, 1).
    prior: probability that a person took part, before anything is seen, in (0, 1).
    baseline: probability of guessing the secret of a person without the release,
      in (0, 1).

  Returns:
    The risks; each rises with μ, and at μ = 0 nothing is gained.

  Raises:
    ValueError: a probability is not in (0, 1), or a μ is negative or no number.

  >>> risks = compute_risks(1.0)
  >>> [round(x, 3) for x in risks]
  [0.691, 0.383, 0.092, 0.085, 0.018]
  """
  _check_probabilities(fpr=fpr, prior=prior, baseline=baseline)
  mu = arguments.check_numbers('mu', mu, '[0, inf]')
  accuracy = special.ndtr(mu / 2)
  tpr = special.ndtr(special.ndtri(fpr) + mu)
  named = prior * tpr + (1 - prior) * fpr
  found = special.ndtr(special.ndtri(baseline) + mu)
  values = (accuracy, 2 * accuracy - 1, tpr, prior * tpr / named, found)
  return Risks(*map(scalar_or_array, values))


def compute_risks_of_curve(
  fnr: Curve,
  *,
  fpr: float = 0.01,
  prior: float = 0.01,
  baseline: float = 0.001,
) -> Risks:
  """Computes what any trade-off curve allows, as `compute_risks` of a Gaussian one.

  Args:
    fnr: log FPR -> the smallest FNR, or a lower value, which only raises risks.
    fpr: as in `compute_risks`.
    prior: as in `compute_risks`.
    baseline: as in `compute_risks`.

  Raises:
    ValueError: a probability is not in (0, 1).

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
  accuracy = 1 - float(np.min(errors)) / 2
  tpr, found = 1 - fnr(np.log([fpr, baseline]))
  named = prior * tpr + (1 - prior) * fpr
  return Risks(
    accuracy,
    2 * accuracy - 1,
    float(tpr),
    float(prior * tpr / named),
    float(found),
  )


def _check_probabilities(**probabilities: float) -> None:
  for name, value in probabilities.items():
    arguments.check_number(name, value, '(0, 1)')
