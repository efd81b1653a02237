"""Results that an earlier version wrote with sentences are read as keys."""

import pytest

from epe_jax import io
from epe_jax.audit import evaluation
from epe_jax.epsilon.types import Assumption
from epe_jax.experiment import old_results, run_result
from epe_jax.fact import Fact
from epe_jax.text import assumptions
from tests import recorded_runs
from tests.sentences import find_sentences

_KNOWN = (
  'an attacker who sees every round, knows which rounds these are and every other '
  'update; no amplification by sampling or shuffling'
)
_LIKELY = (
  'an attacker who sees every round and knows every other update, to whom every '
  'round of it is as likely'
)
_SAMPLED = (
  'one who takes part in each of 1,000 rounds with probability 0.0123, by secret '
  'coins of its own; an attacker who sees every round and knows every other update'
)


def _spell(value):
  """A result of now in the words of schema 5, where these are one for one."""
  spelled = {key: words for words, key in old_results._WORDS.items()}
  if isinstance(value, dict):
    return {name: _spell(x) for name, x in value.items()}
  if isinstance(value, list):
    return [_spell(x) for x in value]
  return spelled.get(value, value) if isinstance(value, str) else value


def _write_old(path, result, **changes):
  """The file of a result as schema 5 has it."""
  run_result.write_result(path, result)
  values = io.read_json(path)
  audit = _spell(values['audit'])
  for attack, row in zip(result.audit.attacks, audit['attacks']):
    if attack.analytic is not None:
      row['analytic']['assumes'] = assumptions.describe_analytic(
        attack.analytic.assumes
      )
  values['repetitions'] = values.pop('participations')
  of_one, of_two = (
    f'one who takes part in {times}; {_KNOWN}'
    for times in ('one round', '2 rounds')
  )
  old = {
    'schema': 5,
    'noise': 'reproducible simulation',
    'audit': audit,
    'analytic_assumes': of_one,
    'clients_analytic_assumes': of_two,
  }
  del values['clients_participations']
  io.write_json(path, values | old | changes)


@pytest.mark.parametrize('design', ['fixed', 'coin_flip'])
def test_a_result_of_before_is_that_of_now(tmp_path, design):
  record = recorded_runs.by_law(design=design)
  known = (Fact('known_rounds'), Fact('no_amplification'))
  result = recorded_runs.result(
    audit=evaluation.evaluate(record, floors=False),
    analytic_assumes=(Fact('participations', {'rounds': 1}), *known),
    clients_analytic_assumes=(Fact('participations', {'rounds': 2}), *known),
  )
  path = tmp_path / 'result.json'
  _write_old(path, result)
  assert list(find_sentences(io.read_json(path)))
  assert run_result.load_result(path) == result
  run_result.write_result(path, run_result.load_result(path))
  assert not list(find_sentences(io.read_json(path)))


@pytest.mark.parametrize(
  'text',
  [
    f'one who takes part in one round; {_KNOWN}',
    f'one who takes part in 91 rounds; {_KNOWN}; clients of a round counted in public',
    _SAMPLED,
    f'one who takes part in a random round of 2,048 rounds; {_LIKELY}',
    f'one who takes part in a random round of each of 4 periods of 5 rounds; {_LIKELY}',
    'a canary of a random round; clients who do not respond to what the model has '
    'learnt, and whose updates the attacker knows; the noise of all rounds added up '
    'as SGD does',
    'an attacker of somebody else',
  ],
)
def test_what_an_analytic_epsilon_assumes_reads_as_before(text):
  found = tuple(old_results._parse_clauses(text))
  assert assumptions.describe_analytic(found) == text
  if 'somebody' not in text:
    assert {fact.key for fact in found} <= assumptions.OF_ANALYTIC.keys()


@pytest.mark.parametrize(
  ('text', 'key'),
  [
    (f'ε = 2.1 for clients: {_SAMPLED}', 'amplified'),
    (f'ε = ∞ for clients: {_SAMPLED}', 'amplified'),
    (
      'not known: the number of clients of a round, which says something of each '
      "coin, shows in what divisor='actual' divides",
      'count_in_divisor',
    ),
    (
      'not known: there is no tight analysis of a participation fixed size',
      'no_tight_analysis',
    ),
  ],
)
def test_what_was_known_of_amplification_reads_as_before(text, key):
  found = old_results._parse_amplification(text)
  assert found.key == key
  assert assumptions.describe_amplification(found) == text


def test_the_words_of_before_have_the_keys_of_now():
  keys = set(old_results._WORDS.values())
  assert set(Assumption) <= keys
  check = {
    'key': 'below_bound',
    'values': {'assumes': 'INDEPENDENT COSINE_NULL'},
  }
  assert old_results._upgrade(check)['values'] == {
    'assumes': ['independent_canaries', 'cosine_null']
  }
