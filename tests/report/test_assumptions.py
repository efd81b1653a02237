"""The words for what an estimate, or an analytic ε, assumes."""

import math

from epe_jax import io, typed_json
from epe_jax.epsilon.types import Assumption
from epe_jax.fact import Fact
from epe_jax.report import assumptions


def test_every_assumption_has_words_of_its_own():
  assert assumptions.ASSUMPTIONS.keys() == set(Assumption)
  words = assumptions.list_assumptions(Assumption)
  assert len(set(words)) == len(words)
  assert all(' ' in text and not text.endswith('.') for text in words)


def test_amplification_without_noise_is_infinite_in_files_too():
  fact = Fact(
    'amplified', {'epsilon': math.inf, 'rounds': 10, 'probability': 0.5}
  )
  read = typed_json.from_plain(
    Fact, io.spell_non_finite(typed_json.to_plain(fact))
  )
  for one in (fact, read):
    words = assumptions.describe_amplification(one)
    assert words.startswith(
      'ε = ∞ for clients: one who takes part in each of 10'
    )
