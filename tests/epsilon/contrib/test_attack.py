"""Quality of attacks against counting pairs, SciPy, and simulated coverage."""

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from scipy import stats

from epe_jax.epsilon.contrib import attack
from epe_jax.epsilon.cosine_null import CosineNull
from epe_jax.epsilon.types import Scores


def samples(seed, tied=False, n1=30, n0=40, gap=0.7):
  rng = np.random.default_rng(seed)
  observed, unobserved = rng.normal(gap, 1, n1), rng.normal(size=n0)
  if tied:
    observed, unobserved = np.round(observed), np.round(unobserved)
  return Scores(observed, unobserved)


def slow_rates(scores, threshold):
  return (
    np.mean([s >= threshold for s in scores.unobserved]),
    np.mean([s >= threshold for s in scores.observed]),
  )


@pytest.mark.parametrize('tied', [False, True])
def test_the_curve_counts_canaries_at_every_distinct_score(tied):
  scores = samples(0, tied)
  curve = attack.roc(scores)
  distinct = np.union1d(scores.observed, scores.unobserved)
  assert len(curve.threshold) == len(distinct) + 1
  assert np.all(np.diff(curve.threshold) < 0)
  for threshold, fpr, tpr in zip(*curve):
    assert (fpr, tpr) == pytest.approx(slow_rates(scores, threshold))
  assert (curve.fpr[0], curve.tpr[0]) == (0, 0)
  assert (curve.fpr[-1], curve.tpr[-1]) == (1, 1)


@pytest.mark.parametrize('tied', [False, True])
def test_the_area_is_the_share_of_pairs_in_order(tied):
  scores = samples(1, tied)
  pairs = scores.observed[:, None] - scores.unobserved
  expected = np.mean((pairs > 0) + 0.5 * (pairs == 0))
  quality = attack.auroc(scores)
  assert quality.value == pytest.approx(expected, rel=1e-12)
  curve = attack.roc(scores)
  assert np.trapezoid(curve.tpr, curve.fpr) == pytest.approx(expected)
  u = stats.mannwhitneyu(scores.observed, scores.unobserved).statistic
  assert u / pairs.size == pytest.approx(expected)
  swapped = attack.auroc(Scores(scores.unobserved, scores.observed))
  assert swapped.value == pytest.approx(1 - expected)
  assert swapped.interval == pytest.approx(
    (1 - quality.interval[1], 1 - quality.interval[0])
  )


def test_newcombe_limits_solve_his_equation():
  # Perfect separation: only his limits are left.
  quality = attack.auroc(Scores(np.arange(5, 25.0), np.arange(-30.0, 0)))
  assert quality.value == quality.interval[1] == 1
  low = quality.interval[0]
  spread = (1 - low) / (2 - low) + low / (1 + low)
  variance = low * (1 - low) * (1 + 24 * spread) / (20 * 30)
  assert 1 - low == pytest.approx(stats.norm.ppf(0.975) * np.sqrt(variance))
  assert 0.8 < low < 0.95


def test_delong_variance_is_that_of_simulated_areas():
  # A few canaries leak fully, which exponential scores do not resemble.
  rng = np.random.default_rng(2)

  def draw():
    leaks = rng.random(300) < 0.3
    return Scores(rng.normal(size=300) + 9 * leaks, rng.normal(size=3000))

  audits = [attack.auroc(draw()) for _ in range(400)]
  spread = np.std([a.value for a in audits])
  half_width = np.mean([(a.interval[1] - a.interval[0]) / 2 for a in audits])
  # DeLong's is right; the larger of both may not be smaller.
  assert half_width > 0.95 * 1.96 * spread
  assert half_width < 1.25 * 1.96 * spread


@pytest.mark.parametrize(
  ('gap', 'n1', 'n0'), [(0, 20, 20), (1, 200, 50), (3, 30, 30)]
)
def test_intervals_of_the_area_cover_it(gap, n1, n0):
  truth = stats.norm.cdf(gap / np.sqrt(2))
  rng = np.random.default_rng(3)
  outside = 0
  for _ in range(500):
    scores = Scores(rng.normal(gap, 1, n1), rng.normal(size=n0))
    low, high = attack.auroc(scores).interval
    outside += not low <= truth <= high
  # Five standard errors of 500 above 5 %, and 1 % for the approximation.
  assert outside / 500 < 0.06 + 5 * 0.0098


@pytest.mark.parametrize('tied', [False, True])
@pytest.mark.parametrize('fpr', [0.0, 0.025, 0.1, 0.29, 0.5, 1.0])
def test_the_threshold_is_the_lowest_with_so_few_false_positives(tied, fpr):
  scores = samples(4, tied, n0=100)
  quality = attack.tpr_at_fpr(scores, fpr)
  curve = attack.roc(scores)
  allowed = curve.fpr <= fpr + 1e-9
  assert quality.value == pytest.approx(np.max(curve.tpr[allowed]))
  reference = stats.binomtest(round(quality.value * 30), 30).proportion_ci(
    0.95, method='exact'
  )
  assert quality.interval == pytest.approx((reference.low, reference.high))
  assert np.mean(scores.observed >= quality.threshold) == quality.value


