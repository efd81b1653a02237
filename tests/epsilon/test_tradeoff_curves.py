"""f-DP audits against closed forms, dp_accounting, and simulation."""

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
from scipy import optimize, stats

from epe_jax.dpsgd import families
from epe_jax.dpsgd.uncorrected import Uncorrected
from epe_jax.epsilon import noise_floor, threshold_bound, tradeoff_curves
from epe_jax.epsilon.corrections import (
  Band,
  Explicit,
  Split,
)
from epe_jax.epsilon.cosine_null import CosineNull
from epe_jax.epsilon.types import Scores, Sphere
from tests.epsilon import plds

DELTA = 1e-5
LOG_FPR = np.log([1e-6, 1e-3, 0.01, 0.1, 0.3, 0.5, 0.8, 0.99])
VALID = [
  Band(),
  Explicit((0.5,)),
  Explicit((0.2, 0.8)),
  Split(0),
]


def quantile_sample(num):
  return stats.norm.ppf((np.arange(num) + 0.5) / num)


def shifted(mu, num=1000):
  return Scores(quantile_sample(num) + mu, quantile_sample(num))


# Curves.


@pytest.mark.parametrize('mu', [0.1, 1.0, 7.0])
def test_the_gaussian_curve_is_that_of_the_best_test(mu):
  threshold = np.linspace(-3, 3, 7)
  fnr = tradeoff_curves.gaussian_family().fnr(
    1 / mu, stats.norm.logsf(threshold)
  )
  np.testing.assert_allclose(fnr, stats.norm.cdf(threshold - mu), rtol=1e-9)


def test_epsilon_of_mu_is_exact_far_beyond_any_accountant():
  for mu in (0.3, 3.0, 20.0, 300.0):
    epsilon = tradeoff_curves.epsilon_gdp(mu, DELTA)
    # Equation (6), its second term in logs.
    second = np.exp(epsilon + stats.norm.logcdf(-epsilon / mu - mu / 2))
    delta = stats.norm.cdf(-epsilon / mu + mu / 2) - second
    assert delta == pytest.approx(DELTA, rel=1e-6)
  assert tradeoff_curves.epsilon_gdp(300.0, DELTA) > 45_000
  assert tradeoff_curves.epsilon_gdp(0.0, DELTA) == 0


def test_releases_of_a_gaussian_compose_exactly():
  family = tradeoff_curves.gaussian_family(steps=9)
  assert family.epsilon(0.3, DELTA) == tradeoff_curves.epsilon_gdp(10.0, DELTA)


# Bounds.


def test_mu_is_zero_for_attacks_no_better_than_chance():
  # |μ| would be 2 for the reverse of a good attack.
  log_fpr, fnr = np.log([0.84, 0.5, 1.0, 1e-9]), np.array([0.84, 0.5, 0.1, 1.0])
  np.testing.assert_array_equal(tradeoff_curves.gdp_mu(log_fpr, fnr), 0)
  scores = Scores(quantile_sample(1000) - 2, quantile_sample(1000))
  for multiplicity in [*VALID, Uncorrected()]:
    estimate = threshold_bound.gdp_bound(
      scores, delta=DELTA, multiplicity=multiplicity
    )
    assert estimate.epsilon == 0


@pytest.mark.parametrize('mu', [0.5, 1.0, 3.0])
def test_gdp_is_equation_12_at_clopper_pearson_limits(mu):
  scores = shifted(mu)
  fp = np.sum(scores.unobserved >= mu / 2)
  fn = np.sum(scores.observed < mu / 2)
  limits = stats.beta.ppf(
    0.975, np.array([fp, fn]) + 1, 1000 - np.array([fp, fn])
  )
  expected = tradeoff_curves.epsilon_gdp(-np.sum(stats.norm.ppf(limits)), DELTA)
  estimate = threshold_bound.gdp_bound(
    scores, delta=DELTA, multiplicity=Explicit((mu / 2,))
  )
  assert estimate.epsilon == pytest.approx(expected, rel=1e-9)
  assert estimate.confidence == 0.95


