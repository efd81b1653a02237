"""Limits of proportions against their definitions, exact sums, simulation."""

import numpy as np
import pytest
from scipy import stats

from epe_jax.epsilon import band, intervals


@pytest.mark.parametrize('trials', [1, 7, 1000])
def test_clopper_pearson_limit_solves_its_binomial_equation(trials):
  counts = np.arange(trials)
  limit = intervals.clopper_pearson_upper(counts, trials, 0.03)
  np.testing.assert_allclose(stats.binom.cdf(counts, trials, limit), 0.03)
  assert intervals.clopper_pearson_upper(trials, trials, 0.03) == 1


def test_limits_agree_with_scipys_interval():
  for count in (0, 3, 20):
    upper = stats.binomtest(count, 20).proportion_ci(0.9, 'exact').high
    limit = intervals.clopper_pearson_upper(count, 20, 0.05)
    assert limit == pytest.approx(upper, rel=1e-9)


def failure_rate(limit, trials, rate):
  """P(limit < rate), summed exactly over the counts."""
  counts = np.arange(trials + 1)
  fails = limit(counts, trials, 0.05)[:, None] < rate
  return np.sum(stats.binom.pmf(counts[:, None], trials, rate) * fails, axis=0)


def test_clopper_pearson_never_fails_more_often_than_it_says():
  rate = (np.arange(3000) + 0.5) / 3000
  for trials in (5, 50, 500):
    worst = failure_rate(intervals.clopper_pearson_upper, trials, rate).max()
    assert 0.035 < worst <= 0.05 + 1e-12


def test_jeffreys_limit_covers_on_average_but_not_always():
  rate = (np.arange(3000) + 0.5) / 3000
  fails = failure_rate(intervals.jeffreys_upper, 50, rate)
  assert np.mean(fails) == pytest.approx(0.05, abs=0.01)
  # Just above the limit of no event it misses that count almost always.
  assert fails.max() > 0.12


def test_a_table_and_a_single_count_give_the_same_limit():
  for limit in (intervals.clopper_pearson_upper, intervals.jeffreys_upper):
    table = limit(np.arange(101), 100, 0.01)
    for count in (0, 50, 100):
      assert limit(count, 100, 0.01) == table[count]
    assert limit(np.array([[0], [1]]), 100, 0.01).shape == (2, 1)


@pytest.mark.parametrize('trials', [1, 2, 30, 1000, 20_000])
def test_band_holds_together_as_often_as_it_says(trials):
  level = band.local_level(trials, 0.05)
  assert 0.05 / max(trials, 1) <= level <= 0.05 * (1 + 1e-12)
  rng = np.random.default_rng(1)
  # Order statistics of uniforms are normalised sums of exponentials.
  num = 4000 if trials <= 1000 else 400
  sums = np.cumsum(rng.standard_exponential((num, trials + 1)), axis=-1)
  tail = sums[:, :-1] / sums[:, -1:]
  limits = band.upper_limit(np.arange(trials), trials, 0.05)
  fails = np.mean(np.any(tail > limits, axis=-1))
  # Five standard errors: a failure has probability 6e-7.
  assert fails == pytest.approx(0.05, abs=5 * np.sqrt(0.05 * 0.95 / num))
  # The limits of single thresholds fail somewhere far more often.
  if trials >= 30:
    single = intervals.clopper_pearson_upper(np.arange(trials), trials, 0.05)
    assert np.mean(np.any(tail > single, axis=-1)) > 0.25


def slow_coverage(trials, ranks, limits):
  """P(N(limit) >= rank at every rank), by binomial steps and no Poisson."""
  state, before = np.zeros(trials + 1), 0.0
  state[0] = 1
  for rank, limit in zip(ranks, limits):
    share = (limit - before) / (1 - before)
    after = np.zeros(trials + 1)
    for s in range(trials + 1):
      more = np.arange(trials - s + 1)
      after[s:] += state[s] * stats.binom.pmf(more, trials - s, share)
    after[:rank] = 0
    state, before = after, limit
  return state.sum()


@pytest.mark.parametrize('trials', [3, 25])
def test_coverage_of_a_band_is_that_of_a_slow_markov_chain(trials):
  rng = np.random.default_rng(2)
  ranks = np.arange(1, trials + 1)
  limits = np.sort(rng.uniform(size=trials)) ** 0.3
  fast = band.coverage(trials, ranks, limits)
  assert fast == pytest.approx(slow_coverage(trials, ranks, limits), rel=1e-9)
  # A single rank has a beta variable.
  alone = band.coverage(trials, ranks[1:2], limits[1:2])
  beta = stats.beta.cdf(limits[1], 2, trials - 1)
  assert alone == pytest.approx(beta, rel=1e-9)


def test_band_limits_fall_with_the_count_and_rise_with_confidence():
  counts = np.arange(1001)
  limits = band.upper_limit(counts, 1000, 0.05)
  assert np.all(np.diff(limits) >= 0)
  assert limits[-1] == 1
  assert np.all(band.upper_limit(counts, 1000, 0.01) >= limits)
  assert np.all(limits >= intervals.clopper_pearson_upper(counts, 1000, 0.05))


def test_a_significance_out_of_range_is_refused():
  for significance in (0.0, 1.0, -1.0):
    with pytest.raises(ValueError, match='significance='):
      intervals.clopper_pearson_upper(1, 10, significance)
    with pytest.raises(ValueError, match='significance='):
      band.upper_limit(1, 10, significance)
