"""Bounds from thresholds: coverage, counting by hand, jax-privacy."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
import numpy as np
import pytest
from scipy import optimize, stats

from epe_jax.dpsgd.uncorrected import Uncorrected
from epe_jax.epsilon import threshold, two_gaussians
from epe_jax.epsilon.corrections import (
  Band,
  Bonferroni,
  Explicit,
  Split,
)
from epe_jax.epsilon.cosine_null import CosineNull
from epe_jax.epsilon.threshold_bound import lower_bound
from epe_jax.epsilon.types import Scores, make_null

DELTA = 1e-5
DIM = 10**6
VALID = [Band(), Bonferroni(), Explicit((0.5, 1.5)), Split(0)]


def shift_of(epsilon):
  if epsilon == 0:
    return 0.0
  return optimize.brentq(
    lambda m: two_gaussians.epsilon_two_gaussians(0, 1, m, 1, DELTA) - epsilon,
    1e-6,
    20,
  )


def draw(rng, epsilon, audits, num, dim=None):
  observed = rng.normal(shift_of(epsilon), 1, (audits, num))
  if dim is None:
    return Scores(observed, rng.normal(0, 1, (audits, num)))
  return Scores(observed / np.sqrt(dim), np.empty(0), null=make_null(dim))


def name(strategy):
  return type(strategy).__name__


def bound(scores, strategy=VALID[0], **settings):
  return lower_bound(scores, delta=DELTA, multiplicity=strategy, **settings)


@pytest.mark.parametrize('strategy', VALID, ids=name)
@pytest.mark.parametrize('dim', [None, DIM])
@pytest.mark.parametrize('num', [100, 1000])
@pytest.mark.parametrize('epsilon', [0, 3])
def test_bounds_exceed_the_truth_as_rarely_as_they_say(
  strategy, dim, num, epsilon
):
  if isinstance(strategy, Explicit) and dim is not None:
    strategy = Explicit(tuple(t / 1000 for t in strategy.thresholds))
  audits = 300 if num == 100 else 100
  rng = np.random.default_rng([epsilon, num, dim is None])
  scores = draw(rng, epsilon, audits, num, dim)
  estimate = bound(scores, strategy, sides='both')
  assert estimate.confidence == 0.95
  exceeds = np.sum(estimate.epsilon > epsilon)
  # 40 tests; a failure has probability 1e-6 in each at exact coverage.
  assert exceeds <= stats.binom.isf(1e-6, audits, 0.05)


# The audits that the bounds above survive, at no leakage.
@pytest.mark.parametrize('dim', [None, DIM])
def test_eps_lo_of_the_paper_fails_where_the_bounds_hold(dim):
  scores = draw(np.random.default_rng(0), 0, 300, 1000, dim)
  paper = threshold.eps_lo(scores, delta=DELTA).epsilon
  limit = stats.binom.isf(1e-6, 300, 0.05)
  assert np.sum(paper > 0) > limit
  for strategy in (Band(), Bonferroni()):
    valid = bound(scores, strategy, sides='both').epsilon
    assert np.sum(valid > 0) <= limit
  uncorrected = bound(scores, Uncorrected(), sides='both')
  assert uncorrected.confidence is None
  if dim is not None:
    assert np.sum(uncorrected.epsilon > 0) > limit


def clopper_pearson(count, trials, significance):
  if count == trials:
    return 1.0
  return stats.beta.isf(significance, count + 1, trials - count)


def slow_bound(scores, thresholds, share, sides):
  """The largest ε over thresholds, counting canaries one by one."""
  best = 0.0
  n1, n0 = len(scores.observed), len(scores.unobserved)
  for t in thresholds:
    level = share if scores.has_known_null else share / 2
    lost = clopper_pearson(sum(s < t for s in scores.observed), n1, level)
    if scores.has_known_null:
      fpr = CosineNull(scores.null.dim).sf(t)
    else:
      fpr = clopper_pearson(sum(s >= t for s in scores.unobserved), n0, level)
    if 1 - DELTA - lost > 0:
      best = max(best, np.log((1 - DELTA - lost) / fpr))
    if sides == 'both' and 1 - DELTA - fpr > 0:
      best = max(best, np.log((1 - DELTA - fpr) / lost))
  return best


@pytest.mark.parametrize('dim', [None, 20])
@pytest.mark.parametrize('sides', ['in', 'both'])
def test_bounds_agree_with_counting_by_hand(dim, sides):
  rng = np.random.default_rng(1)
  for tied in (False, True):
    observed = 0.9 * np.tanh(rng.normal(0.5, 0.3, 23))
    unobserved = 0.9 * np.tanh(rng.normal(-0.5, 0.3, 31))
    if tied:
      observed, unobserved = np.round(observed, 1), np.round(unobserved, 1)
    scores = Scores(observed, unobserved, null=make_null(dim))
    everywhere = np.union1d(observed, unobserved)
    slow = slow_bound(scores, everywhere, 0.05, sides)
    assert slow > 0
    estimate = bound(scores, Uncorrected(), sides=sides)
    assert estimate.epsilon == pytest.approx(slow, rel=1e-9)
    given_ = (-0.2, 0.0, 0.4)
    slow = slow_bound(scores, given_, 0.05 / 3, sides)
    estimate = bound(scores, Explicit(given_), sides=sides)
    assert estimate.epsilon == pytest.approx(slow, rel=1e-9)


def test_bonferroni_looks_at_ranks_of_unobserved_scores():
  rng = np.random.default_rng(2)
  scores = Scores(rng.normal(2, 1, 200), rng.normal(0, 1, 100))
  ordered = np.sort(scores.unobserved)[::-1]
  best = 0.0
  for rank in (1, 10, 100):
    lost = np.sum(scores.observed <= ordered[rank - 1])
    fnr = clopper_pearson(lost, 200, 0.05 / 6)
    # P(score > the unobserved one of this rank) is a beta variable.
    fpr = stats.beta.isf(0.05 / 6, rank, 101 - rank)
    best = max(best, np.log((1 - DELTA - fnr) / fpr))
  estimate = bound(scores, Bonferroni(3))
  assert estimate.epsilon == pytest.approx(best, rel=1e-9)
  assert estimate.method == 'clopper_pearson_bonferroni'


def test_ties_make_every_bound_smaller_not_larger():
  scores = draw(np.random.default_rng(3), 0, 300, 200)
  coarse = Scores(np.round(scores.observed), np.round(scores.unobserved))
  for strategy in VALID:
    exceeds = np.sum(bound(coarse, strategy, sides='both').epsilon > 0)
    assert exceeds <= stats.binom.isf(1e-6, 300, 0.05)


@pytest.mark.parametrize('strategy', [*VALID, Uncorrected()], ids=name)
def test_leading_axes_are_independent_audits(strategy):
  rng = np.random.default_rng(4)
  scores = Scores(rng.normal(2, 1, (2, 3, 40)), rng.normal(size=(2, 3, 50)))
  together = np.asarray(bound(scores, strategy).epsilon)
  assert together.shape == (2, 3)
  for i, j in np.ndindex(2, 3):
    alone = Scores(scores.observed[i, j], scores.unobserved[i, j])
    assert together[i, j] == bound(alone, strategy).epsilon


def test_only_guarantees_carry_confidence():
  scores = draw(np.random.default_rng(5), 10, 1, 200)
  assert bound(scores, significance=0.1).confidence == 0.9
  assert bound(scores, Uncorrected()).confidence is None


def quantiles(num):
  return stats.norm.ppf((np.arange(num) + 0.5) / num)


@pytest.mark.parametrize('dim', [None, DIM])
@pytest.mark.parametrize('epsilon', [3, 10])
def test_band_is_close_to_the_best_bound_on_quantile_samples(dim, epsilon):
  sample = quantiles(1000)
  scores = Scores(sample + shift_of(epsilon), sample)
  if dim is not None:
    scores = Scores(scores.observed / 1000, np.empty(0), null=make_null(dim))
  few = bound(scores, Bonferroni()).epsilon
  band = bound(scores).epsilon
  assert 0.8 * few < band < epsilon
  if dim is None:
    # Two limits, each at half the significance, cannot reach a test of both.
    assert band > 1.1 * few
  else:
    # Paying nothing is the most that any of them could reach.
    assert band < bound(scores, Uncorrected()).epsilon
  # Bonferroni over all realisable thresholds is worse than the band.
  assert band > bound(scores, Bonferroni(1000)).epsilon
  smaller = bound(scores, significance=0.01).epsilon
  assert smaller < band


def test_separated_scores_reach_the_value_of_no_error_at_all():
  scores = Scores(np.linspace(5, 6, 1000), np.linspace(-1, 1, 1000))
  none = clopper_pearson(0, 1000, 0.025)
  expected = np.log((1 - DELTA - none) / none)
  explicit = bound(scores, Explicit((3.0,)))
  assert explicit.epsilon == pytest.approx(expected)
  # Of randomised response with this ε all 2000 scores are rarely as they are
  # most likely to be; nothing else separates them as often.
  both = np.log(1 / (1 - 0.05 ** (1 / 2000)) - 1)
  assert bound(scores).epsilon == pytest.approx(both, abs=0.05)


def test_the_second_direction_finds_a_lower_tail():
  # One unobserved canary in ten is alone far below all others.
  observed = quantiles(1000)
  unobserved = np.where(np.arange(1000) < 100, -9.0, observed)
  scores = Scores(observed, unobserved)
  for strategy in (Band(), Bonferroni()):
    one = bound(scores, strategy).epsilon
    assert bound(scores, strategy, sides='both').epsilon > one + 0.5


def test_bad_settings_are_refused():
  scores = Scores(np.arange(5.0), np.arange(5.0))
  cases = [
    (scores, dict(significance=0.0), 'significance=0'),
    (Scores(np.zeros(1), np.zeros(5)), dict(strategy=Split(0)), '1 observed'),
  ]
  for bad, settings_, message in cases:
    with pytest.raises(ValueError, match=message):
      bound(bad, **settings_)


def test_a_level_that_needs_too_many_draws_is_refused_with_the_bound_that_has_it():
  scores = Scores(np.linspace(2, 4, 50), np.linspace(-1, 1, 50))
  for level in (9e-5, 1e-12, 1e-100):
    with pytest.raises(ValueError, match=f'significance={level:g}, .* 0.0001'):
      lower_bound(scores, delta=1e-5, significance=level)
  exact = lower_bound(
    scores, delta=1e-5, significance=1e-12, multiplicity=Bonferroni(1)
  )
  assert 0 <= exact.epsilon < 1


values = hnp.arrays(
  np.float64,
  st.integers(1, 9),
  elements=st.floats(-1, 1) | st.sampled_from([0.0, 1.0]),
)


@pytest.mark.integration
@settings(max_examples=30, deadline=None, derandomize=True)
@given(
  values,
  values,
  st.sampled_from([None, 2, 50]),
  st.sampled_from(['in', 'both']),
)
def test_any_scores_give_a_number_or_a_plain_error(
  observed, unobserved, dim, sides
):
  scores = Scores(observed, unobserved, null=make_null(dim))
  for strategy in [*VALID, Uncorrected()]:
    sizes = observed.size, unobserved.size
    if isinstance(strategy, Split) and min(sizes) < 2:
      with pytest.raises(ValueError, match='one part empty'):
        bound(scores, strategy, sides=sides)
    else:
      assert bound(scores, strategy, sides=sides).epsilon >= 0


@pytest.mark.parametrize('sides', ['in', 'both'])
@pytest.mark.parametrize('seed', range(3))
def test_numbers_are_those_of_jax_privacy(sides, seed):
  auditing = pytest.importorskip('jax_privacy.auditing')
  rng = np.random.default_rng(seed)
  observed, unobserved = rng.normal(2, 1, 300), rng.normal(0, 1, 400)
  scores = Scores(observed, unobserved)
  auditor = auditing.CanaryScoreAuditor(observed, unobserved)

  def theirs(strategy, significance=0.05):
    return auditor.epsilon_clopper_pearson(
      significance, DELTA, sides == 'in', threshold_strategy=strategy
    )

  def ours(strategy, **settings_):
    return bound(scores, strategy, sides=sides, **settings_).epsilon

  explicit = theirs(auditing.Explicit(1.0))
  assert ours(Explicit((1.0,))) == pytest.approx(explicit, rel=1e-9)
  split = theirs(auditing.Split(0.4, seed))
  assert ours(Split(seed, 0.4)) == pytest.approx(split, rel=1e-9)
  # Theirs divides by the number of thresholds on the hull of the ROC, and tries
  # these only: no bound, and at most ours at all thresholds at that level.
  number = len(auditor._fn_counts)
  hull = theirs(auditing.Bonferroni())
  every = ours(Uncorrected(), significance=0.05 / number)
  assert hull <= every * (1 + 1e-9)
  assert hull > 0.9 * every
