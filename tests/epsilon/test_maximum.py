"""Maxima over rounds: their law, and ε without extrapolation."""

import numpy as np
import pytest
from scipy import optimize, special, stats

from epe_jax.epsilon import maximum, monotone, two_gaussians
from epe_jax.epsilon.types import Scores, Sphere


def law_of(own, rounds):
  """ε of maxima whose shifts are known, as the estimator has it at s = 1."""
  own = np.atleast_2d(own)
  weights = np.full(len(own), 1 / len(own))
  pair = maximum._pair(own, weights, float(rounds))

  def epsilon(delta):
    return float(monotone.solve_epsilon(pair, np.ones(1), delta)[0])

  return epsilon


@pytest.mark.parametrize(
  ('own', 'rounds'),
  [([[1.5]], 3), ([[4.0], [0.5]], 5), ([[1.5, 1.0], [0.5, 0.0]], 4)],
  ids=['one round', 'two canaries', 'two rounds'],
)
def test_epsilon_of_maxima_is_the_integral(own, rounds):
  x = np.linspace(-9, 14, 400_001)
  null = rounds * stats.norm.pdf(x) * stats.norm.cdf(x) ** (rounds - 1)

  def density(shifts):
    cdf = stats.norm.cdf(x) ** (rounds - len(shifts))
    for e in shifts:
      cdf = cdf * stats.norm.cdf(x - e)
    return np.gradient(cdf, x)

  q = np.mean([density(shifts) for shifts in own], axis=0)

  def excess(epsilon):
    return 1e-3 - max(
      np.trapezoid(np.maximum(a - np.exp(epsilon) * b, 0), x)
      for a, b in ((null, q), (q, null))
    )

  truth = optimize.brentq(excess, 0, 40)
  assert law_of(own, rounds)(1e-3) == pytest.approx(truth, rel=1e-4)


def draw(rng, audits, num, rounds, shift):
  looks = rng.standard_normal((2, audits, num, rounds))
  looks[0, ..., 0] += shift
  return Scores(*looks.max(axis=-1))


@pytest.mark.integration
@pytest.mark.parametrize(
  ('rounds', 'shift', 'num'), [(20, 10.0, 100), (50, 3.0, 200), (1, 2.0, 200)]
)
def test_the_estimate_is_of_the_truth_where_two_gaussians_extrapolate(
  rounds, shift, num
):
  rng = np.random.default_rng(0)
  own = np.full((num, 1), shift)
  found, fitted = [], []
  for _ in range(60):
    scores = draw(rng, 1, num, rounds, shift)
    one = Scores(scores.observed[0], scores.unobserved[0])
    estimate = maximum.maximum_over_rounds(
      one, delta=1e-5, own=own, rounds=rounds
    )
    found.append(estimate.epsilon)
    fitted.append(two_gaussians.two_gaussian(one, delta=1e-5).epsilon)
  truth = law_of([[shift]], rounds)(1e-5)
  assert abs(np.mean(found) - truth) < 5 * np.std(found) / np.sqrt(60)
  # Who knows the round learns no less.
  known = two_gaussians.epsilon_two_gaussians(0, 1, shift, 1, 1e-5)
  assert truth <= known * (1 + 1e-9)
  if rounds > 1:
    assert np.mean(fitted) > 1.5 * known


def test_many_audits_have_the_estimate_of_each():
  rng = np.random.default_rng(1)
  own = rng.uniform(2, 4, (50, 1))
  scores = draw(rng, 200, 50, 10, own[:, 0])
  settings = {'delta': 1e-3, 'own': own, 'rounds': 10}
  many = maximum.maximum_over_rounds(scores, **settings).epsilon
  assert many.shape == (200,)
  # Audits made together share the number of independent rounds.
  tau = np.median(maximum.independent_rounds(scores.unobserved))
  for i in (0, 100):
    alike = np.broadcast_to(scores.unobserved[i], (200, 50))
    one = maximum.independent_rounds(alike)[0]
    alone = maximum.maximum_over_rounds(
      Scores(scores.observed[i], scores.unobserved[i]), **settings
    ).epsilon
    tolerance = 0.3 * abs(np.log(one / tau)) * alone + 0.02 * alone
    assert many[i] == pytest.approx(alone, abs=tolerance)


def test_rounds_that_repeat_are_counted_once():
  rng = np.random.default_rng(2)
  looks = rng.standard_normal((4000, 20))
  twice = np.concatenate([looks, looks], axis=1).max(axis=1)
  assert maximum.independent_rounds(twice) == pytest.approx(20, rel=0.1)


def test_the_law_of_the_null_is_tested():
  rng = np.random.default_rng(3)
  p = [
    maximum.p_value(rng.standard_normal((200, 30)).max(axis=1))
    for _ in range(1000)
  ]
  for level in (0.01, 0.05, 0.2):
    error = 5 * np.sqrt(level * (1 - level) / 1000)
    assert np.mean(np.array(p) <= level) == pytest.approx(level, abs=error)
  # Maxima of scores with heavy tails.
  assert maximum.p_value(rng.standard_t(3, (500, 30)).max(axis=1)) < 0.01
  # No table ends evidence: the worse, the smaller.
  off = [maximum.p_value(rng.uniform(3, 3 + w, 500)) for w in (1.0, 0.1)]
  assert off[1] < off[0] < 1e-3


