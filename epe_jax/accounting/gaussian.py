"""The analytic ε of Gaussian releases, alone and with Poisson sampling."""

import math

import dp_accounting
from dp_accounting import rdp
from dp_accounting.pld import privacy_loss_distribution as pld
import numpy as np

from epe_jax.accounting.analytic import Analytic
from epe_jax.epsilon import checks, tradeoff
from epe_jax.epsilon.checks import check_delta
from epe_jax.fact import Fact

# Numbers in a composed loss, some 85 bytes each.
_MOST_POINTS = 10**8
# δ below which what is cut off from a loss counts.
_TINY = 1e-10
_ORDERS = [*np.arange(1.1, 11, 0.1), *range(11, 512), *2.0 ** np.arange(9, 15)]


def epsilon_of_releases(
  noise_multiplier: float, *, delta: float, participations: int = 1
) -> Analytic:
  """Computes ε of one who takes part in n rounds with noise z.

  n adaptive releases of the Gaussian mechanism are exactly one release with
  noise z / sqrt(n), so no composition theorem and no numerical convolution is
  needed.

  Args:
    noise_multiplier: z >= 0.
    delta: δ in (0, 1).
    participations: n >= 1.

  Raises:
    ValueError: an argument is out of range.

  References:
    Balle and Wang 2018; Dong, Roth and Su 2022, corollary 3.3.

  >>> round(epsilon_of_releases(4.22, delta=1e-6).epsilon, 2)
  1.0
  """
  checks.check_number('noise_multiplier', noise_multiplier, '[0, inf)')
  check_delta(delta)
  checks.check_integer('participations', participations)
  mu = (
    math.sqrt(participations) / noise_multiplier
    if noise_multiplier
    else math.inf
  )
  return Analytic(
    epsilon=float(tradeoff.epsilon_gdp(mu, delta)),
    assumes=(
      Fact('participations', {'rounds': participations}),
      Fact('known_rounds'),
      Fact('no_amplification'),
    ),
    is_gaussian=True,
  )


def epsilon_of_poisson(
  noise_multiplier: float, *, delta: float, probability: float, rounds: int
) -> Analytic:
  """Computes ε of one who takes part in each round with probability q.

  The rounds in which it takes part are secret.
  The privacy loss distribution of a round is composed T times on a grid. It is
  rounded towards more loss, so that ε is an upper bound. At a tiny δ it is that of Rényi
  divergences if they tell less.

  Args:
    noise_multiplier: z >= 0.
    delta: δ in (0, 1).
    probability: q in (0, 1].
    rounds: T >= 1.

  Raises:
    ValueError: an argument is out of range.

  References:
    Koskela, Jälkö and Honkela 2020; Doroshenko et al. 2022 (connect the dots).

  >>> round(epsilon_of_poisson(1.0, delta=1e-6, probability=0.01, rounds=1000).epsilon, 1)
  2.1
  """
  checks.check_number('noise_multiplier', noise_multiplier, '[0, inf)')
  check_delta(delta)
  checks.check_number('probability', probability, '(0, 1]')
  checks.check_integer('rounds', rounds)
  assumes = (
    Fact('poisson_sampling', {'rounds': rounds, 'probability': probability}),
    Fact('known_updates'),
  )
  if noise_multiplier == 0:
    return Analytic(math.inf, assumes)
  # Of one release. With little noise a fine grid would have millions of points.
  step = max(1e-4, 1e-3 / noise_multiplier)
  points = _spread(noise_multiplier, probability, rounds) / step
  if points > _MOST_POINTS:
    raise ValueError(
      f'rounds={rounds} with noise_multiplier={noise_multiplier:g} and probability='
      f'{probability:g}: the loss takes some {points:.0e} numbers, and '
      f'{_MOST_POINTS:.0e} have room; give fewer rounds, or more noise.'
    )
  loss = pld.from_gaussian_mechanism(
    noise_multiplier,
    sampling_prob=probability,
    value_discretization_interval=step,
    use_connect_dots=True,
  )
  epsilon = loss.self_compose(rounds).get_epsilon_for_delta(delta)
  if delta < _TINY:
    # Tails that the loss cuts off are infinite there; Rényi divergences have none.
    accountant = rdp.RdpAccountant(_ORDERS)
    release = dp_accounting.GaussianDpEvent(noise_multiplier)
    sampled = dp_accounting.PoissonSampledDpEvent(probability, release)
    accountant.compose(sampled, rounds)
    epsilon = min(epsilon, accountant.get_epsilon(delta))
  return Analytic(float(epsilon), assumes)


def _spread(noise_multiplier: float, probability: float, rounds: int) -> float:
  """About the width of the loss of T rounds, as dp_accounting cuts off its tails."""
  nodes, weights = np.polynomial.hermite_e.hermegauss(64)
  weights = weights / weights.sum()
  x = np.append(noise_multiplier * nodes, noise_multiplier * nodes + 1)
  weights = np.append((1 - probability) * weights, probability * weights)
  ratio = np.log(probability) + (x - 0.5) / noise_multiplier**2
  rest = np.log1p(-probability) if probability < 1 else -np.inf
  loss = np.logaddexp(rest, ratio)
  variance = float(weights @ (loss - weights @ loss) ** 2)
  # Of many rounds, moments of low orders cut off later.
  return max(16 * math.sqrt(rounds * variance), 0.12 * rounds * variance)
