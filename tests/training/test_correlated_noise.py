"""Streams of correlated noise are those of their matrices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epe_jax.accounting import ParticipationSchema
from epe_jax.training import correlated_noise

ROUNDS, DIM = 13, 4000
SCHEMA = ParticipationSchema(1, 1)

MAKE = {
  'independent': correlated_noise.independent,
  'banded': lambda n: correlated_noise.banded(n, bands=4),
  'one band': lambda n: correlated_noise.banded(n, bands=1),
  'bisr': lambda n: correlated_noise.bisr(n, bands=4),
  'blt': lambda n: correlated_noise.blt(n, buffers=2, schema=SCHEMA),
  'tree': correlated_noise.tree,
  'restarted tree': lambda n: correlated_noise.restart(
    correlated_noise.tree, n, 5
  ),
  'restarted bands': lambda n: correlated_noise.restart(
    lambda every: correlated_noise.banded(every, bands=3), n, 5
  ),
}


@functools.cache
def make(name):
  """Optimal matrices take seconds."""
  return MAKE[name](ROUNDS)


@pytest.fixture(scope='module', params=MAKE)
def correlation(request):
  return make(request.param)


def draw(key):
  return jax.random.normal(key, (DIM,))


def draw_rounds(stream, rounds=ROUNDS, seed=0):
  def add(state, key):
    noise, state = stream.next(draw, key, state)
    return state, noise

  keys = jax.random.split(jax.random.key(seed), rounds)
  return jax.jit(
    lambda: jax.lax.scan(add, stream.init(jnp.zeros(DIM)), keys)[1]
  )()


def test_noise_has_the_covariance_of_its_matrix(correlation):
  """Each of 91 covariances is within 5 standard errors."""
  noise = np.asarray(draw_rounds(correlation.stream), np.float64)
  expected = correlation.noising @ correlation.noising.T
  variances = np.diagonal(expected)
  error = np.sqrt((np.outer(variances, variances) + expected**2) / DIM)
  assert np.all(np.abs(noise @ noise.T / DIM - expected) < 5 * error)


def test_noise_of_strategy_and_stream_are_inverse(correlation):
  product = correlation.noising @ correlation.strategy
  np.testing.assert_allclose(product, np.eye(ROUNDS), atol=1e-10)


def test_one_participation_moves_rounds_by_a_clip_norm_at_most(correlation):
  norms = np.linalg.norm(correlation.strategy, axis=0)
  assert norms.max() == pytest.approx(1)
  whitened = np.linalg.norm(correlation.whitened, axis=0)
  assert np.all(whitened < 1 + 1e-9)


@pytest.mark.parametrize('name', ['independent', 'one band'])
def test_without_correlation_noise_is_what_is_drawn(name):
  noise = draw_rounds(make(name).stream)
  keys = jax.random.split(jax.random.key(0), ROUNDS)
  np.testing.assert_array_equal(noise, jax.vmap(draw)(keys))


@pytest.mark.parametrize(
  ('name', 'vectors'),
  [('independent', 0), ('banded', 3), ('bisr', 3), ('blt', 2), ('tree', 5)],
)
def test_the_state_has_as_many_vectors_as_is_said(name, vectors):
  state = make(name).stream.init(jnp.zeros(DIM))
  sizes = sum(x.size for x in jax.tree.leaves(state))
  assert sizes // DIM == vectors


@pytest.mark.parametrize('name', ['banded', 'bisr', 'blt', 'tree'])
def test_prefix_sums_have_less_noise_than_those_of_independent_rounds(name):
  sums = np.cumsum(make(name).noising, axis=0)
  assert np.mean(np.sum(sums**2, axis=1)) < 0.8 * (ROUNDS + 1) / 2


@pytest.mark.parametrize(
  ('made', 'message'),
  [
    (lambda: correlated_noise.banded(3, bands=4), 'bands=4 of 3 rounds'),
    (lambda: correlated_noise.bisr(3, bands=0), 'bands=0 of 3 rounds'),
    (
      lambda: correlated_noise.blt(3, buffers=9, schema=SCHEMA),
      'buffers=9 of 3 rounds',
    ),
    (lambda: correlated_noise.tree(0), 'rounds=0'),
    (
      lambda: correlated_noise.restart(correlated_noise.tree, 4, 5),
      'every=5 of 4 rounds',
    ),
  ],
)
def test_sizes_out_of_range_are_refused(made, message):
  with pytest.raises(ValueError, match=message):
    made()
