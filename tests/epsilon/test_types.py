"""What is refused at the door of `Scores`, `Sphere` and `Estimate`."""

import numpy as np
import pytest

from epe_jax.epsilon.cosine_null import CosineNull
from epe_jax.epsilon.types import (
  Estimate,
  Gaussian,
  Scores,
  Sphere,
  Unknown,
  make_null,
)

_COINS = {'design': 'coin_flip'}


@pytest.mark.usefixtures('types_unchecked')
@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (dict(observed=np.empty(0)), 'at least one'),
    (dict(observed=np.array([0.0, np.nan])), '1 values that are not finite'),
    (dict(observed=np.array([1e141])), 'magnitude 1e\\+141'),
    (dict(observed=0.5), 'single number'),
    (dict(unobserved=np.empty(0)), r'null=Unknown\(\)'),
    (
      dict(observed=np.array([3.0]), null=Sphere(10)),
      'cosines, but one is 3',
    ),
    (dict(null=100), r'null=100 is not a null law. Give Sphere\(d\)'),
    (dict(observed=np.zeros((2, 3))), 'leading axes'),
    (dict(design='coin'), "'coin'"),
    (dict(shift=np.array([1.0, 0.0])), 'shift has shape'),
    (dict(shift=np.array([1.0])), 'shift has shape'),
    (
      dict(shift=np.array([1.0, np.nan])),
      'shift has 1 values that are not fin',
    ),
    (dict(null=CosineNull(10)), r'Give Sphere\(d\) .* CosineNull\(d\) is'),
    (dict(overlap=-1), 'overlap=-1; give a number in'),
    (dict(overlap='x'), "overlap='x'; give a number in"),
    (dict(unobserved=np.zeros(990), **_COINS), '2 observed and 990'),
    (
      dict(observed=np.zeros(60), unobserved=np.zeros(1), **_COINS),
      '60 observed and 1 uno',
    ),
    (dict(inclusion_probability=1.0), r'inclusion_probability=1\.0'),
    (
      dict(observed=np.ma.array([0.1, 9.0], mask=[False, True])),
      'observed.compressed',
    ),
    (dict(observed=np.array([0.1, 0.2j])), 'observed has dtype complex128'),
    (dict(unobserved=np.array(['0.1'])), 'unobserved has dtype <U3'),
    (dict(observed=np.array([1, 2], 'm8[s]')), 'observed has dtype timedelta'),
    (dict(observed=np.array([0.1], object)), 'observed has dtype object'),
  ],
)
def test_scores_that_make_no_audit_are_refused(arguments, message):
  valid = {'observed': np.array([0.1, 0.2]), 'unobserved': np.array([0.0])}
  Scores(**valid)
  with pytest.raises(ValueError, match=message):
    Scores(**(valid | arguments))


def test_groups_of_other_coins_may_differ_in_size():
  # Of 60 and 990, 1/5 is the largest.
  few = dict(design='coin_flip', inclusion_probability=0.2)
  Scores(np.zeros(60), np.zeros(990), **few)
  with pytest.raises(ValueError, match=r'inclusion_probability=0\.2 give such'):
    Scores(np.zeros(300), np.zeros(700), **few)


def test_columns_given_for_one_audit_are_refused():
  for num in (5, 7):
    with pytest.raises(ValueError, match=rf'\({num}, 1\).*ravel'):
      Scores(np.zeros((5, 1)), np.zeros((num, 1)))
  # One canary in one group may well be meant, or one audit of one in each.
  assert Scores(np.zeros((5, 1)), np.zeros((5, 4))).observed.shape == (5, 1)
  assert Scores(
    np.zeros((5, 1)), np.empty(0), null=Sphere(9)
  ).observed.shape == (5, 1)
  assert Scores(np.zeros((1, 1)), np.zeros((1, 1))).observed.shape == (1, 1)


@pytest.mark.usefixtures('types_unchecked')
def test_a_number_of_dimensions_names_a_null_law():
  assert make_null(9) == Sphere(9)
  assert make_null(np.inf) == Gaussian()
  assert make_null(None) == Unknown()
  assert Sphere(np.int64(100)).dim == 100
  for dim in (2.5, np.float64(100), True, '100', 1):
    with pytest.raises(ValueError, match='dim='):
      Sphere(dim)


def test_scores_become_float64_arrays():
  scores = Scores(np.array([1, 2]), np.zeros(3, np.float32))
  assert scores.observed.dtype == scores.unobserved.dtype == np.float64


def test_a_point_estimate_has_no_confidence_and_a_bound_has_one():
  with pytest.raises(
    ValueError, match=r"'point_estimate' with confidence=0\.9"
  ):
    Estimate(1.0, 1e-5, 'made up', confidence=0.9)
  with pytest.raises(ValueError, match="'credible_bound' with confidence=None"):
    Estimate(1.0, 1e-5, 'made up', None, kind='credible_bound')
