"""The Gaussian lower bound: its limits, its coverage, its refusal to promise."""

from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
import numpy as np
import pytest
from scipy import optimize, stats

from epe_jax.epsilon import gaussian_bound, two_gaussians
from epe_jax.epsilon.types import Scores, Sphere, make_null

DELTA = 1e-5


def shift_of(epsilon, std=1.0, delta=DELTA):
  """The gap of the means at which two Gaussians have this ε."""
  if epsilon == 0:
    return 0.0
  return optimize.brentq(
    lambda m: (
      two_gaussians.epsilon_two_gaussians(0, 1, m, std, delta) - epsilon
    ),
    1e-6,
    50,
  )


def quantiles(num):
  return stats.norm.ppf((np.arange(num) + 0.5) / num)


def bound(scores, **settings):
  return gaussian_bound.gaussian_lower_bound(scores, delta=DELTA, **settings)


@pytest.mark.parametrize('df', [2, 9, 200])
@pytest.mark.parametrize('t', [-3.0, 0.0, 0.7, 4.0, 15.0, 40.0])
def test_noncentrality_limit_inverts_scipys_noncentral_t(df, t):
  limit = gaussian_bound.noncentrality_lower(t, df, 0.04)
  assert stats.nct.sf(t, df, limit) == pytest.approx(0.04, rel=1e-6)


def test_noncentrality_limit_at_large_samples_is_near_the_normal_one():
  t, df = 500.0, 2_000_000
  normal = t - 1.645 * np.sqrt(1 + t * t / (2 * df))
  limit = gaussian_bound.noncentrality_lower(t, df, 0.05)
  assert limit == pytest.approx(normal, abs=0.01)


@pytest.mark.parametrize(('epsilon', 'num'), [(0, 200), (3, 1000), (10, 100)])
@pytest.mark.parametrize('dim', [None, 10**6])
@pytest.mark.parametrize('std', ['free', 'common'])
def test_bound_exceeds_the_truth_as_rarely_as_it_says(epsilon, num, dim, std):
  rng = np.random.default_rng([epsilon, num, dim is None])
  audits = 100 if std == 'free' else 1000
  observed = rng.normal(shift_of(epsilon), 1, (audits, num))
  scores = Scores(observed, rng.normal(0, 1, (audits, num)))
  if dim is not None:
    scores = Scores(observed / np.sqrt(dim), np.empty(0), null=make_null(dim))
  exceeds = np.mean(bound(scores, std=std).epsilon > epsilon)
  # 12 tests; a failure has probability 3e-6 in each at exact coverage.
  assert exceeds <= stats.binom.isf(3e-6, audits, 0.05) / audits
  if std == 'common':
    assert exceeds >= stats.binom.ppf(3e-6, audits, 0.05) / audits


def test_bound_covers_where_stds_differ():
  rng = np.random.default_rng(0)
  for std in (0.6, 1.5):
    shift = 1.0
    truth = two_gaussians.epsilon_two_gaussians(0, 1, shift, std, DELTA)
    scores = Scores(
      rng.normal(shift, std, (150, 500)), rng.normal(0, 1, (150, 500))
    )
    estimate = bound(scores).epsilon
    assert np.mean(estimate > truth) <= 0.05 + 5 * np.sqrt(0.0475 / 150)
    assert np.median(estimate) > 0.6 * truth
  # Without correction for sampling it fails in about half of the audits.
  point = two_gaussians.two_gaussian(scores, delta=DELTA).epsilon
  assert np.mean(point > truth) > 0.3


@pytest.mark.parametrize('dim', [None, 10**6])
@pytest.mark.parametrize(
  ('epsilon', 'share'), [(3, 0.8), (10, 0.9), (100, 0.9)]
)
def test_bound_is_tight_on_quantile_samples(dim, epsilon, share):
  sample = quantiles(1000)
  scores = Scores(sample + shift_of(epsilon), sample)
  if dim is not None:
    scores = Scores(scores.observed / 1000, np.empty(0), null=make_null(dim))
  estimate = bound(scores)
  assert estimate.confidence == 0.95
  assert estimate.method == 'gaussian_lower_bound'
  assert share * epsilon < estimate.epsilon < epsilon
  assert estimate.epsilon <= bound(scores, std='common').epsilon < epsilon


