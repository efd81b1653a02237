"""Tests of both rates at once: their law, their level, what they win."""

from typing import NamedTuple

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
from scipy import special, stats

from epe_jax.dpsgd import families
from epe_jax.epsilon import lower_bounds, rank_bound, threshold, tradeoff
from epe_jax.epsilon.lower_bounds import Bonferroni
from epe_jax.epsilon.types import Scores

DELTA = 1e-5


def approximate(epsilon, delta):
  return lambda log_fpr: tradeoff.Lines(
    np.array([epsilon]), np.array([delta])
  ).fnr(log_fpr)


def gaussian(mu):
  return lambda log_fpr: tradeoff.gaussian_family().fnr(1 / mu, log_fpr)


# The law of the counts.


@pytest.mark.parametrize(
  'fnr', [gaussian(1.3), approximate(1.0, 0.1)], ids=['gaussian', 'approximate']
)
def test_counts_have_the_law_of_two_observed_and_three_unobserved_scores(fnr):
  draws = 20_000
  statistic = rank_bound.Statistic(2, 3, np.array([1, 3]), np.max, 1.0)
  rng = np.random.default_rng(0)
  counts = rank_bound.draw_counts(rng, fnr, statistic, draws)

  # Density of the smallest and the largest of three uniforms, u < v; of two
  # observed scores i lie below u and j below v. By the midpoint rule, twice.
  def expected(points):
    x = (np.arange(points) + 0.5) / points
    u, v = np.meshgrid(x, x, indexing='ij')
    hit = 1 - fnr(np.log(x))
    a, b = np.meshgrid(hit, hit, indexing='ij')
    weight = 6 * np.maximum(v - u, 0) / points**2
    ways = {(0, 0): 1, (0, 1): 2, (0, 2): 1, (1, 1): 2, (1, 2): 2, (2, 2): 1}
    return np.array(
      [
        np.sum(weight * n * a**i * (b - a) ** (j - i) * (1 - b) ** (2 - j))
        for (i, j), n in ways.items()
      ]
    )

  coarse, fine = expected(1000), expected(2000)
  np.testing.assert_allclose(coarse, fine, atol=1e-4)
  pairs = [(i, j) for i in range(3) for j in range(i, 3)]
  number = [np.sum(np.all(counts == pair, axis=1)) for pair in pairs]
  test = stats.chisquare(number, draws * fine / np.sum(fine))
  assert test.pvalue > 1e-6


def test_counts_of_gaussian_scores_have_the_law_of_their_curve():
  rng, mu, num, num_null, audits = np.random.default_rng(1), 1.0, 40, 60, 20_000
  statistic = rank_bound.shift_statistic(num, num_null)
  scores = Scores(
    rng.normal(mu, 1, (audits, num)), rng.normal(0, 1, (audits, num_null))
  )
  counted = rank_bound.count_above(scores, statistic.ranks)
  drawn = rank_bound.draw_counts(rng, gaussian(mu), statistic, audits)
  for k in range(len(statistic.ranks)):
    assert stats.ks_2samp(counted[:, k], drawn[:, k]).pvalue > 1e-6
  values = statistic.value(counted), statistic.value(drawn)
  assert stats.ks_2samp(*values).pvalue > 1e-6
  # Another μ is seen to be another.
  other = rank_bound.draw_counts(rng, gaussian(1.1), statistic, audits)
  assert stats.ks_2samp(values[0], statistic.value(other)).pvalue < 1e-6


@pytest.mark.parametrize(
  'statistic',
  [
    rank_bound.log_ratio_statistic(20, 30, DELTA, 'in'),
    rank_bound.log_ratio_statistic(20, 30, 0.1, 'both'),
    rank_bound.shift_statistic(20, 30),
    rank_bound.shift_statistic(1, 1),
  ],
)
def test_statistics_rise_with_every_count(statistic):
  rng = np.random.default_rng(2)
  num = 1 if len(statistic.ranks) == 1 else 20
  counts = np.sort(rng.integers(num, size=(500, len(statistic.ranks))))
  for k in range(len(statistic.ranks)):
    more = counts + (np.arange(len(statistic.ranks)) >= k)
    assert np.all(statistic.value(more) >= statistic.value(counts))


