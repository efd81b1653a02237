"""Cosines with the aggregates of real training, and the paper's Algorithm 1."""

import math

import dp_accounting
import pytest

from epe_jax import canaries
from papers.one_shot import gaussian_mechanism

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


@pytest.mark.integration
def test_algorithm_1_with_hadamard_canaries_estimates_the_analytic_epsilon():
  # sqrt(d) mean(g) is 1/sigma up to 1/sqrt(k), and moves ε by its slope there.
  k, n, dim, delta = 1000, 20, 10**6, 1e-6
  analytic = lambda sigma: float(
    dp_accounting.get_epsilon_gaussian(sigma, delta)
  )
  for sigma in (4.22, 1.54, 0.541):
    rows = gaussian_mechanism.run_estimators(
      0,
      [sigma],
      num_canaries=k,
      dim=dim,
      delta=delta,
      simulations=n,
      law=lambda *args, **sizes: gaussian_mechanism.simulate_literal(
        *args, **sizes, family=canaries.hadamard
      ),
    )
    found = rows['null'][0]
    step = 1e-3
    slope = analytic(1 / (1 / sigma + step)) - analytic(1 / (1 / sigma - step))
    std = slope / (2 * step) / math.sqrt(k)
    # Five standard errors.
    assert abs(found.mean() - analytic(sigma)) < 5 * std / math.sqrt(n)
    assert abs(found.std(ddof=1) / std - 1) < 5 / math.sqrt(2 * (n - 1))
