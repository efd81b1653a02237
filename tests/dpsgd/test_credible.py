"""Credible intervals against sampling, quadrature and privacy-estimates."""

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
from scipy import integrate, special, stats

from epe_jax.dpsgd import credible
from epe_jax.dpsgd.credible import ConfusionCounts
from epe_jax.dpsgd.uncorrected import Uncorrected
from epe_jax.epsilon import lower_bounds, tradeoff
from epe_jax.epsilon.cosine_null import CosineNull
from epe_jax.epsilon.lower_bounds import Explicit, Split
from epe_jax.epsilon.types import Scores, Sphere, make_null

DELTA = 1e-5
PROBABILITIES = np.array([0.025, 0.05, 0.5, 0.975])
COUNTS = [
  ConfusionCounts(159, 1000, 159, 1000),
  ConfusionCounts(0, 1000, 0, 1000),
  ConfusionCounts(0, 10, 1, 10),
  # Posteriors of very different widths, either way.
  ConfusionCounts(0, 10, 300_000, 10**6),
  ConfusionCounts(30, 10**6, 5, 10),
]


def plug_in(fpr, fnr):
  """ε of given rates, by hand."""
  with np.errstate(all='ignore'):
    one = np.where(1 - DELTA - fnr > 0, np.log((1 - DELTA - fnr) / fpr), 0)
    two = np.where(1 - DELTA - fpr > 0, np.log((1 - DELTA - fpr) / fnr), 0)
  return np.maximum(np.maximum(one, two), 0)


def draw(counts, size, seed):
  rng = np.random.default_rng(seed)
  fp, n0, fn, n1, _ = counts
  fpr = rng.beta(0.5 + fp, 0.5 + n0 - fp, size)
  return fpr, rng.beta(0.5 + fn, 0.5 + n1 - fn, size)


def epsilon_quantiles(counts, probabilities):
  curve = tradeoff.approximate_dp_curves(DELTA).fnr
  return np.array(
    [credible.find_quantile(counts, p, curve) for p in probabilities]
  )


def mu_quantiles(counts, probabilities):
  return np.array(
    [credible.find_quantile(counts, p, tradeoff.fnr_gdp) for p in probabilities]
  )


def scores_with(counts):
  """Scores of which the threshold 0.5 makes these errors."""
  fp, n0, fn, n1, _ = counts
  return Scores(np.arange(n1) >= fn, np.arange(n0) < fp)


# 1e6 draws: five standard errors of a probability are at most 2.5e-3, a failure
# has probability 6e-7.
@pytest.mark.parametrize(
  'counts',
  [
    *COUNTS,
    ConfusionCounts(500, 1000, 510, 1000),
    # Worse than chance.
    ConfusionCounts(900, 1000, 900, 1000),
  ],
)
def test_quantiles_agree_with_draws_from_the_posterior(counts):
  fpr, fnr = draw(counts, 10**6, seed=0)
  epsilon = plug_in(fpr, fnr)
  mu = np.maximum(-special.ndtri(fpr) - special.ndtri(fnr), 0)
  for found, drawn in (
    (epsilon_quantiles(counts, PROBABILITIES), epsilon),
    (mu_quantiles(counts, PROBABILITIES), mu),
  ):
    below = np.mean(drawn[:, None] <= found, axis=0)
    # Where ε = 0 has mass, all of it is at that quantile.
    expected = np.where(found > 0, PROBABILITIES, np.mean(drawn <= 0))
    np.testing.assert_allclose(below, expected, atol=2.5e-3)


def test_the_wrong_prior_is_noticed():
  fpr, fnr = draw(ConfusionCounts(1, 10, 1, 10), 10**5, seed=1)
  found = epsilon_quantiles(ConfusionCounts(0, 10, 0, 10), [0.5])
  assert abs(np.mean(plug_in(fpr, fnr) <= found) - 0.5) > 0.1


