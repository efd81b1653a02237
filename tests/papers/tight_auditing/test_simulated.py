"""Figures 3, 4 and 14: limits at thresholds, and the best of them."""

import numpy as np
import pytest
from scipy import stats

from epe_jax.epsilon import lower_bounds, tradeoff
from epe_jax.epsilon.lower_bounds import Explicit, lower_bound
from papers import reported
from papers.tight_auditing import simulated, simulated_steps

DELTA = 1e-5


@pytest.mark.parametrize('sigma', [0.5, 1.0, 3.0])
def test_the_best_threshold_solves_equation_18_and_22(sigma):
  w = simulated.find_best_threshold(sigma, DELTA)
  pdf, cdf = stats.norm.pdf, stats.norm.cdf
  ratio = pdf((1 - w) / sigma) / pdf(-w / sigma)
  delta = cdf((1 - w) / sigma) - ratio * cdf(-w / sigma)
  assert delta == pytest.approx(DELTA, rel=1e-4)
  epsilon = tradeoff.epsilon_gdp(1 / sigma, DELTA)
  assert (2 * w - 1) / (2 * sigma**2) == pytest.approx(epsilon)


def test_limits_of_counts_are_those_of_the_library():
  rng = np.random.default_rng(0)
  scores = simulated_steps.draw_observations(rng, (800,), noise_multiplier=1.0)
  at = 0.7
  counts = simulated_steps.Counts(
    np.array([np.sum(scores.unobserved >= at)]),
    np.array([np.sum(scores.observed < at)]),
    800,
  )
  limits = simulated.limit_epsilon(counts, DELTA)
  settings = dict(delta=DELTA, multiplicity=Explicit((at,)))
  of_dp = lower_bound(scores, sides='both', **settings).epsilon
  of_gdp = lower_bounds.gdp_bound(scores, **settings).epsilon
  assert limits.of_dp[0] == pytest.approx(of_dp)
  assert limits.of_gdp[0] == pytest.approx(of_gdp)


def test_reported_numbers_are_read_for_each_paper():
  paper = reported.Reported('papers.tight_auditing')
  row = paper.find_row('table1_f_dp_cp', epsilon=16)
  assert row is not None
  assert row['cifar10_wrn16'] == 11.14
  assert row['random_wrn16'] == 13.14
  assert paper.load_rows('no such table') == []


def test_no_bound_from_ranks_has_a_higher_median():
  rng = np.random.default_rng(0)
  mu = tradeoff.mu_of_epsilon(2.0, DELTA)
  scores = simulated_steps.draw_observations(
    rng, (100, 500), noise_multiplier=1 / mu
  )
  bounds = np.asarray(lower_bounds.gdp_bound(scores, delta=DELTA).epsilon)
  most = simulated.limit_bounds_of_ranks(2.0, 500, DELTA)
  # A median of 100 has a standard error of 0.05; it is lower by as much.
  assert 0.8 * most < np.median(bounds) < most + 0.1
