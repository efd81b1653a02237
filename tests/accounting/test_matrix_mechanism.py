"""How far a participant moves all rounds of a matrix mechanism."""

import functools
import itertools
import math

from jax_privacy.matrix_factorization import sensitivity as jp_sensitivity
from jax_privacy.matrix_factorization import toeplitz as jp_toeplitz
import numpy as np
import pytest
from scipy import linalg

from epe_jax import accounting
from epe_jax.accounting import ParticipationSchema
from epe_jax.training import correlated_noise

ROUNDS = 12


@functools.cache
def list_patterns(schema):
  """All sets of rounds that are admissible, a row each."""
  b, k, is_fixed = schema
  return np.array(
    [
      np.isin(np.arange(ROUNDS), chosen)
      for size in range(1, min(k or ROUNDS, ROUNDS) + 1)
      for chosen in itertools.combinations(range(ROUNDS), size)
      if np.all(np.diff(chosen) == b if is_fixed else np.diff(chosen) >= b)
    ]
  )


def make_toeplitz(coefficients, rounds=ROUNDS):
  column = np.zeros(rounds)
  column[: len(coefficients)] = coefficients
  return linalg.toeplitz(column, np.zeros(rounds))


STRATEGIES = {
  'independent': np.eye(ROUNDS),
  'tree': correlated_noise.tree(ROUNDS).strategy,
  **{
    f'tree restarted after {every}': correlated_noise.restart(
      correlated_noise.tree, ROUNDS, every
    ).strategy
    for every in (4, 5, 7)
  },
  'banded': make_toeplitz([1, 0.6, 0.3]),
  'long': make_toeplitz(0.9 ** np.arange(ROUNDS)),
  'any': np.tril(np.random.default_rng(0).random((ROUNDS, ROUNDS))),
}


@pytest.mark.parametrize('name', STRATEGIES)
@pytest.mark.parametrize('is_fixed', [False, True])
def test_sensitivity_is_that_of_the_worst_admissible_rounds(name, is_fixed):
  """Against all patterns; a bound may be above them."""
  c = STRATEGIES[name]
  for b, k in itertools.product((1, 2, 3, 5, 20), (1, 2, 3, None)):
    schema = ParticipationSchema(b, k, is_fixed)
    patterns = list_patterns(schema)
    norms = np.linalg.norm(patterns @ c.T, axis=1)
    found = accounting.find_sensitivity(c, schema)
    assert found.bound >= max(norms) * (1 - 1e-12)
    looseness = 1.11 if name == 'tree restarted after 5' else 1.04
    assert found.bound <= looseness * max(norms)
    assert np.any(np.all(found.pattern == patterns, axis=1))
    assert found.norm == pytest.approx(np.linalg.norm(c @ found.pattern))
    assert found.norm == pytest.approx(max(norms))
    if is_fixed or name in ('independent', 'long') or k == 1:
      assert found.bound == pytest.approx(found.norm)


@pytest.mark.parametrize('k', [1, 3, None])
@pytest.mark.parametrize('b', [4, 7])
def test_banded_sensitivities_are_those_of_jax_privacy(b, k):
  c = correlated_noise.banded(40, bands=4).strategy
  schema = ParticipationSchema(b, k)
  found = accounting.find_sensitivity(c, schema)
  theirs = jp_sensitivity.get_sensitivity_banded(c, b, k)
  assert found.bound == pytest.approx(float(theirs), rel=1e-5)
  squared = jp_toeplitz.minsep_sensitivity_squared(
    c[:4, 0], b, k, n=40, skip_checks=True
  )
  assert found.bound == pytest.approx(math.sqrt(float(squared)), rel=1e-5)
  upper = jp_sensitivity.get_min_sep_sensitivity_upper_bound(c, b, k)
  assert found.bound <= float(upper) * (1 + 1e-5)


def test_whitened_releases_have_independent_noise_and_lose_nothing():
  noising = correlated_noise.tree(ROUNDS).noising
  white = accounting.whiten(noising)
  covariance = white @ noising @ noising.T @ white.T
  np.testing.assert_allclose(covariance, np.eye(ROUNDS), atol=1e-12)
  assert np.all(np.diagonal(white) > 0)
  assert not np.any(np.triu(white, 1))
  square = STRATEGIES['banded']
  np.testing.assert_allclose(
    accounting.whiten(np.linalg.inv(square)), square, atol=1e-12
  )


@pytest.mark.parametrize(
  'noising', [np.ones((2, 2)), np.eye(3)[:, :2], np.diag([1.0, 1e-13])]
)
def test_rounds_of_which_some_sum_has_no_noise_have_no_strategy(noising):
  with pytest.raises(ValueError, match='a row of its own noise'):
    accounting.whiten(noising)
  little = np.diag([1.0, 1e-6])
  np.testing.assert_allclose(
    accounting.whiten(little) @ little, np.eye(2), rtol=1e-12
  )


def test_unless_told_otherwise_a_participant_may_have_any_rounds():
  c = np.diag([2.0, 1.0, 1.0, 2.0])
  every = accounting.find_sensitivity(c, ParticipationSchema())
  assert every.bound == pytest.approx(math.sqrt(10))
  # The first round and the last are not 2 rounds apart, but at least that.
  apart = accounting.find_sensitivity(c, ParticipationSchema(2))
  assert apart.bound == pytest.approx(math.sqrt(8))
  fixed = accounting.find_sensitivity(c, ParticipationSchema(2, is_fixed=True))
  assert fixed.bound == pytest.approx(math.sqrt(5))


def test_prefix_sums_of_a_tree_give_away_no_more_than_its_nodes():
  tree = correlated_noise.tree(ROUNDS)
  for pattern in list_patterns(ParticipationSchema(3)):
    nodes = np.linalg.norm(tree.strategy @ pattern)
    sums = np.linalg.norm(tree.whitened @ pattern)
    assert sums <= nodes * (1 + 1e-12)


def test_epsilon_is_that_of_a_gaussian_release():
  one = accounting.epsilon_of_matrix_mechanism(2.0, 3.0, delta=1e-6)
  other = accounting.epsilon_of_releases(2.0, delta=1e-6, participations=9)
  assert one.epsilon == pytest.approx(other.epsilon)
  (fact,) = [x for x in one.assumes if x.key == 'sensitivity']
  assert fact.values['rho'] == pytest.approx(1.125)
  assert math.isinf(
    accounting.epsilon_of_matrix_mechanism(0.0, 1.0, delta=1e-6).epsilon
  )


@pytest.mark.parametrize(
  ('strategy', 'schema', 'message'),
  [
    (np.ones(3), ParticipationSchema(), r'strategy has shape \(3,\)'),
    (np.full((2, 2), np.inf), ParticipationSchema(), 'give a finite matrix'),
    (np.eye(2), ParticipationSchema(0), 'min_separation=0'),
    (np.eye(2), ParticipationSchema(1, 0), 'max_participations=0'),
    (make_toeplitz([1, -0.5]), ParticipationSchema(), 'not its inverse'),
  ],
)
def test_what_has_no_sensitivity_is_refused(strategy, schema, message):
  with pytest.raises(ValueError, match=message):
    accounting.find_sensitivity(strategy, schema)
