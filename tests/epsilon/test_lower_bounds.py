"""Bounds from thresholds: coverage, counting by hand, closed forms, jax-privacy."""

import functools

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
from scipy import stats

from epe_jax.dpsgd import families
from epe_jax.dpsgd.uncorrected import Uncorrected
from epe_jax.epsilon import lower_bounds, paper_estimates, tradeoff
from epe_jax.epsilon.cosine_null import CosineNull
from epe_jax.epsilon.lower_bounds import (
  Band,
  Bonferroni,
  Explicit,
  Split,
  family_bound,
  gdp_bound,
  lower_bound,
)
from epe_jax.epsilon.threshold import clopper_pearson_upper
from epe_jax.epsilon.types import Assumption, Scores, Sphere, make_null
from tests.epsilon import plds

DELTA = 1e-5
DIM = 10**6
VALID = [Band(), Bonferroni(), Explicit((0.5, 1.5)), Split(0)]
ALL = [*VALID, Uncorrected()]
GAUSSIAN = tradeoff.gaussian_family()


def mu_of(epsilon):
  return tradeoff.mu_of_epsilon(epsilon, DELTA)


def draw(rng, epsilon, audits, num, dim=None):
  observed = rng.normal(mu_of(epsilon), 1, (audits, num))
  if dim is None:
    return Scores(observed, rng.normal(0, 1, (audits, num)))
  return Scores(observed / np.sqrt(dim), np.empty(0), null=make_null(dim))


def quantiles(num):
  return stats.norm.ppf((np.arange(num) + 0.5) / num)


def shifted(mu, num=1000):
  return Scores(quantiles(num) + mu, quantiles(num))


def name(strategy):
  return type(strategy).__name__


def bound(scores, multiplicity=VALID[0], **settings):
  return lower_bound(scores, delta=DELTA, multiplicity=multiplicity, **settings)


def gdp(scores, multiplicity=VALID[0], **settings):
  return gdp_bound(scores, delta=DELTA, multiplicity=multiplicity, **settings)


# What is promised.


@pytest.mark.parametrize('strategy', VALID, ids=name)
@pytest.mark.parametrize('dim', [None, DIM])
@pytest.mark.parametrize('epsilon', [0, 3])
def test_bounds_exceed_the_truth_as_rarely_as_they_say(strategy, dim, epsilon):
  if isinstance(strategy, Explicit) and dim is not None:
    strategy = Explicit(tuple(t / 1000 for t in strategy.thresholds))
  rng = np.random.default_rng([epsilon, dim is None])
  scores = draw(rng, epsilon, 100, 200, dim)
  # A failure has probability 1e-6 in each at exact coverage.
  most = stats.binom.isf(1e-6, 100, 0.05)
  for estimate in (
    bound(scores, strategy, sides='both'),
    gdp(scores, strategy),
  ):
    assert estimate.confidence == 0.95
    assert np.sum(estimate.epsilon > epsilon) <= most


# The audits that the bounds above survive, at no leakage.
@pytest.mark.parametrize('dim', [None, DIM])
def test_eps_lo_of_the_paper_fails_where_the_bounds_hold(dim):
  scores = draw(np.random.default_rng(0), 0, 300, 500, dim)
  limit = stats.binom.isf(1e-6, 300, 0.05)
  paper = paper_estimates.eps_lo(scores, delta=DELTA).epsilon
  assert np.sum(paper > 0) > limit
  for strategy in (Band(), Bonferroni()):
    valid = bound(scores, strategy, sides='both').epsilon
    assert np.sum(valid > 0) <= limit
  best = gdp(scores, Uncorrected(), significance=0.2)
  assert best.confidence is None
  assert np.sum(best.epsilon > 0) > stats.binom.isf(1e-6, 300, 0.2)


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
@pytest.mark.parametrize('digits', [17, 1])
def test_bounds_agree_with_counting_by_hand(dim, sides, digits):
  rng = np.random.default_rng(1)
  observed = (0.9 * np.tanh(rng.normal(0.5, 0.3, 23))).round(digits)
  unobserved = (0.9 * np.tanh(rng.normal(-0.5, 0.3, 31))).round(digits)
  scores = Scores(observed, unobserved, null=make_null(dim))
  everywhere = np.union1d(observed, unobserved)
  slow = slow_bound(scores, everywhere, 0.05, sides)
  assert slow > 0
  estimate = bound(scores, Uncorrected(), sides=sides)
  assert estimate.epsilon == pytest.approx(slow, rel=1e-9)
  given = (-0.2, 0.0, 0.4)
  slow = slow_bound(scores, given, 0.05 / 3, sides)
  estimate = bound(scores, Explicit(given), sides=sides)
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
  scores = draw(np.random.default_rng(3), 0, 150, 100)
  coarse = Scores(np.round(scores.observed), np.round(scores.unobserved))
  for strategy in VALID:
    exceeds = np.sum(bound(coarse, strategy, sides='both').epsilon > 0)
    assert exceeds <= stats.binom.isf(1e-6, 150, 0.05)


