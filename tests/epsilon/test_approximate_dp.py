"""One-run bounds against counting, closed forms, jax_privacy and simulation."""

import functools
import statistics

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from scipy import optimize, special, stats
from studies import laws

from epe_jax.epsilon import (
  approximate_dp,
  f_dp,
  guessing,
  registry,
  two_gaussians,
)
from epe_jax.epsilon.types import Assumption, Scores

DELTA = 1e-5


def coin_flip_scores(observed, unobserved):
  return Scores(observed, unobserved, design='coin_flip')


def slow_p_value(epsilon, delta, num, guesses, correct):
  """Theorem 5.2 as printed, term by term."""
  right = 1 / (1 + np.exp(-epsilon))
  mass = [stats.binom.pmf(i, guesses, right) for i in range(guesses + 1)]
  steepest = max(
    (sum(mass[correct - i : correct]) / i for i in range(1, correct + 1)),
    default=0.0,
  )
  return min(1.0, sum(mass[correct:]) + 2 * num * delta * steepest)


def slow_gdp_refutes(mu, num, guesses, correct, significance):
  """The recursion of Mahloujifar et al. to its end, without shortcuts."""
  normal = statistics.NormalDist()
  right = significance * correct / num
  wrong = significance * (guesses - correct) / num
  for i in range(correct - 1, -1, -1):
    moved = max(wrong, normal.cdf(normal.inv_cdf(right) - mu))
    right += i / (guesses - i) * (moved - wrong)
    wrong = moved
    if right + wrong > guesses / num:
      return True
  return False


@pytest.mark.parametrize('delta', [0.0, 1e-6, 1e-3])
@pytest.mark.parametrize(
  ('num', 'guesses', 'correct'),
  [(100, 100, 60), (100, 100, 100), (300, 40, 39), (50, 1, 1), (50, 9, 0)],
)
def test_p_value_is_the_sum_of_the_theorem(num, guesses, correct, delta):
  for epsilon in (0.0, 0.3, 2.0, 8.0, 50.0):
    p = approximate_dp.p_value(
      epsilon, delta, num_canaries=num, num_guesses=guesses, correct=correct
    )
    expected = slow_p_value(epsilon, delta, num, guesses, correct)
    assert p == pytest.approx(expected, rel=1e-9)


def test_p_value_of_many_guesses_does_not_need_every_term():
  n = 10_000
  mass = stats.binom.pmf(np.arange(n + 1), n, special.expit(0.1))
  for correct in (5000, 5100, 5400, 6500, 10_000):
    falling = np.cumsum(mass[:correct][::-1])
    steepest = np.max(falling / np.arange(1, correct + 1))
    expected = min(1.0, np.sum(mass[correct:]) + 2 * n * 1e-4 * steepest)
    p = approximate_dp.p_value(
      0.1, 1e-4, num_canaries=n, num_guesses=n, correct=correct
    )
    assert p == pytest.approx(expected, rel=1e-8)


def test_no_error_at_delta_0_has_its_closed_form():
  # P(r right) = q^r is the significance at q = α^(1/r).
  scores = coin_flip_scores(np.ones(300), np.zeros(200))
  for k_plus, k_minus in ((300, 200), (10, 0), (0, 200)):
    estimate = approximate_dp.one_run(
      scores, delta=0, guesses=[(k_plus, k_minus)]
    )
    expected = special.logit(0.05 ** (1 / (k_plus + k_minus)))
    assert estimate.epsilon == pytest.approx(expected, rel=1e-7)
  assert estimate.confidence == 0.95
  assert estimate.method == 'one_run'


@pytest.mark.parametrize(
  ('num', 'guesses', 'correct', 'significance'),
  [
    (100, 100, 80, 0.05),
    (2000, 500, 450, 0.0125),
    (2000, 2000, 1100, 0.05),
    (60, 20, 20, 0.01),
  ],
)
def test_gdp_bound_is_where_the_full_recursion_stops_refuting(
  num, guesses, correct, significance
):
  mu = f_dp.max_rejected_mu(
    num_canaries=num,
    num_guesses=guesses,
    correct=correct,
    significance=significance,
  )
  assert mu > 0
  assert slow_gdp_refutes(mu * (1 - 1e-6), num, guesses, correct, significance)
  assert not slow_gdp_refutes(
    mu * (1 + 1e-6), num, guesses, correct, significance
  )


