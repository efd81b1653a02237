"""The recursion of Mahloujifar et al. for any trade-off curve."""

import numpy as np
import pytest
from scipy import stats

from epe_jax.epsilon.bounds import rank_bound
from epe_jax.epsilon.single_run import f_dp, independent
from epe_jax.epsilon.trade_offs import families, tradeoff_curves
from epe_jax.epsilon.types import Assumption, Scores

DELTA = 1e-5


def draw(seed, mu, num=600):
  rng = np.random.default_rng(seed)
  taken = rng.random(num) < 0.5
  scores = rng.standard_normal(num) + mu * taken
  return Scores(scores[taken], scores[~taken], design='coin_flip')


def guessed(num, correct):
  """All guessed "in", of which so many are right."""
  return Scores(np.ones(correct), np.ones(num - correct), design='coin_flip')


@pytest.mark.parametrize('mu', [0.0, 0.5, 1.0, 3.0])
def test_of_gaussian_curves_it_is_the_closed_form(mu):
  scores = draw(1, mu)
  found = f_dp.one_run_fdp(
    scores, delta=DELTA, family=tradeoff_curves.gaussian_family()
  )
  exact = f_dp.one_run_gdp(scores, delta=DELTA)
  assert found.epsilon == pytest.approx(exact.epsilon, rel=1e-5)
  assert found.method == 'one_run_fdp_gdp'
  assert found.confidence == 0.95
  assert Assumption.INDEPENDENT not in found.assumes


@pytest.mark.parametrize(('num', 'epsilon'), [(8, 1.0), (12, 0.5), (12, 2.0)])
def test_it_rejects_no_epsilon_that_randomised_response_has(num, epsilon):
  # All canaries are guessed, each right with probability e^ε/(1 + e^ε): the
  # probability of v or more is known, and a test at this level may not reject ε.
  right = 1 / (1 + np.exp(-epsilon))
  for correct in range(num // 2 + 1, num + 1):
    level = stats.binom.sf(correct - 1, num, right)
    if level > 1e-9:
      curve = rank_bound.approximate_dp_curve(1e-12)
      found = f_dp._solve_strength(curve, num, (num, 0), correct, level)
      assert found <= epsilon + 1e-9
      # Nor is it far below, where all are right.
      if correct == num:
        assert found >= epsilon - 0.3


@pytest.mark.slow
def test_it_stays_below_what_independence_adds():
  scores = draw(2, 1.5)
  for family in (None, families.subsampled_gaussian_family(0.3)):
    settings = dict(delta=DELTA, family=family)
    any_canaries = f_dp.one_run_fdp(scores, **settings).epsilon
    alone = independent.one_run_independent(scores, **settings).epsilon
    assert 0 < any_canaries <= alone * 1.02


@pytest.mark.slow
def test_a_pld_of_the_gaussian_mechanism_is_nearly_its_curve():
  from dp_accounting.pld import privacy_loss_distribution

  family = families.pld_family(
    lambda noise: privacy_loss_distribution.from_gaussian_mechanism(
      noise, value_discretization_interval=1e-3
    )
  )
  scores, guesses = draw(3, 1.0), [(200, 200)]
  found = f_dp.one_run_fdp(
    scores, delta=DELTA, guesses=guesses, family=family
  ).epsilon
  exact = f_dp.one_run_gdp(scores, delta=DELTA, guesses=guesses).epsilon
  # Lines between guarantees are below the curve, which weakens the bound.
  assert 0.99 * exact < found <= exact * (1 + 1e-4)


@pytest.mark.slow
def test_canaries_that_leak_together_do_not_break_it():
  # One probability of error for all canaries of an audit: still μ-Gaussian DP.
  rng, mu, num, audits = np.random.default_rng(0), 1.0, 200, 200
  truth = tradeoff_curves.epsilon_gdp(mu, DELTA)
  odds = np.abs(rng.normal(mu**2 / 2, mu, audits))
  correct = rng.binomial(num, 1 / (1 + np.exp(-odds)))
  bounds = {
    int(c): f_dp.one_run_fdp(
      guessed(num, int(c)),
      delta=DELTA,
      guesses=[(num, 0)],
      family=tradeoff_curves.gaussian_family(),
    ).epsilon
    for c in np.unique(correct)
    if c < num
  }
  exceeded = np.mean([bounds.get(int(c), np.inf) > truth for c in correct])
  # At 5 % a failure has probability 1e-6.
  assert exceeded <= stats.binom.isf(1e-6, audits, 0.05) / audits


def test_coins_that_are_not_fair_are_refused():
  scores = Scores(
    np.ones(5), np.zeros(5), design='coin_flip', inclusion_probability=0.3
  )
  with pytest.raises(ValueError, match=r'inclusion_probability=0\.3'):
    f_dp.one_run_fdp(scores, delta=DELTA)
  with pytest.raises(ValueError, match="design='fixed'"):
    f_dp.one_run_fdp(Scores(np.ones(5), np.zeros(5)), delta=DELTA)
