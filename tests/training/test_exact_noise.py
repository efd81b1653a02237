"""Gaussian integers: their law from the table, exactly, and what is drawn."""

from fractions import Fraction
import functools

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import stats

from epe_jax.canaries import threefry
from epe_jax.experiment import threefry_seeds
from epe_jax.training import exact_noise

TRUE = jnp.ones((), bool)
SPREAD, SMALL_STD, ROWS = 512, 880, 2**14
STD = exact_noise.STD


@functools.cache
def masses():
  """Outcome -> its probability by the table, in units of 2^-78."""
  out = dict.fromkeys(range(-ROWS // 2, ROWS // 2), 0)
  for row, (high, low, other) in enumerate(exact_noise.make_table().tolist()):
    threshold = (high << 32) + low
    out[row - ROWS // 2] += threshold
    out[other - ROWS // 2] += 2**64 - threshold
  assert sum(out.values()) == 2**78
  return out


@functools.cache
def tails():
  """[i] -> the probability that the outcome is at least i - 2^13."""
  values = list(masses().values())
  out, total = [0] * (ROWS + 1), 0
  for i in reversed(range(ROWS)):
    total += values[i]
    out[i] = total
  return out


def tail(x):
  """P(512 A + B >= x), exactly."""
  total = 0
  for b, mass in masses().items():
    first = -(-(x - b) // SPREAD) + ROWS // 2
    total += mass * tails()[min(max(first, 0), ROWS)]
  return Fraction(total, 2**156)


def secret_key(number):
  return threefry_seeds.wrap_key(np.random.default_rng(number).bytes(16))


def draw(dim, number=0):
  key = secret_key(number)
  return jax.jit(exact_noise.draw_integers, static_argnums=1)(
    key, dim, always=TRUE
  )


def test_the_table_is_a_discrete_gaussian_but_for_2_to_the_minus_64():
  with mpmath.workdps(60):
    law = {
      x: mpmath.exp(-mpmath.mpf(x * x) / (2 * SMALL_STD**2)) for x in masses()
    }
    # By Poisson summation; what is left out of the sum is below 10^-1000.
    total = SMALL_STD * mpmath.sqrt(2 * mpmath.pi)
    unit = mpmath.mpf(2) ** -78
    inside = sum(abs(masses()[x] * unit - p / total) for x, p in law.items())
    outside = 1 - sum(law.values()) / total
    variation = (inside + outside) / 2
    # Two of them are drawn, and their sum is off by as little again.
    s = SMALL_STD / mpmath.sqrt(SPREAD**2 + 1)
    smooth = 2 * mpmath.exp(-2 * mpmath.pi**2 * s**2)
    assert 2 * variation + 2 * smooth < mpmath.mpf(2) ** -63
    assert variation > mpmath.mpf(2) ** -80, 'the bound is not of nothing'
    assert smooth < mpmath.mpf(2) ** -80


def test_the_largest_value_is_that_of_the_last_rows():
  most = max(x for x, mass in masses().items() if mass)
  assert SPREAD * most + most == exact_noise.MAX


@pytest.mark.parametrize(
  'deviations', [0.0, 0.5, 1.0, 2.0, 4.0, 5.5, 6.0, 7.0, 7.1, 8.0]
)
def test_tails_are_right_to_a_ten_thousandth(deviations):
  x = round(deviations * STD)
  found = tail(x)
  expected = float(mpmath.ncdf(-(x - 0.5) / STD))
  assert deviations < 7.1 or expected < 1e-12
  assert float(found) == pytest.approx(expected, rel=1e-4)
  assert tail(-x) + tail(x + 1) == 1, 'the law is symmetric'


def test_float32_normals_have_no_such_tails():
  """What the test above would say of the noise of a simulation."""
  rarest = jnp.array([jnp.nextafter(-1.0, 0.0), 1 - 2.0**-23], jnp.float32)
  low, high = np.sqrt(2) * np.asarray(jax.lax.erf_inv(rarest))
  assert -5.43 < low < -5.41
  assert 5.21 < high < 5.42
  assert stats.norm.sf(high) > 1e-8, 'so much is lost of each tail'


@pytest.mark.integration
def test_each_integer_follows_from_key_and_position_as_python_integers():
  """The slow way, of some: Threefry in NumPy, and a choice of whole numbers."""
  dim, number = 300, 7
  words = np.asarray(jax.random.bits(secret_key(number), (4,), jnp.uint32))
  position = np.arange(dim, dtype=np.uint32)

  def draw_words(purpose):
    a, b = (
      threefry.draw_words(
        threefry.Root(*root), position, np.full(dim, purpose, np.uint32)
      )
      for root in (words[:2], words[2:])
    )
    return (a[0] ^ b[0]).tolist(), (a[1] ^ b[1]).tolist()

  table = exact_noise.make_table().tolist()

  def choose(row, high, low):
    threshold_high, threshold_low, other = table[row]
    is_own = (high << 32) + low < (threshold_high << 32) + threshold_low
    return (row if is_own else other) - ROWS // 2

  rows, (a, b), (c, d) = draw_words(0)[0], draw_words(1), draw_words(2)
  expected = [
    SPREAD * choose(row % ROWS, a[i], b[i])
    + choose((row >> 14) % ROWS, c[i], d[i])
    for i, row in enumerate(rows)
  ]
  assert np.asarray(draw(dim, number)).tolist() == expected
  # Of whatever length the rest is.
  assert np.asarray(draw(40, number)).tolist() == expected[:40]
  assert np.mean(np.asarray(draw(dim, number + 1)) == expected) < 0.1


def test_many_draws_have_the_moments_the_law_and_the_low_bits():
  n = 1 << 20
  x = np.asarray(draw(n))
  z = x / STD
  # Each by five standard errors: 3e-6 in all.
  for power, expected, variance in (
    (1, 0, 1),
    (2, 1, 2),
    (3, 0, 15),
    (4, 3, 96),
  ):
    error = np.sqrt(variance / n)
    assert np.mean(z**power) == pytest.approx(expected, abs=5 * error)
  assert stats.kstest(z, 'norm').pvalue > 1e-6
  assert stats.kstest(1.001 * z + 0.01, 'norm').pvalue < 1e-6
  for modulus in (2, 64, 512, 1000):
    counts = np.bincount(x % modulus, minlength=modulus)
    assert stats.chisquare(counts).pvalue > 1e-6
  neighbours = np.corrcoef(z[1:], z[:-1])[0, 1]
  assert abs(neighbours) < 5 / np.sqrt(n)
  for deviations in (3, 4):
    p = stats.norm.sf(deviations) * 2
    hits = np.sum(np.abs(z) > deviations)
    assert abs(hits - n * p) < 5 * np.sqrt(n * p)
  assert np.abs(x).max() < exact_noise.MAX