def test_perfect_privacy_is_rejected_exactly_when_coins_are_too_lucky():
  # With μ = 0 and all of r guesses right the recursion is the binomial law.
  for guesses in (1, 4, 5, 10):
    for significance in (0.001, 0.05, 0.2):
      mu = f_dp.max_rejected_mu(
        num_canaries=guesses,
        num_guesses=guesses,
        correct=guesses,
        significance=significance,
      )
      assert (mu > 0) == (2.0**-guesses < significance)


def test_both_bounds_agree_with_jax_privacy():
  auditing = pytest.importorskip('jax_privacy.auditing')
  rng = np.random.default_rng(0)
  observed, unobserved = rng.normal(1.5, 1, 480), rng.normal(size=520)
  scores = coin_flip_scores(observed, unobserved)
  auditor = auditing.CanaryScoreAuditor(observed, unobserved)
  pooled = np.sort(np.concatenate([observed, unobserved]))[::-1]
  for k in (1, 20, 100, 480, 1000):
    threshold = auditing.Explicit(pooled[k - 1])
    for delta, significance in ((1e-5, 0.05), (1e-3, 0.01)):
      theirs = auditor.epsilon_one_run(
        significance, delta, threshold_strategy=threshold
      )
      setting = dict(delta=delta, significance=significance, guesses=[(k, 0)])
      ours = approximate_dp.one_run(scores, **setting).epsilon
      assert ours == pytest.approx(theirs, abs=3e-6)
      theirs = auditor.epsilon_one_run_fdp(
        significance, delta, threshold_strategy=threshold
      )
      ours = f_dp.one_run_gdp(scores, **setting).epsilon
      assert ours == pytest.approx(theirs, abs=3e-6)


def test_ties_are_broken_as_badly_as_they_can_be():
  rng = np.random.default_rng(1)
  truth = np.array([True] * 5 + [False] * 6)
  for _ in range(20):
    pooled = rng.integers(0, 3, 11).astype(float)
    scores = coin_flip_scores(pooled[:5], pooled[5:])
    for k in (1, 3, 6, 11):
      # Any order of tied canaries, told by a random key.
      keys = rng.random((500, 11))
      ranks = [np.lexsort((key, -pooled)) for key in keys]
      right_in = [np.sum(truth[order[:k]]) for order in ranks]
      right_out = [np.sum(~truth[order[11 - k :]]) for order in ranks]
      assert guessing.count_correct(scores, (k, 0)) == min(right_in)
      assert guessing.count_correct(scores, (0, k)) == min(right_out)
  # Constant scores say nothing, and must not be sorted by the truth.
  constant = coin_flip_scores(np.zeros(500), np.zeros(500))
  assert guessing.count_correct(constant, (300, 300)) == 0
  assert approximate_dp.one_run(constant, delta=DELTA).epsilon == 0
  assert f_dp.one_run_gdp(constant, delta=DELTA).epsilon == 0


def test_distinct_scores_are_counted_from_both_ends():
  scores = coin_flip_scores(
    np.array([5.0, 4.0, 1.0]), np.array([3.0, 2.0, 0.0])
  )
  expected = {(1, 0): 1, (2, 0): 2, (3, 0): 2, (0, 1): 1, (0, 2): 1, (3, 3): 4}
  for pair, count in expected.items():
    assert guessing.count_correct(scores, pair) == count


def flips(rng, simulations, num):
  return rng.integers(0, 2, (simulations, num)).astype(bool)


def bounds(estimator, scores, taken, **settings):
  return np.array(
    [
      estimator(coin_flip_scores(s[t], s[~t]), **settings).epsilon
      for s, t in zip(scores, taken)
    ]
  )


