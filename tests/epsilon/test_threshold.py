"""Threshold estimators against counting by hand, closed forms, simulation."""

import numpy as np
import pytest
from scipy import stats

from epe_jax.epsilon import (
  noise_floor,
  paper_estimates,
  threshold,
  two_gaussians,
)
from epe_jax.epsilon.cosine_null import CosineNull
from epe_jax.epsilon.types import Scores, Sphere, make_null

DELTA = 1e-5


def slow_epsilon(scores, delta, upper, candidates):
  """Equation (1) maximised over thresholds, counting canaries one by one."""
  best = 0.0
  n1, n0 = len(scores.observed), len(scores.unobserved)
  for a in candidates:
    fnr = upper(sum(s < a for s in scores.observed), n1)
    if not scores.has_known_null:
      fpr = upper(sum(s >= a for s in scores.unobserved), n0)
    else:
      fpr = CosineNull(scores.null.dim).sf(a)
    for lost, kept in ((fnr, fpr), (fpr, fnr)):
      if 1 - delta - lost > 0:
        best = max(best, np.log((1 - delta - lost) / kept))
  return best


def jeffreys(count, trials):
  return stats.beta.ppf(0.95, count + 0.5, trials - count + 0.5)


def posterior_mean(count, trials):
  return (count + 0.5) / (trials + 1)


def eps_lo(scores, delta):
  return paper_estimates.eps_lo(scores, delta=delta).epsilon


def empirical(scores, delta):
  return paper_estimates.max_threshold(
    scores, delta=delta, rates='empirical'
  ).epsilon


ESTIMATORS = [(eps_lo, jeffreys), (empirical, posterior_mean)]


@pytest.mark.parametrize(('estimator', 'upper'), ESTIMATORS)
@pytest.mark.parametrize('dim', [None, 20])
@pytest.mark.parametrize('tied', [False, True])
def test_estimators_agree_with_counting_at_every_threshold(
  estimator, upper, dim, tied
):
  rng = np.random.default_rng(0)
  for _ in range(10):
    observed = 0.9 * np.tanh(rng.normal(0.5, 0.5, 23))
    unobserved = 0.9 * np.tanh(rng.normal(0, 0.5, 31))
    if tied:
      observed, unobserved = np.round(observed, 1), np.round(unobserved, 1)
    scores = Scores(observed, unobserved, null=make_null(dim))
    # More thresholds than the observed scores must not help.
    everywhere = np.union1d(observed, unobserved)
    between = (everywhere[1:] + everywhere[:-1]) / 2
    candidates = np.concatenate([everywhere, between, [-1.0]])
    expected = slow_epsilon(scores, 1e-3, upper, candidates)
    assert expected > 0
    assert estimator(scores, 1e-3) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(('estimator', 'upper'), ESTIMATORS)
def test_counts_see_only_the_order_of_scores(estimator, upper):
  rng = np.random.default_rng(1)
  observed, unobserved = rng.normal(1, 1, 100), rng.normal(0, 1, 100)
  plain = estimator(Scores(observed, unobserved), DELTA)
  mapped = estimator(Scores(np.exp(observed), np.exp(unobserved)), DELTA)
  assert plain == mapped
  reversed_ = estimator(Scores(-observed, -unobserved), DELTA)
  assert reversed_ < plain


def separated(num):
  return Scores(np.linspace(5, 6, num), np.linspace(-1, 1, num))


@pytest.mark.parametrize(('estimator', 'upper'), ESTIMATORS)
def test_separated_scores_reach_the_value_of_no_error_at_all(estimator, upper):
  none = upper(0, 1000)
  expected = np.log((1 - DELTA - none) / none)
  assert estimator(separated(1000), DELTA) == pytest.approx(expected)


def test_eps_lo_saturates_where_the_papers_tables_do():
  # EMNIST, all iterates, noise 0 and 0.0487: both tables print 6.25.
  assert f'{eps_lo(separated(1000), 3383**-1.1):.2f}' == '6.25'
  # StackOverflow prints 6.240: some ten canaries out of 1000 were missed.
  scores = separated(1000)
  scores.observed[:10] = -2
  assert f'{eps_lo(scores, 341_000**-1.1):.3f}' == '6.240'


def test_eps_lo_does_not_saturate_under_the_exact_null():
  # The paper's final-model columns exceed 6.26 too (6.86 on EMNIST): with no
  # missed canary the FPR at the lowest observed score decides.
  cosines = np.full(1000, 0.5)
  for dim in (100, 10**7):
    law = CosineNull(dim)
    expected = np.log(1 - DELTA - jeffreys(0, 1000)) - law.logsf(0.5)
    scores = Scores(cosines, np.empty(0), null=make_null(dim))
    assert eps_lo(scores, DELTA) == pytest.approx(expected)
    assert expected > 10
  certain = Scores(np.ones(3), np.empty(0), null=Sphere(10))
  assert eps_lo(certain, DELTA) == np.inf


