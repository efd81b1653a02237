"""ε of a run from scores of its steps: composition, tightness, coverage."""

import numpy as np
import pytest

from epe_jax.dpsgd import estimates, families
from epe_jax.epsilon import tradeoff
from epe_jax.epsilon.types import Scores
from tests.epsilon.plds import from_dp_accounting

DELTA = 1e-5


def draw(epsilon, num, audits, seed=0, **settings):
  """Audits of a Gaussian step with this ε, or of one with less noise."""
  rng = np.random.default_rng(seed)
  mu = tradeoff.mu_of_epsilon(epsilon, DELTA)
  without, with_canary = rng.standard_normal((2, audits, num))
  return Scores(with_canary + mu, without, **settings)


def estimate(scores, name, thresholds='same', **settings):
  mechanism = estimates.make_step_mechanism(**settings)
  return estimates.estimate_run(
    scores, name, mechanism=mechanism, delta=DELTA, thresholds=thresholds
  )


def compute_largest_median(epsilon, num):
  """The median of the best 95 % bound there is: of the mean, σ being known."""
  mu = tradeoff.mu_of_epsilon(epsilon, DELTA)
  return tradeoff.epsilon_gdp(mu - 1.645 * np.sqrt(2 / num), DELTA)


# Medians of 100 audits vary by 0.01 ε around 0.94, 0.92, 0.93 and 0.93 ε; at that
# of 0.92 a seed fails with a probability of 0.02. Of 1,000 observations it is 0.90 ε
# at ε = 4.
@pytest.mark.parametrize(
  ('epsilon', 'num'), [(4, 2000), (6, 1000), (2, 5000), (1, 20_000)]
)
def test_f_dp_is_tight_from_few_observations(epsilon, num):
  scores = draw(epsilon, num, audits=100 if num < 3000 else 25)
  share = np.median(np.asarray(estimate(scores, 'f_dp_cp').epsilon)) / epsilon
  assert 0.9 <= share < 1
  of_dp = np.median(np.asarray(estimate(scores, 'dp_cp').epsilon)) / epsilon
  assert of_dp < 0.7


@pytest.mark.parametrize('epsilon', [1, 2, 4, 6])
def test_f_dp_of_a_thousand_observations_is_near_the_best_bound(epsilon):
  """At ε = 1 and 2 no bound of 1,000 observations reaches 0.9 ε."""
  best = compute_largest_median(epsilon, 1000)
  assert (best < 0.9 * epsilon) == (epsilon < 4)
  epsilons = np.asarray(estimate(draw(epsilon, 1000, 100), 'f_dp_cp').epsilon)
  # The medians are 0.957, 0.979, 0.988 and 0.989 of it.
  assert np.median(epsilons) > 0.85 * best


def test_valid_thresholds_give_bounds_and_others_do_not():
  scores = draw(4, 400, audits=1)
  for name, method in estimates.ESTIMATORS.items():
    for thresholds in method.thresholds:
      result = estimate(scores, name, thresholds)
      is_bound = thresholds != 'same' and name != 'katz'
      assert (result.confidence is not None) == is_bound
      if is_bound:
        kind = 'credible' if name.endswith('zb') else 'confidence'
        assert result.kind == f'{kind}_bound'


def test_a_gaussian_step_composes_by_the_square_root():
  mechanism = estimates.make_step_mechanism(steps=49)
  for mu in (0.05, 0.4):
    of_step = float(tradeoff.epsilon_gdp(mu, DELTA))
    expected = tradeoff.epsilon_gdp(7 * mu, DELTA)
    assert mechanism.compose(of_step, DELTA) == pytest.approx(
      expected, rel=1e-6
    )
  assert mechanism.compose(0.0, DELTA) == 0
  assert mechanism.compose(np.inf, DELTA) == np.inf


@pytest.mark.integration
def test_steps_with_the_canary_compose_to_a_run_that_samples():
  # The canary is in every step that is observed; training samples with q.
  mechanism = estimates.make_step_mechanism(sampling_probability=0.1, steps=30)
  of_step = float(tradeoff.epsilon_gdp(1 / 0.8, DELTA))
  there = from_dp_accounting(0.8, 0.1, 30).get_epsilon_for_delta(DELTA)
  assert mechanism.compose(of_step, DELTA) == pytest.approx(there, rel=1e-3)
  assert mechanism.compose(of_step / 2, DELTA) < there / 2


def test_all_estimators_compose_alike_and_say_what_they_assume():
  scores = draw(4, 1000, audits=1)
  mechanism = estimates.make_step_mechanism(steps=9)
  for name in estimates.ESTIMATORS:
    one = estimate(scores, name)
    all_nine = estimate(scores, name, steps=9)
    assert float(all_nine.epsilon[0]) == pytest.approx(
      mechanism.compose(float(one.epsilon[0]), DELTA)
    )
    assert not all_nine.is_shape_free
    assert all_nine.confidence == one.confidence


def test_a_subsampled_step_is_audited_by_its_own_curve():
  rng = np.random.default_rng(1)
  took_part = rng.random((1, 4000)) < 0.5
  noise = 0.5 * rng.standard_normal((2, 1, 4000))
  scores = Scores(noise[0] + took_part, noise[1])
  truth = families.subsampled_gaussian_family(0.5).epsilon(0.5, DELTA)
  exact = estimate(scores, 'f_dp_cp', canary_probability=0.5).epsilon[0]
  bayes = estimate(scores, 'f_dp_zb', canary_probability=0.5).epsilon[0]
  lines = estimate(
    scores,
    'f_dp_cp',
    canary_probability=0.5,
    make_lines=families.algorithm_4(delta=DELTA, num_lines=30),
  ).epsilon[0]
  plain = estimate(scores, 'dp_cp').epsilon[0]
  assert plain < lines <= exact < truth
  assert exact < bayes < 1.1 * truth
  assert exact > 0.7 * truth