def test_the_false_positive_rate_is_exact_if_the_null_is_known():
  law = CosineNull(100)
  cosines = 0.2 + 0.1 * stats.norm.ppf((np.arange(50) + 0.5) / 50)
  scores = Scores(cosines, np.empty(0), dim=100)
  quality = attack.tpr_at_fpr(scores, 1e-3)
  assert quality.value == np.mean(cosines >= law.isf(1e-3))
  assert law.sf(quality.threshold) <= 1e-3
  assert 0 < quality.value < 1
  assert attack.tpr_at_fpr(scores, 1.0).value == 1
  assert attack.tpr_at_fpr(scores, 0.0).threshold == np.inf


@pytest.mark.parametrize('tied', [False, True])
def test_best_accuracy_is_the_best_of_all_thresholds(tied):
  scores = samples(5, tied)
  quality = attack.best_accuracy(scores)
  rates = [slow_rates(scores, t) for t in attack.roc(scores).threshold]
  accuracy = [(tpr + 1 - fpr) / 2 for fpr, tpr in rates]
  assert quality.value == pytest.approx(max(accuracy))
  fpr, tpr = slow_rates(scores, quality.threshold)
  assert (tpr + 1 - fpr) / 2 == pytest.approx(quality.value)
  distance = stats.ks_2samp(
    scores.observed, scores.unobserved, alternative='less'
  ).statistic
  assert quality.value == pytest.approx(0.5 + distance / 2)


@pytest.mark.parametrize('gap', [0.0, 1.0])
def test_best_accuracy_is_optimistic_but_its_interval_is_not(gap):
  truth = stats.norm.cdf(gap / 2)
  rng = np.random.default_rng(6)
  audits = [
    attack.best_accuracy(
      Scores(rng.normal(gap, 1, 50), rng.normal(size=50)), confidence=0.8
    )
    for _ in range(400)
  ]
  values = np.array([a.value for a in audits])
  low, high = np.array([a.interval for a in audits]).T
  # The point is above the truth far more often than the interval allows.
  assert np.mean(values > truth) > 0.7
  # Five standard errors of 400 above 10 % on either side.
  assert np.mean(low > truth) < 0.1 + 5 * 0.015
  assert np.mean(high < truth) < 0.1 + 5 * 0.015


def test_refusals_name_the_argument():
  scores = samples(7)
  for function in (attack.auroc, attack.best_accuracy):
    with pytest.raises(ValueError, match=r'confidence=1\.0'):
      function(scores, confidence=1.0)
    with pytest.raises(ValueError, match='unobserved is empty'):
      function(Scores(np.array([0.1]), np.empty(0), dim=9))
  with pytest.raises(ValueError, match=r'fpr=1\.5'):
    attack.tpr_at_fpr(scores, 1.5)
  stacked = Scores(np.zeros((2, 3)), np.zeros((2, 3)))
  with pytest.raises(ValueError, match='one audit'):
    attack.roc(stacked)
  with pytest.raises(ValueError, match='one audit'):
    attack.tpr_at_fpr(stacked, 0.5)


def concave_hull(curve):
  """Corners of the smallest concave curve above, by taking corners out."""
  points = list(zip(curve.fpr, curve.tpr))
  hull = []
  for x, y in points:
    while len(hull) > 1:
      (x0, y0), (x1, y1) = hull[-2:]
      if (y1 - y0) * (x - x0) > (y - y0) * (x1 - x0) + 1e-15:
        break
      hull.pop()
    hull.append((x, y))
  return np.array(hull).T


def test_jax_privacy_reads_the_concave_hull_of_the_same_curve():
  # A threshold drawn at random reaches the hull, but only on these scores: it
  # is above the curve with no leakage too, so it is no estimate of the area.
  auditing = pytest.importorskip('jax_privacy.auditing')
  scores = samples(8, n1=200, n0=300)
  auditor = auditing.CanaryScoreAuditor(scores.observed, scores.unobserved)
  fpr, tpr = concave_hull(attack.roc(scores))
  assert np.trapezoid(tpr, fpr) == pytest.approx(auditor.attack_auroc())
  assert attack.auroc(scores).value < auditor.attack_auroc()
  assert attack.best_accuracy(scores).value == pytest.approx(
    auditor.max_accuracy(prevalence=0.5)
  )
  for level in (0.01, 0.1, 0.5):
    theirs = auditor.tpr_at_given_fpr(level)
    assert np.interp(level, fpr, tpr) == pytest.approx(theirs)
    assert attack.tpr_at_fpr(scores, level).value <= theirs + 1e-12


GROUP = st.lists(st.integers(-2, 2), min_size=1, max_size=30)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(GROUP, GROUP, st.floats(0, 1), st.floats(0.01, 0.99))
def test_any_scores_give_an_interval_around_the_value(
  observed, unobserved, fpr, confidence
):
  scores = Scores(np.array(observed), np.array(unobserved))
  for quality in (
    attack.auroc(scores, confidence=confidence),
    attack.tpr_at_fpr(scores, fpr, confidence=confidence),
    attack.best_accuracy(scores, confidence=confidence),
  ):
    low, high = quality.interval
    assert 0 <= low <= quality.value + 1e-12
    assert quality.value <= high + 1e-12 <= 1 + 1e-11