def test_what_makes_no_sense_is_refused():
  scores = Scores(np.arange(3.0), np.arange(3.0))
  settings = {'delta': 1e-3, 'rounds': 5}
  with pytest.raises(ValueError, match=r'own has shape \(2, 1\)'):
    maximum.maximum_over_rounds(scores, own=np.ones((2, 1)), **settings)
  with pytest.raises(ValueError, match=r'own=-1\.0'):
    maximum.maximum_over_rounds(scores, own=-np.ones((3, 1)), **settings)
  with pytest.raises(ValueError, match='rounds=1, but canaries have 2'):
    maximum.maximum_over_rounds(
      scores, own=np.ones((3, 2)), delta=0.1, rounds=1
    )
  known = Scores(np.zeros(3), np.empty(0), null=Sphere(100))
  with pytest.raises(ValueError, match='unobserved is empty'):
    maximum.maximum_over_rounds(known, own=np.ones((3, 1)), **settings)


def test_a_canary_far_above_all_others_has_the_mean_of_its_own_score():
  own = np.array([[1.0, 0.0], [0.3, 0.9]])
  for s in (50.0, 2000.0):
    found = maximum.mean_shifted(own, 300.0, s)
    np.testing.assert_allclose(found, [s, 0.9 * s], atol=1e-6)
  alone = maximum.mean_shifted(np.zeros((1, 1)), 300.0, 1.0)
  rng = np.random.default_rng(0)
  simulated = rng.standard_normal((20_000, 300)).max(axis=1)
  assert alone[0] == pytest.approx(simulated.mean(), abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('shift', 'rounds', 'observed', 'unobserved'),
  [(2.0, 100, 200, 200), (3.0, 20, 200, 60), (0.0, 50, 100, 100)],
)
def test_intervals_contain_the_truth_and_seldom_accuse(
  shift, rounds, observed, unobserved
):
  rng = np.random.default_rng(0)
  audits, delta = 60, 1e-5

  def draw_maxima(num, of):
    return special.ndtri_exp(-rng.exponential(size=num) / of)

  own = np.full((observed, 1), shift or 1.0)
  truth = 0.0
  if shift:
    truth = float(
      maximum._epsilon_of(np.ones(1), own[:1], float(rounds), delta)[0]
    )
  too_high = too_low = 0
  for _ in range(audits):
    scores = Scores(
      np.maximum(
        rng.normal(shift, 1, observed), draw_maxima(observed, rounds - 1)
      ),
      draw_maxima(unobserved, rounds),
    )
    low, high = maximum.maximum_over_rounds(
      scores, delta=delta, own=own, rounds=rounds
    ).interval
    too_high += low > truth + 1e-9
    too_low += high < truth - 1e-9
  # Binomials of 5 % exceed 9 of 60 once in 1,000 times.
  assert max(too_high, too_low) <= 9


def test_canaries_that_share_rounds_widen_the_interval():
  rng = np.random.default_rng(0)
  scores = Scores(rng.normal(3, 1, 200), rng.normal(2, 0.5, 200))
  settings = dict(delta=1e-5, own=np.full((200, 1), 3.0), rounds=20)
  alone, crowded = (
    maximum.maximum_over_rounds(
      Scores(scores.observed, scores.unobserved, overlap=x), **settings
    )
    for x in (0.0, 0.5)
  )
  assert alone.epsilon == crowded.epsilon
  assert crowded.interval[0] < alone.interval[0]
  assert crowded.interval[1] > alone.interval[1]


@pytest.mark.integration
def test_audits_with_a_law_each_are_estimated_as_if_alone():
  rng, own = np.random.default_rng(0), np.full((50, 1), 3.0)
  scores = draw(rng, 12, 50, 30, 3.0)
  settings = dict(delta=1e-5, own=own, rounds=30)
  alone = np.array(
    [
      maximum.maximum_over_rounds(Scores(*groups), **settings).epsilon
      for groups in zip(scores.observed, scores.unobserved)
    ]
  )
  each = maximum.maximum_over_rounds(scores, laws=12, **settings).epsilon
  np.testing.assert_allclose(each, alone, rtol=1e-6)
  # As many as there are audits are enough.
  more = maximum.maximum_over_rounds(scores, laws=99, **settings).epsilon
  np.testing.assert_array_equal(more, each)
  together = maximum.maximum_over_rounds(scores, **settings).epsilon
  assert np.max(np.abs(together / alone - 1)) > 0.02
  with pytest.raises(ValueError, match='laws=0'):
    maximum.maximum_over_rounds(scores, laws=0, **settings)
