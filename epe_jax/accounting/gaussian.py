"""The analytic ε of Gaussian releases, alone and with Poisson sampling."""

import math
from typing import Literal

import dp_accounting
from dp_accounting import dp_event, rdp
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
# Of others sums converge slowly where there is little noise.
_ORDERS = [*range(2, 512), *2.0 ** np.arange(9, 15)]
# Shapes of the negative binomial law of how often training is repeated.
_SHAPES = {'logarithmic': 0.0, 'geometric': 1.0, 'poisson': math.inf}


def epsilon_of_releases(
  noise_multiplier: float, *, delta: float, participations: int = 1
) -> Analytic:
  """Computes ε of one who takes part in n rounds with noise z.

  n adaptive releases of the Gaussian mechanism are exactly one release with
  noise z / sqrt(n), so no composition theorem and no numerical convolution is
  needed. Where each round has data of its own, n is 1, however many rounds there are.

  Args:
    participations: n >= 1.

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
  rounded towards more loss, so that ε is an upper bound. ε is that of Rényi divergences
  at a tiny δ, or that of one who takes part in all rounds, where these are less.

  References:
    Koskela, Jälkö and Honkela 2020; Doroshenko et al. 2022 (connect the dots).

  >>> round(epsilon_of_poisson(1.0, delta=1e-6, probability=0.01, rounds=1000).epsilon, 1)
  2.1
  """
  _check_sampled(noise_multiplier, delta, probability, rounds)
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
  certain = epsilon_of_releases(
    noise_multiplier, delta=delta, participations=rounds
  ).epsilon
  composed = loss.self_compose(rounds).get_epsilon_for_delta(delta)
  epsilon = min(float(composed), certain)
  if delta < _TINY:
    # Tails that the loss cuts off are infinite there; Rényi divergences have none.
    event = _sample(noise_multiplier, probability, rounds)
    epsilon = min(epsilon, _convert(event, delta))
  return Analytic(epsilon, assumes)


def epsilon_of_best(
  noise_multiplier: float,
  *,
  delta: float,
  probability: float,
  rounds: int,
  runs: float,
  law: Literal['fixed', 'geometric', 'logarithmic', 'poisson'] = 'fixed',
) -> Analytic:
  """Computes ε of the best of several runs, each of `epsilon_of_poisson`.

  Hyper-parameters of each run are drawn independently of the data, and the best run
  is chosen by a score of its model alone or on public data. A score on private data
  has to be part of what a run releases, within its ε.

  Args:
    rounds: T >= 1 of each run.
    runs: m >= 1, how many there are, or with another law than 'fixed' their mean.
    law: 'fixed' composes all runs, which may all be released. With others the number of
      runs is drawn in secret from the law of this name, and nothing but the best is
      released.

  References:
    Papernot and Steinke 2022, "Hyperparameter Tuning with Renyi Differential
    Privacy", theorems 2 and 6.

  >>> given = {'delta': 1e-5, 'probability': 0.01, 'rounds': 1000, 'runs': 10}
  >>> [
  ...   round(epsilon_of_best(1.0, law=law, **given).epsilon, 1)
  ...   for law in ('fixed', 'geometric', 'logarithmic', 'poisson')
  ... ]
  [6.2, 4.1, 3.5, 4.4]
  """
  checks.check_choice('law', law, ('fixed', *_SHAPES))
  _check_sampled(noise_multiplier, delta, probability, rounds)
  if law == 'fixed':
    checks.check_integer('runs', runs)
  checks.check_number('runs', runs, '[1, inf)')
  # Of Poisson's law there may be several where one is the mean.
  if law == 'fixed' or (runs == 1 and law != 'poisson'):
    epsilon = epsilon_of_poisson(
      noise_multiplier,
      delta=delta,
      probability=probability,
      rounds=rounds * int(runs),
    ).epsilon
  elif noise_multiplier == 0:
    epsilon = math.inf
  else:
    event = _sample(noise_multiplier, probability, rounds)
    best = dp_event.RepeatAndSelectDpEvent(event, runs, _SHAPES[law])
    epsilon = _convert(best, delta)
  return Analytic(
    epsilon,
    (
      Fact('poisson_sampling', {'rounds': rounds, 'probability': probability}),
      Fact('known_updates'),
      Fact('best_of_runs', {'runs': runs, 'law': law}),
    ),
  )


def _check_sampled(
  noise_multiplier: float, delta: float, probability: float, rounds: int
) -> None:
  checks.check_number('noise_multiplier', noise_multiplier, '[0, inf)')
  check_delta(delta)
  checks.check_number('probability', probability, '(0, 1]')
  checks.check_integer('rounds', rounds)


def _sample(
  noise_multiplier: float, probability: float, rounds: int
) -> dp_accounting.DpEvent:
  release = dp_accounting.GaussianDpEvent(noise_multiplier)
  sampled = dp_accounting.PoissonSampledDpEvent(probability, release)
  return dp_accounting.SelfComposedDpEvent(sampled, rounds)


def _convert(event: dp_accounting.DpEvent, delta: float) -> float:
  """ε by Rényi divergences, at the best order."""
  return float(rdp.RdpAccountant(_ORDERS).compose(event).get_epsilon(delta))


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