# An exceedance of 5 % has a standard error of 0.0138 in 250 audits: five of them
# above 5 % have probability 3e-7.
def draw_randomized_response(rng, audits, num, prior, epsilon):
  taken = rng.random((audits, num)) < prior
  errs = rng.random((audits, num)) > special.expit(epsilon)
  return 1.0 * (taken != errs) + 0.1 * rng.random((audits, num)), taken


def draw_coupled(rng, audits, num, prior, epsilon):
  """Scores of a mechanism that errs on all canaries at once."""
  taken = rng.random((audits, num)) < prior
  return laws.draw_scores(laws.coupled(epsilon, DELTA), rng, taken), taken


@pytest.mark.parametrize('prior', [0.1, 0.8])
@pytest.mark.parametrize('draw', [draw_randomized_response, draw_coupled])
def test_biased_coins_bound_what_any_mechanism_says_of_several_at_once(
  prior, draw
):
  audits, num, epsilon = 300, 500, 3.0
  scores, taken = draw(np.random.default_rng(8), audits, num, prior, epsilon)
  exceeded = 0
  for one, is_in in zip(scores, taken):
    audit = Scores(
      one[is_in],
      one[~is_in],
      design='coin_flip',
      inclusion_probability=prior,
    )
    exceeded += approximate_dp.one_run(audit, delta=DELTA).epsilon > epsilon
  # A failure has probability 1e-6 at exact coverage.
  assert exceeded <= stats.binom.isf(1e-6, audits, 0.05)


@pytest.mark.parametrize('prior', [0.1, 0.5, 0.8])
def test_by_coins_of_any_probability_the_first_bound_assumes_nothing_else(
  prior,
):
  rng = np.random.default_rng(0)
  audit = Scores(
    rng.normal(size=30),
    rng.normal(size=50),
    design='coin_flip',
    inclusion_probability=prior,
  )
  bounds = registry.choose_bounds(registry.describe(audit))
  first = bounds[0](audit, delta=DELTA)
  assert first.assumes == (Assumption.COINS,)


def test_biased_coins_find_randomized_response_tightly():
  scores, taken = draw_randomized_response(
    np.random.default_rng(9), 1, 20_000, 0.1, 1.0
  )
  audit = Scores(
    scores[taken],
    scores[~taken],
    design='coin_flip',
    inclusion_probability=0.1,
  )
  bound = approximate_dp.one_run(audit, delta=1e-9, guesses=[(2000, 0)])
  assert 0.85 < bound.epsilon < 1.0
  assert bound.assumes == (Assumption.COINS,)


@pytest.mark.parametrize('prior', [0.07, 0.5, 0.9])
@pytest.mark.parametrize('epsilon', [0.0, 1.5])
def test_the_p_value_of_biased_coins_is_the_law_of_flipped_bits(prior, epsilon):
  # Of a bit that says "in", by the theorem of Bayes.
  right = prior * np.exp(epsilon) / (prior * np.exp(epsilon) + 1 - prior)
  for correct in (1, 4, 9):
    p = approximate_dp.p_value(
      epsilon, 0.0, num_canaries=50, num_guesses=9, correct=correct, prior=prior
    )
    assert p == pytest.approx(stats.binom.sf(correct - 1, 9, right), rel=1e-9)
  # Those given away come on top.
  with_delta = approximate_dp.p_value(
    epsilon, 1e-4, num_canaries=50, num_guesses=9, correct=9, prior=prior
  )
  assert p < with_delta <= p + 2 * 50 * 1e-4


def test_randomised_response_is_not_rejected_too_often():
  rng = np.random.default_rng(2)
  epsilon = 1.5
  taken = flips(rng, 250, 500)
  truthful = rng.random(taken.shape) < special.expit(epsilon)
  # Distinct scores, whose order within one answer says nothing.
  scores = (taken == truthful) + 0.1 * rng.random(taken.shape)
  setting = dict(delta=1e-6, guesses=[(200, 200)])
  bound = bounds(approximate_dp.one_run, scores, taken, **setting)
  assert np.mean(bound > epsilon) <= 0.05 + 5 * 0.0138
  # A smaller claim is rejected nearly always.
  assert np.mean(bound > 0.7 * epsilon) > 0.9