def test_the_minimum_is_that_of_a_dense_search():
  rng = np.random.default_rng(1)
  for std in (0.7, 1.0, 1.6):
    observed, unobserved = rng.normal(1.2, std, 60), rng.normal(0, 1, 80)
    ratio2 = observed.var(ddof=1) / unobserved.var(ddof=1)
    # 20 % of the significance for the ratio, 80 % for the gap.
    ends = np.sqrt(ratio2 / stats.f.ppf([0.995, 0.005], 59, 79))
    r = np.geomspace(*ends, 4001)
    pooled = 59 * observed.var(ddof=1) / r**2 + 79 * unobserved.var(ddof=1)
    unit = np.sqrt(1 / 80 + r**2 / 60)
    t = (observed.mean() - unobserved.mean()) / np.sqrt(pooled / 138) / unit
    gap = gaussian_bound.noncentrality_lower(t, 138, 0.04) * unit
    slow = two_gaussians.epsilon_two_gaussians(
      0, 1, np.maximum(gap, 0), r, DELTA
    )
    fast = bound(Scores(observed, unobserved)).epsilon
    assert fast == pytest.approx(slow.min(), rel=1e-4)


def test_anderson_darling_rejects_normal_scores_as_often_as_it_says():
  rng = np.random.default_rng(2)
  p = gaussian_bound.gaussian_p_value(
    Scores(rng.normal(3, 2, (4000, 100)), rng.normal(0, 1, (4000, 100)))
  )
  for level in (0.01, 0.05, 0.2):
    assert np.mean(p < level) == pytest.approx(level, rel=0.35)


def test_scores_that_are_not_gaussian_get_no_confidence():
  sample = quantiles(1000)
  heavy = stats.t.ppf((np.arange(1000) + 0.5) / 1000, 3)
  for observed, unobserved in ((heavy + 1, sample), (sample + 1, heavy)):
    estimate = bound(Scores(observed, unobserved))
    assert estimate.confidence is None
    assert estimate.method == 'gaussian_lower_bound_rejected'
    assert estimate.is_rejected
  # With a known null, unobserved scores only tell whether it is right.
  cosines = Scores(0.01 * sample, 0.01 * sample, null=Sphere(10**4))
  assert bound(cosines).confidence == 0.95
  rejected = bound(Scores(0.01 * sample, 0.01 * heavy, null=Sphere(10**4)))
  assert rejected.confidence is None
  assert rejected.method == 'gaussian_lower_bound_null_rejected'


def test_bound_does_not_see_the_scale_or_origin_of_scores():
  rng = np.random.default_rng(3)
  observed, unobserved = rng.normal(1, 1, 200), rng.normal(0, 1, 300)
  plain = bound(Scores(observed, unobserved)).epsilon
  moved = bound(Scores(7 + 1e-3 * observed, 7 + 1e-3 * unobserved)).epsilon
  assert plain == pytest.approx(moved, rel=1e-9)
  # Scores on the wrong side of the null show nothing but their spread.
  assert bound(Scores(-observed, unobserved)).epsilon < 0.2 * plain


values = hnp.arrays(
  np.float64,
  st.integers(1, 12),
  elements=st.floats(-1e6, 1e6) | st.sampled_from([0.0, 1.0]),
)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(values, values)
@example(np.zeros(9), np.arange(5.0))
@example(np.arange(5.0), np.zeros(9))
def test_any_scores_give_a_number_or_a_plain_error(observed, unobserved):
  try:
    estimate = bound(Scores(observed, unobserved))
  except ValueError as refusal:
    told, estimate = str(refusal), None
  if estimate is None:
    assert 'equal' in told or 'at least two' in told
  else:
    assert estimate.epsilon >= 0
    assert np.ptp(observed) > 0
    assert np.ptp(unobserved) > 0