@pytest.mark.parametrize('counts', COUNTS[:3])
def test_the_mass_agrees_with_quadrature(counts):
  fp, n0, fn, n1, _ = counts
  first = stats.beta(0.5 + fp, 0.5 + n0 - fp)
  second = stats.beta(0.5 + fn, 0.5 + n1 - fn)
  for probability in (0.05, 0.9):
    mu = credible.find_quantile(counts, probability, tradeoff.fnr_gdp)
    below, _ = integrate.quad(
      lambda p, m=mu: second.cdf(
        stats.norm.sf(m + stats.norm.ppf(first.ppf(p)))
      ),
      0,
      1,
      limit=400,
      epsabs=1e-8,
    )
    assert 1 - below == pytest.approx(probability, abs=1e-5)


# compute_eps_lo(counts, 1e-5, 0.05, 'joint-beta') and both ends of
# compute_eps_lo_hi of privacy-estimates 0.1.0.post1, whose root is found to
# 1e-2 with a quadrature of 5e-3.
PUBLISHED = {
  ConfusionCounts(159, 1000, 159, 1000): (1.5878, 1.5695, 1.8376),
  ConfusionCounts(5, 1000, 500, 1000): (3.9266, 3.8193, 5.5691),
  ConfusionCounts(20, 100, 30, 200): (1.4110, 1.3568, 2.0453),
}


@pytest.mark.parametrize('counts', PUBLISHED)
def test_quantiles_are_those_of_privacy_estimates(counts):
  found = epsilon_quantiles(counts, [0.05, 0.025, 0.975])
  np.testing.assert_allclose(found, PUBLISHED[counts], atol=0.01)


@pytest.mark.slow
def test_privacy_estimates_still_says_so():
  theirs = pytest.importorskip('privacy_estimates')
  # Far from chance: there the reverse of an attack, which they count, has no mass.
  counts = ConfusionCounts(159, 1000, 169, 1000)
  table = theirs.AttackResults(FN=169, FP=159, TN=841, TP=831)
  upper = theirs.compute_eps_hi(table, DELTA, 0.05, 'joint-beta')
  found = epsilon_quantiles(counts, [0.95])
  assert found[0] == pytest.approx(upper, abs=0.02)


def test_credible_bounds_are_above_those_of_two_clopper_pearson_limits():
  # Table 1 of Nasr et al. has every (ZB) row above its (CP) row.
  for mu in (1.0, 2.0, 4.0):
    sample = stats.norm.ppf((np.arange(1000) + 0.5) / 1000)
    scores = Scores(sample + mu, sample)
    settings = dict(delta=DELTA, multiplicity=Explicit((mu / 2,)))
    belief = credible.gdp_credible(scores, **settings)
    confident = lower_bounds.gdp_bound(scores, **settings)
    plain = credible.epsilon_credible(scores, **settings)
    truth = tradeoff.epsilon_gdp(mu, DELTA)
    assert plain.epsilon < confident.epsilon < belief.epsilon < truth
    assert belief.epsilon > 0.8 * truth
    assert belief.method == 'gdp_credible_explicit'
    assert belief.confidence == 0.95


def test_an_exact_null_leaves_the_posterior_of_the_fnr():
  dim, at = 10_000, 0.06
  observed = stats.norm.ppf((np.arange(1000) + 0.5) / 1000) / 100 + 0.05
  scores = Scores(observed, np.empty(0), null=make_null(dim))
  fn = int(np.sum(observed < at))
  fnr = stats.beta.ppf(0.95, fn + 0.5, 1000 - fn + 0.5)
  log_fpr = CosineNull(dim).logsf(at)
  settings = dict(delta=DELTA, multiplicity=Explicit((at,)))
  epsilon = credible.epsilon_credible(scores, **settings).epsilon
  assert epsilon == pytest.approx(np.log(1 - DELTA - fnr) - log_fpr, rel=1e-6)
  mu = -special.ndtri_exp(log_fpr) - special.ndtri(fnr)
  found = credible.gdp_credible(scores, **settings).epsilon
  assert found == pytest.approx(tradeoff.epsilon_gdp(mu, DELTA), rel=1e-6)


def test_nothing_caps_epsilon():
  cosines = Scores(np.full(1000, 0.5), np.empty(0), null=Sphere(10**5))
  settings = dict(delta=DELTA, multiplicity=Explicit((0.5,)))
  assert credible.epsilon_credible(cosines, **settings).epsilon > 10_000
  assert credible.gdp_credible(cosines, **settings).epsilon > 10_000
  certain = Scores(np.ones(10), np.empty(0), null=Sphere(10))
  settings = dict(delta=DELTA, multiplicity=Explicit((1.0,)))
  assert credible.epsilon_credible(certain, **settings).epsilon == np.inf
  assert credible.gdp_credible(certain, **settings).epsilon == np.inf