def test_a_bound_is_where_the_exact_p_value_is_the_significance():
  # All 50 observed scores are above all 80 others: V_(50) <= U_(1).
  scores = Scores(np.arange(100.0, 150.0), np.arange(80.0))

  def p_value(epsilon):
    u = np.geomspace(1e-12, 1, 100_001)
    hit = 1 - approximate(epsilon, DELTA)(np.log(u))
    density = 80 * (1 - u) ** 79
    return np.trapezoid(density * hit**50 * u, np.log(u))

  for significance in (0.01, 0.05, 0.3):
    bound = rank_bound.epsilon_bound(
      scores, delta=DELTA, significance=significance, sides='in'
    )
    # Three standard errors of the draws, which are always the same.
    assert p_value(bound) == pytest.approx(significance, rel=0.1)


# What is promised.


class Law(NamedTuple):
  """Laws of observed and unobserved scores."""

  observed: stats.rv_continuous
  unobserved: stats.rv_continuous
  digits: int = 17  # Scores are rounded to these.


class Mixture(NamedTuple):
  """Only a share of the canaries leaks."""

  share: float
  shift: float

  def rvs(self, size, random_state):
    leaks = random_state.random(size) < self.share
    return random_state.standard_normal(size) + self.shift * leaks

  def sf(self, x):
    leaks = stats.norm.sf(x - self.shift)
    return self.share * leaks + (1 - self.share) * stats.norm.sf(x)

  def cdf(self, x):
    leaks = stats.norm.cdf(x - self.shift)
    return self.share * leaks + (1 - self.share) * stats.norm.cdf(x)


class Response(NamedTuple):
  """The curve of (ε, δ)-DP itself: no pair of laws is easier to tell apart."""

  epsilon: float

  def rvs(self, size, random_state):
    x = random_state.random(size)
    edge = (1 - DELTA) / (1 + np.exp(self.epsilon))
    rates = np.array([0, edge, 1 - DELTA, 1])
    hits = np.array([DELTA, 1 - edge, 1, 1])
    return 1 - np.interp(x, hits, rates)


LAWS = {
  'no leak': Law(stats.norm(), stats.norm()),
  'gaussian 1': Law(stats.norm(1), stats.norm()),
  'gaussian 2.5': Law(stats.norm(2.5), stats.norm()),
  'wider': Law(stats.norm(0.5, 1.1), stats.norm()),
  't3': Law(stats.t(3, 1), stats.t(3)),
  'laplace': Law(stats.laplace(1.5), stats.laplace()),
  'mixture': Law(Mixture(0.2, 3), stats.norm()),
  'rounded': Law(stats.norm(1), stats.norm(), 0),
  'answers': Law(stats.bernoulli(0.88), stats.bernoulli(0.12)),
}


def truth(law):
  """ε and μ of the attacks "in if the score exceeds t", over all t."""
  t = np.linspace(-30, 30, 60_001)
  if law.digits < 17:
    t = np.arange(-40, 40) + 0.5
  tpr, fnr = law.observed.sf(t), law.observed.cdf(t)
  fpr, tnr = law.unobserved.sf(t), law.unobserved.cdf(t)
  seen = (np.minimum(tpr, fpr) > 1e-12) & (np.minimum(fnr, tnr) > 1e-12)
  tpr, fnr, fpr, tnr = (x[seen] for x in (tpr, fnr, fpr, tnr))
  forward = np.log(np.maximum(tpr - DELTA, 1e-300)) - np.log(fpr)
  backward = np.log(np.maximum(tnr - DELTA, 1e-300)) - np.log(fnr)
  epsilon = max(0.0, np.max(forward), np.max(backward))
  return epsilon, max(0.0, np.max(special.ndtri(tpr) - special.ndtri(fpr)))


