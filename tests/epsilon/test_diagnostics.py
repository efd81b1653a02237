"""Tests of the Gaussian assumption: their laws, their power, their words."""

import numpy as np
import pytest
from scipy import integrate, stats

from epe_jax.epsilon import (
  diagnostics,
  gaussian_bound,
  lower_bounds,
  noise_floor,
)
from epe_jax.epsilon.types import Scores, Sphere, Unknown, make_null

# Scores so many that no correction for their number is left.
MANY = 10**9


def slow_a_squared(values, cdf):
  x = np.sort(values)
  n = len(x)
  total = sum(
    (2 * i - 1) * (np.log(cdf(x[i - 1])) + np.log(1 - cdf(x[n - i])))
    for i in range(1, n + 1)
  )
  return -n - total / n


def test_statistics_are_those_of_the_definition():
  values = np.random.default_rng(0).normal(3, 2, 50)
  fitted = stats.norm(values.mean(), values.std(ddof=1))
  found = diagnostics.anderson_darling(values)
  assert found.statistic == pytest.approx(slow_a_squared(values, fitted.cdf))
  cosines = np.tanh(values / 20)
  null = stats.beta(0.5 * 9, 0.5 * 9, loc=-1, scale=2)
  found = diagnostics.anderson_darling_null(cosines, null=Sphere(10))
  assert found.statistic == pytest.approx(slow_a_squared(cosines, null.cdf))


def test_the_statistic_is_on_the_scale_of_scipy_and_the_paper():
  values = np.random.default_rng(1).normal(size=1000)
  # The distance that SciPy minimises in its goodness-of-fit test.
  fitted = stats.norm(values.mean(), values.std(ddof=1))
  reference = slow_a_squared(values, fitted.cdf)
  assert diagnostics.anderson_darling(values).statistic == pytest.approx(
    reference
  )
  # The paper rejects above 1.088 at 1 % and above 0.574 at 15 %.
  assert 0.005 < diagnostics.p_value_fitted(1.088, MANY) < 0.01
  assert 0.12 < diagnostics.p_value_fitted(0.574, MANY) < 0.15


# Points of D'Agostino and Stephens, Table 4.7: mean and spread unknown.
@pytest.mark.parametrize(
  ('statistic', 'level'),
  [
    (0.341, 0.5),
    (0.561, 0.15),
    (0.631, 0.1),
    (0.752, 0.05),
    (0.873, 0.025),
    (1.035, 0.01),
    (1.159, 0.005),
  ],
)
def test_p_values_have_the_published_points_of_the_fitted_case(
  statistic, level
):
  assert diagnostics.p_value_fitted(statistic, MANY) == pytest.approx(
    level, rel=0.02
  )


# Points of their Table 4.2: nothing unknown.
@pytest.mark.parametrize(
  ('statistic', 'level'),
  [
    (1.248, 0.25),
    (1.61, 0.15),
    (1.933, 0.1),
    (2.492, 0.05),
    (3.07, 0.025),
    (3.88, 0.01),
    (4.5, 0.005),
    (6.0, 0.001),
  ],
)
def test_p_values_have_the_published_points_of_the_known_case(statistic, level):
  assert diagnostics._p_value_known(statistic) == pytest.approx(level, rel=0.04)


def test_smirnovs_formula_inverts_the_characteristic_function():
  j = np.arange(1, 4000)
  weight = 1 / (j * (j + 1))

  def integrand(u, a):
    # Imhof: P(Σ w Z² > a) = ½ + ∫ sin θ(u)/(u ρ(u)) du/π.
    angle = 0.5 * np.sum(np.arctan(weight * u)) - 0.5 * a * u
    return np.sin(angle) / (u * np.prod((1 + (weight * u) ** 2) ** 0.25))

  for a in (0.3, 1.0, 2.5):
    area, _ = integrate.quad(integrand, 1e-9, 300, args=(a,), limit=400)
    expected = 0.5 + area / np.pi
    # The mean of the terms that are left out is 1/4000.
    assert diagnostics._p_value_known(a) == pytest.approx(expected, abs=1e-3)
  assert diagnostics._p_value_known(0.0) == 1.0
  # The largest weight alone, times √3, far out.
  expected = np.sqrt(3) * stats.chi2.sf(60, 1)
  assert diagnostics._p_value_known(30.0) == pytest.approx(expected, rel=0.02)
  assert diagnostics._p_value_known(np.inf) == 0.0


