"""Curves of an audit, against counts by hand."""

import numpy as np
import pytest

import epe_jax
from epe_jax.accounting import Analytic
from epe_jax.report import curves


@pytest.mark.parametrize('num_out', [3, 400])
def test_rates_are_the_counted_ones_within_their_limits(num_out):
  rng = np.random.default_rng(0)
  observed, unobserved = rng.normal(1, 1, 300), rng.normal(size=num_out)
  found = epe_jax.estimate(observed, unobserved, delta=1e-5).audit
  (rates,) = curves.compute_tradeoffs(found)
  # At the i-th score from below, i canaries are missed.
  order = np.argsort(rates.fnr)
  np.testing.assert_allclose(rates.fnr[order], np.arange(300) / 300)
  alarms = (unobserved >= np.sort(observed)[:, None]).sum(1)
  np.testing.assert_allclose(
    rates.fpr[order], np.maximum(alarms, 0.5) / num_out
  )
  assert np.all((rates.low <= rates.fnr) & (rates.fnr <= rates.high))


def test_what_a_mechanism_that_is_not_gaussian_allows_follows_from_its_one_epsilon():
  rng = np.random.default_rng(0)
  found = epe_jax.estimate(
    rng.normal(1, 1, 99), rng.normal(size=99), delta=1e-3
  )
  allowed = {}
  for is_gaussian in (False, True):
    limit = Analytic(3.0, (), is_gaussian=is_gaussian)
    (rates,) = curves.compute_tradeoffs(found.audit, analytic=limit)
    allowed[is_gaussian] = rates.allowed
  law = 1 - 1e-3 - np.exp(3.0) * rates.grid
  np.testing.assert_allclose(
    allowed[False],
    np.maximum(0, np.maximum(law, np.exp(-3.0) * (1 - 1e-3 - rates.grid))),
    atol=1e-12,
  )
  assert np.all(allowed[False] <= allowed[True] + 1e-12)
