"""The generator below the canaries: words, normals, signs."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from epe_jax.canaries import _normals, _signs, _threefry

_ALL = 2**32 - 1


def test_words_are_those_of_jax():
  # JAX gives the two words of counter i, xor-ed.
  key = jax.random.key(7)
  data = jax.random.key_data(key)
  low = jnp.arange(100, dtype=jnp.uint32)
  a, b = jax.jit(_threefry.draw_words)(
    _threefry.Root(data[0], data[1]), jnp.zeros_like(low), low
  )
  np.testing.assert_array_equal(a ^ b, jax.random.bits(key, (100,)))


def test_two_purposes_of_a_key_share_no_words():
  roots = [
    _threefry.derive_root(jax.random.key(0), purpose) for purpose in (1, 2)
  ]
  assert roots[0] != roots[1]


def test_normals_are_those_of_exact_arithmetic():
  rng = np.random.default_rng(0)
  edges = [0, 1, 2, 3, 2**30, 2**31 - 1, 2**31, 3 * 2**30, _ALL - 1, _ALL]
  first, second = np.meshgrid(edges, edges, indexing='ij')
  drawn = rng.integers(0, 2**32, (2, 10_000))
  first = np.concatenate([first.ravel(), drawn[0]]).astype(np.uint32)
  second = np.concatenate([second.ravel(), drawn[1]]).astype(np.uint32)
  x, y = jax.jit(_normals.convert_to_normals)(first, second)
  # In float64, and with the quadrant as a part of the angle.
  u = (first >> 1) * 2.0**-31 + 2.0**-32
  fraction = (second << np.uint32(2)).astype(np.int32) * 2.0**-31
  turn = math.pi / 4 * (1 + fraction)
  left, down = second >> 31, second >> 30 & 1
  radius = np.sqrt(2.0**-26 - 2 * np.log(u))
  np.testing.assert_allclose(
    x, radius * np.cos(turn) * (1 - 2.0 * left), atol=2e-6
  )
  np.testing.assert_allclose(
    y, radius * np.sin(turn) * (1 - 2.0 * down), atol=2e-6
  )


def test_no_two_words_make_a_pair_without_direction():
  second = jnp.arange(0, 2**32, 2**22 + 1, dtype=jnp.uint32)
  x, y = jax.jit(_normals.convert_to_normals)(
    jnp.full_like(second, _ALL), second
  )
  assert np.all(np.hypot(x, y) > 1e-5)


def test_normals_have_the_law_to_the_tails():
  n = 2**19
  root = _threefry.derive_root(jax.random.key(3), 1)
  words = jax.jit(_threefry.draw_words)(
    root, jnp.arange(n, dtype=jnp.uint32), jnp.zeros(n, jnp.uint32)
  )
  x, y = np.asarray(jax.jit(_normals.convert_to_normals)(*words), np.float64)
  both = np.concatenate([x, y])
  # One test of these in 10^5 would fail by chance.
  assert stats.kstest(both, stats.norm.cdf).pvalue > 1e-6
  assert stats.kstest(1.01 * both, stats.norm.cdf).pvalue < 1e-6
  assert stats.kstest(x**2 + y**2, stats.chi2(2).cdf).pvalue > 1e-6
  for beyond in (3.0, 4.0):
    for side in (both, -both):
      expected = 2 * n * stats.norm.sf(beyond)
      assert abs(np.sum(side > beyond) - expected) < 5 * math.sqrt(expected)
  for a, b in ((x, y), (x[1:], x[:-1]), (x**2, y**2)):
    assert abs(np.corrcoef(a, b)[0, 1]) < 5 / math.sqrt(n)


def test_a_vector_of_normals_has_the_law_and_its_length_alone_decides_it():
  root = _threefry.derive_root(jax.random.key(5), 0)
  vector = jax.jit(_normals.draw_normals, static_argnums=1)
  for dim in (1, 8191, 100_001):
    x = vector(root, dim)
    assert x.shape == (dim,)
  x = np.asarray(x, np.float64)
  assert stats.kstest(x, stats.norm.cdf).pvalue > 1e-6
  # No number is there twice, as it would be if pieces shared their counters.
  assert len(np.unique(x)) > len(x) - 5000
  for lag in (1, 4096, 8192):
    assert abs(np.corrcoef(x[lag:], x[:-lag])[0, 1]) < 5.5 / 300
  other = vector(_threefry.derive_root(jax.random.key(6), 0), dim)
  assert abs(np.corrcoef(x, other)[0, 1]) < 5.5 / 300


def test_each_sign_of_a_tile_is_a_bit_of_its_own():
  # The word with one bit set flips one coordinate, another for each bit.
  flipped = []
  ones = jnp.ones((2, 2, 1), jnp.float32)
  for word in range(2):
    for bit in range(32):
      words = np.zeros((2, 1, 1), np.uint32)
      words[word] = np.uint32(1 << bit)
      x = _signs.apply_signs(ones, jnp.asarray(words), _signs.ALL_ROWS)
      assert set(np.unique(x)) == {-1.0, 1.0}
      flipped.append(np.flatnonzero(x.ravel() < 0))
  assert sorted(np.concatenate(flipped)) == list(range(64))
  row = _signs.apply_signs(ones, jnp.asarray(words), 15)
  np.testing.assert_array_equal(row, x[15])
