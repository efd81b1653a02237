"""One-run bounds of independent leaks against enumeration and simulation."""

import functools
import itertools

import numpy as np
import pytest
from scipy import special, stats

from epe_jax.dpsgd import families
from epe_jax.epsilon import (
  approximate_dp,
  f_dp,
  guessing,
  rank_bound,
  tradeoff_curves,
  two_gaussians,
)
from epe_jax.epsilon.independent import one_run_independent, p_value
from epe_jax.epsilon.rank_bound import Curve
from epe_jax.epsilon.types import Assumption, Scores

DELTA = 1e-5
GAUSSIAN = tradeoff_curves.gaussian_family()
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

  return Curve(interpolate, np.inf)


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
    (6, (2, 3), 0.5),
    (6, (3, 3), 0.5),
    (6, (2, 0), 0.5),
    (6, (0, 5), 0.5),
    (6, (2, 0), 0.2),
    (6, (0, 3), 0.8),
    (6, (6, 0), 0.3),
  ],
)
def test_the_law_of_wrong_guesses_is_the_enumerated_one(
  name, num, guesses, prior
):
  curve = curve_of(CHANNELS[name])
  expected = enumerate_errors(CHANNELS[name], num, guesses, prior)
  for wrong, tail in enumerate(expected):
    found = p_value(
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
  curve = rank_bound.approximate_dp_curve(delta)
  for wrong in range(8):
    hidden = np.maximum(sum(guesses) - revealed, 0)
    tail = np.sum(given_away * stats.binom.cdf(wrong, hidden, error))
    found = p_value(
      curve, epsilon, num_canaries=num, guesses=guesses, wrong=wrong
    )
    assert found == pytest.approx(tail, rel=3e-3)


@pytest.mark.parametrize(
  ('num', 'guesses', 'prior'),
  [(12, (3, 4), 0.5), (12, (12, 0), 0.5), (300, (20, 0), 0.1)],
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
  curve = rank_bound.family_curve(GAUSSIAN)
  for u in np.unique(np.quantile(errors, [0.001, 0.02, 0.3, 0.8]).astype(int)):
    found = p_value(
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


def flip(rng, num, prior=0.5):
  taken = rng.random(num) < prior
  # A run has canaries of both kinds.
  taken[:2] = True, False
  return taken


def make_scores(values, taken, prior=0.5):
  return Scores(
    values[taken],
    values[~taken],
    design='coin_flip',
    inclusion_probability=prior,
  )


@pytest.mark.parametrize(
  ('prior', 'guesses'), [(0.5, (60, 60)), (0.1, (20, 0))]
)
@pytest.mark.parametrize('family', [None, GAUSSIAN])
def test_independent_leaks_are_not_rejected_too_often(family, prior, guesses):
  rng, mu, audits = np.random.default_rng(1), 2.0, 1000
  truth = two_gaussians.epsilon_two_gaussians(0.0, 1.0, mu, 1.0, DELTA)

  @functools.cache
  def is_rejected(correct):
    of_any = rank_bound.approximate_dp_curve(DELTA), truth
    found = p_value(
      *(of_any if family is None else (rank_bound.family_curve(family), mu)),
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
    rejects = is_rejected(int(guessing.count_correct(scores, guesses)))
    rejected += rejects
    if i < 10:
      bound = one_run_independent(
        scores, delta=DELTA, family=family, guesses=[guesses]
      )
      assert (bound.epsilon > truth) == rejects
      bounds.append(bound.epsilon)
  # At exact coverage a failure has probability 1e-6.
  assert rejected <= stats.binom.isf(1e-6, audits, 0.05)
  assert np.mean(bounds) > (0.2 if family is None else 0.6) * truth


def draw_coupled(rng, mu, num):
  """One error probability for all canaries: every bit is a μ-Gaussian channel."""
  taken = flip(rng, num)
  log_odds = abs(rng.normal(mu**2 / 2, mu))
  told = taken ^ (rng.random(num) < special.expit(-log_odds))
  # Distinct, in an order that says no more than the answer.
  return make_scores(told + 0.1 * rng.random(num), taken)


@pytest.mark.integration
def test_what_independence_costs_is_seen_where_canaries_err_together():
  rng, mu, audits = np.random.default_rng(2), 1.0, 100
  truth = two_gaussians.epsilon_two_gaussians(0.0, 1.0, mu, 1.0, DELTA)
  exceeded = dict.fromkeys(('any', 'gdp', 'independent'), 0)
  for _ in range(audits):
    scores = draw_coupled(rng, mu, 400)
    setting = dict(delta=DELTA, guesses=[(200, 200)])
    bounds = {
      'any': approximate_dp.one_run(scores, **setting),
      'gdp': f_dp.one_run_gdp(scores, **setting),
      'independent': one_run_independent(scores, family=GAUSSIAN, **setting),
    }
    for name, bound in bounds.items():
      exceeded[name] += bound.epsilon > truth
  limit = stats.binom.isf(1e-6, audits, 0.05)
  assert exceeded['any'] <= limit
  assert exceeded['gdp'] <= limit
  assert exceeded['independent'] > 2 * limit


def test_families_give_more_than_the_guarantee_at_one_delta():
  rng = np.random.default_rng(3)
  taken = flip(rng, 1000)
  scores = make_scores(rng.normal(size=1000) + taken, taken)
  truth = two_gaussians.epsilon_two_gaussians(0.0, 1.0, 1.0, 1.0, DELTA)
  subsampled = families.subsampled_gaussian_family(1.0)
  of_any, of_gaussian, of_same = (
    one_run_independent(scores, delta=DELTA, family=family)
    for family in (None, GAUSSIAN, subsampled)
  )
  assert of_gaussian.epsilon == pytest.approx(of_same.epsilon, rel=1e-6)
  assert approximate_dp.one_run(scores, delta=DELTA).epsilon < of_any.epsilon
  assert of_any.epsilon < 0.6 * of_gaussian.epsilon
  # Xiang et al. report some 84 % of μ from a thousand canaries.
  mu = tradeoff_curves.mu_of_epsilon(of_gaussian.epsilon, DELTA)
  assert 0.75 < mu < 1
  assert of_gaussian.epsilon < truth
  assert of_any.method == 'one_run_independent'
  assert of_gaussian.method == 'one_run_independent_gdp'
  assert of_any.assumes == (Assumption.COINS, Assumption.INDEPENDENT)
  assert of_gaussian.assumes[2:] == (Assumption.FAMILY,)
  assert of_any.is_shape_free
  assert not of_gaussian.is_shape_free


def test_scores_that_no_member_of_a_family_allows_reject_it():
  # A tenth of the canaries is in the sample, but every guess is right.
  family = families.subsampled_gaussian_family(0.1)
  scores = make_scores(
    np.repeat([1.0, 0.0], 100), np.repeat([True, False], 100)
  )
  bound = one_run_independent(
    scores, delta=DELTA, family=family, guesses=[(90, 90)]
  )
  assert bound.epsilon == np.inf


def test_seldom_canaries_are_guessed_in_alone():
  rng = np.random.default_rng(4)
  taken = flip(rng, 5000, 0.02)
  scores = make_scores(rng.normal(size=5000) + 4 * taken, taken, 0.02)
  truth = two_gaussians.epsilon_two_gaussians(0.0, 1.0, 4.0, 1.0, DELTA)
  assert (
    0.5 * truth
    < one_run_independent(scores, delta=DELTA, family=GAUSSIAN).epsilon
    < truth
  )
  assert guessing.choose_guesses(5000, 0.02) == ((75, 0), (25, 0), (6, 0))
  assert guessing.choose_guesses(5000, 0.98) == ((0, 75), (0, 25), (0, 6))
  assert guessing.choose_guesses(3, 0.1) == ((1, 0),)
  # The mirror image says the same.
  mirrored = Scores(
    -scores.unobserved,
    -scores.observed,
    design='coin_flip',
    inclusion_probability=0.98,
  )
  setting = dict(delta=DELTA, family=GAUSSIAN)
  assert one_run_independent(mirrored, **setting).epsilon == pytest.approx(
    one_run_independent(scores, **setting).epsilon, rel=1e-9
  )


def test_the_p_value_falls_with_guesses_that_are_right():
  curve = rank_bound.family_curve(GAUSSIAN)
  for num, pair in ((100, (30, 30)), (100, (50, 50)), (10**6, (1000, 0))):
    values = [
      p_value(curve, 1.0, num_canaries=num, guesses=pair, wrong=u)
      for u in range(0, sum(pair) + 1, 10)
    ]
    assert np.all(np.diff(values) >= 0)
    assert values[-1] == pytest.approx(1.0)
    rising = [
      p_value(curve, mu, num_canaries=num, guesses=pair, wrong=10)
      for mu in (0.0, 0.5, 1.0, 2.0, 8.0, 60.0)
    ]
    assert np.all(np.diff(rising) >= -1e-12)
    assert rising[-1] == pytest.approx(1.0)


def test_other_designs_and_impossible_settings_are_refused():
  scores = make_scores(np.repeat([1.0, 0.0], 5), np.repeat([True, False], 5))
  with pytest.raises(ValueError, match="independent coins, but design='fixed'"):
    one_run_independent(Scores(np.ones(5), np.zeros(5)), delta=DELTA)
  biased = make_scores(np.arange(9.0), np.arange(9) > 5, 0.3)
  with pytest.raises(ValueError, match=r'give pairs with a 0, as \(4, 0\)'):
    one_run_independent(biased, delta=DELTA, guesses=[(2, 2)])
  with pytest.raises(ValueError, match=r'give pairs with a 0, as \(4, 0\)'):
    approximate_dp.one_run(biased, delta=DELTA, guesses=[(2, 2)])
  with pytest.raises(ValueError, match=r'inclusion_probability=0\.3, but'):
    f_dp.one_run_gdp(biased, delta=DELTA)
  for wrong in (0.0, 1.0, -1.0):
    with pytest.raises(ValueError, match='inclusion_probability'):
      make_scores(np.arange(9.0), np.arange(9) > 5, wrong)
  with pytest.raises(ValueError, match=r'delta=0'):
    one_run_independent(scores, delta=0)
  with pytest.raises(ValueError, match='correct=4'):
    p_value(
      rank_bound.family_curve(GAUSSIAN),
      1.0,
      num_canaries=9,
      guesses=(2, 1),
      wrong=-1,
    )


def test_leading_axes_are_independent_audits():
  rng = np.random.default_rng(5)
  scores = Scores(
    rng.normal(1, 1, (2, 90)), rng.normal(size=(2, 110)), design='coin_flip'
  )
  together = one_run_independent(scores, delta=DELTA).epsilon
  for i in range(2):
    alone = Scores(scores.observed[i], scores.unobserved[i], design='coin_flip')
    assert together[i] == one_run_independent(alone, delta=DELTA).epsilon


def test_all_right_of_all_canaries_has_its_closed_form():
  # All guesses right, of all canaries: γ̄^0 (1 - γ̄)^n is the significance.
  scores = make_scores(np.repeat([1.0, 0.0], 50), np.repeat([True, False], 50))
  bound = one_run_independent(
    scores, delta=DELTA, family=GAUSSIAN, guesses=[(50, 50)]
  )
  error = 1 - 0.05 ** (1 / 100)
  mu = -2 * special.ndtri(error)
  expected = two_gaussians.epsilon_two_gaussians(0.0, 1.0, mu, 1.0, DELTA)
  assert bound.epsilon == pytest.approx(expected, rel=1e-6)
