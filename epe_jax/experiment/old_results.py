"""Results of schema 5, which held sentences, as those of schema 6 with their keys."""

from collections.abc import Callable, Mapping
import re
from typing import Any

from epe_jax.epsilon.types import Assumption
from epe_jax.fact import Fact, facts_to_json

SCHEMA = 5
"""The version of result.json that `upgrade_result` reads."""

_WORDS = {
  'reproducible simulation': 'reproducible_simulation',
  # Kinds of estimates, and of their excess.
  'point estimate': 'point_estimate',
  'confidence bound': 'confidence_bound',
  'credible bound': 'credible_bound',
  'more than expected': 'more_than_expected',
  # What attackers see, and units of their scores.
  'final model': 'final_model',
  'final model, initial model known': 'initial_and_final_model',
  'all iterates': 'all_iterates',
  'all iterates, other updates known': 'all_iterates_and_updates',
  'all iterates, combined; other updates known': 'all_iterates_combined',
  'published models': 'published_models',
  'published models, other updates known': 'published_models_and_updates',
  'cosine, in units of 1/√d': 'cosine',
  'in units of the noise': 'noise',
  'log likelihood ratio': 'log_likelihood_ratio',
  # Assumptions of estimates.
  'canaries score independently': 'independent_canaries',
  'independent coins decided which canaries took part': 'independent_inclusion',
  'unobserved canaries score as random directions do': 'cosine_null',
  'scores are Gaussian': 'gaussian_scores',
  'taking part shifts a score and leaves its spread alone': 'equal_spread',
  'the trade-off curve of the mechanism is Gaussian': 'gaussian_curve',
  'the mechanism is of the given family': 'mechanism_of_family',
  'shifts of runs are Gaussian': 'gaussian_runs',
}
_FIELDS = 'noise', 'kind', 'excess', 'sees', 'unit'

_SEES_ALL = 'an attacker who sees every round'
# Clauses of what an analytic ε assumes, and what made a fact of their groups.
_CLAUSES: dict[str, Callable[..., Fact]] = {
  'one who takes part in (one|[0-9]+) rounds?': lambda rounds: Fact(
    'participations', {'rounds': 1 if rounds == 'one' else int(rounds)}
  ),
  'one who takes part in each of ([0-9,]+) rounds with probability ([^,]+), by '
  'secret coins of its own': lambda rounds, probability: Fact(
    'poisson_sampling',
    {'rounds': _to_int(rounds), 'probability': float(probability)},
  ),
  'one who takes part in a random round of (?:each of ([0-9]+) periods of )?'
  '([0-9,]+) rounds': lambda periods, rounds: Fact(
    'random_allocation',
    {'rounds': _to_int(rounds), 'periods': int(periods or 1)},
  ),
  f'{_SEES_ALL}, knows which rounds these are and every other update': (
    lambda: Fact('known_rounds')
  ),
  'no amplification by sampling or shuffling': lambda: Fact('no_amplification'),
  'clients of a round counted in public': lambda: Fact('public_counts'),
  f'{_SEES_ALL} and knows every other update': lambda: Fact('known_updates'),
  f'{_SEES_ALL} and knows every other update, to whom every round of it is as '
  'likely': lambda: Fact('equally_likely_rounds'),
  'a canary of a random round': lambda: Fact('random_round'),
  'clients who do not respond to what the model has learnt, and whose updates the '
  'attacker knows': lambda: Fact('unresponsive_clients'),
  'the noise of all rounds added up as SGD does': lambda: Fact('linear_server'),
}


def upgrade_result(values: Mapping[str, Any]) -> dict[str, Any]:
  """The fields of a result of schema 5 by the names and keys of schema 6.

  Args:
    values: the fields of a result.json.

  Raises:
    KeyError: a field is missing.
  """
  assumes = _parse_clauses(values['clients_analytic_assumes'])
  counts = [
    fact.values['rounds'] for fact in assumes if fact.key == 'participations'
  ]
  amplification = values['amplification']
  of_canary = values['analytic_assumes']
  upgraded = {
    # The first results of schema 5 have these in a sentence alone.
    'clients_participations': counts[0] if counts else 1,
    'claim': None,
    **_upgrade(values),
    'participations': values['repetitions'],
    'analytic_assumes': of_canary and facts_to_json(_parse_clauses(of_canary)),
    'clients_analytic_assumes': facts_to_json(assumes),
    'amplification': amplification
    and _parse_amplification(amplification).to_json(),
  }
  del upgraded['repetitions']
  return upgraded


def _upgrade(value: Any) -> Any:
  """The same with keys in place of words, however deep they are."""
  if isinstance(value, list):
    return [_upgrade(x) for x in value]
  if not isinstance(value, dict):
    return value
  # A config and what its user named are not of this package.
  return {
    name: x if name == 'config' else _upgrade_field(name, x)
    for name, x in value.items()
  }


def _upgrade_field(name: str, value: Any) -> Any:
  if name in _FIELDS and isinstance(value, str):
    return _WORDS.get(value, value)
  if name == 'assumes' and isinstance(value, list):
    return [_WORDS.get(x, x) for x in value]
  if name == 'assumes' and value in (None, ''):
    return []
  if name == 'assumes' and set(value.split()) <= set(Assumption.__members__):
    # Of the check that an estimate is below a bound.
    return [str(Assumption[x]) for x in value.split()]
  if name == 'assumes':
    return facts_to_json(_parse_clauses(value))
  return _upgrade(value)


def _parse_clauses(text: str) -> list[Fact]:
  return [_parse_clause(clause) for clause in text.rstrip('.').split('; ')]


def _parse_clause(clause: str) -> Fact:
  for pattern, make in _CLAUSES.items():
    if match := re.fullmatch(pattern, clause):
      return make(*match.groups())
  # The words of who wrote an attacker.
  return Fact(clause)


def _parse_amplification(text: str) -> Fact:
  if match := re.fullmatch('ε = (.*) for clients: (.*)', text):
    (sampled, _) = _parse_clauses(match[2])
    epsilon = float(match[1].replace('∞', 'inf'))
    return Fact('amplified', {'epsilon': epsilon, **sampled.values})
  if match := re.search("divisor='([^']*)'", text):
    return Fact('count_in_divisor', {'divisor': match[1]})
  kind = text.removeprefix(
    'not known: there is no tight analysis of a participation '
  )
  return Fact('no_tight_analysis', {'kind': kind.replace(' ', '_')})


def _to_int(text: str) -> int:
  return int(text.replace(',', ''))