@pytest.mark.parametrize('mu', [0.0, 2.0])
def test_gaussian_mechanism_is_not_rejected_too_often(mu):
  rng = np.random.default_rng(3)
  epsilon = two_gaussians.epsilon_two_gaussians(0.0, 1.0, mu, 1.0, DELTA)
  taken = flips(rng, 250, 400)
  scores = mu * taken + rng.normal(size=taken.shape)
  for estimator in (approximate_dp.one_run, f_dp.one_run_gdp):
    # One choice, so that Bonferroni leaves no slack.
    setting = dict(delta=DELTA, guesses=[(40, 40)])
    bound = bounds(estimator, scores, taken, **setting)
    assert np.mean(bound > epsilon) <= 0.05 + 5 * 0.0138
    if mu:
      assert np.mean(bound > 0.1 * epsilon) > 0.9


def test_the_best_of_many_guesses_needs_its_correction():
  rng = np.random.default_rng(4)
  taken = flips(rng, 250, 200)
  scores = rng.normal(size=taken.shape)
  pairs = [(k, 0) for k in range(5, 155, 10)]

  @functools.cache
  def p_value(num_guesses, correct):
    sizes = dict(num_canaries=200, num_guesses=num_guesses)
    return approximate_dp.p_value(0.0, 0.0, **sizes, correct=correct)

  def smallest_p_value(audit):
    return min(
      p_value(pair[0], int(guessing.count_correct(audit, pair)))
      for pair in pairs
    )

  audits = [coin_flip_scores(s[t], s[~t]) for s, t in zip(scores, taken)]
  smallest = np.array([smallest_p_value(audit) for audit in audits])
  assert np.mean(smallest <= 0.05) > 0.05 + 5 * 0.0138
  corrected = bounds(
    approximate_dp.one_run, scores, taken, delta=0, guesses=pairs
  )
  np.testing.assert_array_equal(corrected > 0, smallest < 0.05 / len(pairs))
  assert np.mean(corrected > 0) <= 0.05 + 5 * 0.0138


def quantiles(num):
  return stats.norm.ppf((np.arange(num) + 0.5) / num)


@pytest.mark.parametrize(
  'estimator', [approximate_dp.one_run, f_dp.one_run_gdp]
)
def test_default_guesses_are_near_the_best_in_hindsight(estimator):
  for mu in (1.0, 3.0, 5.0):
    exact = two_gaussians.epsilon_two_gaussians(0.0, 1.0, mu, 1.0, DELTA)
    scores = coin_flip_scores(mu + quantiles(1000), quantiles(1000))
    hindsight = max(
      estimator(scores, delta=DELTA, guesses=[(k, k)]).epsilon
      for k in np.geomspace(10, 1000, 12).astype(int).tolist()
    )
    assert hindsight < exact
    bound = estimator(scores, delta=DELTA).epsilon
    assert 0.75 * hindsight < bound < exact


def test_default_guesses_do_no_worse_than_all_thresholds_of_jax_privacy():
  auditing = pytest.importorskip('jax_privacy.auditing')
  for mu in (1.0, 5.0):
    scores = coin_flip_scores(mu + quantiles(300), quantiles(300))
    auditor = auditing.CanaryScoreAuditor(scores.observed, scores.unobserved)
    ours = approximate_dp.one_run(scores, delta=DELTA).epsilon
    assert ours > auditor.epsilon_one_run(0.05, DELTA)
    sharper = f_dp.one_run_gdp(scores, delta=DELTA).epsilon
    assert sharper > auditor.epsilon_one_run_fdp(0.05, DELTA)
    assert sharper > ours


def test_randomised_response_is_found_tightly_by_many_guesses():
  right = special.expit(2.0)
  n = 100_000
  answers = np.where(np.arange(n) < right * n, 1.0, 0.0)
  scores = coin_flip_scores(answers, 1 - answers)
  k = int(0.49 * 2 * n)
  estimate = approximate_dp.one_run(scores, delta=1e-9, guesses=[(k, k)])
  assert 1.8 < estimate.epsilon < 2.0