@pytest.mark.parametrize('multiplicity', [Band(), Explicit((1.0,)), Split(0)])
@pytest.mark.parametrize(
  'family',
  [
    tradeoff_curves.gaussian_family(),
    families.subsampled_gaussian_family(1.0),
  ],
)
def test_the_solver_agrees_with_the_closed_form(family, multiplicity):
  settings = dict(delta=DELTA, multiplicity=multiplicity)
  for mu in (1.0, 3.0):
    exact = threshold_bound.gdp_bound(shifted(mu), **settings).epsilon
    solved = threshold_bound.family_bound(
      shifted(mu), family=family, **settings
    )
    assert solved.epsilon == pytest.approx(exact, rel=1e-6)
    # A split solves for limits, and rounds the noise up.
    assert multiplicity == Band() or solved.epsilon <= exact


def test_the_solver_finds_the_noise_of_rates_on_the_curve():
  for p in (0.05, 0.5):
    family = families.subsampled_gaussian_family(p)
    for noise in (0.2, 0.7):
      fnr = family.fnr(noise, LOG_FPR)
      for at in (slice(0, 3), slice(None)):
        found = tradeoff_curves.max_noise(family, LOG_FPR[at], fnr[at])
        assert found == pytest.approx(noise, rel=1e-5)
      # The strictest pair decides.
      one = tradeoff_curves.max_noise(family, LOG_FPR, fnr * 0.99)
      assert one < noise * (1 - 1e-4)


def test_bounds_are_below_the_truth_and_tight_on_quantile_samples():
  for mu in (1.0, 3.0):
    truth = tradeoff_curves.epsilon_gdp(mu, DELTA)
    for num, least in ((1000, 0.8), (100_000, 0.97)):
      best = threshold_bound.gdp_bound(
        shifted(mu, num), delta=DELTA, multiplicity=Explicit((mu / 2,))
      ).epsilon
      assert least * truth < best < truth
    band = threshold_bound.gdp_bound(shifted(mu), delta=DELTA).epsilon
    # Nasr et al., figure 3: (ε, δ)-DP needs far more than 1000 observations.
    plain = threshold_bound.lower_bound(shifted(mu), delta=DELTA).epsilon
    assert plain < band < truth
  assert (
    threshold_bound.gdp_bound(shifted(3.0), delta=DELTA).epsilon > 0.8 * truth
  )


@pytest.mark.integration
def test_a_subsampled_step_is_bounded_tightly_through_all_steps():
  noise, p, num = 0.5, 0.2, 20_000
  grid = np.linspace(-6, 8, 200_001)
  # Scores of a Gaussian that is shifted for a share p of the observed.
  mixture = (1 - p) * stats.norm.cdf(grid) + p * stats.norm.cdf(
    grid - 1 / noise
  )
  observed = np.interp((np.arange(num) + 0.5) / num, mixture, grid)
  scores = Scores(observed, quantile_sample(num))
  for steps, least in ((1, 0.9), (100, 0.85)):
    family = families.subsampled_gaussian_family(p, steps=steps)
    truth = family.epsilon(noise, DELTA)
    bound = threshold_bound.family_bound(
      scores, family=family, delta=DELTA, multiplicity=Explicit((2.0,))
    )
    assert least * truth < bound.epsilon < truth
  # A plain Gaussian does not explain these scores as well.
  plain = threshold_bound.gdp_bound(
    scores, delta=DELTA, multiplicity=Explicit((2.0,))
  )
  one = families.subsampled_gaussian_family(p).epsilon(noise, DELTA)
  assert plain.epsilon < 0.9 * one


