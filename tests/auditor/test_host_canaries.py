"""The canaries of the host are those of the device."""

import jax
from jax import flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

from epe_jax import canaries
from epe_jax.auditor.host_canaries import pieces, structures
from epe_jax.auditor.host_canaries.registry import FAMILIES
from epe_jax.canaries.threefry import Root

KEY = Root(np.uint32(0xDEADBEEF), np.uint32(12345))
# More canaries than a group has, fewer coordinates than its order, whole tiles, and
# a rest behind them.
SIZES = [(5, 100), (5000, 10_000), (30, 65_536), (30, 200_001)]


def view_pieces(model):
  return [x.reshape(-1) for x in structures.flatten(model).values()]


def make_both(family, num, dim):
  key = jax.random.wrap_key_data(np.array(KEY))
  host = FAMILIES[family](KEY, num, dim)
  return host, canaries.family(family)(key, num, dim)


def make_canary(host, j):
  out = np.zeros(host.dim, np.float32)
  host.add(np.array([j]), np.ones(1), [out])
  return out


@pytest.mark.parametrize(('num', 'dim'), SIZES)
def test_hadamard_canaries_are_those_of_jax_bit_for_bit(num, dim):
  host, device = make_both('hadamard', num, dim)
  for j in (0, num // 2, num - 1):
    expected = device.superpose(jnp.array([j]), jnp.ones(1))
    np.testing.assert_array_equal(make_canary(host, j), expected)


@pytest.mark.parametrize(('num', 'dim'), [(5, 101), (30, 20_000)])
def test_canaries_of_the_sphere_are_those_of_jax_to_rounding(num, dim):
  host, device = make_both('sphere', num, dim)
  for j in (0, num - 1):
    expected = device.superpose(jnp.array([j]), jnp.ones(1))
    np.testing.assert_allclose(
      make_canary(host, j), expected, atol=2e-5 / np.sqrt(dim)
    )


@pytest.mark.integration
@pytest.mark.parametrize('family', FAMILIES)
@pytest.mark.parametrize(('num', 'dim'), SIZES[:2])
def test_projections_and_sums_are_those_of_jax(family, num, dim):
  # Of the sphere JAX draws every canary anew, in a program that is slow to make.
  num, dim = (min(num, 4200), dim) if family == 'hadamard' else (5, dim // 10)
  host, device = make_both(family, num, dim)
  rng = np.random.default_rng(0)
  vectors = rng.normal(size=(2, dim)).astype(np.float32)
  found = host.project([[v] for v in vectors])
  np.testing.assert_allclose(
    found, device.project(jnp.asarray(vectors)), atol=2e-5
  )
  ids, weights = np.array([0, 3, num - 1]), np.array([1.0, -2.0, 0.5])
  out = np.zeros(dim, np.float32)
  host.add(ids, weights, [out])
  expected = device.superpose(jnp.asarray(ids), jnp.asarray(weights))
  np.testing.assert_allclose(out, expected, atol=1e-5)


@pytest.mark.parametrize('family', FAMILIES)
@pytest.mark.parametrize('cuts', [[7], [1, 2, 3], [65_536], [100, 262_144]])
def test_where_a_vector_is_cut_does_not_matter(family, cuts):
  dim = 300_000
  host = FAMILIES[family](KEY, 3, dim)
  vector = np.random.default_rng(0).normal(size=dim).astype(np.float32)
  whole = host.project([[vector]])
  cut = host.project([np.split(vector, cuts)])
  np.testing.assert_allclose(cut, whole, rtol=1e-6, atol=1e-6)
  out = vector.copy()
  host.add(np.array([1]), np.array([2.0]), np.split(out, cuts))
  np.testing.assert_allclose(out, vector + 2 * make_canary(host, 1), atol=1e-6)


def test_float64_vectors_are_read_and_written():
  host = FAMILIES['hadamard'](KEY, 3, 1000)
  out = np.ones(1000)
  host.add(np.array([1]), np.array([2.0]), [out])
  np.testing.assert_allclose(out - 1, 2 * make_canary(host, 1), atol=1e-7)
  assert host.project([[out - 1]])[0, 1] == pytest.approx(2.0, abs=1e-6)


def test_measures_are_those_of_the_whole_vector():
  vector = np.random.default_rng(0).normal(size=100_000).astype(np.float32)
  found = pieces.measure(np.split(vector, [10, 70_000]))
  assert found.norm == pytest.approx(np.linalg.norm(vector), rel=1e-6)
  expected = canaries.effective_dimension(jnp.asarray(vector))
  assert found.effective_dimension == pytest.approx(float(expected), rel=1e-4)
  assert pieces.measure([np.zeros(3, np.float32)]) == (0.0, 0.0)
  tiny = pieces.measure([np.full(4, 1e-30, np.float32)])
  assert tiny == (pytest.approx(2e-30), pytest.approx(4.0))


def test_a_model_is_a_vector_in_the_order_of_jax():
  model = {
    'b': np.arange(2.0),
    'a': [np.arange(6.0).reshape(2, 3), {'y': np.ones(1), 'x': np.zeros(1)}],
    'layers': {10: np.ones(3), 9: np.zeros(2)},
  }
  vector = np.concatenate(view_pieces(model))
  expected, _ = flatten_util.ravel_pytree(model)
  np.testing.assert_array_equal(vector, expected)


def test_a_vector_gets_the_structure_of_a_model_back():
  model = {'b': np.zeros(2), 'a': (np.zeros((2, 3)), [np.zeros(1)])}
  vector = np.arange(9, dtype=np.float32)
  sizes = [x.size for x in view_pieces(model)]
  built = structures.unflatten(np.split(vector, np.cumsum(sizes)[:-1]), model)
  assert list(built) == ['b', 'a']
  assert isinstance(built['a'], tuple)
  assert built['a'][0].shape == (2, 3)
  np.testing.assert_array_equal(np.concatenate(view_pieces(built)), vector)


@pytest.mark.parametrize(
  'model',
  [{'w': np.zeros(3), 'steps': np.zeros(1, np.int64)}, [np.zeros((0, 3))]],
)
def test_what_is_no_parameter_is_named(model):
  with pytest.raises(ValueError, match=r'model\[.*leave it out: dim counts'):
    view_pieces(model)


def test_buffers_that_cannot_be_written_are_named():
  with pytest.raises(ValueError, match=r"out\['w'\] cannot be added to"):
    structures.view_writable(
      structures.flatten({'w': np.zeros((4, 4))[:, 1:]}, 'out')
    )


def test_chunks_are_whole_but_for_the_last():
  parts = [np.arange(5.0), np.arange(5.0, 12.0)]
  chunks = [
    # A list, as the buffer of a chunk is used again.
    (start, chunk.tolist())
    for start, (chunk, _) in pieces.iterate_chunks([parts, parts], 4)
  ]
  assert chunks == [
    (0, [0, 1, 2, 3]),
    (4, [4, 5, 6, 7]),
    (8, [8, 9, 10, 11]),
  ]
