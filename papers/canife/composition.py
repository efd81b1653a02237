"""From the ε of audited rounds to that of a run: noise inverted, then composed.

A round of ε̂ is taken to be a Gaussian mechanism with the noise σ̂ that has this ε, and
the run to be composed of such rounds with Poisson sampling. The result bounds the ε
of the run only if its clients are sampled so, its noise is Gaussian and independent,
and every ε̂ is right.
"""

from collections.abc import Sequence
import math
from typing import Any

import dp_accounting
from dp_accounting import rdp
from scipy import optimize

ORDERS = (*(1 + x / 10 for x in range(1, 100)), *range(12, 64))
"""Of Rényi DP, those of Opacus."""

MIN_EPSILON = 0.15
"""The smallest ε of a round that is inverted; smaller ones are raised to it."""

_SIGMAS = (1e-2, 1e4)


def epsilon_of_rounds(
  sigmas: Sequence[float],
  rounds: Sequence[int],
  *,
  probability: float,
  delta: float,
) -> float:
  """ε of Poisson-sampled Gaussian rounds by Rényi DP.

  Args:
    sigmas: noise multiplier of each stretch of rounds, > 0.
    rounds: length of each stretch, >= 1.
    probability: q in (0, 1] of a client in a round.
    delta: δ in (0, 1).

  Raises:
    ValueError: an argument is out of range.

  >>> round(epsilon_of_rounds([0.2], [1], probability=1, delta=1 / 60_000), 1)
  34.5
  """
  _check_delta(delta)
  if not 0 < probability <= 1:
    raise ValueError(f'probability={probability}; give q in (0, 1].')
  if len(sigmas) != len(rounds) or not rounds:
    raise ValueError(
      f'{len(sigmas)} sigmas for {len(rounds)} stretches of rounds; give one for '
      'each, and at least one.'
    )
  accountant = rdp.RdpAccountant(ORDERS)
  for sigma, count in zip(sigmas, rounds):
    if not sigma > 0 or count < 1:
      raise ValueError(f'sigma={sigma}, rounds={count}; give > 0 and >= 1.')
    event = dp_accounting.GaussianDpEvent(sigma)
    if probability < 1:
      event = dp_accounting.PoissonSampledDpEvent(probability, event)
    accountant.compose(event, count)
  return float(accountant.get_epsilon(delta))


def invert_noise(epsilon: float, *, delta: float) -> float:
  """σ of the Gaussian mechanism that has this ε at δ by Rényi DP.

  Args:
    epsilon: >= 0, finite; at least `MIN_EPSILON` is used.
    delta: δ in (0, 1).

  Returns:
    σ > 0, decreasing in ε.

  Raises:
    ValueError: an argument is out of range, or ε belongs to a σ outside 0.01 to
      10,000.
  """
  _check_delta(delta)
  if not 0 <= epsilon < math.inf:
    raise ValueError(f'epsilon={epsilon}; give a finite ε >= 0.')
  epsilon = max(epsilon, MIN_EPSILON)

  def excess(log_sigma: float) -> float:
    sigma = math.exp(log_sigma)
    got = epsilon_of_rounds([sigma], [1], probability=1, delta=delta)
    return got - epsilon

  low, high = map(math.log, _SIGMAS)
  if excess(low) < 0 or excess(high) > 0:
    raise ValueError(
      f'epsilon={epsilon} at delta={delta} needs a σ outside {_SIGMAS}; give an ε '
      'between.'
    )
  root: Any = optimize.brentq(excess, low, high, xtol=1e-10)
  return math.exp(root)


def compose_audits(
  epsilons: Sequence[float],
  rounds: Sequence[int],
  *,
  round_delta: float,
  probability: float,
  delta: float,
  fallback: float,
) -> float:
  """ε of a run from audits of some of its rounds.

  Args:
    epsilons: of the audited rounds, at round_delta. If one is infinite, as of
      counted rates without an error, `fallback` is its noise.
    rounds: number of rounds that each audit stands for.
    round_delta: δ of the audits.
    probability: q of Poisson sampling.
    delta: δ of the run.
    fallback: noise multiplier of the mechanism, > 0.

  References:
    CANIFE, section 5.3.
  """
  sigmas = [
    fallback if e == math.inf else invert_noise(e, delta=round_delta)
    for e in epsilons
  ]
  return epsilon_of_rounds(sigmas, rounds, probability=probability, delta=delta)


def _check_delta(delta: float) -> None:
  if not 0 < delta < 1:
    raise ValueError(f'delta={delta}; give a delta in (0, 1).')
