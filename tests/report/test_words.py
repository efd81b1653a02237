"""The words for what an estimate, or an analytic ε, assumes."""

import math

from epe_jax import io, typed_json
from epe_jax.epsilon.types import Assumption
from epe_jax.fact import Fact
from epe_jax.report import words


def test_every_assumption_has_words_of_its_own():
  assert words.ASSUMPTIONS.keys() == set(Assumption)
  told = words.list_assumptions(Assumption)
  assert len(set(told)) == len(told)
  assert all(' ' in text and not text.endswith('.') for text in told)


def test_what_is_infinite_without_noise_is_infinite_in_files_too():
  amplified = Fact(
    'amplified', {'epsilon': math.inf, 'rounds': 10, 'probability': 0.5}
  )
  moved = Fact('sensitivity', {'clip_norms': 2.5, 'rho': math.inf})
  for fact in (amplified, moved):
    read = typed_json.from_plain(
      Fact, io.spell_non_finite(typed_json.to_plain(fact))
    )
    for one in (fact, read):
      if fact == amplified:
        told = words.describe_amplification(one)
        assert told.startswith(
          'ε = ∞ for clients: one who takes part in each of 10'
        )
      else:
        assert 'by 2.5 clip norms' in words.describe_analytic((one,))
        assert 'ρ = ∞' in words.describe_analytic((one,))
