"""Bounds from one run: counting, enumeration, closed forms, jax_privacy, simulation."""

import functools
import itertools
import statistics

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from scipy import special, stats

from benchmarks.bounds import laws
from epe_jax.dpsgd import families
from epe_jax.epsilon import registry, tradeoff
from epe_jax.epsilon.one_run_bounds import (
  choose_guesses,
  count_correct,
  independent_p_value,
  max_rejected_mu,
  one_run,
  one_run_gdp,
  one_run_independent,
  p_value,
)
from epe_jax.epsilon.tradeoff import Curves
from epe_jax.epsilon.types import Assumption, Scores

DELTA = 1e-5
GAUSSIAN = tradeoff.gaussian_family()
ESTIMATORS = [one_run, one_run_gdp, one_run_independent]
OF_GAUSSIAN = functools.partial(one_run_independent, family=GAUSSIAN)


def make_scores(values, taken, prior=0.5):
  return Scores(
    values[taken],
    values[~taken],
    design='coin_flip',
    inclusion_probability=prior,
  )


def coins(observed, unobserved, prior=0.5):
  return Scores(
    observed, unobserved, design='coin_flip', inclusion_probability=prior
  )


def separated(num):
  return coins(np.ones(num), np.zeros(num))


def flip(rng, num, prior=0.5):
  taken = rng.random(num) < prior
  # A run has canaries of both kinds.
  taken[:2] = True, False
  return taken


def quantiles(num):
  return stats.norm.ppf((np.arange(num) + 0.5) / num)


# How many right guesses are too many.


def slow_p_value(epsilon, delta, num, guesses, correct):
  """Theorem 5.2 as printed, term by term."""
  right = 1 / (1 + np.exp(-epsilon))
  mass = [stats.binom.pmf(i, guesses, right) for i in range(guesses + 1)]
  steepest = max(
    (sum(mass[correct - i : correct]) / i for i in range(1, correct + 1)),
    default=0.0,
  )
  return min(1.0, sum(mass[correct:]) + 2 * num * delta * steepest)


