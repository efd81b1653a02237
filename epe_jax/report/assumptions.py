"""The words for what an estimate or an analytic ε assumes."""

from collections.abc import Iterable
import math

from epe_jax.epsilon.types import Assumption
from epe_jax.fact import Fact, Facts
from epe_jax.report import wording

ASSUMPTIONS = {
  Assumption.INDEPENDENT: 'canaries score independently',
  Assumption.COINS: 'independent coins decided which canaries took part',
  Assumption.COSINE_NULL: 'unobserved canaries score as random directions do',
  Assumption.GAUSSIAN_SCORES: 'scores are Gaussian',
  Assumption.EQUAL_SPREAD: (
    'taking part shifts a score and leaves its spread alone'
  ),
  Assumption.GAUSSIAN_CURVE: (
    'the trade-off curve of the mechanism is Gaussian'
  ),
  Assumption.FAMILY: 'the mechanism is of the given family',
  Assumption.GAUSSIAN_RUNS: 'shifts of runs are Gaussian',
}
"""Assumption of an estimate -> its words."""


def list_assumptions(assumptions: Iterable[Assumption]) -> list[str]:
  """What an estimate assumes, a clause each.

  >>> list_assumptions([Assumption.GAUSSIAN_SCORES])
  ['scores are Gaussian']
  """
  return [ASSUMPTIONS[assumption] for assumption in assumptions]


def describe_analytic(assumes: Facts) -> str:
  """The participation and the attacker of an analytic ε, without a full stop.

  Args:
    assumes: of keys of `OF_ANALYTIC`, or of an analytic ε that is not of this package.

  >>> describe_analytic((Fact('participations', {'rounds': 1}), Fact('mine')))
  'one who takes part in one round; mine'
  """
  return '; '.join(wording.describe_fact(fact, OF_ANALYTIC) for fact in assumes)


def describe_amplification(amplification: Fact) -> str:
  """What is known of amplification by sampling, without a full stop.

  Args:
    amplification: of a key of `OF_AMPLIFICATION`.

  >>> describe_amplification(Fact('no_tight_analysis', {'kind': 'fixed_size'}))
  'not known: there is no tight analysis of a participation fixed size'
  """
  return wording.describe_fact(amplification, OF_AMPLIFICATION)


def _random_allocation(periods: int, **_: int) -> str:
  times = '' if periods == 1 else 'each of {periods} periods of '
  return f'one who takes part in a random round of {times}{{rounds:,}} rounds'


OF_ANALYTIC: wording.Words = {
  'participations': 'one who takes part in {rounds:rounds}',
  'sensitivity': (
    'one whose rounds move all releases together by {clip_norms:.3g} clip norms, as '
    'far as participation allows (zCDP: ρ = {rho:.3g})'
  ),
  'known_rounds': (
    'an attacker who sees every round, knows which rounds these are and every other '
    'update'
  ),
  'noise_shares': (
    'every message of a round carries its share of the noise: without those of clients '
    'who drop out or cheat there is less'
  ),
  'no_amplification': 'no amplification by sampling or shuffling',
  'poisson_sampling': (
    'one who takes part in each of {rounds:,} rounds with probability '
    '{probability:.3g}, by secret coins of its own'
  ),
  'known_updates': (
    'an attacker who sees every round and knows every other update'
  ),
  'random_allocation': _random_allocation,
  'equally_likely_rounds': (
    'an attacker who sees every round and knows every other update, to whom every '
    'round of it is as likely'
  ),
  'random_round': 'a canary of a random round',
  'unresponsive_clients': (
    'clients who do not respond to what the model has learnt, and whose updates the '
    'attacker knows'
  ),
  'linear_server': 'the noise of all rounds added up as SGD does',
  'most_exposed_canary': (
    'the canary of which the model keeps most, whose round is known; else as of a '
    'random one'
  ),
}
"""Key of a fact that an analytic ε assumes -> its words."""


def _known_amplification(
  epsilon: float | str, rounds: int, probability: float
) -> str:
  number = '∞' if math.isinf(float(epsilon)) else f'{float(epsilon):.4g}'
  assumes = (
    Fact('poisson_sampling', {'rounds': rounds, 'probability': probability}),
    Fact('known_updates'),
  )
  return f'ε = {number} for clients: {describe_analytic(assumes)}'


OF_AMPLIFICATION: wording.Words = {
  'amplified': _known_amplification,
  'no_tight_analysis': (
    'not known: there is no tight analysis of a participation {kind:key}'
  ),
}
"""Key of what is known of amplification by sampling -> its words."""
