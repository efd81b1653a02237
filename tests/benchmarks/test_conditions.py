"""The study of unusual conditions: what it counts, and that a page keeps the rest."""

import numpy as np
import pytest

from benchmarks.bounds import conditions


def test_statements_are_counted_and_those_that_fail_too_often_are_named():
  def simulate(rng):
    made = {conditions._BOUND: rng.random() < 0.5}
    return made | ({conditions._CLAIM: False} if rng.random() < 0.5 else {})

  condition = conditions.Condition('tosses', simulate)
  rows = conditions.run_study([condition], audits=200, seed=0)
  bound, claim = rows
  assert bound.audits == 200
  assert 60 < bound.false < 140
  assert 60 < claim.audits < 140
  assert claim.false == 0
  assert conditions.find_broken(bound)
  assert not conditions.find_broken(claim)
  table = conditions.make_table(rows)
  assert [*table.statement] == [conditions._BOUND, conditions._CLAIM]
  assert [*table['was false'].str.contains('broken')] == [True, False]


def test_a_condition_that_is_done_is_read_again(tmp_path):
  condition = conditions.Condition(
    'one', lambda rng: {conditions._BOUND: False}
  )
  first = conditions.run_study(
    [condition], audits=3, seed=0, folder=tmp_path / 'rows'
  )
  broken = conditions.Condition('one', lambda rng: 1 / 0)
  again = conditions.run_study(
    [broken], audits=3, seed=0, folder=tmp_path / 'rows'
  )
  assert again == first


@pytest.mark.slow
@pytest.mark.parametrize(
  'condition', conditions.list_conditions(), ids=lambda one: one.title
)
def test_what_is_said_of_unusual_runs_holds(condition):
  rows = conditions.run_study([condition], audits=40, seed=1)
  assert rows
  assert not any(conditions.find_broken(row) for row in rows)


def test_conditions_have_titles_of_their_own():
  titles = [one.title for one in conditions.list_conditions()]
  assert len(np.unique(titles)) == len(titles)


def test_every_condition_of_several_runs_makes_all_statements_about_their_mean():
  several = [c for c in conditions.list_conditions() if 'τ' in c.title]
  assert len(several) == 12
  for condition in several:
    made = condition.simulate(np.random.default_rng(0))
    assert made.keys() == {
      conditions._MEAN_BOUND,
      conditions._MEAN_INTERVAL,
      conditions._PREDICTION,
    }
