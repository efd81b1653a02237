"""The law of the cosine against closed forms, 40 digits and simulation."""

import mpmath
import numpy as np
import pytest
from scipy import stats

from epe_jax.epsilon import cosine_null
from epe_jax.epsilon.cosine_null import CosineNull
from epe_jax.epsilon.types import Gaussian, Sphere, Unknown

DIMS = (2, 3, 7, 50, 1000, 4_050_748, 10**9)


def slow_log_upper_tail(dim, cosine):
  """Log of the density of Theorem 3.1 integrated from cosine >= 0 to 1."""
  with mpmath.workdps(40):
    d, t = mpmath.mpf(dim), mpmath.mpf(cosine)
    rest = 1 - t**2
    power = (d - 3) / 2

    def ratio(s):
      inside = 1 - (2 * t + s) * s / rest
      return inside**power if inside > 0 else mpmath.mpf(0)

    step = 1 / (mpmath.sqrt(d) + d * t)
    points = [k * step for k in (0, 1, 3, 8, 16, 32, 64, 100)]
    points = [p for p in points if p < 1 - t]
    integral = mpmath.quad(ratio, [*points, min(1 - t, 200 * step)])
    constant = mpmath.loggamma(d / 2) - mpmath.loggamma((d - 1) / 2)
    constant -= mpmath.log(mpmath.pi) / 2
    return mpmath.log(integral) + constant + power * mpmath.log(rest)


@pytest.mark.parametrize('dim', DIMS)
def test_tails_have_ten_digits_up_to_300_standard_deviations(dim):
  law = CosineNull(dim)
  z = (1e-6, 0.5, 3, 12, 36.8, 37.5, 60, 300)
  for cosine in (x / np.sqrt(dim) for x in z):
    if cosine < 1:
      expected = slow_log_upper_tail(dim, cosine)
      with mpmath.workdps(40):
        lower = float(mpmath.log1p(-mpmath.exp(expected)))
        upper = float(mpmath.exp(expected))
      expected = float(expected)
      assert law.logsf(cosine) == pytest.approx(expected, rel=1e-11)
      assert law.logsf(-cosine) == pytest.approx(lower, rel=1e-10)
      # Below 1e-307 a float64 has no ten digits to give.
      assert law.sf(cosine) == pytest.approx(upper, rel=1e-10, abs=1e-307)


@pytest.mark.parametrize('dim', [3, 10, 300])
def test_tails_next_to_one_keep_their_digits(dim):
  law = CosineNull(dim)
  for gap in (1e-3, 1e-8, 2.0**-50):
    expected = float(slow_log_upper_tail(dim, 1 - gap))
    assert law.logsf(1 - gap) == pytest.approx(expected, rel=1e-11)


def test_two_dimensions_give_the_arcsine_law():
  cosine = np.linspace(-1, 1, 101)
  law = CosineNull(2)
  np.testing.assert_allclose(
    law.sf(cosine), np.arccos(cosine) / np.pi, atol=1e-15
  )


def test_three_dimensions_give_the_uniform_law():
  cosine = np.linspace(-1, 1, 101)
  law = CosineNull(3)
  np.testing.assert_allclose(law.sf(cosine), (1 - cosine) / 2, rtol=1e-13)


@pytest.mark.parametrize('dim', DIMS)
def test_half_of_one_plus_the_cosine_is_beta(dim):
  law, beta = CosineNull(dim), stats.beta((dim - 1) / 2, (dim - 1) / 2)
  cosine = np.linspace(-0.9, 0.9, 19) * min(1, 5 * law.std)
  # SciPy 1.15 has eight digits where dim is a billion.
  rtol = 1e-10 if dim < 10**6 else 1e-7
  np.testing.assert_allclose(
    law.sf(cosine), beta.sf((1 + cosine) / 2), rtol=rtol
  )


def test_high_dimensions_are_normal():
  law = CosineNull(10**9)
  z = np.linspace(-5, 5, 51)
  np.testing.assert_allclose(law.sf(z * law.std), stats.norm.sf(z), rtol=1e-6)


def test_outside_the_interval_there_is_no_mass():
  law = CosineNull(5)
  outside = np.array([-2.0, -1.0, 1.0, 2.0])
  np.testing.assert_array_equal(law.sf(outside), [1, 1, 0, 0])
  np.testing.assert_array_equal(law.logsf(outside), [0, 0, -np.inf, -np.inf])


@pytest.mark.parametrize('dim', DIMS)
def test_quantiles_invert_both_tails(dim):
  law = CosineNull(dim)
  probability = np.concatenate(
    [10.0 ** -np.arange(1.0, 200), np.linspace(0.001, 0.999, 99)]
  )
  cosine = law.isf(probability)
  # Nearer to 1 the spacing of floats decides, not the inverse.
  resolved = np.abs(cosine) < 1 - 1e-6
  np.testing.assert_allclose(
    law.logsf(cosine[resolved]),
    np.log(probability[resolved]),
    rtol=1e-10,
    atol=1e-10,
  )
  np.testing.assert_array_equal(law.isf(np.array([0, 0.5, 1])), [1, 0, -1])


def test_cosines_of_random_directions_follow_the_law_and_no_other():
  rng = np.random.default_rng(0)
  fixed = rng.standard_exponential(9)
  vectors = rng.standard_normal((100_000, 9))
  norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(fixed)
  cosines = vectors @ fixed / norms
  # The right law fails with probability 1e-6; one dimension off is rejected.
  right, wrong = CosineNull(9), CosineNull(10)
  assert stats.kstest(cosines, lambda x: right.sf(-x)).pvalue > 1e-6
  assert stats.kstest(cosines, lambda x: wrong.sf(-x)).pvalue < 1e-6
  assert cosines.std() == pytest.approx(CosineNull(9).std, rel=0.02)


def test_a_scalar_gives_a_float():
  law = CosineNull(1000)
  for method in (law.sf, law.logsf, law.isf):
    assert isinstance(method(0.99), float)
    assert method(np.full((2, 3), 0.1)).shape == (2, 3)


def test_impossible_arguments_are_named():
  with pytest.raises(ValueError, match='dim=1'):
    CosineNull(1)
  with pytest.raises(ValueError, match=r'probability=1\.5'):
    CosineNull(5).isf(1.5)


def test_each_known_null_law_has_a_distribution_and_an_unknown_one_has_none():
  assert cosine_null.null_distribution(Sphere(9)) == CosineNull(9)
  normal = cosine_null.null_distribution(Gaussian())
  assert normal.isf(0.025) == pytest.approx(stats.norm.isf(0.025))
  with pytest.raises(ValueError, match=r'null=Unknown\(\) has no distribution'):
    cosine_null.null_distribution(Unknown())