# Tolerances are five standard errors: a failure has probability 6e-7.
@pytest.mark.parametrize(
  ('num_unobserved', 'dim', 'simulations', 'excess'),
  [(0, 10**6, 300, 0.735), (1000, None, 600, 0.29)],
)
def test_eps_lo_is_no_lower_bound(num_unobserved, dim, simulations, excess):
  rng = np.random.default_rng(3)
  scores = Scores(
    noise_floor.draw_null(rng, (simulations, 1000), null=Sphere(10**6)),
    noise_floor.draw_null(
      rng, (simulations, num_unobserved), null=Sphere(10**6)
    ),
    null=make_null(dim),
  )
  estimate = paper_estimates.eps_lo(scores, delta=DELTA)
  assert estimate.confidence is None
  error = np.sqrt(excess * (1 - excess) / simulations)
  assert np.mean(estimate.epsilon > 0) == pytest.approx(excess, abs=5 * error)
  # A 95 % bound would exceed the true ε = 0 in at most 5 % of audits.
  assert np.mean(estimate.epsilon > 0) > 0.05 + 5 * error


@pytest.mark.parametrize('trials', [1, 7, 1000])
def test_limits_are_beta_quantiles(trials):
  counts = np.arange(trials + 1)
  limit = threshold.clopper_pearson_upper(counts, trials, 0.03)
  np.testing.assert_allclose(
    stats.binom.cdf(counts[:-1], trials, limit[:-1]), 0.03
  )
  assert limit[-1] == 1
  np.testing.assert_allclose(
    threshold.jeffreys_upper(counts, trials, 0.05),
    jeffreys(counts, trials),
    rtol=1e-12,
  )


def failure_rate(limit, trials, rate):
  """P(limit < rate), summed exactly over the counts."""
  counts = np.arange(trials + 1)
  fails = limit(counts, trials, 0.05)[:, None] < rate
  return np.sum(stats.binom.pmf(counts[:, None], trials, rate) * fails, axis=0)


def test_clopper_pearson_never_fails_more_often_than_it_says():
  rate = (np.arange(3000) + 0.5) / 3000
  for trials in (5, 50, 500):
    worst = failure_rate(threshold.clopper_pearson_upper, trials, rate).max()
    assert 0.035 < worst <= 0.05 + 1e-12


def test_jeffreys_limit_covers_on_average_but_not_always():
  rate = (np.arange(3000) + 0.5) / 3000
  fails = failure_rate(threshold.jeffreys_upper, 50, rate)
  assert np.mean(fails) == pytest.approx(0.05, abs=0.01)
  # Just above the limit of no event it misses that count almost always.
  assert fails.max() > 0.12


def test_a_table_and_a_single_count_give_the_same_limit():
  for limit in (threshold.clopper_pearson_upper, threshold.jeffreys_upper):
    table = limit(np.arange(101), 100, 0.01)
    for count in (0, 50, 100):
      assert limit(count, 100, 0.01) == table[count]
    assert limit(np.array([[0], [1]]), 100, 0.01).shape == (2, 1)


def test_gaussian_thresholds_are_optimal_at_equal_stds():
  rng = np.random.default_rng(4)
  sample = rng.normal(size=100)
  sample = (sample - sample.mean()) / sample.std()
  for gap, delta in ((0.3, 1e-3), (2.0, 1e-5), (40.0, 1e-8), (1e6, 1e-5)):
    scores = Scores(sample + gap, sample)
    exact = two_gaussians.two_gaussian(scores, delta=delta).epsilon
    estimate = paper_estimates.max_threshold(scores, delta=delta)
    assert estimate.epsilon == pytest.approx(exact, rel=1e-9)
    assert estimate.method == 'max_threshold_gaussian'
    assert estimate.confidence is None


def test_gaussian_thresholds_are_the_best_of_a_dense_line_search():
  rng = np.random.default_rng(5)
  for gap, spread, delta in ((0.5, 0.5, 1e-5), (2, 2.0, 1e-3), (5, 0.3, 1e-9)):
    scores = Scores(rng.normal(gap, spread, 200), rng.normal(size=300))
    null = stats.norm(scores.unobserved.mean(), scores.unobserved.std())
    seen = stats.norm(scores.observed.mean(), scores.observed.std())
    a = np.linspace(-12, 14, 400_001)
    kept0, kept1 = null.cdf(a) - delta, seen.sf(a) - delta
    expected = max(
      np.max(np.log(kept0[kept0 > 0]) - seen.logcdf(a[kept0 > 0])),
      np.max(np.log(kept1[kept1 > 0]) - null.logsf(a[kept1 > 0])),
    )
    estimate = paper_estimates.max_threshold(scores, delta=delta).epsilon
    assert estimate == pytest.approx(expected, rel=1e-6)
    # An arbitrary event does at least as well as a half-line.
    exact = two_gaussians.two_gaussian(scores, delta=delta).epsilon
    assert estimate <= exact * (1 + 1e-12)


def test_gaussian_rates_use_the_known_null_and_broadcast():
  rng = np.random.default_rng(6)
  observed = rng.normal(0.1, 0.1, (4, 50))
  scores = Scores(observed, np.empty(0), null=Sphere(100))
  together = paper_estimates.max_threshold(scores, delta=DELTA).epsilon
  assert together.shape == (4,)
  standard = stats.norm.ppf((np.arange(50) + 0.5) / 50)
  null = 0.1 * (standard - standard.mean()) / standard.std()
  for row, epsilon in zip(observed, together):
    alone = paper_estimates.max_threshold(
      Scores(row, null), delta=DELTA
    ).epsilon
    assert epsilon == pytest.approx(alone, rel=1e-9)


def test_identical_scores_leak_nothing():
  same = Scores(np.zeros(50), np.zeros(50))
  assert eps_lo(same, DELTA) == 0
  assert empirical(same, DELTA) == 0