@pytest.mark.parametrize('strategy', ALL, ids=name)
def test_leading_axes_are_independent_audits(strategy):
  rng = np.random.default_rng(4)
  scores = Scores(rng.normal(2, 1, (2, 2, 40)), rng.normal(size=(2, 2, 50)))
  for estimator in (bound, gdp):
    together = np.asarray(estimator(scores, strategy).epsilon)
    assert together.shape == (2, 2)
    for at in np.ndindex(2, 2):
      alone = Scores(scores.observed[at], scores.unobserved[at])
      assert together[at] == estimator(alone, strategy).epsilon


@pytest.mark.parametrize('multiplicity', VALID, ids=name)
def test_a_bound_is_of_a_kind_and_says_what_it_assumes(multiplicity):
  scores = Scores(np.linspace(1, 2, 40), np.linspace(0, 1, 40))
  free = bound(scores, multiplicity)
  assert (free.kind, free.is_shape_free) == ('confidence_bound', True)
  assert free.assumes == (Assumption.INDEPENDENT,)
  shaped = gdp(scores, multiplicity)
  assert not shaped.is_shape_free
  assert shaped.assumes[-1] == Assumption.GAUSSIAN_CURVE
  no_bound = bound(scores, Uncorrected())
  assert (no_bound.kind, no_bound.confidence) == ('point_estimate', None)


# What is won.


@pytest.mark.parametrize('dim', [None, DIM])
@pytest.mark.parametrize('epsilon', [3, 10])
def test_band_is_close_to_the_best_bound_on_quantile_samples(dim, epsilon):
  sample = quantiles(500)
  scores = Scores(sample + mu_of(epsilon), sample)
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
  assert band > bound(scores, Bonferroni(500)).epsilon


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


# Bounds that know the shape of the curve.


def test_an_attack_no_better_than_chance_proves_no_mu():
  # |μ| would be 2 for the reverse of a good attack.
  scores = shifted(-2)
  for multiplicity in ALL:
    assert gdp(scores, multiplicity).epsilon == 0


@pytest.mark.parametrize('mu', [0.5, 1.0, 3.0])
def test_gdp_is_equation_12_at_clopper_pearson_limits(mu):
  scores = shifted(mu)
  fp = np.sum(scores.unobserved >= mu / 2)
  fn = np.sum(scores.observed < mu / 2)
  limits = stats.beta.ppf(
    0.975, np.array([fp, fn]) + 1, 1000 - np.array([fp, fn])
  )
  expected = tradeoff.epsilon_gdp(-np.sum(stats.norm.ppf(limits)), DELTA)
  estimate = gdp(scores, Explicit((mu / 2,)))
  assert estimate.epsilon == pytest.approx(expected, rel=1e-9)


def test_an_exact_null_spends_everything_on_the_fnr():
  observed = quantiles(1000) / 100 + 0.05
  scores = Scores(observed, np.empty(0), null=Sphere(10_000))
  missed = np.sum(observed < 0.06)
  fnr = clopper_pearson(missed, 1000, 0.05)
  mu = -stats.norm.ppf(CosineNull(10_000).sf(0.06)) - stats.norm.ppf(fnr)
  estimate = gdp(scores, Explicit((0.06,)))
  assert estimate.epsilon == pytest.approx(tradeoff.epsilon_gdp(mu, DELTA))


@pytest.mark.parametrize('multiplicity', [Band(), Explicit((1.0,))], ids=name)
@pytest.mark.parametrize(
  'family', [GAUSSIAN, families.subsampled_gaussian_family(1.0)]
)
def test_the_solver_agrees_with_the_closed_form(family, multiplicity):
  scores = shifted(2.0, 300)
  exact = gdp(scores, multiplicity).epsilon
  solved = family_bound(
    scores, family=family, delta=DELTA, multiplicity=multiplicity
  ).epsilon
  assert solved == pytest.approx(exact, rel=1e-6)
  # Limits are solved for the noise, which is rounded up.
  assert multiplicity == Band() or solved <= exact


def test_bounds_are_below_the_truth_and_tight_on_quantile_samples():
  for mu in (1.0, 3.0):
    truth = tradeoff.epsilon_gdp(mu, DELTA)
    for num, least in ((1000, 0.75), (100_000, 0.97)):
      best = gdp(shifted(mu, num), Explicit((mu / 2,))).epsilon
      assert least * truth < best < truth
    # Nasr et al., figure 3: (ε, δ)-DP needs far more than 1000 observations.
    assert bound(shifted(mu)).epsilon < gdp(shifted(mu)).epsilon < truth


