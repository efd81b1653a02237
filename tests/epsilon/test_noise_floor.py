"""The noise floor: what estimators report when nothing leaks."""

import functools

import numpy as np
import pytest
from scipy import stats

from epe_jax.epsilon import (
  noise_floor,
  two_gaussians,
)
from epe_jax.epsilon.cosine_null import CosineNull
from epe_jax.epsilon.types import Estimate, Sphere, Unknown, make_null

DIM = 10**6


def fitted_floor(seed, num, delta, simulations=1000):
  return noise_floor.estimate_noise_floor(
    np.random.default_rng(seed),
    two_gaussians.two_gaussian,
    delta=delta,
    num_observed=num,
    num_unobserved=0,
    null=Sphere(DIM),
    simulations=simulations,
  )


# Means of 4000 simulations; five standard errors of 1000 of them, whose spread
# is 0.2, 0.27 and 0.9: a failure has probability 6e-7.
def test_the_floor_of_a_thousand_canaries_spans_the_papers_range():
  # 5-95 % at δ = 1e-5. The paper's ε = 0.569 at noise 0.2317, δ = 8.2e-7, is
  # inside the floor of its own setting.
  level = fitted_floor(1, 1000, 1e-5, simulations=2000)
  assert level.q05 == pytest.approx(0.058, abs=0.015)
  assert level.q95 == pytest.approx(0.71, abs=0.09)
  assert level.q05 < level.q50 < level.mean < level.q95
  paper = fitted_floor(2, 1000, 341_000**-1.1)
  assert paper.q05 < 0.569 < paper.q95


def test_the_floor_of_the_null_reading_is_the_law_of_a_sample_mean():
  # With equal stds ε depends on |mean| √d, half-normal with scale 1/√k, alone.
  level = noise_floor.estimate_noise_floor(
    np.random.default_rng(3),
    functools.partial(two_gaussians.two_gaussian, std='null'),
    delta=1e-5,
    num_observed=400,
    num_unobserved=0,
    null=Sphere(DIM),
    simulations=4000,
  )
  for quantile, value in ((0.05, level.q05), (0.5, level.q50)):
    gap = stats.halfnorm.ppf(quantile) / np.sqrt(400)
    expected = two_gaussians.epsilon_two_gaussians(0, 1, gap, 1, 1e-5)
    # The density of |N(0, 1)| at its median is 0.64, at its 5 % point 0.80.
    assert value == pytest.approx(expected, rel=0.1, abs=0.006)


def test_fitting_the_null_as_well_raises_the_floor():
  common = {'delta': 1e-5, 'num_observed': 300, 'num_unobserved': 300}
  known, unknown = (
    noise_floor.estimate_noise_floor(
      np.random.default_rng(4),
      two_gaussians.two_gaussian,
      null=make_null(dim),
      **common,
    )
    for dim in (DIM, None)
  )
  assert unknown.mean > 1.2 * known.mean


def test_scores_are_cosines_or_standard_normals():
  rng = np.random.default_rng(5)
  cosines = noise_floor.draw_null(rng, (40_000,), null=Sphere(10))
  right, wrong = CosineNull(10), CosineNull(11)
  assert stats.kstest(cosines, lambda x: right.sf(-x)).pvalue > 1e-6
  assert stats.kstest(cosines, lambda x: wrong.sf(-x)).pvalue < 1e-6
  normals = noise_floor.draw_null(rng, (40_000,), null=Unknown())
  assert stats.kstest(normals, stats.norm.cdf).pvalue > 1e-6


@pytest.mark.parametrize('dim', [8, None])
def test_maxima_over_rounds_are_maxima_of_independent_looks(dim):
  rng = np.random.default_rng(6)
  looks = noise_floor.draw_null(rng, (20_000, 50), null=make_null(dim)).max(
    axis=1
  )
  maxima = noise_floor.draw_null(rng, (20_000,), null=make_null(dim), rounds=50)
  assert stats.ks_2samp(looks, maxima).pvalue > 1e-6
  fewer = noise_floor.draw_null(rng, (20_000,), null=make_null(dim), rounds=40)
  assert stats.ks_2samp(looks, fewer).pvalue < 1e-6


def test_estimators_are_not_told_the_law_of_a_maximum():
  seen = []

  def spy(scores, *, delta):
    seen.append(scores)
    return Estimate(np.zeros(len(scores.observed)), delta, 'spy', None)

  common = {
    'delta': 0.1,
    'num_observed': 4,
    'num_unobserved': 5,
    'null': Sphere(9),
  }
  rng = np.random.default_rng(8)
  noise_floor.estimate_noise_floor(rng, spy, simulations=7, **common)
  noise_floor.estimate_noise_floor(rng, spy, simulations=7, rounds=3, **common)
  assert [s.null for s in seen] == [Sphere(9), Unknown()]
  assert seen[0].observed.shape == (7, 4)
  assert seen[1].unobserved.shape == (7, 5)


def test_an_estimator_that_mixes_audits_is_refused():
  def mixed(scores, *, delta):
    return Estimate(1.0, delta, 'mixed', None)

  common = {'delta': 0.1, 'num_observed': 4, 'num_unobserved': 5}
  rng = np.random.default_rng(10)
  with pytest.raises(ValueError, match=r'shape \(\) for 4000 audits'):
    noise_floor.estimate_noise_floor(rng, mixed, **common)
  with pytest.raises(ValueError, match='rounds=0'):
    noise_floor.estimate_noise_floor(rng, mixed, rounds=0, **common)
