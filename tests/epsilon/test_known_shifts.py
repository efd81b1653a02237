"""Canaries shifted by known multiples: ε of the mixture, its limits and tests."""

import numpy as np
import pytest
from scipy import optimize, stats

from epe_jax.epsilon import two_gaussians
from epe_jax.epsilon.known_shifts import (
  compare_with_expected,
  compute_curve,
  compute_overlap,
  compute_rates,
  confidence_limits,
  epsilon_mixture,
  fit_shift,
  location_mixture,
  location_mixture_bound,
  lower_confidence_limit,
  most_exposed,
  p_values,
)
from epe_jax.epsilon.types import Scores, Sphere, make_null

DIM = 10**8


def brute_force(shifts, delta):
  """ε by integrating both hockey sticks on a grid."""
  x = np.linspace(-12, np.max(shifts) + 12, 400_001)
  p = stats.norm.pdf(x)
  q = np.mean([stats.norm.pdf(x - m) for m in shifts], axis=0)

  def excess(epsilon):
    return delta - max(
      np.trapezoid(np.maximum(a - np.exp(epsilon) * b, 0), x)
      for a, b in ((p, q), (q, p))
    )

  return optimize.brentq(excess, 0, 60) if excess(0) < 0 else 0.0


@pytest.mark.parametrize('delta', [1e-5, 1e-2, 0.3])
@pytest.mark.parametrize(
  'shifts',
  [(1.0,), (0.0, 2.0), (0.1, 0.2, 0.3), (0.5, 1.0, 5.0), (3.0, 3.0, 0.01)],
  ids=str,
)
def test_the_epsilon_of_a_mixture_is_the_integral(shifts, delta):
  found = epsilon_mixture(np.array(shifts), delta)
  assert found == pytest.approx(brute_force(shifts, delta), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize('mu', [1e-3, 0.05, 1.0, 20.0, 80.0])
def test_equal_shifts_are_one_gaussian_mechanism(mu):
  for delta in (1e-9, 1e-5, 0.3):
    exact = two_gaussians.epsilon_two_gaussians(0, 1, mu, 1, delta)
    found = epsilon_mixture(np.full(3, mu), delta)
    assert found == pytest.approx(exact, rel=1e-9, abs=1e-9)
    weighted = epsilon_mixture(np.array([mu, mu]), delta, np.array([0.9, 0.1]))
    assert weighted == pytest.approx(exact, rel=1e-9, abs=1e-9)


def test_a_component_twice_is_one_of_twice_the_weight():
  many = epsilon_mixture(np.array([1.0, 1.0, 4.0]), 1e-5)
  few = epsilon_mixture(np.array([1.0, 4.0]), 1e-5, np.array([2, 1]) / 3)
  assert many == pytest.approx(few, rel=1e-12)


def momentum_weights(rounds, momentum=0.9):
  return (1 - momentum ** np.arange(rounds, 0, -1)) / (1 - momentum)


def audits(rng, weights, num_audits, *, s, dim=DIM, unobserved=1000):
  """Scores of canaries of random rounds, N(s w_t, 1)."""
  shift = rng.choice(weights, 1000)
  observed = rng.standard_normal((num_audits, 1000)) + s * shift
  null = rng.standard_normal((num_audits, unobserved))
  scale = 1 if dim is None else np.sqrt(dim)
  return Scores(
    observed / scale, null / scale, null=make_null(dim), shift=shift
  )


@pytest.mark.parametrize('dim', [DIM, None], ids=['exact', 'empirical'])
def test_one_shift_for_all_reads_too_low_and_the_mixture_does_not(dim):
  """The rounds of a short run with momentum 0.9, 1,000 + 1,000 canaries."""
  rng = np.random.default_rng(0)
  weights = momentum_weights(20) * np.linspace(0.5, 1.5, 20)
  scores = audits(rng, weights, 60, s=0.3, dim=dim)
  delta = 1e-5
  truth = epsilon_mixture(0.3 * scores.shift, delta)
  found = np.asarray(location_mixture(scores, delta=delta).epsilon)
  single = np.asarray(
    two_gaussians.two_gaussian(scores, delta=delta, std='null').epsilon
  )
  error = found.std(ddof=1) / np.sqrt(60)
  # Of the mean of 60 audits: five standard errors.
  assert abs(found.mean() - truth) < 5 * error
  assert single.mean() < truth - 20 * error
  exposed = most_exposed(scores, delta=delta).epsilon
  strongest = two_gaussians.epsilon_two_gaussians(
    0, 1, 0.3 * np.max(scores.shift), 1, delta
  )
  assert abs(np.mean(exposed) - strongest) < 5 * np.std(exposed) / np.sqrt(60)
  assert strongest > truth


@pytest.mark.integration
@pytest.mark.parametrize('dim', [DIM, None], ids=['exact', 'empirical'])
@pytest.mark.parametrize('s', [0.0, 0.05, 0.6])
def test_bound_and_interval_fail_as_often_as_they_say(dim, s):
  rng = np.random.default_rng(1)
  weights = momentum_weights(30)
  scores = audits(rng, weights, 2000, s=s, dim=dim, unobserved=60)
  truth = epsilon_mixture(s * scores.shift, 1e-5)
  bound = location_mixture_bound(scores, delta=1e-5).epsilon
  # At s = 0 the bound is 0 half of the time and right; 95 % of 2,000 audits.
  exceeded = np.mean(np.asarray(bound) > truth)
  assert exceeded == pytest.approx(0.05, abs=5 * np.sqrt(0.05 * 0.95 / 2000))
  # ε rises with |s|, so an interval of one is an interval of the other.
  inside = 0
  for observed, unobserved in zip(scores.observed[:400], scores.unobserved):
    one = Scores(observed, unobserved, null=make_null(dim), shift=scores.shift)
    low, high = confidence_limits(fit_shift(one), 0.05)
    inside += low <= s <= high
  assert inside / 400 > 0.9 - 5 * np.sqrt(0.09 / 400)
  found = location_mixture(one, delta=1e-5).interval
  ends = [
    epsilon_mixture(x * scores.shift, 1e-5) for x in (max(low, 1e-9), high)
  ]
  np.testing.assert_allclose(found, ends, rtol=1e-6, atol=1e-6)


def test_a_whole_curve_is_that_of_each_delta():
  rng = np.random.default_rng(2)
  scores = audits(rng, momentum_weights(20), 1, s=0.3)
  one = Scores(
    scores.observed[0], scores.unobserved[0], Sphere(DIM), shift=scores.shift
  )
  deltas = np.array([1e-7, 1e-3])
  lines = compute_curve(one, deltas)
  for i, delta in enumerate(deltas):
    estimate = location_mixture(one, delta=float(delta))
    np.testing.assert_allclose(
      lines[:, i], [estimate.epsilon, *estimate.interval], rtol=1e-9
    )


def test_many_audits_have_the_epsilon_of_each():
  rng = np.random.default_rng(3)
  scores = audits(rng, momentum_weights(20), 300, s=0.1)
  many = location_mixture(scores, delta=1e-5).epsilon
  for i in (0, 17, 299):
    one = Scores(
      scores.observed[i], scores.unobserved[i], Sphere(DIM), shift=scores.shift
    )
    alone = location_mixture(one, delta=1e-5).epsilon
    assert many[i] == pytest.approx(alone, rel=1e-4, abs=1e-4)


def test_rates_are_of_the_fitted_mixture():
  shift = np.repeat([1.0, 3.0], 500)
  quantiles = stats.norm.ppf((np.arange(500) + 0.5) / 500)
  observed = np.concatenate([quantiles + 1, quantiles + 3]) / 1e4
  scores = Scores(observed, np.empty(0), Sphere(DIM), shift=shift)
  fpr = np.array([0.01, 0.2])
  z = stats.norm.isf(fpr)
  expected = (stats.norm.sf(z - 1) + stats.norm.sf(z - 3)) / 2
  found = compute_rates(scores, fpr)
  np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.integration
@pytest.mark.parametrize('dim', [DIM, None], ids=['exact', 'empirical'])
def test_tests_of_the_mixture_reject_as_often_as_they_say_and_see_what_is_wrong(
  dim,
):
  rng = np.random.default_rng(4)
  weights = momentum_weights(30)
  scores = audits(rng, weights, 4000, s=0.3, dim=dim, unobserved=500)
  tests = p_values(scores)
  for p in tests:
    assert np.mean(np.asarray(p) < 0.05) == pytest.approx(0.05, abs=0.017)
  wider = Scores(
    1.3 * scores.observed, scores.unobserved, make_null(dim), shift=scores.shift
  )
  assert np.mean(np.asarray(p_values(wider).spread) < 0.01) > 0.99
  # Their shifts taken for alike, two groups of canaries are no Gaussian.
  shift = np.repeat([1.0, 4.0], 500)
  scale = 1 if dim is None else np.sqrt(dim)
  two = (rng.standard_normal((200, 1000)) + shift) / scale
  alike = Scores(two, scores.unobserved[:200], make_null(dim))
  known = Scores(two, scores.unobserved[:200], make_null(dim), shift=shift)
  assert np.mean(np.asarray(p_values(alike).shape) < 0.01) > 0.99
  assert np.mean(np.asarray(p_values(known).shape) < 0.01) < 0.06


def test_scores_that_contradict_the_mixture_give_no_confidence():
  rng = np.random.default_rng(5)
  scores = audits(rng, momentum_weights(30), 1, s=0.3)
  observed, unobserved = scores.observed[0], scores.unobserved[0]
  good = location_mixture_bound(
    Scores(observed, unobserved, Sphere(DIM), shift=scores.shift), delta=1e-5
  )
  assert good.confidence == 0.95
  assert not good.is_shape_free
  bad = location_mixture_bound(
    Scores(1.5 * observed, unobserved, Sphere(DIM), shift=scores.shift),
    delta=1e-5,
  )
  assert (bad.confidence, bad.kind) == (None, 'point_estimate')
  assert bad.method == 'location_mixture_bound_rejected'
  assert bad.is_rejected


@pytest.mark.parametrize('dim', [DIM, None], ids=['exact', 'empirical'])
def test_agreement_with_known_shifts_is_standard_normal(dim):
  rng = np.random.default_rng(6)
  found = []
  for _ in range(300):
    scores = audits(rng, np.linspace(2, 6, 10), 1, s=1.0, dim=dim)
    one = Scores(
      scores.observed[0],
      scores.unobserved[0],
      make_null(dim),
      shift=scores.shift,
    )
    errors, p_value = compare_with_expected(one)
    assert p_value == pytest.approx(2 * stats.norm.sf(abs(errors)))
    found.append(errors)
  # Chance of 1e-6 to fail at each end.
  assert stats.kstest(found, 'norm').pvalue > 1e-6
  half = audits(rng, np.linspace(2, 6, 10), 1, s=0.8, dim=dim)
  one = Scores(
    half.observed[0], half.unobserved[0], make_null(dim), shift=half.shift
  )
  assert compare_with_expected(one)[0] < -5


def test_the_fit_is_a_regression():
  rng = np.random.default_rng(7)
  shift = rng.uniform(1, 5, 40)
  observed = 2.5 + 3 * (0.7 * shift + rng.standard_normal(40))
  unobserved = 2.5 + 3 * rng.standard_normal(60)
  found = fit_shift(Scores(observed, unobserved, shift=shift))
  x = np.append(shift, np.zeros(60))
  line = stats.linregress(x, np.append(observed, unobserved))
  assert found.s * found.scale == pytest.approx(line.slope / line.stderr)
  assert found.df == 98


@pytest.mark.parametrize('dim', [None, np.inf])
@pytest.mark.parametrize('unobserved', [200, 1000])
def test_limits_hold_where_canaries_are_noise_to_one_another(dim, unobserved):
  rng, audits, num, mu, of_pair = (
    np.random.default_rng(6),
    4000,
    200,
    1.5,
    1 / 400,
  )
  # A pair of canaries shares μ²/d of its noise.
  common = mu * np.sqrt(of_pair) * rng.standard_normal((audits, 1))
  own = np.sqrt(1 - mu**2 * of_pair) * rng.standard_normal((audits, num))
  scores = Scores(
    mu + common + own,
    rng.standard_normal((audits, unobserved)),
    make_null(dim),
    shift=np.full(num, mu),
    overlap=(num - 1) * mu**2 * of_pair,
  )
  fit = fit_shift(scores)
  mirrored = fit._replace(s=-fit.s)
  for one_sided in (fit, mirrored):
    limit = lower_confidence_limit(one_sided, 0.05)
    exceeded = np.mean(limit > np.sign(np.mean(one_sided.s)))
    # Five standard errors on either side.
    assert 0.033 < exceeded < 0.067


def test_canaries_alone_in_their_vectors_share_nothing_and_never_less():
  rng = np.random.default_rng(0)
  for num in range(1, 200):
    shift = rng.uniform(1e-3, 1e3, num)
    alone = compute_overlap(shift, np.arange(num), Sphere(DIM))
    assert 0 <= alone <= 1e-12 * np.sum(shift**2)
  together = compute_overlap(np.ones(4), np.zeros(4, int), Sphere(DIM))
  assert together == 12 / (4 * DIM)
