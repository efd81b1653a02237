"""Cells say what an estimate is worth, and by which method it is."""

import pytest

from epe_jax.epsilon import registry
from epe_jax.epsilon.types import Assumption, Estimate
from epe_jax.report import cells


@pytest.mark.parametrize('assumption', Assumption)
def test_a_bound_of_some_shape_never_reads_as_one_without(assumption):
  bound = Estimate(
    1.0, 1e-5, 'mine', 0.95, 'confidence_bound', assumes=(assumption,)
  )
  is_conditional = cells.describe_kind(bound).startswith('if ')
  assert is_conditional == (not bound.is_shape_free)


def test_a_dagger_marks_what_scores_reject_whatever_the_method_is_called():
  for name in ('mine', 'mine_rejected'):
    plain = Estimate(1.0, 1e-5, name, None)
    rejected = Estimate(1.0, 1e-5, name, None, is_rejected=True)
    assert '†' not in cells.format_with_interval(plain)
    assert '†' in cells.format_with_interval(rejected)


def test_no_two_methods_have_one_name_and_none_needs_the_line_above():
  labels = [x for entry in registry.ENTRIES for x in entry.labels.values()]
  assert len(set(labels)) == len(labels)
  for name in labels:
    assert not name.startswith('the same')
    assert ' them' not in name
