"""Words, normals and signs; and the bits and the memory of canaries made of them."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from epe_jax import canaries
from epe_jax.canaries import threefry
from epe_jax.canaries.base import derive_root
from epe_jax.canaries.hadamard import apply_signs
from epe_jax.canaries.sphere import convert_to_normals

_ALL = 2**32 - 1


def test_words_are_those_of_jax():
  # JAX gives the two words of counter i, xor-ed.
  key = jax.random.key(7)
  data = jax.random.key_data(key)
  low = jnp.arange(100, dtype=jnp.uint32)
  a, b = jax.jit(threefry.draw_words)(
    threefry.Root(data[0], data[1]), jnp.zeros_like(low), low
  )
  np.testing.assert_array_equal(a ^ b, jax.random.bits(key, (100,)))


def test_two_purposes_of_a_key_share_no_words():
  roots = [derive_root(jax.random.key(0), purpose) for purpose in (1, 2)]
  assert roots[0] != roots[1]


def test_normals_are_those_of_exact_arithmetic():
  rng = np.random.default_rng(0)
  edges = [0, 1, 2, 3, 2**30, 2**31 - 1, 2**31, 3 * 2**30, _ALL - 1, _ALL]
  first, second = np.meshgrid(edges, edges, indexing='ij')
  drawn = rng.integers(0, 2**32, (2, 10_000))
  first = np.concatenate([first.ravel(), drawn[0]]).astype(np.uint32)
  second = np.concatenate([second.ravel(), drawn[1]]).astype(np.uint32)
  x, y = jax.jit(convert_to_normals)(first, second)
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
  x, y = jax.jit(convert_to_normals)(jnp.full_like(second, _ALL), second)
  assert np.all(np.hypot(x, y) > 1e-5)


def test_normals_have_the_law_to_the_tails():
  n = 2**19
  root = derive_root(jax.random.key(3), 1)
  words = jax.jit(threefry.draw_words)(
    root, jnp.arange(n, dtype=jnp.uint32), jnp.zeros(n, jnp.uint32)
  )
  x, y = np.asarray(jax.jit(convert_to_normals)(*words), np.float64)
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


def test_each_sign_of_a_tile_is_a_bit_of_its_own():
  # The word with one bit set flips one coordinate, another for each bit.
  flipped = []
  ones = jnp.ones((2, 2, 1), jnp.float32)
  for word in range(2):
    for bit in range(32):
      words = np.zeros((2, 1, 1), np.uint32)
      words[word] = np.uint32(1 << bit)
      x = apply_signs(ones, jnp.asarray(words), threefry.ALL_ROWS)
      assert set(np.unique(x)) == {-1.0, 1.0}
      flipped.append(np.flatnonzero(x.ravel() < 0))
  assert sorted(np.concatenate(flipped)) == list(range(64))
  row = apply_signs(ones, jnp.asarray(words), 15)
  np.testing.assert_array_equal(row, x[15])


def rows(c, num=None):
  """The first rows of the matrix, one by one: the slow and obvious way."""
  one = jax.jit(lambda j: c.superpose(j[None], jnp.ones(1)))
  return np.stack([one(jnp.int32(j)) for j in range(num or c.num)])


@pytest.mark.integration
@pytest.mark.parametrize('name', canaries.FAMILIES)
def test_bits_depend_on_the_key_and_the_id_and_not_on_how_many(name):
  few, dim = 5, 300
  make = canaries.family(name, block=3)
  expected = rows(make(jax.random.key(3), few, dim))
  other = rows(make(jax.random.key(4), few, dim))
  assert not np.any(np.all(other == expected, axis=1))
  more = canaries.family(name)(jax.random.key(3), dim, dim)
  np.testing.assert_array_equal(rows(more, few), expected)
  keys = jax.random.split(jax.random.key(5), 3).at[1].set(jax.random.key(3))
  third = lambda key: make(key, few, dim).superpose(jnp.array([2]), jnp.ones(1))
  traced = jax.jit(jax.vmap(third))(keys)
  np.testing.assert_allclose(traced[1], expected[2], atol=1e-7)
  assert not np.any(np.all(traced[1] == traced[::2], axis=1))


@pytest.mark.parametrize(
  ('name', 'rows'), [('sphere', 8 * 4), ('hadamard', 6), ('hadamard2', 6)]
)
def test_nothing_of_size_k_by_d_is_held(name, rows):
  k, d = 512, 400_000
  c = canaries.family(name, block=4)(jax.random.key(0), k, d)
  v = jax.ShapeDtypeStruct((1, d), jnp.float32)
  memory = jax.jit(c.project).lower(v).compile().memory_analysis()
  assert memory is not None
  # A few arrays as long as v, or as a block of 4 rows, as against 512 rows.
  assert memory.temp_size_in_bytes < rows * d * 4