def test_cosines_far_beyond_the_null_prove_thousands():
  scores = Scores(np.full(1000, 0.5), np.empty(0), null=Sphere(10**5))
  at = np.array([CosineNull(10**5).logsf(0.5)])
  mu = tradeoff.gdp_mu(at, np.array([1 - 0.05 ** (1 / 1000)]))[0]
  estimate = gdp(scores, Explicit((0.5,)))
  assert estimate.epsilon == pytest.approx(tradeoff.epsilon_gdp(mu, DELTA))
  assert estimate.epsilon > 10_000
  certain = Scores(np.ones(3), np.empty(0), null=Sphere(10))
  assert gdp(certain).epsilon == np.inf


@pytest.mark.integration
def test_a_subsampled_step_is_bounded_tightly_through_all_steps():
  noise, p, num = 0.5, 0.2, 20_000
  grid = np.linspace(-6, 8, 200_001)
  # Scores of a Gaussian that is shifted for a share p of the observed.
  mixture = (1 - p) * stats.norm.cdf(grid) + p * stats.norm.cdf(
    grid - 1 / noise
  )
  observed = np.interp((np.arange(num) + 0.5) / num, mixture, grid)
  scores = Scores(observed, quantiles(num))
  settings = dict(delta=DELTA, multiplicity=Explicit((2.0,)))
  for steps, least in ((1, 0.9), (100, 0.85)):
    family = families.subsampled_gaussian_family(p, steps=steps)
    truth = family.epsilon(noise, DELTA)
    estimate = family_bound(scores, family=family, **settings)
    assert least * truth < estimate.epsilon < truth
  # A plain Gaussian does not explain these scores as well.
  one = families.subsampled_gaussian_family(p).epsilon(noise, DELTA)
  assert gdp_bound(scores, **settings).epsilon < 0.9 * one


@pytest.mark.integration
def test_scores_that_no_member_of_the_family_allows_refute_it():
  # Sampled with probability 0.1, a canary is missed nine times out of ten.
  separated = Scores(np.linspace(5, 6, 1000), np.linspace(0, 1, 1000))
  for family in (
    families.subsampled_gaussian_family(0.1, steps=10),
    families.pld_family(lambda z: plds.from_dp_accounting(z, 0.1)),
  ):
    settings = dict(family=family, delta=DELTA, multiplicity=Explicit((3.0,)))
    assert family_bound(separated, **settings).epsilon == np.inf
  assert np.isfinite(gdp(separated).epsilon)


# What is refused.


@pytest.mark.usefixtures('types_unchecked')
@pytest.mark.parametrize(
  ('make', 'message'),
  [
    (lambda: Bonferroni(0), 'num_thresholds=0'),
    (lambda: Split(-1), 'seed=-1'),
    (lambda: Explicit(()), r'thresholds=\(\)'),
    (lambda: Explicit((np.nan,)), 'thresholds='),
    (lambda: Explicit('abc'), "thresholds='abc'"),
    (lambda: Explicit(0.5), r'thresholds=0\.5'),
    (lambda: Explicit(('a', 1.0)), 'thresholds='),
  ],
)
def test_corrections_that_make_no_sense_are_refused_by_name(make, message):
  with pytest.raises(ValueError, match=message):
    make()


@pytest.mark.usefixtures('types_unchecked')
@pytest.mark.parametrize('wrong', ['band', Split, None, 10], ids=str)
@pytest.mark.parametrize(
  'estimator',
  [lower_bound, gdp_bound, functools.partial(family_bound, family=GAUSSIAN)],
  ids=['lower_bound', 'gdp', 'family'],
)
def test_an_unknown_multiplicity_is_never_taken_for_another(estimator, wrong):
  scores = Scores(np.arange(5.0), np.arange(5.0))
  with pytest.raises(ValueError, match=r'multiplicity=.*give an instance of'):
    estimator(scores, delta=1e-3, multiplicity=wrong)


def test_a_level_that_needs_too_many_draws_is_refused_with_the_bound_that_has_it():
  scores = Scores(np.linspace(2, 4, 50), np.linspace(-1, 1, 50))
  for level in (9e-5, 1e-12, 1e-100):
    with pytest.raises(ValueError, match=f'significance={level:g}, .* 0.0001'):
      bound(scores, significance=level)
  exact = bound(scores, Bonferroni(1), significance=1e-12)
  assert 0 <= exact.epsilon < 1


