"""Numbers that are reported as bounds and are none."""

import numpy as np
import pytest
from scipy import stats

from epe_jax.dpsgd import credible, uncorrected
from epe_jax.epsilon import tradeoff
from epe_jax.epsilon.lower_bounds import Split
from epe_jax.epsilon.types import Scores, Sphere


def test_katz_limit_is_scipys_for_a_ratio():
  ratio = stats.contingency.relative_risk(60, 100, 20, 90)
  low = ratio.confidence_interval(0.95).low
  limit = uncorrected.katz_log_lower(60, 100, 20, 90, 0.025)
  assert limit == pytest.approx(np.log(low))


def test_katz_limit_fails_about_as_often_as_it_says_with_delta():
  rng = np.random.default_rng(0)
  hits, alarms = rng.binomial(2000, 0.5, 20000), rng.binomial(1500, 0.3, 20000)
  limit = uncorrected.katz_log_lower(hits, 2000, alarms, 1500, 0.05, delta=0.1)
  # Five standard errors are 0.008; the method itself is approximate.
  assert np.mean(limit > np.log(0.4 / 0.3)) == pytest.approx(0.05, abs=0.012)
  zero = uncorrected.katz_log_lower(np.array([0, 5, 100]), 1000, 0, 10, 0.05)
  assert np.all(zero == -np.inf)
  assert uncorrected.katz_log_lower(1, 100, 5, 10, 0.05, delta=0.01) == -np.inf


def test_a_katz_limit_finds_nothing_that_the_credible_bound_misses():
  num, delta = 1000, 1e-5
  curve = tradeoff.approximate_dp_curves(delta).fnr
  errors = [0, 1, 3, 10, 100, 400]
  for fp, fn in [(x, y) for x in errors for y in (*errors, num - 10)]:
    counts = credible.ConfusionCounts(fp, num, fn, num)
    bound = credible.find_quantile(counts, 0.05, curve)
    for a, b in ((fp, fn), (fn, fp)):
      limit = uncorrected.katz_log_lower(
        num - b, num, a, num, 0.025, delta=delta
      )
      assert max(limit, 0) <= bound, counts


def test_a_katz_limit_is_no_bound_and_is_of_two_counted_rates():
  rng = np.random.default_rng(5)
  scores = Scores(rng.normal(2, 1, 2000), rng.normal(size=2000))
  for multiplicity in (uncorrected.Uncorrected(), Split(seed=0)):
    found = uncorrected.katz_estimate(
      scores, delta=1e-5, multiplicity=multiplicity
    )
    assert (found.kind, found.confidence) == ('point_estimate', None)
    assert found.epsilon > 1
  known = Scores(np.zeros(5), np.empty(0), null=Sphere(9))
  with pytest.raises(ValueError, match='dim=9'):
    uncorrected.katz_estimate(known, delta=1e-5, multiplicity=Split(seed=0))
