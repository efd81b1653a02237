"""What an estimate says of itself: its kind, and what it assumes."""

import functools

import numpy as np
import pytest

from epe_jax.dpsgd import credible
from epe_jax.dpsgd.uncorrected import Uncorrected
from epe_jax.epsilon import (
  diagnostics,
  gaussian_bound,
  threshold_bound,
  tradeoff_curves,
)
from epe_jax.epsilon.corrections import (
  Band,
  Bonferroni,
  Explicit,
  Split,
)
from epe_jax.epsilon.types import Assumption, Estimate, Scores, Sphere

VALID = [Band(), Bonferroni(), Explicit((0.5, 1.5)), Split(0)]


def bound(scores, multiplicity=VALID[0]):
  return threshold_bound.lower_bound(
    scores, delta=1e-5, multiplicity=multiplicity
  )


@pytest.mark.usefixtures('types_unchecked')
@pytest.mark.parametrize(
  ('make', 'message'),
  [
    (lambda: Bonferroni(0), 'num_thresholds=0'),
    (lambda: Bonferroni(2.5), r'num_thresholds=2\.5'),
    (lambda: Bonferroni('10'), "num_thresholds='10'"),
    (lambda: Split(-1), 'seed=-1'),
    (lambda: Split(0, 1.0), r'fraction=1\.0'),
    (lambda: Split(0.5), r'seed=0\.5'),
    (lambda: Split(0, 'half'), "fraction='half'"),
    (lambda: Explicit(()), r'thresholds=\(\)'),
    (lambda: Explicit((np.nan,)), 'thresholds='),
    (lambda: Explicit('abc'), "thresholds='abc'"),
    (lambda: Explicit(0.5), r'thresholds=0\.5'),
    (lambda: Explicit(('a', 1.0)), 'thresholds='),
  ],
)
def test_strategies_that_make_no_sense_are_refused_by_name(make, message):
  with pytest.raises(ValueError, match=message):
    make()


@pytest.mark.usefixtures('types_unchecked')
@pytest.mark.parametrize(
  'wrong', ['foo', 'band', Split, Band, None, 10, 0.5], ids=str
)
@pytest.mark.parametrize(
  'estimator',
  [
    threshold_bound.lower_bound,
    threshold_bound.gdp_bound,
    functools.partial(
      threshold_bound.family_bound, family=tradeoff_curves.gaussian_family()
    ),
    credible.epsilon_credible,
    credible.gdp_credible,
  ],
  ids=['lower_bound', 'gdp', 'family_bound', 'epsilon', 'mu'],
)
def test_an_unknown_multiplicity_is_never_taken_for_another(estimator, wrong):
  scores = Scores(np.arange(5.0), np.arange(5.0))
  with pytest.raises(ValueError, match=r'multiplicity=.*give an instance of'):
    estimator(scores, delta=1e-3, multiplicity=wrong)


@pytest.mark.usefixtures('types_unchecked')
def test_a_posterior_is_of_one_threshold_and_takes_no_band():
  scores = Scores(np.arange(5.0), np.arange(5.0))
  for wrong in (Band(), Bonferroni()):
    for estimator in (credible.epsilon_credible, credible.gdp_credible):
      with pytest.raises(ValueError, match='give an instance of one of Expl'):
        estimator(scores, delta=1e-3, multiplicity=wrong)


@pytest.mark.parametrize('multiplicity', VALID, ids=repr)
def test_a_bound_is_of_a_kind_and_says_what_it_assumes(multiplicity):
  scores = Scores(np.linspace(1, 2, 40), np.linspace(0, 1, 40))
  free = bound(scores, multiplicity)
  assert free.kind == 'confidence_bound'
  assert free.is_shape_free
  assert free.assumes == (Assumption.INDEPENDENT,)
  shaped = threshold_bound.gdp_bound(
    scores, delta=1e-3, multiplicity=multiplicity
  )
  assert not shaped.is_shape_free
  assert shaped.assumes[-1] == Assumption.GAUSSIAN_CURVE
  if isinstance(multiplicity, Split):
    belief = credible.epsilon_credible(
      scores, delta=1e-3, multiplicity=multiplicity
    )
    assert (belief.kind, belief.confidence) == ('credible_bound', 0.95)
  no_bound = bound(scores, Uncorrected())
  assert (no_bound.kind, no_bound.confidence) == ('point_estimate', None)


def test_a_point_estimate_has_no_confidence_and_a_bound_has_one():
  with pytest.raises(
    ValueError, match=r"'point_estimate' with confidence=0\.9"
  ):
    Estimate(1.0, 1e-5, 'made up', confidence=0.9)
  with pytest.raises(ValueError, match="'credible_bound' with confidence=None"):
    Estimate(1.0, 1e-5, 'made up', None, kind='credible_bound')


def test_a_dim_that_the_unobserved_scores_refute_gives_no_confidence():
  rng = np.random.default_rng(0)
  d = 10_000
  for factor, rejected in ((1, False), (2, True), (0.5, True)):
    observed, unobserved = rng.standard_normal((2, 500)) / np.sqrt(d)
    scores = Scores(observed, unobserved, null=Sphere(int(factor * d)))
    assert diagnostics.is_null_rejected(scores) == rejected
    for estimate in (
      bound(scores),
      threshold_bound.gdp_bound(scores, delta=1e-5),
      gaussian_bound.gaussian_lower_bound(scores, delta=1e-5),
      credible.gdp_credible(scores, delta=1e-5, multiplicity=Split(seed=0)),
    ):
      assert (estimate.confidence is None) == rejected
      assert estimate.method.endswith('_null_rejected') == rejected
      assert estimate.is_rejected == rejected
  # Were they believed, nothing that leaked would be certified as a large ε.
  wide = Scores(observed, unobserved, null=Sphere(100 * d))
  assert bound(wide).epsilon > 10
  assert bound(wide).confidence is None


@pytest.mark.integration
def test_a_right_dim_is_rejected_as_seldom_as_stated():
  rng = np.random.default_rng(1)
  for d in (2, 50, 10**6):
    cosines = rng.standard_normal((20_000, 40))
    norm = np.sqrt(cosines**2 + rng.chisquare(d - 1, cosines.shape))
    scores = Scores(
      cosines[:, :1] / norm[:, :1], cosines / norm, null=Sphere(d)
    )
    # Two in 20,000 are to be expected; more than twelve with chance 1e-6.
    assert diagnostics.is_null_rejected(scores).sum() <= 12