@hypothesis.settings(max_examples=60, deadline=None, derandomize=True)
@hypothesis.given(
  observed=st.lists(st.integers(-3, 3), min_size=1, max_size=20),
  unobserved=st.lists(st.integers(-3, 3), min_size=1, max_size=20),
  dim=st.sampled_from([None, 2, 50]),
  multiplicity=st.sampled_from(ALL),
  sides=st.sampled_from(['in', 'both']),
)
def test_any_scores_give_a_number_or_a_plain_error(
  observed, unobserved, dim, multiplicity, sides
):
  scores = Scores(
    np.array(observed) / 3, np.array(unobserved) / 3, null=make_null(dim)
  )
  if (
    isinstance(multiplicity, Split)
    and min(map(len, (observed, unobserved))) < 2
  ):
    with pytest.raises(ValueError, match='no halves'):
      bound(scores, multiplicity, sides=sides)
  else:
    assert bound(scores, multiplicity, sides=sides).epsilon >= 0
    exact = gdp(scores, multiplicity).epsilon
    solved = family_bound(
      scores, family=GAUSSIAN, delta=DELTA, multiplicity=multiplicity
    ).epsilon
    # Beyond 1e10 the noise of a member has no name.
    assert solved == pytest.approx(exact, rel=1e-4) or exact > 100


@pytest.mark.parametrize('sides', ['in', 'both'])
def test_numbers_are_those_of_jax_privacy(sides):
  auditing = pytest.importorskip('jax_privacy.auditing')
  rng = np.random.default_rng(0)
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
  split = theirs(auditing.Split(0.5, 7))
  assert ours(Split(7)) == pytest.approx(split, rel=1e-9)
  # Theirs divides by the number of thresholds on the hull of the ROC, and tries
  # these only: no bound, and at most ours at all thresholds at that level.
  number = len(auditor._fn_counts)
  hull = theirs(auditing.Bonferroni())
  every = ours(Uncorrected(), significance=0.05 / number)
  assert 0.9 * every < hull <= every * (1 + 1e-9)


# The band.


@pytest.mark.parametrize('trials', [1, 2, 30, 1000])
def test_band_holds_together_as_often_as_it_says(trials):
  level = lower_bounds.band_level(trials, 0.05)
  assert 0.05 / max(trials, 1) <= level <= 0.05 * (1 + 1e-12)
  rng = np.random.default_rng(1)
  # Order statistics of uniforms are normalised sums of exponentials.
  sums = np.cumsum(rng.standard_exponential((4000, trials + 1)), axis=-1)
  tail = sums[:, :-1] / sums[:, -1:]
  limits = lower_bounds.band_upper(np.arange(trials), trials, 0.05)
  fails = np.mean(np.any(tail > limits, axis=-1))
  # Five standard errors: a failure has probability 6e-7.
  assert fails == pytest.approx(0.05, abs=5 * np.sqrt(0.05 * 0.95 / 4000))
  # The limits of single thresholds fail somewhere far more often.
  if trials >= 30:
    single = clopper_pearson_upper(np.arange(trials), trials, 0.05)
    assert np.mean(np.any(tail > single, axis=-1)) > 0.25


def slow_coverage(trials, ranks, limits):
  """P(N(limit) >= rank at every rank), by binomial steps and no Poisson."""
  state, before = np.zeros(trials + 1), 0.0
  state[0] = 1
  for rank, limit in zip(ranks, limits):
    share = (limit - before) / (1 - before)
    after = np.zeros(trials + 1)
    for s in range(trials + 1):
      more = np.arange(trials - s + 1)
      after[s:] += state[s] * stats.binom.pmf(more, trials - s, share)
    after[:rank] = 0
    state, before = after, limit
  return state.sum()


@pytest.mark.parametrize('trials', [3, 25])
def test_coverage_of_a_band_is_that_of_a_slow_markov_chain(trials):
  rng = np.random.default_rng(2)
  ranks = np.arange(1, trials + 1)
  limits = np.sort(rng.uniform(size=trials)) ** 0.3
  fast = lower_bounds.band_coverage(trials, ranks, limits)
  assert fast == pytest.approx(slow_coverage(trials, ranks, limits), rel=1e-9)
  # A single rank has a beta variable.
  alone = lower_bounds.band_coverage(trials, ranks[1:2], limits[1:2])
  beta = stats.beta.cdf(limits[1], 2, trials - 1)
  assert alone == pytest.approx(beta, rel=1e-9)


def test_band_limits_fall_with_the_count_and_rise_with_confidence():
  counts = np.arange(1001)
  limits = lower_bounds.band_upper(counts, 1000, 0.05)
  assert np.all(np.diff(limits) >= 0)
  assert limits[-1] == 1
  assert np.all(lower_bounds.band_upper(counts, 1000, 0.01) >= limits)
  assert np.all(limits >= clopper_pearson_upper(counts, 1000, 0.05))
