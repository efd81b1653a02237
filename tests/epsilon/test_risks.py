"""Risks of a person against simulation, quadrature and the definition of f-DP."""

import numpy as np
import pytest
from scipy import special, stats

from epe_jax.epsilon import tradeoff_curves
from epe_jax.epsilon.risks import (
  compute_risks,
  compute_risks_of_curve,
)


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
  family = tradeoff_curves.gaussian_family()
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


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    (dict(mu=-1.0), 'mu='),
    (dict(mu=np.nan), 'mu='),
    (dict(mu=1.0, fpr=0.0), r'fpr=0\.0'),
    (dict(mu=1.0, prior=1.0), r'prior=1\.0'),
    (dict(mu=1.0, baseline=-0.1), r'baseline=-0\.1'),
  ],
)
def test_what_is_out_of_range_is_refused(settings, message):
  with pytest.raises(ValueError, match=message):
    compute_risks(**settings)


@pytest.mark.parametrize('mu', [0.1, 1.0, 3.0])
def test_risks_of_a_gaussian_curve_are_those_of_its_mu(mu):
  curve = lambda log_fpr: special.ndtr(-special.ndtri_exp(log_fpr) - mu)
  settings = dict(fpr=0.02, prior=0.1, baseline=0.003)
  found = compute_risks_of_curve(curve, **settings)
  np.testing.assert_allclose(found, compute_risks(mu, **settings), atol=1e-3)
  with pytest.raises(ValueError, match='prior=1'):
    compute_risks_of_curve(curve, prior=1)