def test_a_bound_is_the_quantile_of_its_significance():
  scores, low = scores_with(COUNTS[0]), [0.025]
  settings = dict(
    delta=DELTA, multiplicity=Explicit((0.5,)), significance=0.025
  )
  bound = credible.epsilon_credible(scores, **settings)
  assert bound.confidence == 0.975
  assert bound.epsilon == epsilon_quantiles(COUNTS[0], low)
  mu = mu_quantiles(COUNTS[0], low)
  bound = credible.gdp_credible(scores, **settings)
  assert bound.epsilon == tradeoff.epsilon_gdp(mu, DELTA)


def test_the_threshold_must_not_come_from_the_counted_scores():
  rng = np.random.default_rng(3)
  scores = Scores(rng.normal(1, 1, 300), rng.normal(0, 1, 300))
  for estimator in (credible.epsilon_credible, credible.gdp_credible):
    split = estimator(scores, delta=DELTA, multiplicity=Split(0))
    best = estimator(scores, delta=DELTA, multiplicity=Uncorrected())
    assert split.confidence == 0.95
    assert best.confidence is None
    assert best.method.endswith('uncorrected')


def test_leading_axes_are_independent_audits():
  rng = np.random.default_rng(4)
  scores = Scores(rng.normal(2, 1, (2, 2, 40)), rng.normal(size=(2, 2, 50)))
  for multiplicity in (Explicit((1.0,)), Split(0), Uncorrected()):
    settings = dict(delta=DELTA, multiplicity=multiplicity)
    together = np.asarray(credible.gdp_credible(scores, **settings).epsilon)
    assert together.shape == (2, 2)
    for at in np.ndindex(2, 2):
      alone = Scores(scores.observed[at], scores.unobserved[at])
      assert together[at] == credible.gdp_credible(alone, **settings).epsilon


@pytest.mark.integration
@hypothesis.settings(max_examples=20, deadline=None, derandomize=True)
@hypothesis.given(
  st.integers(1, 50), st.integers(1, 10**6), st.floats(0, 1), st.floats(0, 1)
)
def test_any_counts_give_ordered_numbers(n0, n1, share0, share1):
  counts = ConfusionCounts(round(share0 * n0), n0, round(share1 * n1), n1)
  for quantiles in (epsilon_quantiles, mu_quantiles):
    found = quantiles(counts, PROBABILITIES)
    assert np.all(np.isfinite(found))
    assert np.all(np.diff(found, prepend=0) >= 0)


def test_settings_out_of_range_are_refused():
  scores = scores_with(COUNTS[2])
  one = Explicit((0.5,))
  with pytest.raises(ValueError, match='single one'):
    credible.gdp_credible(
      scores, delta=DELTA, multiplicity=Explicit((0.5, 0.6))
    )
  with pytest.raises(ValueError, match='delta=0'):
    credible.gdp_credible(scores, delta=0.0, multiplicity=one)
  with pytest.raises(ValueError, match='significance=0'):
    credible.gdp_credible(
      scores, delta=DELTA, multiplicity=one, significance=0.0
    )


@pytest.mark.usefixtures('types_unchecked')
def test_a_posterior_is_of_one_threshold_and_takes_no_band():
  scores = Scores(np.arange(5.0), np.arange(5.0))
  for wrong in (lower_bounds.Band(), lower_bounds.Bonferroni(), 'band', Split):
    for estimator in (credible.epsilon_credible, credible.gdp_credible):
      with pytest.raises(ValueError, match='give an instance of one of Expl'):
        estimator(scores, delta=1e-3, multiplicity=wrong)


def test_a_belief_is_withdrawn_where_scores_refute_their_null_law():
  cosines = np.random.default_rng(0).standard_normal((2, 500)) / 100
  for dim, kind in ((10_000, 'credible_bound'), (20_000, 'point_estimate')):
    estimate = credible.gdp_credible(
      Scores(*cosines, Sphere(dim)), delta=1e-5, multiplicity=Split(seed=0)
    )
    assert estimate.kind == kind