@pytest.mark.integration
def test_scores_that_no_member_of_the_family_allows_refute_it():
  # Sampled with probability 0.1, a canary is missed nine times out of ten.
  separated = Scores(np.linspace(5, 6, 1000), np.linspace(0, 1, 1000))
  for family in (
    families.subsampled_gaussian_family(0.1, steps=10),
    families.pld_family(lambda z: plds.from_dp_accounting(z, 0.1)),
  ):
    settings = dict(family=family, delta=DELTA, multiplicity=Explicit((3.0,)))
    assert threshold_bound.family_bound(separated, **settings).epsilon == np.inf
  assert np.isfinite(threshold_bound.gdp_bound(separated, delta=DELTA).epsilon)


@pytest.mark.integration
def test_a_composed_pld_is_audited_as_a_whole():
  noise, p, steps = 1.0, 0.05, 50
  family = families.pld_family(lambda z: plds.from_dp_accounting(z, p, steps))
  # A Gaussian near the composed mechanism, in the middle of its curve.
  fpr = np.array([0.1])
  fnr = family.fnr(noise, np.log(fpr))
  found = tradeoff_curves.max_noise(family, np.log(fpr), fnr)
  assert found == pytest.approx(noise, rel=1e-5)


@pytest.mark.parametrize('multiplicity', VALID)
def test_valid_bounds_exceed_the_truth_as_seldom_as_they_say(multiplicity):
  rng = np.random.default_rng(0)
  simulations, mu = 300, 1.0
  scores = Scores(
    rng.normal(mu, 1, (simulations, 200)), rng.normal(0, 1, (simulations, 200))
  )
  estimate = threshold_bound.gdp_bound(
    scores, delta=DELTA, significance=0.2, multiplicity=multiplicity
  )
  assert estimate.confidence == 0.8
  excess = np.mean(estimate.epsilon > tradeoff_curves.epsilon_gdp(mu, DELTA))
  # Five standard errors: a failure has probability 3e-7.
  assert excess < 0.2 + 5 * np.sqrt(0.2 * 0.8 / simulations)


def test_the_best_of_all_thresholds_is_no_bound():
  rng = np.random.default_rng(1)
  scores = Scores(rng.normal(size=(400, 500)), rng.normal(size=(400, 500)))
  settings = dict(delta=DELTA, significance=0.2)
  estimate = threshold_bound.gdp_bound(
    scores, **settings, multiplicity=Uncorrected()
  )
  assert estimate.confidence is None
  # Nothing leaks: a valid bound is above 0 in at most 20 %, this one in 42 %.
  error = np.sqrt(0.2 * 0.8 / 400)
  assert np.mean(estimate.epsilon > 0) > 0.2 + 5 * error
  band = np.asarray(threshold_bound.gdp_bound(scores, **settings).epsilon)
  assert np.mean(band > 0) < 0.2 + 5 * error


def test_an_exact_null_spends_everything_on_the_fnr():
  law = CosineNull(10_000)
  observed = quantile_sample(1000) / 100 + 0.05
  scores = Scores(observed, np.empty(0), null=Sphere(10_000))
  fnr = stats.beta.ppf(
    0.95, np.sum(observed < 0.06) + 1, np.sum(observed >= 0.06)
  )
  mu = -stats.norm.ppf(law.sf(0.06)) - stats.norm.ppf(fnr)
  estimate = threshold_bound.gdp_bound(
    scores, delta=DELTA, multiplicity=Explicit((0.06,))
  )
  assert estimate.epsilon == pytest.approx(
    tradeoff_curves.epsilon_gdp(mu, DELTA)
  )


def test_cosines_far_beyond_the_null_prove_thousands():
  scores = Scores(np.full(1000, 0.5), np.empty(0), null=Sphere(10**5))
  at = np.array([CosineNull(10**5).logsf(0.5)])
  mu = tradeoff_curves.gdp_mu(at, np.array([1 - 0.05 ** (1 / 1000)]))[0]
  assert mu > 150
  estimate = threshold_bound.gdp_bound(
    scores, delta=DELTA, multiplicity=Explicit((0.5,))
  )
  assert estimate.epsilon == pytest.approx(
    tradeoff_curves.epsilon_gdp(mu, DELTA)
  )
  assert estimate.epsilon > 10_000
  certain = Scores(np.ones(3), np.empty(0), null=Sphere(10))
  assert threshold_bound.gdp_bound(certain, delta=DELTA).epsilon == np.inf


