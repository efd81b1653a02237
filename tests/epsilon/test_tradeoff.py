"""Trade-off curves and risks against closed forms, dp_accounting, simulation."""

import numpy as np
import pytest
from scipy import special, stats

from epe_jax.dpsgd import families
from epe_jax.epsilon import tradeoff
from epe_jax.epsilon.risks import compute_risks, compute_risks_of_curve
from tests.epsilon import plds

DELTA = 1e-5
LOG_FPR = np.log([1e-6, 1e-3, 0.01, 0.1, 0.3, 0.5, 0.8, 0.99])


@pytest.mark.parametrize('mu', [0.1, 1.0, 7.0])
def test_the_gaussian_curve_is_that_of_the_best_test(mu):
  threshold = np.linspace(-3, 3, 7)
  fnr = tradeoff.gaussian_family().fnr(1 / mu, stats.norm.logsf(threshold))
  np.testing.assert_allclose(fnr, stats.norm.cdf(threshold - mu), rtol=1e-9)


def test_epsilon_of_mu_is_exact_far_beyond_any_accountant():
  for mu in (0.3, 3.0, 20.0, 300.0):
    epsilon = tradeoff.epsilon_gdp(mu, DELTA)
    # Equation (6), its second term in logs.
    second = np.exp(epsilon + stats.norm.logcdf(-epsilon / mu - mu / 2))
    delta = stats.norm.cdf(-epsilon / mu + mu / 2) - second
    assert delta == pytest.approx(DELTA, rel=1e-6)
  assert tradeoff.epsilon_gdp(300.0, DELTA) > 45_000
  assert tradeoff.epsilon_gdp(0.0, DELTA) == 0


def test_mu_is_zero_for_attacks_no_better_than_chance():
  log_fpr, fnr = np.log([0.84, 0.5, 1.0, 1e-9]), np.array([0.84, 0.5, 0.1, 1.0])
  np.testing.assert_array_equal(tradeoff.gdp_mu(log_fpr, fnr), 0)


def test_the_solver_finds_the_noise_of_rates_on_the_curve():
  for p in (0.05, 0.5):
    family = families.subsampled_gaussian_family(p)
    for noise in (0.2, 0.7):
      fnr = family.fnr(noise, LOG_FPR)
      for at in (slice(0, 3), slice(None)):
        found = tradeoff.max_noise(family, LOG_FPR[at], fnr[at])
        assert found == pytest.approx(noise, rel=1e-5)
      # The strictest pair decides.
      one = tradeoff.max_noise(family, LOG_FPR, fnr * 0.99)
      assert one < noise * (1 - 1e-4)


@pytest.mark.integration
def test_a_composed_pld_is_audited_as_a_whole():
  noise, p, steps = 1.0, 0.05, 50
  family = families.pld_family(lambda z: plds.from_dp_accounting(z, p, steps))
  # A Gaussian near the composed mechanism, in the middle of its curve.
  fpr = np.array([0.1])
  fnr = family.fnr(noise, np.log(fpr))
  found = tradeoff.max_noise(family, np.log(fpr), fnr)
  assert found == pytest.approx(noise, rel=1e-5)


# Risks.


@pytest.mark.parametrize('mu', [0.0, 0.5, 2.0])
def test_risks_are_those_of_simulated_attacks(mu):
  rng, n, prior, fpr = np.random.default_rng(0), 400_000, 0.2, 0.05
  risks = compute_risks(mu, fpr=fpr, prior=prior, baseline=0.1)
  took_part = rng.random(n) < 0.5
  scores = rng.normal(size=n) + mu * took_part
  assert np.mean((scores > mu / 2) == took_part) == pytest.approx(
    risks.accuracy, abs=0.004
  )
  took_part = rng.random(n) < prior
  scores = rng.normal(size=n) + mu * took_part
  named = scores > stats.norm.isf(fpr)
  assert np.mean(named[took_part]) == pytest.approx(risks.tpr, abs=0.006)
  assert np.mean(took_part[named]) == pytest.approx(risks.posterior, abs=0.01)


def test_rates_are_those_of_the_trade_off_curve():
  family = tradeoff.gaussian_family()
  for mu in (0.3, 1.0, 4.0):
    risks = compute_risks(mu, fpr=0.01, baseline=0.002)
    for rate, found in ((0.01, risks.tpr), (0.002, risks.reconstruction)):
      assert found == pytest.approx(
        1 - family.fnr(1 / mu, np.log([rate]))[0], rel=1e-12
      )
    grid = np.linspace(1e-6, 1 - 1e-6, 100_001)
    advantage = np.max(1 - family.fnr(1 / mu, np.log(grid)) - grid)
    assert risks.advantage == pytest.approx(advantage, abs=1e-8)


def test_no_secret_is_named_more_often_than_the_bound_on_reconstruction():
  """Ten equally probable records, of which one was released with noise."""
  rng, n, mu = np.random.default_rng(1), 100_000, 2.0
  # Orthogonal directions, each of which stands out of no record by μ.
  truth = rng.integers(0, 10, n)
  seen = rng.normal(size=(n, 10))
  seen[np.arange(n), truth] += mu
  named = np.mean(seen.argmax(axis=1) == truth)
  assert 0.5 < named <= compute_risks(mu, baseline=0.1).reconstruction


def test_nothing_is_gained_without_a_leak_and_risks_rise_with_it():
  nothing = compute_risks(0.0, fpr=0.02, prior=0.3, baseline=0.004)
  assert nothing == pytest.approx((0.5, 0.0, 0.02, 0.3, 0.004))
  risks = compute_risks(np.array([0.0, 0.1, 1.0, 5.0, 40.0, np.inf]))
  for values in risks:
    assert np.all(np.diff(values) >= 0)
    assert np.all((values >= 0) & (values <= 1))
  assert (risks.accuracy[-1], risks.reconstruction[-1]) == (1.0, 1.0)


@pytest.mark.parametrize('mu', [0.1, 1.0, 3.0])
def test_risks_of_a_gaussian_curve_are_those_of_its_mu(mu):
  curve = lambda log_fpr: special.ndtr(-special.ndtri_exp(log_fpr) - mu)
  settings = dict(fpr=0.02, prior=0.1, baseline=0.003)
  found = compute_risks_of_curve(curve, **settings)
  np.testing.assert_allclose(found, compute_risks(mu, **settings), atol=1e-3)
