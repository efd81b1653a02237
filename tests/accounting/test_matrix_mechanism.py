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
from epe_jax.accounting import ParticipationSchema, matrix_mechanism
from epe_jax.training import correlated_noise

ROUNDS = 12


@functools.cache
def list_patterns(schema, rounds=ROUNDS):
  """All sets of rounds that are admissible, a row each."""
  sets = np.arange(1, 2**rounds)[:, None] >> np.arange(rounds) & 1
  sets = sets[sets.sum(axis=1) <= (schema.max_participations or rounds)]
  return sets[[is_admissible(np.flatnonzero(x), schema) for x in sets]] > 0


def is_admissible(chosen, schema):
  b, gaps = schema.min_separation, np.diff(chosen)
  if schema.in_blocks:
    return len({t // b for t in chosen.tolist()}) == chosen.size
  return np.all(gaps == b) if schema.is_fixed else np.all(gaps >= b)


def make_toeplitz(coefficients, rounds=ROUNDS):
  column = np.zeros(rounds)
  column[: len(coefficients)] = coefficients[:rounds]
  return linalg.toeplitz(column, np.zeros(rounds))


def restarted(make, every):
  """A strategy of any number of rounds, of parts of so many."""
  return lambda n: np.kron(np.eye(-(-n // every)), make(every))[:n, :n]


def tree(rounds, every=None):
  if every is None or every > rounds:
    return correlated_noise.tree(rounds).strategy
  return correlated_noise.restart(correlated_noise.tree, rounds, every).strategy


def invert_roots(rounds):
  return correlated_noise.bisr(rounds, bands=min(4, rounds)).strategy


def sum_powers(rounds):
  """As BLT has them."""
  t = np.arange(rounds - 1)
  return make_toeplitz(np.append(1, 0.42 * 0.98**t + 0.21 * 0.6**t), rounds)


TREES = {
  'tree': tree,
  **{f'tree of {n}': functools.partial(tree, every=n) for n in (4, 5, 7)},
}
TOEPLITZ = {
  'independent': np.eye,
  'two bands': lambda n: make_toeplitz([1, 0.5], n),
  'four bands': lambda n: make_toeplitz([1, 0.5, 0.375, 0.3125], n),
  'roots': invert_roots,
  'powers': sum_powers,
}
RESTARTED = {
  f'{name} of {every}': restarted(TOEPLITZ[name], every)
  for name in ('four bands', 'roots', 'powers')
  for every in (4, 5, 7)
}
ANY = {'any': lambda n: np.tril(np.random.default_rng(n).random((n, n)))}
STRATEGIES = TREES | TOEPLITZ | RESTARTED | ANY


def measure_gap(name, schema, rounds):
  """The bound over the largest sensitivity, and what is found of it."""
  c = STRATEGIES[name](rounds)
  patterns = list_patterns(schema, rounds)
  norms = np.linalg.norm(patterns @ c.T, axis=1)
  found = accounting.find_sensitivity(c, schema)
  assert np.any(np.all(found.pattern == patterns, axis=1))
  assert found.norm == pytest.approx(np.linalg.norm(c @ found.pattern))
  assert found.bound >= max(norms) * (1 - 1e-12)
  assert found.norm <= found.bound
  return found.bound / max(norms), found.norm / max(norms)


@pytest.mark.parametrize('name', STRATEGIES)
@pytest.mark.parametrize('rule', ['apart', 'is_fixed', 'in_blocks'])
def test_sensitivity_is_that_of_the_worst_admissible_rounds(name, rule):
  """Against all sets of rounds, of 3 to 10 rounds."""
  is_exact = rule == 'is_fixed' or name in TREES
  is_exact |= name == 'independent' or (rule == 'apart' and name in TOEPLITZ)
  rules = {} if rule == 'apart' else {rule: True}
  for rounds in range(3, 11):
    for b, k in itertools.product((1, 2, 3, 5), (1, 2, 3, None)):
      schema = ParticipationSchema(b, k, **rules)
      bound, norm = measure_gap(name, schema, rounds)
      # What docs/canaries.md says of it.
      assert bound <= 1.09
      assert norm >= 0.94
      if is_exact or k in (1, 2):
        assert bound == pytest.approx(1)
        assert norm == pytest.approx(1)


@pytest.mark.parametrize('rule', ['apart', 'in_blocks'])
def test_bands_that_overlap_with_the_next_participation_only_are_exact(rule):
  rules = {} if rule == 'apart' else {rule: True}
  for name in ('four bands', 'four bands of 5', 'two bands'):
    schema = ParticipationSchema(4, None, **rules)
    assert measure_gap(name, schema, 14) == (pytest.approx(1),) * 2


@pytest.mark.parametrize('rule', ['apart', 'in_blocks'])
def test_bounds_of_more_rounds_are_near_the_worst_that_are_found(rule):
  """Where no list of all sets of rounds ends: docs/canaries.md says how near."""
  rules = {} if rule == 'apart' else {rule: True}
  for name in RESTARTED | TOEPLITZ:
    c = STRATEGIES[name](60)
    for b, k in itertools.product((2, 3, 5, 10), (3, 6, None)):
      found = accounting.find_sensitivity(c, ParticipationSchema(b, k, **rules))
      assert found.norm <= found.bound <= 1.16 * found.norm


@pytest.mark.integration
@pytest.mark.parametrize(
  ('rounds', 'b', 'k'), [(2000, 314, 6), (500, 20, None), (500, 1, 100)]
)
def test_no_regular_rounds_of_a_deployed_tree_move_it_more(rounds, b, k):
  c = correlated_noise.tree(rounds).strategy
  schema = ParticipationSchema(b, k)
  found = accounting.find_sensitivity(c, schema)
  chosen = np.flatnonzero(found.pattern)
  assert is_admissible(chosen, schema)
  assert chosen.size <= (k or rounds)
  assert found.bound == found.norm
  regular = [
    np.arange(start, rounds, gap)[:k]
    for gap in (b, b + 1, 2 * b)
    for start in range(0, rounds, max(1, b // 20))
  ]
  assert (
    max(matrix_mechanism.measure_patterns(c, [x.tolist() for x in regular]))
    <= found.norm
  )


@pytest.mark.parametrize(
  'schema',
  [
    ParticipationSchema(4),
    ParticipationSchema(4, 2),
    ParticipationSchema(4, in_blocks=True),
    ParticipationSchema(4, is_fixed=True),
  ],
)
def test_rounds_are_moved_to_where_a_participant_may_have_them(schema):
  worst = accounting.find_sensitivity(tree(10), schema).pattern
  moved = matrix_mechanism.list_moved(worst, schema)
  assert worst.tolist() in [np.isin(range(10), x).tolist() for x in moved]
  for x in moved:
    assert is_admissible(np.array(x), schema)
  norms = matrix_mechanism.measure_patterns(tree(10), moved)
  assert max(norms) == pytest.approx(np.linalg.norm(tree(10) @ worst))


@pytest.mark.integration
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
  square = make_toeplitz([1, 0.6, 0.3])
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
    (np.full((2, 2), np.inf), ParticipationSchema(), 'strategy=inf; give'),
    (np.eye(2), ParticipationSchema(0), 'min_separation=0'),
    (np.eye(2), ParticipationSchema(1, 0), 'max_participations=0'),
    (make_toeplitz([1, -0.5]), ParticipationSchema(), 'not its inverse'),
  ],
)
def test_what_has_no_sensitivity_is_refused(strategy, schema, message):
  with pytest.raises(ValueError, match=message):
    accounting.find_sensitivity(strategy, schema)