def test_leading_axes_are_independent_audits():
  rng = np.random.default_rng(5)
  scores = coin_flip_scores(
    rng.normal(1, 1, (2, 3, 90)), rng.normal(size=(2, 3, 110))
  )
  for estimator in (approximate_dp.one_run, f_dp.one_run_gdp):
    together = estimator(scores, delta=DELTA).epsilon
    assert together.shape == (2, 3)
    for i, j in np.ndindex(2, 3):
      alone = coin_flip_scores(scores.observed[i, j], scores.unobserved[i, j])
      assert together[i, j] == estimator(alone, delta=DELTA).epsilon
    assert isinstance(estimator(alone, delta=DELTA).epsilon, float)


def test_bounds_fall_with_significance_and_delta():
  scores = coin_flip_scores(1.5 + quantiles(500), quantiles(500))
  for estimator in (approximate_dp.one_run, f_dp.one_run_gdp):
    values = [
      estimator(scores, delta=DELTA, significance=s).epsilon
      for s in (1e-6, 1e-3, 0.05, 0.2)
    ]
    assert np.all(np.diff(values) > 0)
    assert (
      estimator(scores, delta=1e-3).epsilon
      < estimator(scores, delta=1e-7).epsilon
    )


@pytest.mark.usefixtures('types_unchecked')
def test_other_designs_and_impossible_settings_are_refused():
  fixed = Scores(np.ones(5), np.zeros(5))
  for estimator in (approximate_dp.one_run, f_dp.one_run_gdp):
    with pytest.raises(
      ValueError, match="independent coins, but design='fixed'"
    ):
      estimator(fixed, delta=DELTA)
    scores = coin_flip_scores(np.ones(5), np.zeros(5))
    for guesses in ([(6, 5)], [(-1, 2)], [(0, 0)]):
      with pytest.raises(ValueError, match='between 1 and the 10 canaries'):
        estimator(scores, delta=DELTA, guesses=guesses)
    for guesses in ([], 'abc', 5, [(1.5, 2)], [1, 2], [(1, 2, 3)], [('a', 1)]):
      with pytest.raises(ValueError, match=r'guesses=.*pairs of integers'):
        estimator(scores, delta=DELTA, guesses=guesses)
    with pytest.raises(ValueError, match=r'significance=0\.0'):
      estimator(scores, delta=DELTA, significance=0.0)
    with pytest.raises(ValueError, match=r'delta=1\.0'):
      estimator(scores, delta=1.0)
  with pytest.raises(ValueError, match='delta=0'):
    f_dp.one_run_gdp(scores, delta=0)
  with pytest.raises(ValueError, match='correct=4'):
    approximate_dp.p_value(1.0, 0.0, num_canaries=9, num_guesses=3, correct=4)


# Not so unequal that they are refused.
GROUP = st.lists(st.integers(-2, 2), min_size=1, max_size=20)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
  GROUP, GROUP, st.sampled_from([1e-300, 1e-5, 0.3]), st.floats(1e-9, 0.99)
)
def test_any_scores_give_a_finite_bound(observed, unobserved, delta, level):
  scores = coin_flip_scores(np.array(observed), np.array(unobserved))
  for estimator in (approximate_dp.one_run, f_dp.one_run_gdp):
    epsilon = estimator(scores, delta=delta, significance=level).epsilon
    assert 0 <= epsilon < np.inf


def test_the_right_root_is_found_where_it_is_known():
  # (ε, 0): P(W >= v) = α is a beta quantile in q.
  scores = coin_flip_scores(
    np.ones(90), np.concatenate([np.ones(10), np.zeros(100)])
  )
  estimate = approximate_dp.one_run(scores, delta=0, guesses=[(100, 100)])
  right = optimize.brentq(
    lambda q: stats.binom.sf(189, 200, q) - 0.05, 0.5, 0.999
  )
  assert estimate.epsilon == pytest.approx(special.logit(right), rel=1e-6)
