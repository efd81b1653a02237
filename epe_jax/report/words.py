"""The words for facts, attackers and assumptions, by tables of them.

A table has the format of the words of each key; `describe_fact` fills in the values.
"""

from collections.abc import Callable, Iterable, Mapping
import math
import string
from typing import Any

from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.epsilon.types import Assumption
from epe_jax.fact import Fact, Facts
from epe_jax.report import cells

Words = Mapping[str, str | Callable[..., str]]
"""Key of a fact -> the format of its words, or what chooses it by values."""


def _name_law(dim: float | str) -> str:
  if math.isinf(float(dim)):
    return 'the spread of the noise that is claimed'
  return f'the distribution of random directions, d = {dim}'


def _name_lag(lag: int) -> str:
  apart = {0: 'any two rounds', 1: 'consecutive rounds'}
  return apart.get(lag, f'rounds {lag:,} apart')


_SMALLER = '; the lower bound is by a weaker test (all thresholds, one test)'
_TAILS = '; the rest is read from tails of that distribution, where there are no scores'
_FORMS: Mapping[str, Callable[[Any], str]] = {
  'apart': _name_lag,
  'average': lambda lag: '' if lag else ' on average',
  'bound': lambda design: _SMALLER if design == 'fixed' else '',
  'law': _name_law,
  'tails': lambda epsilon: _TAILS if float(epsilon) < math.inf else '',
  'errors': cells.format_errors,
  'g %': lambda share: f'{100 * share:g} %',
  'is': lambda number: 'is' if number == 1 else 'are',
  'key': cells.spell_key,
  'number': cells.format_number,
  'p': cells.format_p_value,
  'ratio': cells.format_ratio,
  'rounds': cells.format_rounds,
}

NAMES = {
  'final': 'last model only',
  'change': 'first and last model',
  'maximum': 'every round (maximum)',
  'likelihood': 'every round (likelihood)',
  'own_round': 'every round',
  'residual': 'worst case',
  'decorrelated': 'worst case (rounds combined)',
  'external': 'scores as given',
}
"""Key of an attacker of this package -> its name, the same wherever it is shown."""

STATISTICS = {
  'final': 'cosine with the final model',
  'change': 'cosine with the change of the model',
  'maximum': 'maximum over rounds',
  'likelihood': 'likelihood over rounds',
  'own_round': 'own round',
  'residual': 'own round, others removed',
  'decorrelated': 'rounds combined, others removed',
}
"""Key of an attacker of this package -> the score that it gives a canary."""

UNITS = {
  'cosine': 'cosine, in units of 1/√d',
  'noise': 'in units of the noise',
  'log_likelihood_ratio': 'log likelihood ratio',
  'score': 'score',
}
"""What scores are measured in -> its words."""

ASSUMPTIONS = {
  Assumption.INDEPENDENT: 'canaries score independently',
  Assumption.COINS: 'independent coins decided which canaries took part',
  Assumption.COSINE_NULL: 'held-out canaries score like random directions',
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


class _Formatter(string.Formatter):
  """Knows the formats of numbers that people read by their names."""

  def format_field(self, value: Any, format_spec: str) -> str:
    if format_spec in _FORMS:
      return _FORMS[format_spec](value)
    # As JSON spells it.
    if format_spec.endswith('g') and not math.isfinite(float(value)):
      return cells.format_number(float(value))
    return super().format_field(value, format_spec)


def describe_fact(fact: Fact, words: Words) -> str:
  """A fact in words, without a full stop; one that is not of this package is spelled.

  >>> words = {'equal': 'all scores are equal', 'far': 'unlikely ({p_value:p})'}
  >>> describe_fact(Fact('far', {'p_value': 0.003}), words)
  'unlikely (p = 0.003)'
  >>> describe_fact(Fact('my_test', {'share': 0.5}), words)
  'my test (share = 0.5)'
  """
  if fact.key in words:
    text = words[fact.key]
    text = text if isinstance(text, str) else text(**fact.values)
    return _Formatter().vformat(text, (), fact.values)
  values = ', '.join(f'{name} = {x}' for name, x in fact.values.items())
  name = cells.spell_key(fact.key)
  return f'{name} ({values})' if values else name


def spell_name(attacker: ThreatModel) -> str:
  """The name of an attacker, in all tables, figures, sentences and files."""
  key = attacker.key
  return attacker.name or NAMES.get(key) or cells.spell_key(key)


def spell_statistic(attacker: ThreatModel) -> str:
  """The score of a canary for an attacker."""
  return STATISTICS.get(attacker.key) or spell_name(attacker)


def describe_unit(unit: str) -> str:
  """The unit of scores in words, as for the axis of a figure."""
  return UNITS.get(unit) or cells.spell_key(unit)


def list_assumptions(assumptions: Iterable[Assumption]) -> list[str]:
  """What an estimate assumes, a clause each."""
  return [ASSUMPTIONS[assumption] for assumption in assumptions]


def describe_analytic(assumes: Facts) -> str:
  """The participation and the attacker of an analytic ε, without a full stop.

  >>> describe_analytic((Fact('participations', {'rounds': 1}), Fact('mine')))
  'one who takes part in one round; mine'
  """
  return '; '.join(describe_fact(fact, OF_ANALYTIC) for fact in assumes)


def describe_amplification(amplification: Fact) -> str:
  """What is known of amplification by sampling, without a full stop.

  >>> describe_amplification(Fact('no_tight_analysis', {'kind': 'fixed_size'}))
  'not known: there is no tight analysis of a participation fixed size'
  """
  return describe_fact(amplification, OF_AMPLIFICATION)


def _random_allocation(periods: int, **_: int) -> str:
  times = '' if periods == 1 else 'each of {periods} periods of '
  return f'one who takes part in a random round of {times}{{rounds:,}} rounds'


_POISSON = (
  'one who takes part in each of {rounds:,} rounds with probability '
  '{probability:.3g}, by secret coins of its own'
)
_ALL_UPDATES = 'an attacker who sees every round and knows every other update'

OF_ANALYTIC: Words = {
  'participations': 'one who takes part in {rounds:rounds}',
  'sensitivity': (
    'one whose rounds move all releases together by {clip_norms:.3g} clip norms, as '
    'far as participation allows (zCDP: ρ = {rho:.3g})'
  ),
  'known_rounds': (
    'an attacker who sees every round, knows which rounds these are and knows every '
    'other update'
  ),
  'noise_shares': (
    'every message of a round carries its share of the noise: without those of clients '
    'who drop out or cheat there is less'
  ),
  'no_amplification': 'no amplification by sampling or shuffling',
  'poisson_sampling': _POISSON,
  'known_updates': _ALL_UPDATES,
  'best_of_runs': (
    'the best of {runs:g} runs (the number is {law:key}), each with hyper-parameters '
    'that do not depend on the data, chosen without other private data'
  ),
  'random_allocation': _random_allocation,
  'equally_likely_rounds': (
    f'{_ALL_UPDATES}, to whom every round of it is as likely'
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


OF_AMPLIFICATION: Words = {
  'amplified': f'ε = {{epsilon:.4g}} for clients: {_POISSON}; {_ALL_UPDATES}',
  'no_tight_analysis': (
    'not known: there is no tight analysis of a participation {kind:key}'
  ),
}
"""Key of what is known of amplification by sampling -> its words."""