@pytest.mark.integration
def test_final_models_are_audited_by_the_curve_of_their_run():
  # Sums of what all steps release: the best attacker sees the coins besides.
  rng = np.random.default_rng(2)
  num, steps_of_run, q, noise = 4000, 10, 0.3, 1.0
  took_part = rng.binomial(steps_of_run, q, num)
  sums = noise * np.sqrt(steps_of_run) * rng.standard_normal((2, num))
  scores = Scores(sums[0] + took_part, sums[1])
  truth = families.subsampled_gaussian_family(q, steps=steps_of_run).epsilon(
    noise, DELTA
  )
  of_run = dict(sampling_probability=q, steps=steps_of_run)
  ten = families.algorithm_4(delta=DELTA, num_lines=10)
  curve, lines = (
    estimates.estimate_run(
      scores,
      'f_dp_cp',
      mechanism=estimates.make_run_mechanism(**of_run, make_lines=make_lines),
      delta=DELTA,
      thresholds='same',
    )
    for make_lines in (None, ten)
  )
  assert 0.3 * truth < lines.epsilon <= curve.epsilon < truth
  assert curve.confidence is None
  assert 'of_steps' not in curve.method


def test_lines_of_algorithm_4_are_below_a_subsampled_pld_and_approach_it():
  log_fpr = np.log([1e-3, 0.05, 0.2, 0.5, 0.8, 0.97])
  pld = families.pld_family(lambda z: from_dp_accounting(z, 0.25))
  exact = pld.fnr(0.55, log_fpr)
  gaps = []
  for num in (3, 10, 30, 300):
    mechanism = estimates.make_step_mechanism(
      canary_probability=0.25,
      make_lines=families.algorithm_4(delta=DELTA, num_lines=num),
    )
    # The PLD's own curve is made of lines, too low by up to 1e-3.
    gap = exact - mechanism.step.fnr(0.55, log_fpr)
    assert np.all(gap > -1e-3)
    gaps.append(np.max(gap))
  assert gaps[0] > gaps[1] > gaps[2] > gaps[3]
  assert gaps[3] < 5e-3


def test_the_gaussian_estimate_does_not_depend_on_the_threshold():
  # With 10⁶ observations the standard error of μ is 1.6e-3 or less within one
  # standard deviation: five of them fail with a probability of 1e-6.
  scores = draw(4, 10**6, audits=1)
  mu = tradeoff.mu_of_epsilon(4, DELTA)
  for at in (-0.5, 0.0, mu / 2, 1.0, 1.5):
    fpr = np.mean(scores.unobserved >= at)
    fnr = np.mean(scores.observed < at)
    found = tradeoff.gdp_mu(np.log([fpr]), np.array([fnr]))[0]
    spread = [
      np.sqrt(p * (1 - p) / 10**6) * np.sqrt(2 * np.pi) * np.exp(z**2 / 2)
      for p, z in ((fpr, at), (fnr, at - mu))
    ]
    assert abs(found - mu) < 5 * np.hypot(*spread)
  # (ε, δ)-DP depends on it by far more.
  assert np.log((1 - DELTA - fnr) / fpr) < 2


def test_katz_is_the_hand_computed_limit():
  # 60 of 100 above 0 with the canary and 20 of 100 without: the best threshold.
  scores = Scores(
    np.repeat([1.0, -1.0], [60, 40]), np.repeat([1.0, -1.0], [20, 80])
  )
  error_in = np.sqrt(0.4 / 60 + 0.8 / 20)
  error_out = np.sqrt(0.2 / 80 + 0.6 / 40)
  by_hand = max(
    np.log(0.6 / 0.2) - 1.959964 * error_in,
    np.log(0.8 / 0.4) - 1.959964 * error_out,
  )
  found = estimate(scores, 'katz')
  assert found.epsilon == pytest.approx(by_hand, abs=1e-4)
  assert found.confidence is None


@pytest.mark.parametrize('name', ['f_dp_cp', 'dp_cp'])
def test_bounds_exceed_the_truth_as_seldom_as_they_say(name):
  scores = draw(1.27, 500, audits=400)
  bounds = np.asarray(estimate(scores, name, 'band').epsilon)
  # Up to 5 %, and four standard errors: 400 audits, 1.1 points each.
  assert np.mean(bounds > 1.27) <= 0.05 + 4 * 0.011
  best = np.asarray(estimate(scores, 'f_dp_cp', 'same').epsilon)
  assert np.mean(best > 1.27) > 0.05


def test_settings_out_of_range_are_refused():
  scores = draw(1, 50, audits=1)
  with pytest.raises(ValueError, match='none of f_dp_cp'):
    estimate(scores, 'gdp')
  with pytest.raises(ValueError, match='give one of same, held_out'):
    estimate(scores, 'katz', 'band')
  with pytest.raises(ValueError, match='must be below sampling_probability'):
    families.noise_of_epsilon(1.0, 0.5, sampling_probability=0.1)