def draw(law, rng, audits, num, num_null):
  return Scores(
    law.observed.rvs((audits, num), random_state=rng).round(law.digits),
    law.unobserved.rvs((audits, num_null), random_state=rng).round(law.digits),
  )


SIZES = [(30, 30), (100, 40)]
SLOW_SIZES = [(30, 400), (100, 100), (300, 1000), (1000, 1000), (1000, 100)]


def check_levels(law, num, num_null, audits):
  rng = np.random.default_rng([num, num_null])
  scores = draw(law, rng, audits, num, num_null)
  epsilon, mu = truth(law)
  # A failure has probability 1e-5 in each check at exact coverage, and the
  # draws of the law may be out by three standard errors.
  most = stats.binom.isf(1e-5, audits, 0.055)
  for sides in ('in', 'both'):
    settings = dict(delta=DELTA, significance=0.05, sides=sides)
    bound = rank_bound.epsilon_bound(scores, **settings)
    assert np.sum(bound > epsilon) <= most
  bound = rank_bound.strength_bound(
    scores, tradeoff.gaussian_family(), significance=0.05
  )
  assert np.sum(bound > mu) <= most


@pytest.mark.integration
@pytest.mark.parametrize('name', LAWS)
def test_bounds_exceed_the_truth_as_rarely_as_they_say(name):
  check_levels(LAWS[name], *SIZES[1], audits=200)


@pytest.mark.slow
@pytest.mark.parametrize('name', LAWS)
@pytest.mark.parametrize(('num', 'num_null'), SIZES + SLOW_SIZES)
def test_levels_in_many_audits(name, num, num_null):
  check_levels(LAWS[name], num, num_null, audits=4000)


@pytest.mark.parametrize(('num', 'num_null'), SIZES[1:])
def test_the_least_favourable_laws_use_the_level_up(num, num_null):
  rng, audits = np.random.default_rng(3), 1000
  lows, highs = stats.binom.interval(1 - 2e-5, audits, (0.045, 0.055))
  low, high = lows[0], highs[1]

  def rejects(scores, curve, statistic, strength):
    """Of each audit: a bound is above the truth where the test rejects it."""
    values = statistic.value(rank_bound.count_above(scores, statistic.ranks))
    p_values = rank_bound.p_value(values, curve, strength, statistic, 0.05)
    rejected = np.asarray(p_values) <= 0.05
    first = Scores(scores.observed[:20], scores.unobserved[:20])
    bound = rank_bound.max_rejected(first, curve, statistic, 0.05)
    np.testing.assert_array_equal(bound > strength, rejected[:20])
    return np.sum(rejected)

  dp = tradeoff.approximate_dp_curves(DELTA)
  for epsilon in (0.5, 2.0):
    law = Law(Response(epsilon), stats.uniform(-1, 1))
    observed = law.observed.rvs((audits, num), rng)
    scores = Scores(observed, 1 - rng.random((audits, num_null)))
    for sides in ('in', 'both'):
      statistic = rank_bound.log_ratio_statistic(num, num_null, DELTA, sides)
      assert low <= rejects(scores, dp, statistic, epsilon) <= high
  gaussian = tradeoff.family_curves(tradeoff.gaussian_family())
  statistic = rank_bound.shift_statistic(num, num_null)
  for mu in (0.3, 1.5):
    scores = draw(Law(stats.norm(mu), stats.norm()), rng, audits, num, num_null)
    assert low <= rejects(scores, gaussian, statistic, mu) <= high


@pytest.mark.integration
def test_a_subsampled_family_keeps_its_level():
  rng, audits, noise, p = np.random.default_rng(4), 500, 0.4, 0.3
  family = families.subsampled_gaussian_family(p)
  law = Law(Mixture(p, 1 / noise), stats.norm())
  scores = draw(law, rng, audits, 100, 150)
  bound = rank_bound.strength_bound(scores, family, significance=0.05)
  # The curve is that of both directions, these laws are one: below 5 %.
  assert np.sum(bound > 1 / noise) <= stats.binom.isf(1e-5, audits, 0.055)
  assert np.median(bound) > 0.6 / noise


