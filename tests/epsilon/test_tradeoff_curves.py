"""f-DP audits against closed forms, dp_accounting, and simulation."""

import numpy as np
import pytest
from scipy import stats

from epe_jax.dpsgd import families
from epe_jax.epsilon import tradeoff_curves
from epe_jax.epsilon.lower_bounds import Band, Explicit, Split
from epe_jax.epsilon.types import Scores
from tests.epsilon import plds

DELTA = 1e-5
LOG_FPR = np.log([1e-6, 1e-3, 0.01, 0.1, 0.3, 0.5, 0.8, 0.99])
VALID = [
  Band(),
  Explicit((0.5,)),
  Explicit((0.2, 0.8)),
  Split(0),
]


def quantile_sample(num):
  return stats.norm.ppf((np.arange(num) + 0.5) / num)


def shifted(mu, num=1000):
  return Scores(quantile_sample(num) + mu, quantile_sample(num))


# Curves.


@pytest.mark.parametrize('mu', [0.1, 1.0, 7.0])
def test_the_gaussian_curve_is_that_of_the_best_test(mu):
  threshold = np.linspace(-3, 3, 7)
  fnr = tradeoff_curves.gaussian_family().fnr(
    1 / mu, stats.norm.logsf(threshold)
  )
  np.testing.assert_allclose(fnr, stats.norm.cdf(threshold - mu), rtol=1e-9)


def test_epsilon_of_mu_is_exact_far_beyond_any_accountant():
  for mu in (0.3, 3.0, 20.0, 300.0):
    epsilon = tradeoff_curves.epsilon_gdp(mu, DELTA)
    # Equation (6), its second term in logs.
    second = np.exp(epsilon + stats.norm.logcdf(-epsilon / mu - mu / 2))
    delta = stats.norm.cdf(-epsilon / mu + mu / 2) - second
    assert delta == pytest.approx(DELTA, rel=1e-6)
  assert tradeoff_curves.epsilon_gdp(300.0, DELTA) > 45_000
  assert tradeoff_curves.epsilon_gdp(0.0, DELTA) == 0


def test_releases_of_a_gaussian_compose_exactly():
  family = tradeoff_curves.gaussian_family(steps=9)
  assert family.epsilon(0.3, DELTA) == tradeoff_curves.epsilon_gdp(10.0, DELTA)


def test_mu_is_zero_for_attacks_no_better_than_chance():
  log_fpr, fnr = np.log([0.84, 0.5, 1.0, 1e-9]), np.array([0.84, 0.5, 0.1, 1.0])
  np.testing.assert_array_equal(tradeoff_curves.gdp_mu(log_fpr, fnr), 0)


def test_the_solver_finds_the_noise_of_rates_on_the_curve():
  for p in (0.05, 0.5):
    family = families.subsampled_gaussian_family(p)
    for noise in (0.2, 0.7):
      fnr = family.fnr(noise, LOG_FPR)
      for at in (slice(0, 3), slice(None)):
        found = tradeoff_curves.max_noise(family, LOG_FPR[at], fnr[at])
        assert found == pytest.approx(noise, rel=1e-5)
      # The strictest pair decides.
      one = tradeoff_curves.max_noise(family, LOG_FPR, fnr * 0.99)
      assert one < noise * (1 - 1e-4)


@pytest.mark.integration
def test_a_composed_pld_is_audited_as_a_whole():
  noise, p, steps = 1.0, 0.05, 50
  family = families.pld_family(lambda z: plds.from_dp_accounting(z, p, steps))
  # A Gaussian near the composed mechanism, in the middle of its curve.
  fpr = np.array([0.1])
  fnr = family.fnr(noise, np.log(fpr))
  found = tradeoff_curves.max_noise(family, np.log(fpr), fnr)
  assert found == pytest.approx(noise, rel=1e-5)
