"""The table of estimators: one entry is all that an audit needs of a new one."""

import dataclasses
import functools

import numpy as np
import pytest

from epe_jax.audit import evaluation
from epe_jax.epsilon import noise_floor, registry, two_gaussians
from epe_jax.epsilon.known_shifts import location_mixture
from epe_jax.epsilon.types import (
  Assumption,
  Estimate,
  Gaussian,
  Kind,
  Scores,
  Sphere,
  Unknown,
)
from epe_jax.report import run_tables

DELTA = 1e-5
GRID = np.linspace(-2, 2, 60)
KINDS_OF_SCORES = {
  'fixed': Scores(GRID + 1, GRID),
  'cosines': Scores((GRID + 1) / 100, GRID / 100, Sphere(1000)),
  'coin_flip': Scores(GRID + 1, GRID, design='coin_flip'),
  'biased coins': Scores(
    GRID + 1, GRID, design='coin_flip', inclusion_probability=0.3
  ),
  'shifted': Scores(GRID + 1, GRID, Gaussian(), shift=np.linspace(1, 2, 60)),
  'shifted alike': Scores(GRID + 1, GRID, Gaussian(), shift=np.ones(60)),
}


def mean_difference(scores: Scores, *, delta: float) -> Estimate:
  gap = np.mean(scores.observed, axis=-1) - np.mean(scores.unobserved, axis=-1)
  epsilon = two_gaussians.epsilon_two_gaussians(
    0, 1, np.maximum(gap, 0), 1, delta
  )
  return Estimate(epsilon, delta, 'mean_difference', None)


def no_leak(scores: Scores, *, delta: float, significance=0.05) -> Estimate:
  return Estimate(
    np.zeros(scores.observed.shape[:-1])[()],
    delta,
    'no_leak',
    1 - significance,
    'confidence_bound',
    (Assumption.INDEPENDENT,),
  )


def test_a_new_estimator_is_one_entry(monkeypatch):
  mine = (
    registry.Entry(
      mean_difference,
      {'mean_difference': 'difference of means'},
      'point_estimate',
      is_extra=True,
    ),
    registry.Entry(no_leak, {'no_leak': 'nothing'}, is_extra=True),
  )
  monkeypatch.setattr(registry, 'ENTRIES', (*registry.ENTRIES, *mine))
  scores = KINDS_OF_SCORES['fixed']
  audit = evaluation.evaluate_scores(scores, delta=DELTA)
  made = run_tables.make_estimate_tables(audit.attacks)
  cells = [cell for table in made for row in table.body for cell in row]
  assert any('difference of means' in cell for cell in cells)
  assert any('nothing' in cell for cell in cells)
  # It has a floor as any other.
  assert audit.attacks[0].find('mean_difference').floor is not None
  brief = evaluation.evaluate_scores(scores, delta=DELTA, more=False)
  assert brief.attacks[0].find('no_leak') is None


@pytest.mark.parametrize('name', KINDS_OF_SCORES)
def test_estimates_are_what_their_entries_say(name):
  scores = KINDS_OF_SCORES[name]
  points = registry.choose_points(scores)
  bounds = registry.choose_bounds(scores)
  kinds: tuple[Kind, ...] = 'point_estimate', 'confidence_bound'
  extra = (x for kind in kinds for x in registry.list_extra(kind))
  for estimator in {*points, *bounds, *extra, registry.GAUSSIAN}:
    estimate = estimator(scores, delta=DELTA)
    entry = registry.find(estimate.method.removesuffix('_null_rejected'))
    assert entry is not None, estimate.method
    assert entry.function is estimator
    if 'rejected' not in estimate.method:
      assert estimate.kind == entry.kind


def test_scores_without_a_spread_are_counted():
  scores = KINDS_OF_SCORES['fixed']
  assert registry.FITTED in registry.choose_points(scores)
  without = registry.choose_points(scores, has_spread=False)
  assert registry.FITTED not in without
  assert registry.COUNTED in without


@pytest.mark.parametrize('shift', [np.full(60, 0.1), np.linspace(1, 2, 60)])
@pytest.mark.parametrize('null', [Gaussian(), Sphere(1000), Unknown()])
@pytest.mark.parametrize(
  'equal', [(), ('observed',), ('observed', 'unobserved')]
)
def test_scores_of_any_system_may_have_shifts(monkeypatch, shift, null, equal):
  draw = functools.partial(noise_floor.simulate, simulations=40)
  monkeypatch.setattr(noise_floor, 'simulate', draw)
  unit = 0.03 if isinstance(null, Sphere) else 1.0
  rng = np.random.default_rng(0)
  observed = rng.normal(2 * shift / shift.mean(), 1)
  scores = Scores(
    observed * unit, rng.normal(size=60) * unit, null, shift=shift
  )
  for name in equal:
    scores = dataclasses.replace(scores, **{name: np.full(60, 0.1)})
  found = evaluation.evaluate_scores(scores, delta=DELTA, more=False).attacks[0]
  if not equal:
    expected = location_mixture(scores, delta=DELTA)
    assert (found.first.method, found.first.epsilon) == (
      expected.method,
      expected.epsilon,
    )
    assert found.first.interval == expected.interval
    assert not found.failed_checks
  assert found.first.epsilon >= 0


def test_shifts_choose_the_estimator_that_knows_them():
  choose = lambda name: registry.choose_points(KINDS_OF_SCORES[name])
  assert choose('fixed')[0] is registry.NULL_STD
  assert choose('shifted alike')[0] is registry.MIXTURE
  assert choose('shifted')[:2] == (registry.MIXTURE, registry.MOST_EXPOSED)
  scores = KINDS_OF_SCORES['shifted']
  assert any(map(registry.uses_shift, registry.choose_bounds(scores)))
  rejected = registry.choose_bounds(scores, is_rejected=True)
  assert not any(map(registry.uses_shift, rejected))


def test_those_with_an_interval_take_its_confidence():
  scores = KINDS_OF_SCORES['shifted']
  for estimator in registry.choose_points(scores):
    estimate = estimator(scores, delta=DELTA)
    if registry.has_interval(estimator):
      wide = estimator(scores, delta=DELTA, confidence=0.99)
      assert wide.interval[1] > estimate.interval[1]
    else:
      assert estimate.interval is None
