"""Cosines with the aggregates of real training, and the paper's Algorithm 1."""

import pytest

from epe_jax import canaries

# Of 30 p-values one is below this in 3 of 10^5 cases.
_REJECT = 1e-6


@pytest.fixture
def law(load_benchmark):
  return load_benchmark('speed.canary_law')


def _least(row):
  return {name: x['p_value_least'] for name, x in row['families'].items()}


@pytest.mark.slow
@pytest.mark.parametrize('noise', [0.0, 0.2])
def test_aggregates_of_digits_have_cosines_of_the_law(law, noise):
  row = law.measured(law.of_digits(2, noise, width=12), 1000)
  p = _least(row)
  assert min(p[name] for name in canaries.FAMILIES) > _REJECT
  warned = {name: x['warned_share'] for name, x in row['families'].items()}
  assert warned['sphere'] == warned['hadamard2'] == 0
  if noise:
    assert warned['hadamard'] == 0


@pytest.mark.slow
def test_updates_of_frequent_words_are_too_sparse_for_plain_hadamard(law):
  row = law.measured(law.of_words(3, 0.0), 2000)
  p = _least(row)
  assert row['effective_dimension'] < 100
  assert p['hadamard'] < _REJECT
  assert row['families']['hadamard']['warned_share'] == 1
  assert min(p['hadamard2'], p['sphere']) > _REJECT
