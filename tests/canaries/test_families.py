"""Families of canaries: unit rows, their linear map, and the law of cosines."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from epe_jax import canaries
from epe_jax.epsilon import cosine_null
from epe_jax.parallel import sharding
from papers.one_shot import gaussian_mechanism

pytestmark = pytest.mark.usefixtures('quick_compilation')


def rows(c, num=None):
  """The first rows of the matrix, one by one: the slow and obvious way."""
  one = jax.jit(lambda j: c.superpose(j[None], jnp.ones(1)))
  return np.stack([one(jnp.int32(j)) for j in range(num or c.num)])


def anderson(cosines, dim):
  """Anderson-Darling's distance of sqrt(d) cosines from N(0, 1)."""
  u = np.sort(np.asarray(cosines, np.float64)) * math.sqrt(dim)
  i = np.arange(1, len(u) + 1)
  both = stats.norm.logcdf(u) + stats.norm.logsf(u[::-1])
  return -len(u) - np.mean((2 * i - 1) * both)


# The statistic is larger than this for one sample of N(0, 1) in 10^4.
_REJECT = 9.0


@pytest.mark.parametrize('name', canaries.FAMILIES)
def test_families_are_unit_rows_and_their_linear_map(name):
  dim = 5000
  c = canaries.family(name)(jax.random.key(0), 7, dim)
  matrix = rows(c)
  np.testing.assert_allclose(np.linalg.norm(matrix, axis=1), 1, atol=1e-6)
  v = jax.random.normal(jax.random.key(1), (2, 3, dim))
  project, superpose = jax.jit(c.project), jax.jit(c.superpose)
  np.testing.assert_allclose(project(v), np.asarray(v) @ matrix.T, atol=1e-5)
  ids, weights = np.array([5, 0, 5]), np.array([1.0, -2.0, 0.5], np.float32)
  np.testing.assert_allclose(
    superpose(jnp.asarray(ids), jnp.asarray(weights)),
    weights @ matrix[ids],
    atol=1e-6,
  )


# Several devices are the subject of tests/parallel.
@pytest.mark.integration
@pytest.mark.parametrize('name', canaries.FAMILIES)
def test_canaries_of_one_device_of_a_mesh_are_those_without(name):
  dim, key = 64, jax.random.key(3)
  # Hadamard rows of several groups; other families may have fewer than d canaries.
  num = 3 * dim if name.startswith('hadamard') else dim // 2
  mesh = sharding.make_mesh(jax.devices()[:1])
  alone = canaries.family(name)(key, num, dim)
  shared = canaries.family(name, mesh=mesh)(key, num, dim)
  ids = jnp.array([num - 1, 0, 1, 1])
  weights = jnp.array([2.0, -1.0, 0.5, 0.5])
  np.testing.assert_allclose(
    shared.superpose(ids, weights), alone.superpose(ids, weights), atol=1e-6
  )
  v = jax.random.normal(jax.random.key(4), (2, dim))
  np.testing.assert_allclose(shared.project(v), alone.project(v), atol=1e-5)


@pytest.mark.integration
@pytest.mark.parametrize('name', canaries.FAMILIES)
def test_families_take_no_ids_and_may_be_vmapped(name):
  c = canaries.family(name)(jax.random.key(0), 5, 12)
  none = jax.jit(c.superpose)(jnp.zeros(0, jnp.int32), jnp.zeros(0))
  np.testing.assert_array_equal(none, np.zeros(12))
  v = jax.random.normal(jax.random.key(1), (4, 12))
  each = jax.jit(jax.vmap(c.project))(v)
  np.testing.assert_allclose(each, jax.jit(c.project)(v), atol=1e-6)


@pytest.mark.integration
@pytest.mark.parametrize('make', [canaries.hadamard, canaries.hadamard2])
def test_hadamard_rows_are_orthogonal_as_far_as_their_order_divides_d(make):
  for dim, order in ((100, 64), (3, 2), (8192, 4096)):
    num = min(order, 2100)
    c = make(jax.random.key(0), num, dim)
    weights = jnp.zeros(num).at[jnp.array([0, num - 1])].set(1.0)
    one = jax.jit(c.superpose)(jnp.arange(num), weights)
    gram = np.asarray(jax.jit(c.project)(one)) - np.asarray(weights)
    left = dim % order
    bound = min(left, order - left) / dim
    assert np.abs(gram).max() < 2 * bound + 1e-5
  matrix = rows(canaries.hadamard(jax.random.key(0), 64, 100))
  # The bound is reached: 36 of 100 coordinates are left over.
  off = np.abs(matrix @ matrix.T - np.eye(64)).max()
  np.testing.assert_allclose(off, 28 / 100, atol=1e-5)