@pytest.mark.parametrize('delta', [0.0, 1e-6, 1e-3])
@pytest.mark.parametrize(
  ('num', 'guesses', 'correct'),
  [(100, 100, 60), (100, 100, 100), (300, 40, 39), (50, 1, 1), (50, 9, 0)],
)
def test_p_value_is_the_sum_of_the_theorem(num, guesses, correct, delta):
  for epsilon in (0.0, 0.3, 2.0, 8.0, 50.0):
    p = p_value(
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
    p = p_value(0.1, 1e-4, num_canaries=n, num_guesses=n, correct=correct)
    assert p == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize('prior', [0.07, 0.5, 0.9])
@pytest.mark.parametrize('epsilon', [0.0, 1.5])
def test_the_p_value_of_biased_coins_is_the_law_of_flipped_bits(prior, epsilon):
  # Of a bit that says "in", by the theorem of Bayes.
  right = prior * np.exp(epsilon) / (prior * np.exp(epsilon) + 1 - prior)
  sizes = dict(num_canaries=50, num_guesses=9, prior=prior)
  for correct in (1, 4, 9):
    p = p_value(epsilon, 0.0, correct=correct, **sizes)
    assert p == pytest.approx(stats.binom.sf(correct - 1, 9, right), rel=1e-9)
  # Those given away come on top.
  assert p < p_value(epsilon, 1e-4, correct=9, **sizes) <= p + 2 * 50 * 1e-4


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
  mu = max_rejected_mu(
    num_canaries=num,
    num_guesses=guesses,
    correct=correct,
    significance=significance,
  )
  assert mu > 0
  counts = num, guesses, correct, significance
  assert slow_gdp_refutes(mu * (1 - 1e-6), *counts)
  assert not slow_gdp_refutes(mu * (1 + 1e-6), *counts)


def test_perfect_privacy_is_rejected_exactly_when_coins_are_too_lucky():
  # With μ = 0 and all of r guesses right the recursion is the binomial law.
  for guesses in (1, 4, 5, 10):
    sizes = dict(num_canaries=guesses, num_guesses=guesses, correct=guesses)
    for significance in (0.001, 0.05, 0.2):
      mu = max_rejected_mu(**sizes, significance=significance)
      assert (mu > 0) == (2.0**-guesses < significance)


# Law of wrong guesses where leaks are independent.

# The probabilities of each output of a channel for "in"; for "out" it is reversed.
CHANNELS = {
  'randomized response': (0.7, 0.3),
  'three levels': (0.4, 0.35, 0.2, 0.05),
  'sometimes certain': (0.25, 0.45, 0.3, 0.0),
  'says nothing': (0.5, 0.5),
}


def curve_of(channel):
  """The trade-off curve of a channel by the lemma of Neyman and Pearson."""
  right, wrong = np.array(channel), np.array(channel[::-1])
  order = np.argsort(-(right + 1e-300) / (wrong + 1e-300), kind='stable')
  fpr = np.concatenate([[0.0], np.cumsum(wrong[order])])
  fnr = 1 - np.concatenate([[0.0], np.cumsum(right[order])])

  def interpolate(strength, log_fpr):
    del strength
    # At a rate of 0 everything that is certain is guessed.
    distinct = np.append(np.diff(fpr) > 0, True)
    return np.interp(np.exp(log_fpr), fpr[distinct], fnr[distinct])

  return Curves(interpolate, np.inf)


def enumerate_errors(channel, num, guesses, prior=0.5):
  """The law of the number of wrong guesses of the best attacker, by enumeration."""
  right, wrong = np.array(channel), np.array(channel[::-1])
  outputs = prior * right + (1 - prior) * wrong
  posterior = np.divide(prior * right, outputs)
  if guesses[1] == 0:
    error = 1 - posterior
  elif guesses[0] == 0:
    error = posterior
  else:
    error = np.minimum(posterior, 1 - posterior)
  num_guesses = sum(guesses)
  law = np.zeros(num_guesses + 1)
  for seen in itertools.product(range(len(channel)), repeat=num):
    errors = np.sort(error[list(seen)])[:num_guesses]
    counts = np.ones(1)
    for e in errors:
      counts = np.convolve(counts, [1 - e, e])
    law += np.prod(outputs[list(seen)]) * counts
  return np.cumsum(law)


@pytest.mark.parametrize('name', CHANNELS)
@pytest.mark.parametrize(
  ('num', 'guesses', 'prior'),
  [
    (1, (1, 0), 0.5),
    (5, (1, 1), 0.5),
    (5, (2, 3), 0.5),
    (5, (0, 4), 0.5),
    (5, (2, 0), 0.2),
    (5, (0, 3), 0.8),
    (5, (5, 0), 0.3),
  ],
)
def test_the_law_of_wrong_guesses_is_the_enumerated_one(
  name, num, guesses, prior
):
  curve = curve_of(CHANNELS[name])
  expected = enumerate_errors(CHANNELS[name], num, guesses, prior)
  for wrong, tail in enumerate(expected):
    found = independent_p_value(
      curve,
      1.0,
      num_canaries=num,
      guesses=guesses,
      wrong=wrong,
      inclusion_probability=prior,
    )
    assert found == pytest.approx(tail, rel=2e-3)


@pytest.mark.parametrize('epsilon', [0.0, 1.0, 4.0, 200.0])
@pytest.mark.parametrize('delta', [1e-9, 0.05])
def test_of_approximate_dp_a_few_canaries_are_given_away(epsilon, delta):
  """Its worst pair tells a canary outright with chance δ, or else lies a little."""
  num, guesses = 12, (3, 4)
  error = special.expit(-epsilon)
  revealed = np.arange(num + 1)
  given_away = stats.binom.pmf(revealed, num, delta)
  curve = tradeoff.approximate_dp_curves(delta)
  for wrong in range(8):
    hidden = np.maximum(sum(guesses) - revealed, 0)
    tail = np.sum(given_away * stats.binom.cdf(wrong, hidden, error))
    found = independent_p_value(
      curve, epsilon, num_canaries=num, guesses=guesses, wrong=wrong
    )
    assert found == pytest.approx(tail, rel=3e-3)


@pytest.mark.parametrize(
  ('num', 'guesses', 'prior'),
  [(12, (3, 4), 0.5), (12, (12, 0), 0.5), (100, (10, 0), 0.1)],
)
def test_the_law_of_gaussian_channels_is_the_simulated_one(num, guesses, prior):
  rng, mu, draws = np.random.default_rng(0), 1.2, 20_000
  taken = rng.random((draws, num)) < prior
  log_odds = mu * (rng.normal(size=taken.shape) + mu * taken) - mu**2 / 2
  log_odds += special.logit(prior)
  if guesses[1]:
    confidence, wrong = np.abs(log_odds), (log_odds > 0) != taken
  else:
    confidence, wrong = log_odds, ~taken
  best = np.argsort(-confidence, axis=1)[:, : sum(guesses)]
  errors = np.sum(np.take_along_axis(wrong, best, axis=1), axis=1)
  curve = tradeoff.family_curves(GAUSSIAN)
  for u in np.unique(np.quantile(errors, [0.001, 0.02, 0.3, 0.8]).astype(int)):
    found = independent_p_value(
      curve,
      mu,
      num_canaries=num,
      guesses=guesses,
      wrong=int(u),
      inclusion_probability=prior,
    )
    simulated = np.sum(errors <= u)
    low, high = stats.binom.interval(1 - 1e-5, draws, found)
    assert low <= simulated <= high


def test_the_p_value_falls_with_guesses_that_are_right():
  curve = tradeoff.family_curves(GAUSSIAN)
  for num, pair in ((100, (30, 30)), (100, (50, 50)), (10**6, (1000, 0))):
    of = functools.partial(
      independent_p_value, curve, num_canaries=num, guesses=pair
    )
    values = [of(1.0, wrong=u) for u in range(0, sum(pair) + 1, 20)]
    assert np.all(np.diff(values) >= 0)
    rising = [of(mu, wrong=10) for mu in (0.0, 0.5, 1.0, 2.0, 8.0, 60.0)]
    assert np.all(np.diff(rising) >= -1e-12)
    assert values[-1] == pytest.approx(1.0)
    assert rising[-1] == pytest.approx(1.0)


# Guesses.


def test_ties_are_broken_as_badly_as_they_can_be():
  rng = np.random.default_rng(1)
  truth = np.array([True] * 5 + [False] * 6)
  for _ in range(8):
    pooled = rng.integers(0, 3, 11).astype(float)
    scores = coins(pooled[:5], pooled[5:])
    # Any order of tied canaries, told by a random key.
    ranks = [np.lexsort((key, -pooled)) for key in rng.random((500, 11))]
    for k in (1, 3, 6, 11):
      right_in = [np.sum(truth[order[:k]]) for order in ranks]
      right_out = [np.sum(~truth[order[11 - k :]]) for order in ranks]
      assert count_correct(scores, (k, 0)) == min(right_in)
      assert count_correct(scores, (0, k)) == min(right_out)
  # Constant scores say nothing, and must not be sorted by the truth.
  constant = coins(np.zeros(500), np.zeros(500))
  assert count_correct(constant, (300, 300)) == 0
  for estimator in ESTIMATORS:
    assert estimator(constant, delta=DELTA).epsilon == 0


def test_distinct_scores_are_counted_from_both_ends():
  scores = coins(np.array([5.0, 4.0, 1.0]), np.array([3.0, 2.0, 0.0]))
  expected = {(1, 0): 1, (2, 0): 2, (3, 0): 2, (0, 1): 1, (0, 2): 1, (3, 3): 4}
  for pair, count in expected.items():
    assert count_correct(scores, pair) == count


def test_default_guesses_are_near_the_best_in_hindsight():
  for estimator in (one_run, one_run_gdp):
    for mu in (1.0, 5.0):
      exact = tradeoff.epsilon_gdp(mu, DELTA)
      scores = coins(mu + quantiles(1000), quantiles(1000))
      hindsight = max(
        estimator(scores, delta=DELTA, guesses=[(k, k)]).epsilon
        for k in np.geomspace(10, 1000, 8).astype(int).tolist()
      )
      bound = estimator(scores, delta=DELTA).epsilon
      assert 0.75 * hindsight < bound < exact
      assert hindsight < exact


# Closed forms and other programs.


def test_no_error_has_its_closed_form():
  # P(r right) = q^r is the significance at q = α^(1/r).
  scores = coins(np.ones(300), np.zeros(200))
  for pair in ((300, 200), (10, 0), (0, 200)):
    estimate = one_run(scores, delta=0, guesses=[pair])
    expected = special.logit(0.05 ** (1 / sum(pair)))
    assert estimate.epsilon == pytest.approx(expected, rel=1e-7)
  # The same of channels: (1 - γ̄)^n.
  bound = OF_GAUSSIAN(separated(50), delta=DELTA, guesses=[(50, 50)])
  mu = -2 * special.ndtri(1 - 0.05 ** (1 / 100))
  expected = tradeoff.epsilon_gdp(mu, DELTA)
  assert bound.epsilon == pytest.approx(expected, rel=1e-6)


def test_both_bounds_agree_with_jax_privacy():
  auditing = pytest.importorskip('jax_privacy.auditing')
  rng = np.random.default_rng(0)
  observed, unobserved = rng.normal(1.5, 1, 240), rng.normal(size=260)
  scores = coins(observed, unobserved)
  auditor = auditing.CanaryScoreAuditor(observed, unobserved)
  pooled = np.sort(np.concatenate([observed, unobserved]))[::-1]
  for k, delta, significance in (
    (1, 1e-5, 0.05),
    (50, 1e-3, 0.01),
    (500, 1e-5, 0.05),
  ):
    theirs = dict(threshold_strategy=auditing.Explicit(pooled[k - 1]))
    setting = dict(delta=delta, significance=significance, guesses=[(k, 0)])
    assert one_run(scores, **setting).epsilon == pytest.approx(
      auditor.epsilon_one_run(significance, delta, **theirs), abs=3e-6
    )
    assert one_run_gdp(scores, **setting).epsilon == pytest.approx(
      auditor.epsilon_one_run_fdp(significance, delta, **theirs), abs=3e-6
    )


def test_randomised_response_is_found_tightly_by_many_guesses():
  right = special.expit(2.0)
  n = 100_000
  answers = np.where(np.arange(n) < right * n, 1.0, 0.0)
  k = int(0.49 * 2 * n)
  estimate = one_run(coins(answers, 1 - answers), delta=1e-9, guesses=[(k, k)])
  assert 1.8 < estimate.epsilon < 2.0
  rng = np.random.default_rng(9)
  scores, taken = draw_randomized_response(rng, 1, 20_000, 0.1, 1.0)
  bound = one_run(
    make_scores(scores[0], taken[0], 0.1), delta=1e-9, guesses=[(2000, 0)]
  )
  assert 0.85 < bound.epsilon < 1.0
  assert bound.assumes == (Assumption.COINS,)


# What is promised.


def draw_randomized_response(rng, audits, num, prior, epsilon):
  taken = rng.random((audits, num)) < prior
  errs = rng.random((audits, num)) > special.expit(epsilon)
  # Distinct scores, whose order within one answer says nothing.
  return 1.0 * (taken != errs) + 0.1 * rng.random((audits, num)), taken


def draw_coupled(rng, audits, num, prior, epsilon):
  """Scores of a mechanism that errs on all canaries at once."""
  taken = rng.random((audits, num)) < prior
  return laws.draw_scores(laws.coupled(epsilon, DELTA), rng, taken), taken


@pytest.mark.parametrize('prior', [0.1, 0.5, 0.8])
@pytest.mark.parametrize('draw', [draw_randomized_response, draw_coupled])
def test_of_any_coins_one_run_bounds_what_any_mechanism_says_of_several_at_once(
  prior, draw
):
  audits, num, epsilon = 200, 500, 3.0
  scores, taken = draw(np.random.default_rng(8), audits, num, prior, epsilon)
  bounds = [
    one_run(make_scores(one, is_in, prior), delta=DELTA).epsilon
    for one, is_in in zip(scores, taken)
  ]
  # A failure has probability 1e-6 at exact coverage.
  assert np.sum(np.array(bounds) > epsilon) <= stats.binom.isf(
    1e-6, audits, 0.05
  )


@pytest.mark.parametrize('mu', [0.0, 2.0])
def test_gaussian_mechanism_is_not_rejected_too_often(mu):
  rng = np.random.default_rng(3)
  epsilon = tradeoff.epsilon_gdp(mu, DELTA)
  taken = rng.random((100, 300)) < 0.5
  scores = mu * taken + rng.normal(size=taken.shape)
  for estimator in (one_run, one_run_gdp):
    # One choice, so that Bonferroni leaves no slack.
    bound = np.array(
      [
        estimator(make_scores(s, t), delta=DELTA, guesses=[(30, 30)]).epsilon
        for s, t in zip(scores, taken)
      ]
    )
    assert np.sum(bound > epsilon) <= stats.binom.isf(1e-6, 100, 0.05)
    if mu:
      assert np.mean(bound > 0.1 * epsilon) > 0.9


@pytest.mark.parametrize(
  ('prior', 'guesses'), [(0.5, (60, 60)), (0.1, (20, 0))]
)
@pytest.mark.parametrize('family', [None, GAUSSIAN])
def test_independent_leaks_are_not_rejected_too_often(family, prior, guesses):
  rng, mu, audits = np.random.default_rng(1), 2.0, 1000
  truth = tradeoff.epsilon_gdp(mu, DELTA)

  @functools.cache
  def is_rejected(correct):
    of_any = tradeoff.approximate_dp_curves(DELTA), truth
    found = independent_p_value(
      *(of_any if family is None else (tradeoff.family_curves(family), mu)),
      num_canaries=300,
      guesses=guesses,
      wrong=sum(guesses) - correct,
      inclusion_probability=prior,
    )
    return found < 0.05

  rejected, bounds = 0, []
  for i in range(audits):
    taken = flip(rng, 300, prior)
    scores = make_scores(rng.normal(size=300) + mu * taken, taken, prior)
    rejects = is_rejected(int(count_correct(scores, guesses)))
    rejected += rejects
    if i < 5:
      bound = one_run_independent(
        scores, delta=DELTA, family=family, guesses=[guesses]
      )
      assert (bound.epsilon > truth) == rejects
      bounds.append(bound.epsilon)
  # At exact coverage a failure has probability 1e-6.
  assert rejected <= stats.binom.isf(1e-6, audits, 0.05)
  assert np.mean(bounds) > (0.2 if family is None else 0.6) * truth


@pytest.mark.integration
def test_what_independence_costs_is_seen_where_canaries_err_together():
  rng, mu, audits = np.random.default_rng(2), 1.0, 100
  truth = tradeoff.epsilon_gdp(mu, DELTA)
  exceeded = dict.fromkeys((one_run, one_run_gdp, OF_GAUSSIAN), 0)
  for _ in range(audits):
    # One error probability for all canaries: every bit is a μ-Gaussian channel.
    taken = flip(rng, 400)
    log_odds = abs(rng.normal(mu**2 / 2, mu))
    told = taken ^ (rng.random(400) < special.expit(-log_odds))
    # Distinct, in an order that says no more than the answer.
    scores = make_scores(told + 0.1 * rng.random(400), taken)
    for estimator in exceeded:
      bound = estimator(scores, delta=DELTA, guesses=[(200, 200)])
      exceeded[estimator] += bound.epsilon > truth
  limit = stats.binom.isf(1e-6, audits, 0.05)
  assert exceeded[one_run] <= limit
  assert exceeded[one_run_gdp] <= limit
  assert exceeded[OF_GAUSSIAN] > 2 * limit


def test_the_best_of_many_guesses_needs_its_correction():
  rng = np.random.default_rng(4)
  taken = rng.random((120, 200)) < 0.5
  audits = [make_scores(rng.normal(size=200), t) for t in taken]
  pairs = [(k, 0) for k in range(5, 155, 10)]
  of = functools.cache(
    lambda r, v: p_value(0.0, 0.0, num_canaries=200, num_guesses=r, correct=v)
  )
  smallest = np.array(
    [
      min(of(pair[0], int(count_correct(audit, pair))) for pair in pairs)
      for audit in audits
    ]
  )
  assert np.mean(smallest <= 0.05) > 0.05 + 5 * np.sqrt(0.0475 / 120)
  corrected = np.array(
    [one_run(audit, delta=0, guesses=pairs).epsilon for audit in audits]
  )
  np.testing.assert_array_equal(corrected > 0, smallest < 0.05 / len(pairs))


@pytest.mark.parametrize('prior', [0.1, 0.5, 0.8])
def test_by_coins_of_any_probability_the_first_bound_assumes_nothing_else(
  prior,
):
  rng = np.random.default_rng(0)
  num = int(80 * prior)
  audit = coins(rng.normal(size=num), rng.normal(size=80 - num), prior)
  bounds = registry.choose_bounds(audit)
  assert bounds[0](audit, delta=DELTA).assumes == (Assumption.COINS,)


def test_families_give_more_than_the_guarantee_at_one_delta():
  rng = np.random.default_rng(3)
  taken = flip(rng, 1000)
  scores = make_scores(rng.normal(size=1000) + taken, taken)
  of_any, of_gaussian = (
    one_run_independent(scores, delta=DELTA, family=family)
    for family in (None, GAUSSIAN)
  )
  assert one_run(scores, delta=DELTA).epsilon < of_any.epsilon
  assert of_any.epsilon < 0.6 * of_gaussian.epsilon
  # Xiang et al. report some 84 % of μ from a thousand canaries.
  assert 0.75 < tradeoff.mu_of_epsilon(of_gaussian.epsilon, DELTA) < 1
  assert of_any.method == 'one_run_independent'
  assert of_gaussian.method == 'one_run_independent_gdp'
  assert of_any.assumes == (Assumption.COINS, Assumption.INDEPENDENT)
  assert of_gaussian.assumes[2:] == (Assumption.FAMILY,)
  # Of a sample of a tenth no member explains that every guess is right.
  family = families.subsampled_gaussian_family(0.1)
  bound = one_run_independent(
    separated(100), delta=DELTA, family=family, guesses=[(90, 90)]
  )
  assert bound.epsilon == np.inf


def test_seldom_canaries_are_guessed_in_alone():
  rng = np.random.default_rng(4)
  taken = flip(rng, 2000, 0.05)
  scores = make_scores(rng.normal(size=2000) + 4 * taken, taken, 0.05)
  truth = tradeoff.epsilon_gdp(4.0, DELTA)
  bound = OF_GAUSSIAN(scores, delta=DELTA).epsilon
  assert 0.5 * truth < bound < truth
  assert choose_guesses(5000, 0.02) == ((75, 0), (25, 0), (6, 0))
  assert choose_guesses(5000, 0.98) == ((0, 75), (0, 25), (0, 6))
  assert choose_guesses(3, 0.1) == ((1, 0),)
  # The mirror image says the same.
  mirrored = coins(-scores.unobserved, -scores.observed, 0.95)
  assert OF_GAUSSIAN(mirrored, delta=DELTA).epsilon == pytest.approx(
    bound, rel=1e-9
  )


@pytest.mark.usefixtures('types_unchecked')
@pytest.mark.parametrize('estimator', ESTIMATORS)
def test_other_designs_and_impossible_guesses_are_refused(estimator):
  with pytest.raises(ValueError, match="independent coins, but design='fixed'"):
    estimator(Scores(np.ones(5), np.zeros(5)), delta=DELTA)
  for guesses in ([(6, 5)], [(-1, 2)], [(0, 0)]):
    with pytest.raises(ValueError, match='between 1 and the 10 canaries'):
      estimator(separated(5), delta=DELTA, guesses=guesses)
  for guesses in ([], 'abc', 5, [(1.5, 2)], [1, 2], [(1, 2, 3)], [('a', 1)]):
    with pytest.raises(ValueError, match=r'guesses=.*pairs of integers'):
      estimator(separated(5), delta=DELTA, guesses=guesses)
  biased = make_scores(np.arange(9.0), np.arange(9) > 5, 0.3)
  told = r'give pairs with a 0, as \(4, 0\)|inclusion_probability=0\.3, but one'
  with pytest.raises(ValueError, match=told):
    estimator(biased, delta=DELTA, guesses=[(2, 2)])


# Not so unequal that they are refused.
GROUP = st.lists(st.integers(-2, 2), min_size=1, max_size=20)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
  GROUP, GROUP, st.sampled_from([1e-300, 1e-5, 0.3]), st.floats(1e-9, 0.99)
)
def test_any_scores_give_a_finite_bound(observed, unobserved, delta, level):
  scores = coins(np.array(observed), np.array(unobserved))
  for estimator in (one_run, one_run_gdp):
    epsilon = estimator(scores, delta=delta, significance=level).epsilon
    assert 0 <= epsilon < np.inf
