"""Chance: the laws hold, and nothing depends on the machine."""

from fractions import Fraction

import numpy as np
import pytest

from epe_jax.data import chance


def test_fewer_bits_are_the_first_of_more_and_places_differ():
  a = chance.bits(3, 'x', (1, 2), 100)
  np.testing.assert_array_equal(chance.bits(3, 'x', (1, 2), 40), a[:40])
  for seed, purpose, place in [
    (4, 'x', (1, 2)),
    (3, 'y', (1, 2)),
    (3, 'x', (2, 1)),
    (3, 'x', (1, 3)),
    (3 + 2**64, 'x', (1, 2)),
  ]:
    assert not np.isin(chance.bits(seed, purpose, place, 100), a).any()


def test_the_bits_are_those_of_every_other_machine():
  # PCG64 seeded by the SHA-256 of "(3, 'x', 1, 2)": NumPy never changes it.
  found = chance.bits(3, 'x', (1, 2), 2).tolist()
  assert found == [774558073452883464, 4544757451753328095]


def test_uniform_numbers_are_evenly_spaced_and_never_0_or_1():
  raw = np.array([0, 1 << 12, (1 << 64) - 1], np.uint64)
  u = chance.uniform(raw)
  assert 0 < u[0] < 2.0**-52
  assert u[1] - u[0] == 2.0**-52
  assert 1 - 2.0**-52 < u[2] < 1


def test_normal_numbers_have_the_moments_of_the_normal_law():
  z = chance.normal(chance.bits(0, 'x', (0,), 400_000))
  # A sum of four uniform numbers has the fourth moment 3 - 6 / 5 / 4 = 2.7.
  # Five standard errors, sqrt((next moment) / n), fail in 6e-7 of cases.
  for power, expected, spread in [
    (1, 0, 1),
    (2, 1, 1.3),
    (3, 0, 3.2),
    (4, 2.7, 6),
  ]:
    error = spread / np.sqrt(len(z))
    assert abs((z**power).mean() - expected) < 5 * error
  assert abs((z < 1).mean() - 0.8413) < 0.01


def test_normal_numbers_stay_in_the_range_that_is_promised():
  ends = chance.normal(np.array([0, (1 << 64) - 1], np.uint64))
  assert -3.47 < ends[0] == -ends[1] < -3.46


def test_exp_is_within_1_percent():
  x = np.linspace(-4, 4, 1001)
  np.testing.assert_allclose(chance.exp(x), np.exp(x), rtol=0.01)


def _slow_shares(total, weights):
  """Largest remainders, in fractions."""
  quotas = [
    Fraction(w) * (total - len(weights)) / sum(weights) for w in weights
  ]
  parts = [int(q) for q in quotas]
  order = sorted(range(len(weights)), key=lambda i: parts[i] - quotas[i])
  for i in order[: total - len(weights) - sum(parts)]:
    parts[i] += 1
  return [p + 1 for p in parts]


@pytest.mark.parametrize('extra', [0, 1, 17, 1000, 123_456_789])
def test_shares_are_those_of_largest_remainders(extra):
  weights = (chance.bits(0, 'x', (0,), 50) >> 34).astype(np.int64) + 1
  weights[10:20] = weights[0]
  total = len(weights) + extra
  found = chance.shares(total, weights)
  assert found.tolist() == _slow_shares(total, weights.tolist())
  assert found.sum() == total
  assert found.min() >= 1