@pytest.mark.integration
@pytest.mark.parametrize('dim', [3 * 2**16, 200_001])
def test_rows_of_several_tiles_are_unit_rows_and_their_linear_map(dim):
  num = 4096 + 5
  c = canaries.hadamard2(jax.random.key(0), num, dim)
  project, superpose = jax.jit(c.project), jax.jit(c.superpose)
  weights = jnp.zeros(num).at[jnp.array([3, 4095, 4100])].set(1.0)
  one = superpose(jnp.arange(num), weights)
  # Of two groups, whose rows are as independent as random vectors.
  found = np.asarray(project(one) - weights)
  assert np.abs(found).max() < 2 * 5.5 / math.sqrt(dim)
  apart = superpose(jnp.array([3]), jnp.ones(1))
  np.testing.assert_allclose(jnp.linalg.norm(apart), 1, atol=1e-5)
  v = jax.random.normal(jax.random.key(1), (dim,))
  np.testing.assert_allclose(project(v) @ weights, v @ one, atol=1e-4)


def test_mass_on_few_residues_is_spread_by_turns():
  # A column of a matrix of 4096 columns, which folds onto 16 places else.
  dim, k = 2**20 + 77, 2000
  v = jnp.zeros(dim).at[5::4096].set(1.0)
  pair = jnp.zeros(dim).at[jnp.array([7, 7 + 2**16])].set(1.0)
  v = jnp.stack([v / jnp.linalg.norm(v), pair / jnp.linalg.norm(pair)])
  cosines = jax.jit(_FAMILY['hadamard2'](jax.random.key(1), k, dim).project)(v)
  assert max(anderson(c, dim) for c in cosines) < _REJECT


@pytest.mark.slow
def test_groups_of_hadamard_rows_are_as_independent_as_random_vectors():
  order, dim = 4096, 4096
  c = canaries.hadamard(jax.random.key(0), 3 * order, dim)
  seen = np.asarray(c.project(c.superpose(jnp.array([order + 7]), jnp.ones(1))))
  own = seen[order : 2 * order]
  np.testing.assert_allclose(own, np.arange(order) == 7, atol=1e-5)
  for others in (seen[:order], seen[2 * order :]):
    assert anderson(others, dim) < _REJECT
  # Few ids go one by one and many by groups, with the same result.
  few, many = jnp.array([9000, 1]), jnp.array([9000, 1, 1, 1])
  np.testing.assert_allclose(
    c.superpose(few, jnp.array([2.0, 3.0])),
    c.superpose(many, jnp.array([2.0, 1.0, 1.0, 1.0])),
    atol=1e-6,
  )


@pytest.mark.integration
@pytest.mark.parametrize('name', canaries.FAMILIES)
def test_one_audit_of_a_gaussian_mechanism_has_the_law_of_the_paper(name):
  # sqrt(d) g = (1 + sigma N(0, 1)) / sqrt(sigma^2 + k / d), up to 1 / sqrt(k).
  sigma, k, dim, n = 0.8, 500, 8192, 8
  g = np.stack(
    [
      gaussian_mechanism.simulate_literal(
        np.random.SeedSequence(i),
        sigma,
        num_canaries=k,
        dim=dim,
        family=_FAMILY[name],
      )
      for i in range(n)
    ]
  )
  scale = math.sqrt(sigma**2 + k / dim)
  mean, std = 1 / scale, sigma / scale
  if name == 'sphere':  # Each is noise to the others.
    std = 1
  # Five standard errors.
  error = 5 / math.sqrt(k * n)
  assert abs(math.sqrt(dim) * g.mean() / mean - 1) < error * std / mean
  found = math.sqrt(dim * np.mean(g.var(axis=1, ddof=1)))
  assert abs(found / std - 1) < error
  # Noise that is a fifth stronger is told apart.
  wrong = 1 / math.sqrt((1.2 * sigma) ** 2 + k / dim)
  assert abs(math.sqrt(dim) * g.mean() / wrong - 1) > error * std / mean


_FAMILY = {name: canaries.family(name) for name in canaries.FAMILIES}


def sparse(name, dim):
  rng = np.random.default_rng(0)
  return {
    'dense': rng.standard_normal(dim),
    'one entry': np.eye(1, dim, 1234)[0],
    'at the end': np.eye(1, dim, dim - 1)[0],
    'Cauchy': rng.standard_cauchy(dim),
  }[name].astype(np.float32)


