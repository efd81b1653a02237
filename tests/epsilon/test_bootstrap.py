"""Bootstrap intervals against closed forms and simulated coverage."""

import functools

import numpy as np
import pytest
from scipy import stats

from epe_jax.epsilon import bootstrap, paper_estimates, two_gaussians
from epe_jax.epsilon.types import Estimate, Scores, Sphere

DELTA = 1e-5
NULL = functools.partial(two_gaussians.two_gaussian, std='null')


def mean_gap(scores, *, delta):
  """An estimator whose sampling law is known: the difference of means."""
  gap = np.mean(scores.observed, axis=-1) - np.mean(scores.unobserved, axis=-1)
  return Estimate(np.asarray(gap), delta, 'mean_gap', confidence=None)


def normals(seed, n1=200, n0=300, gap=1.0):
  rng = np.random.default_rng(seed)
  return Scores(rng.normal(gap, 1, n1), rng.normal(size=n0))


def interval(estimator, scores, seed=0, **settings):
  rng = np.random.default_rng(seed)
  settings = {'delta': DELTA} | settings
  return bootstrap.bootstrap_interval(
    rng, estimator, scores, **settings
  ).interval


def test_an_interval_of_means_is_the_normal_one():
  scores = normals(0)
  error = np.sqrt(
    np.var(scores.observed) / 200 + np.var(scores.unobserved) / 300
  )
  centre = scores.observed.mean() - scores.unobserved.mean()
  found = interval(mean_gap, scores, resamples=10_000)
  # A 5 % quantile of 10,000 resamples has a standard error of 0.02 errors.
  expected = centre + error * stats.norm.ppf([0.05, 0.95])
  np.testing.assert_allclose(found, expected, atol=0.1 * error)


@pytest.mark.integration
def test_intervals_cover_the_true_epsilon_of_shifted_gaussians():
  # A calibrated smooth estimator: there the interval does cover the truth.
  exact = two_gaussians.epsilon_two_gaussians(0.0, 1.0, 2.0, 1.0, DELTA)
  inside = []
  for seed in range(100):
    rng = np.random.default_rng(seed)
    scores = Scores(
      0.01 * rng.normal(2, 1, 100), np.empty(0), null=Sphere(10_000)
    )
    low, high = interval(NULL, scores, seed, resamples=100)
    inside.append(low <= exact <= high)
  # 90 %, less the effect of 100 resamples; five standard errors of 100.
  assert np.mean(inside) == pytest.approx(0.89, abs=5 * 0.031)


def test_an_interval_that_is_too_narrow_fails_the_coverage_test():
  scores = [
    Scores(
      0.01 * np.random.default_rng(s).normal(2, 1, 100),
      np.empty(0),
      Sphere(10**4),
    )
    for s in range(30)
  ]
  exact = two_gaussians.epsilon_two_gaussians(0.0, 1.0, 2.0, 1.0, DELTA)
  inside = [
    low <= exact <= high
    for low, high in (
      interval(NULL, s, i, confidence=0.5, resamples=100)
      for i, s in enumerate(scores)
    )
  ]
  assert np.mean(inside) < 0.89 - 0.15


def test_the_estimate_itself_is_kept():
  scores = normals(2)
  for estimator in (
    two_gaussians.two_gaussian,
    paper_estimates.eps_lo,
    paper_estimates.max_threshold,
    functools.partial(paper_estimates.max_threshold, rates='empirical'),
  ):
    plain = estimator(scores, delta=DELTA)
    rng = np.random.default_rng(0)
    estimate = bootstrap.bootstrap_interval(
      rng, estimator, scores, delta=DELTA, resamples=100
    )
    assert estimate.epsilon == plain.epsilon
    assert estimate.method == plain.method
    assert estimate.confidence is None
    low, high = estimate.interval
    assert 0 <= low < high < np.inf


def test_blocks_of_resamples_do_not_change_the_result(monkeypatch):
  scores = normals(3)
  whole = interval(mean_gap, scores)
  # 7 resamples of 300 scores at a time; the draws are then interleaved.
  monkeypatch.setattr(bootstrap, '_BLOCK_BYTES', 8 * 300 * 7)
  blocks = interval(mean_gap, scores)
  np.testing.assert_allclose(blocks, whole, atol=0.04)


def test_an_interval_may_be_infinite_or_a_point():
  separated = Scores(np.linspace(5, 6, 50), np.linspace(0, 1, 50))
  low, high = interval(paper_estimates.eps_lo, separated)
  assert low == high == paper_estimates.eps_lo(separated, delta=DELTA).epsilon
  certain = Scores(np.ones(30), np.empty(0), null=Sphere(10))
  assert interval(paper_estimates.eps_lo, certain) == (np.inf, np.inf)
  # Some resamples are infinite, and no infinity is subtracted from another.
  mixed = Scores(np.array([1.0] + [0.5] * 29), np.empty(0), null=Sphere(10))
  low, high = interval(paper_estimates.eps_lo, mixed)
  assert np.isfinite(low)
  assert high == np.inf


def test_settings_that_make_no_interval_are_refused():
  scores = normals(5)
  with pytest.raises(ValueError, match='one audit at a time'):
    interval(mean_gap, Scores(np.zeros((2, 5)), np.zeros((2, 5))))
  with pytest.raises(ValueError, match=r'confidence=1\.0'):
    interval(mean_gap, scores, confidence=1.0)
  with pytest.raises(ValueError, match='at least 200'):
    interval(mean_gap, scores, confidence=0.99, resamples=199)
  assert interval(mean_gap, scores, confidence=0.9, resamples=20)


def test_a_refused_resample_names_the_cure():
  few = Scores(np.array([0.0, 1.0]), np.array([0.0, 1.0, 2.0]))
  with pytest.raises(ValueError, match='A bootstrap needs more canaries'):
    interval(two_gaussians.two_gaussian, few)
  one = Scores(np.array([0.1]), np.empty(0), null=Sphere(100))
  low, high = interval(NULL, one)
  assert low == high