@pytest.mark.integration
def test_p_values_of_gaussian_scores_are_uniform():
  rng = np.random.default_rng(2)
  for n in (8, 100):
    fitted, known = [], []
    for _ in range(1000):
      values = 1e-3 * rng.normal(size=n)
      fitted.append(diagnostics.anderson_darling(values).p_value)
      known.append(
        diagnostics.anderson_darling_null(values, null=Sphere(10**6)).p_value
      )
    for p in (np.array(fitted), np.array(known)):
      for level in (0.05, 0.3):
        # Five standard errors, and 0.03 for the formulas at eight scores.
        error = np.sqrt(level * (1 - level) / 1000)
        assert np.mean(p < level) == pytest.approx(level, abs=0.03 + 5 * error)
  # The null test sees a wrong spread, to which the other is blind.
  wide = 1.3 * values
  assert diagnostics.anderson_darling(wide).p_value == pytest.approx(fitted[-1])
  wide = 1.5e-3 * stats.norm.ppf((np.arange(200) + 0.5) / 200)
  assert (
    diagnostics.anderson_darling_null(wide, null=Sphere(10**6)).p_value < 1e-3
  )


def test_the_exact_null_holds_in_every_dimension():
  rng = np.random.default_rng(3)
  for dim in (2, 3, 50):
    cosines = noise_floor.draw_null(rng, (500,), null=make_null(dim))
    assert (
      diagnostics.anderson_darling_null(cosines, null=make_null(dim)).p_value
      > 1e-4
    )
    assert (
      diagnostics.anderson_darling_null(cosines, null=Sphere(2 * dim)).p_value
      < 1e-9
    )


def test_a_dim_that_the_unobserved_scores_refute_gives_no_confidence():
  rng = np.random.default_rng(0)
  d = 10_000
  for factor, rejected in ((1, False), (2, True), (0.5, True)):
    observed, unobserved = rng.standard_normal((2, 500)) / np.sqrt(d)
    scores = Scores(observed, unobserved, null=Sphere(int(factor * d)))
    assert diagnostics.is_null_rejected(scores) == rejected
    for estimate in (
      lower_bounds.lower_bound(scores, delta=1e-5),
      lower_bounds.gdp_bound(scores, delta=1e-5),
      gaussian_bound.gaussian_lower_bound(scores, delta=1e-5),
    ):
      assert (estimate.confidence is None) == rejected
      assert estimate.method.endswith('_null_rejected') == rejected
      assert estimate.is_rejected == rejected
  # Were they believed, nothing that leaked would be certified as a large ε.
  wide = Scores(observed, unobserved, null=Sphere(100 * d))
  estimate = lower_bounds.lower_bound(wide, delta=1e-5)
  assert estimate.epsilon > 10
  assert estimate.confidence is None


@pytest.mark.integration
def test_a_right_dim_is_rejected_as_seldom_as_stated():
  rng = np.random.default_rng(1)
  for d in (2, 50, 10**6):
    cosines = rng.standard_normal((20_000, 40))
    norm = np.sqrt(cosines**2 + rng.chisquare(d - 1, cosines.shape))
    scores = Scores(
      cosines[:, :1] / norm[:, :1], cosines / norm, null=Sphere(d)
    )
    # Two in 20,000 are to be expected; more than twelve with chance 1e-6.
    assert diagnostics.is_null_rejected(scores).sum() <= 12


def test_maxima_over_rounds_are_found_not_to_be_gaussian():
  rng = np.random.default_rng(5)
  maxima = noise_floor.draw_null(rng, (1000,), null=Unknown(), rounds=2048)
  assert diagnostics.anderson_darling(maxima).p_value < 1e-6


def test_what_cannot_be_tested_is_refused():
  with pytest.raises(ValueError, match='at least 8'):
    diagnostics.anderson_darling(np.arange(7.0))
  with pytest.raises(ValueError, match='at least 8'):
    diagnostics.anderson_darling_null(np.zeros(7), null=Sphere(9))
  with pytest.raises(ValueError, match='all equal'):
    diagnostics.anderson_darling(np.ones(9))