@pytest.mark.parametrize('dim', [2, 3, 1000])
def test_cosines_with_a_fixed_vector_follow_the_exact_null_law(dim):
  # One test in 10^6 would fail by chance.
  c = canaries.sphere(jax.random.key(dim), num=4000, dim=dim)
  v = jax.random.normal(jax.random.key(1), (dim,))
  tau = np.asarray(jax.jit(c.project)(v) / jnp.linalg.norm(v), np.float64)
  right, wrong = cosine_null.CosineNull(dim), cosine_null.CosineNull(2 * dim)
  assert stats.kstest(tau, lambda x: right.sf(-x)).pvalue > 1e-6
  # The law of the wrong dimension must be told apart.
  assert stats.kstest(tau, lambda x: wrong.sf(-x)).pvalue < 1e-6


@pytest.mark.parametrize('name', canaries.FAMILIES)
def test_cosines_of_canaries_that_were_not_put_in_are_normal(name):
  dim, k = 10_000, 2000
  kinds = ('dense', 'one entry', 'at the end', 'Cauchy')
  v = jnp.stack([jnp.asarray(sparse(kind, dim)) for kind in kinds])
  # Signs need a vector whose mass lies on many coordinates.
  dense = canaries.effective_dimension(v) > 3000
  np.testing.assert_array_equal(dense, [True, False, False, False])
  unit = v / jnp.linalg.norm(v, axis=1, keepdims=True)
  cosines = jax.jit(_FAMILY[name](jax.random.key(1), k, dim).project)(unit)
  passes = np.array([anderson(c, dim) < _REJECT for c in cosines])
  needs_dense = canaries.min_effective_dimension(name, dim) is not None
  np.testing.assert_array_equal(
    passes, dense if needs_dense else np.full(4, True)
  )


def test_cosines_of_hadamard_have_variance_1_over_d_for_any_vector():
  # Parseval: B orthogonal rows see what is folded onto B numbers.
  dim = order = 1024
  v = sparse('Cauchy', dim)
  c = canaries.hadamard(jax.random.key(1), order, dim)
  cosines = c.project(jnp.asarray(v)) / np.linalg.norm(v)
  np.testing.assert_allclose(np.sum(cosines**2), 1, rtol=1e-5)


def test_effective_dimension_counts_the_coordinates_that_matter():
  d = 30_000
  normal = jax.random.normal(jax.random.key(0), (d,))
  few = jnp.zeros(d).at[:5].set(jnp.array([1.0, -1, 1, 1, -1]))
  stack = jnp.stack([jnp.ones(d), few, jnp.zeros(d), normal])
  found = canaries.effective_dimension(stack)
  np.testing.assert_allclose(found[:3], [d, 5, 0], rtol=1e-5)
  # Its standard error is 3 % of d / 3 at the most.
  np.testing.assert_allclose(found[3], d / 3, rtol=0.1)
  tiny = canaries.effective_dimension(1e-30 * stack)
  np.testing.assert_allclose(tiny, found, rtol=1e-5)


def test_the_excess_kurtosis_of_cosines_with_signs_is_two_over_d_eff():
  vector = np.array([3.0, 2.0, 1.0, 1.0])
  signs = np.array(np.meshgrid(*[[-1, 1]] * 4)).reshape(4, -1)
  d_eff = float(canaries.effective_dimension(jnp.asarray(vector)))
  assert stats.kurtosis(vector @ signs) == pytest.approx(-2 / d_eff, rel=1e-6)


@pytest.mark.parametrize('name', canaries.FAMILIES)
@pytest.mark.parametrize(
  ('sizes', 'message'), [((0, 5), 'num=0'), ((1, 1), 'dim=1')]
)
def test_families_refuse_impossible_sizes(name, sizes, message):
  with pytest.raises(ValueError, match=message):
    canaries.family(name)(jax.random.key(0), *sizes)


def test_no_canaries_at_a_time_and_unknown_families_are_refused():
  with pytest.raises(ValueError, match='block=0'):
    canaries.sphere(jax.random.key(0), 3, 5, block=0)
  with pytest.raises(ValueError, match=r"canaries\.family='cube'; give one of"):
    canaries.family('cube')


def test_a_matrix_is_the_map_of_its_rows():
  matrix = np.random.default_rng(0).normal(size=(7, 50)).astype(np.float32)
  matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
  c = canaries.from_matrix(jnp.asarray(matrix))
  v = np.random.default_rng(1).normal(size=(4, 50)).astype(np.float32)
  np.testing.assert_allclose(c.project(jnp.asarray(v)), v @ matrix.T, atol=1e-5)
  np.testing.assert_array_equal(rows(c), matrix)


@pytest.mark.usefixtures('types_unchecked')
def test_rows_that_are_not_unit_vectors_are_refused():
  with pytest.raises(ValueError, match='row 1 has norm 2'):
    canaries.from_matrix(jnp.diag(jnp.array([1.0, 2.0, 1.0])))
  with pytest.raises(ValueError, match=r'matrix has shape \(3,\); give k x d'):
    canaries.from_matrix(jnp.ones(3))
