"""The words for what an estimate, or an analytic ε, assumes."""

import json
import math

import pytest

from epe_jax import accounting, io
from epe_jax.epsilon.types import Assumption
from epe_jax.fact import Fact, facts_from_json, facts_to_json
from epe_jax.report import assumptions


def test_every_assumption_has_words_of_its_own():
  assert assumptions.ASSUMPTIONS.keys() == set(Assumption)
  words = assumptions.list_assumptions(Assumption)
  assert len(set(words)) == len(words)
  assert all(' ' in text and not text.endswith('.') for text in words)


@pytest.mark.parametrize(
  ('analytic', 'words'),
  [
    (
      accounting.epsilon_of_releases(1.0, delta=1e-5, participations=3),
      'one who takes part in 3 rounds; an attacker who sees every round, knows which '
      'rounds these are and every other update; no amplification by sampling or '
      'shuffling',
    ),
    (
      accounting.epsilon_of_poisson(
        0.0, delta=1e-5, probability=0.01234, rounds=1000
      ),
      'one who takes part in each of 1,000 rounds with probability 0.0123, by secret '
      'coins of its own; an attacker who sees every round and knows every other update',
    ),
    (
      accounting.epsilon_of_allocation(0.0, delta=1e-5, rounds=2048, periods=4),
      'one who takes part in a random round of each of 4 periods of 2,048 rounds; an '
      'attacker who sees every round and knows every other update, to whom every '
      'round of it is as likely',
    ),
  ],
)
def test_an_analytic_epsilon_says_of_whom_it_is(analytic, words):
  assert assumptions.describe_analytic(analytic.assumes) == words
  rows = json.loads(json.dumps(facts_to_json(analytic.assumes)))
  assert facts_from_json(rows) == analytic.assumes


def test_amplification_without_noise_is_infinite_in_files_too():
  fact = Fact(
    'amplified', {'epsilon': math.inf, 'rounds': 10, 'probability': 0.5}
  )
  read = Fact.from_json(io.spell_non_finite(fact.to_json()))
  for one in (fact, read):
    words = assumptions.describe_amplification(one)
    assert words.startswith(
      'ε = ∞ for clients: one who takes part in each of 10'
    )
