"""Canaries: the law of the vectors, the linear map, and their bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from epe_jax import canaries
from epe_jax.epsilon import cosine_null


def rows(c: canaries.Canaries) -> np.ndarray:
  """The k x d matrix, row by row: the slow and obvious way."""
  one = jax.jit(lambda j: c.superpose(j[None], jnp.ones(1)))
  return np.stack([one(jnp.int32(j)) for j in range(c.num)])


def test_rows_of_sphere_have_norm_one():
  c = canaries.sphere(jax.random.key(0), num=20, dim=1000)
  np.testing.assert_allclose(np.linalg.norm(rows(c), axis=1), 1, atol=1e-6)


@pytest.mark.parametrize('dim', [2, 3, 1000])
def test_cosines_with_a_fixed_vector_follow_the_exact_null_law(dim):
  # One test in 10^6 would fail by chance.
  c = canaries.sphere(jax.random.key(dim), num=4000, dim=dim)
  v = jax.random.normal(jax.random.key(1), (dim,))
  tau = np.asarray(jax.jit(c.project)(v) / jnp.linalg.norm(v), np.float64)
  assert stats.kstest(tau, cosine_null.CosineNull(dim).cdf).pvalue > 1e-6
  # The law of the wrong dimension must be told apart.
  wrong = cosine_null.CosineNull(2 * dim).cdf
  assert stats.kstest(tau, wrong).pvalue < 1e-6


def test_project_and_superpose_are_the_map_and_its_transpose():
  c = canaries.sphere(jax.random.key(0), num=7, dim=50)
  matrix = rows(c)
  v = jax.random.normal(jax.random.key(1), (2, 3, 50))
  np.testing.assert_allclose(c.project(v), np.asarray(v) @ matrix.T, atol=1e-5)
  ids, weights = np.array([5, 0, 5]), np.array([1.0, -2.0, 0.5])
  np.testing.assert_allclose(
    c.superpose(jnp.asarray(ids), jnp.asarray(weights)),
    weights @ matrix[ids],
    atol=1e-6,
  )


def test_from_matrix_is_the_map_of_that_matrix():
  sphere = canaries.sphere(jax.random.key(0), num=7, dim=50)
  c = canaries.from_matrix(jnp.asarray(rows(sphere)))
  v = jax.random.normal(jax.random.key(1), (4, 50))
  np.testing.assert_allclose(c.project(v), sphere.project(v), atol=1e-5)
  np.testing.assert_array_equal(rows(c), rows(sphere))


@pytest.mark.integration
@pytest.mark.parametrize('dim', [7, 9001])
def test_bits_depend_on_key_and_id_alone(dim):
  entries = jnp.eye(dim)[: min(dim, 9)]
  expected = rows(canaries.sphere(jax.random.key(3), num=20, dim=dim))
  for block in (1, 40):
    c = canaries.sphere(jax.random.key(3), num=20, dim=dim, block=block)
    seen = np.asarray(jax.jit(c.project)(entries))
    np.testing.assert_array_equal(seen.T, expected[:, : len(entries)])
  more = rows(canaries.sphere(jax.random.key(3), num=31, dim=dim))
  np.testing.assert_array_equal(more[:20], expected)
  other = rows(canaries.sphere(jax.random.key(4), num=20, dim=dim))
  assert np.all(other != expected)


def test_nothing_of_size_k_by_d_is_held():
  k, d, block = 512, 100_000, 4
  c = canaries.sphere(jax.random.key(0), num=k, dim=d, block=block)
  v = jax.ShapeDtypeStruct((1, d), jnp.float32)
  memory = jax.jit(c.project).lower(v).compile().memory_analysis()
  assert memory is not None
  # A few arrays of a block, as against 512 rows.
  assert memory.temp_size_in_bytes < 8 * block * d * 4


def test_no_ids_superpose_to_zero():
  c = canaries.sphere(jax.random.key(0), num=3, dim=5)
  nothing = c.superpose(jnp.zeros(0, jnp.int32), jnp.zeros(0))
  np.testing.assert_array_equal(nothing, np.zeros(5))


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (dict(num=0, dim=5), 'num=0'),
    (dict(num=3, dim=1), 'dim=1'),
    (dict(num=3, dim=5, block=0), 'block=0'),
  ],
)
def test_impossible_sizes_are_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    canaries.sphere(jax.random.key(0), **arguments)


@pytest.mark.usefixtures('types_unchecked')
def test_rows_that_are_not_unit_vectors_are_refused():
  with pytest.raises(ValueError, match='row 1 has norm 2'):
    canaries.from_matrix(jnp.diag(jnp.array([1.0, 2.0, 1.0])))
  with pytest.raises(ValueError, match=r'matrix has shape \(3,\); give k x d'):
    canaries.from_matrix(jnp.ones(3))
