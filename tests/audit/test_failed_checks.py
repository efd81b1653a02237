"""What speaks against an estimate, found in the scores themselves."""

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from scipy import stats

from epe_jax.audit import failed_checks
from epe_jax.epsilon.types import Scores, make_null


@pytest.mark.parametrize('digits', [0, 15], ids=['ties', 'no ties'])
def test_the_p_value_of_ranks_is_that_of_scipy(digits):
  rng = np.random.default_rng(0)
  for m, n in rng.integers(1, 60, (40, 2)):
    low, high = (
      rng.normal(mean, 2, size).round(digits)
      for mean, size in ((-1, m), (0, n))
    )
    expected = stats.mannwhitneyu(
      low, high, alternative='less', method='asymptotic'
    ).pvalue
    assert failed_checks.rank_sum_p_value(low, high) == pytest.approx(expected)


def test_equal_scores_are_not_lower_than_others():
  assert failed_checks.rank_sum_p_value(np.ones(5), np.ones(4)) == 1.0


@pytest.mark.parametrize('offset', [0.0, 1e9, -1e12])
def test_whether_scores_differ_does_not_depend_on_an_offset(offset):
  rng = np.random.default_rng(0)
  varied = Scores(offset + rng.normal(2, 1, 50), offset + rng.normal(size=50))
  equal = Scores(np.full(50, offset + 1.0), np.full(50, offset))
  assert failed_checks.scores_differ(varied)
  assert not failed_checks.scores_differ(equal)


GROUP = st.lists(st.sampled_from([-1.0, -0.5, 0.0, 1e-9, 0.5, 1.0]), min_size=1)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(GROUP, GROUP, st.sampled_from([None, 2, 100, 10**9]))
def test_any_scores_are_tested_or_said_to_be_untestable(
  observed, unobserved, dim
):
  scores = Scores(np.array(observed), np.array(unobserved), null=make_null(dim))
  failed = failed_checks.check_normality(scores)
  said = {
    fact.values['group']: fact.key for fact in failed if 'num' in fact.values
  }
  for name, group in (('observed', observed), ('unobserved', unobserved)):
    is_few, is_equal = len(group) < 8, len(set(group)) == 1
    expected = (
      'too_few_to_test' if is_few else 'all_equal' if is_equal else None
    )
    assert said.get(name) == expected
  for fact in failed:
    if 'p_value' in fact.values:
      assert not np.isnan(fact.values['statistic'])
      assert 0 <= fact.values['p_value'] <= 1