@pytest.mark.integration
def test_leading_axes_are_independent_audits():
  rng = np.random.default_rng(2)
  scores = Scores(rng.normal(2, 1, (2, 3, 40)), rng.normal(size=(2, 3, 50)))
  for multiplicity in [*VALID, Uncorrected()]:
    settings = dict(delta=DELTA, multiplicity=multiplicity)
    together = np.asarray(threshold_bound.gdp_bound(scores, **settings).epsilon)
    by_family = threshold_bound.family_bound(
      scores, family=tradeoff_curves.gaussian_family(), **settings
    )
    assert together.shape == (2, 3)
    np.testing.assert_allclose(by_family.epsilon, together, rtol=1e-5)
    for at in np.ndindex(2, 3):
      alone = Scores(scores.observed[at], scores.unobserved[at])
      assert (
        together[at] == threshold_bound.gdp_bound(alone, **settings).epsilon
      )


def test_the_noise_floor_of_a_valid_bound_is_zero():
  result = noise_floor.estimate_noise_floor(
    np.random.default_rng(3),
    threshold_bound.gdp_bound,
    delta=DELTA,
    num_observed=200,
    num_unobserved=200,
    simulations=200,
  )
  assert result.q50 == 0


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(
  observed=st.lists(st.integers(-3, 3), min_size=2, max_size=30),
  unobserved=st.lists(st.integers(-3, 3), min_size=2, max_size=30),
  multiplicity=st.sampled_from([*VALID, Uncorrected()]),
  family=st.sampled_from(
    [
      tradeoff_curves.gaussian_family(),
      families.subsampled_gaussian_family(0.3, steps=1),
    ]
  ),
)
def test_any_scores_give_a_number(observed, unobserved, multiplicity, family):
  scores = Scores(np.array(observed), np.array(unobserved))
  settings = dict(delta=DELTA, multiplicity=multiplicity)
  exact = threshold_bound.gdp_bound(scores, **settings).epsilon
  solved = threshold_bound.family_bound(
    scores, family=family, **settings
  ).epsilon
  assert 0 <= exact < np.inf
  assert solved >= 0


def test_one_score_of_each_kind_gives_a_number():
  scores = Scores(np.ones(1), np.zeros(1))
  assert threshold_bound.gdp_bound(scores, delta=DELTA).epsilon == 0
  with pytest.raises(ValueError, match='leaves one part empty'):
    threshold_bound.gdp_bound(scores, delta=DELTA, multiplicity=Split(0))


def test_settings_out_of_range_are_refused():
  scores = shifted(1.0, 10)
  with pytest.raises(ValueError, match='delta=0'):
    threshold_bound.gdp_bound(scores, delta=0.0)
  with pytest.raises(ValueError, match='significance=1'):
    threshold_bound.gdp_bound(scores, delta=DELTA, significance=1.0)
  with pytest.raises(ValueError, match='steps=0'):
    tradeoff_curves.gaussian_family(steps=0)


def test_epsilon_of_a_thousand_observations_is_tight_as_published():
  # Nasr et al., section 4.1 and figure 3: with the Gaussian curve 1000
  # observations are enough for ε = 1, 2, 4, 6; here the largest two, where the
  # limits of exact quantiles leave at least three quarters.
  for epsilon in (4.0, 6.0):
    mu = optimize.brentq(
      lambda m, e=epsilon: tradeoff_curves.epsilon_gdp(m, DELTA) - e, 0.1, 9
    )
    bound = threshold_bound.gdp_bound(
      shifted(mu), delta=DELTA, multiplicity=Explicit((mu / 2,))
    ).epsilon
    assert 0.75 * epsilon < bound < epsilon