def test_scores_that_no_noise_explains_refute_a_family():
  separated = Scores(np.arange(300.0, 400.0), np.arange(100.0))
  family = families.subsampled_gaussian_family(0.1)
  assert rank_bound.strength_bound(separated, family, significance=0.05) == (
    np.inf
  )
  plain = rank_bound.strength_bound(
    separated, tradeoff.gaussian_family(), significance=0.05
  )
  assert 3 < plain < 8


# What is won.


def two_limits(scores, significance=0.05):
  """Best ε and μ under a band of each rate at half the significance."""
  candidates, misses = threshold.find_realisable(scores.observed)
  alarms = threshold.count_at_least(scores.unobserved, candidates)
  num, num_null = scores.observed.shape[-1], scores.unobserved.shape[-1]
  fnr = np.asarray(lower_bounds.band_upper(misses, num, significance / 2))
  fpr = np.asarray(lower_bounds.band_upper(alarms, num_null, significance / 2))
  epsilon = threshold.epsilon_at(np.log(fpr), np.log(fnr), DELTA, sides='in')
  mu = tradeoff.gdp_mu(np.log(fpr), fnr)
  return np.max(epsilon, axis=-1), np.max(mu, axis=-1)


@pytest.mark.parametrize(
  ('num', 'epsilon', 'won', 'won_gdp'),
  [
    (100, 4, 0.4, 1.3),
    (100, 10, 0.5, 2.0),
  ],
)
def test_one_test_of_both_rates_is_tighter_than_two_limits(
  num, epsilon, won, won_gdp
):
  rng, audits = np.random.default_rng(5), 11
  mu = tradeoff.mu_of_epsilon(epsilon, DELTA)
  scores = draw(Law(stats.norm(mu), stats.norm()), rng, audits, num, num)
  before, before_mu = two_limits(scores)
  bound = lower_bounds.lower_bound(scores, delta=DELTA).epsilon
  fixed = lower_bounds.lower_bound(
    scores, delta=DELTA, multiplicity=Bonferroni()
  ).epsilon
  best = max(np.median(before), np.median(fixed))
  assert np.median(bound) > best + won
  gdp = np.median(lower_bounds.gdp_bound(scores, delta=DELTA).epsilon)
  gdp_before = np.median(tradeoff.epsilon_gdp(before_mu, DELTA))
  assert gdp > gdp_before + won_gdp


@hypothesis.settings(max_examples=25, deadline=None, derandomize=True)
@hypothesis.given(
  observed=st.lists(st.integers(-3, 3), min_size=1, max_size=9),
  unobserved=st.lists(st.integers(-3, 3), min_size=1, max_size=9),
  higher=st.integers(0, 8),
)
def test_higher_observed_scores_never_lower_a_bound(
  observed, unobserved, higher
):
  low = Scores(np.array(observed), np.array(unobserved))
  raised = low.observed.copy()
  raised[higher % len(raised)] += 1
  high = Scores(raised, low.unobserved)
  for bound in (
    lambda s: rank_bound.epsilon_bound(
      s, delta=DELTA, significance=0.2, sides='in'
    ),
    lambda s: rank_bound.strength_bound(
      s, tradeoff.gaussian_family(), significance=0.2
    ),
  ):
    assert 0 <= bound(low) <= bound(high) < np.inf


def test_large_numbers_of_scores_are_no_more_work():
  rng, num = np.random.default_rng(6), 400_000
  scores = draw(Law(stats.norm(1), stats.norm()), rng, 1, num, num)
  bound = rank_bound.strength_bound(
    scores, tradeoff.gaussian_family(), significance=0.05
  )
  assert 0.99 < bound[0] < 1.001
