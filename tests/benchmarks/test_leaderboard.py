"""The leaderboard: frozen sets, fair standings, rows of others."""

import collections
import pathlib

import numpy as np
import pytest

from benchmarks.bounds import entries, laws, score_sets
from epe_jax.epsilon.types import Scores


@pytest.fixture(scope='module')
def sets():
  return score_sets.load()


def promise(estimate, assumes=''):
  return entries.Entry('mine', 'me', estimate, True, assumes)


@pytest.fixture
def leaderboard(load_benchmark):
  return load_benchmark('bounds.leaderboard')


def list_broken(standing):
  return {*standing.groups.index[standing.groups.broken]}


def test_the_frozen_sets_are_what_the_page_says(sets):
  assert len(sets) == 200
  groups = collections.Counter(one.group for one in sets)
  assert groups == {
    'Gaussian': 40,
    'subsampled': 30,
    'heavy tails': 30,
    'discrete': 30,
    'coupled': 42,
    'runs': 28,
  }
  page = (pathlib.Path(__file__).parents[2] / 'docs/coverage.md').read_text()
  for group, count in groups.items():
    assert f'| {group} | {count} |' in page
  for one in sets:
    num = one.scores.observed.size + one.scores.unobserved.size
    assert num == score_sets.CANARIES
    # Coins decided: five standard deviations.
    assert abs(one.scores.observed.size - num / 2) < 5 * np.sqrt(num) / 2
    assert one.scores.design == 'coin_flip'
  # No set is another one again.
  assert len({one.scores.observed.tobytes() for one in sets}) == 200


def test_scores_of_runs_are_those_of_the_mechanism_whose_epsilon_they_state(
  sets,
):
  for one in sets:
    if one.group in ('Gaussian', score_sets.RUNS):
      shift = one.scores.observed.mean() - one.scores.unobserved.mean()
      law = laws.gaussian(one.epsilon, score_sets.DELTA)
      expected = law.moved(np.random.default_rng(0), 4000).mean()
      # 68 sets; a failure has probability 1e-4 in all of them.
      assert abs(shift - expected) < 5 * np.sqrt(4 / 1000)


def test_who_tells_the_truth_keeps_his_promise_and_who_exceeds_it_does_not(
  sets, leaderboard
):
  stand = leaderboard.run
  truths = {id(one.scores): one.epsilon for one in sets}
  honest = stand(promise(lambda scores: 0.9 * truths[id(scores)]), sets)
  bold = stand(promise(lambda scores: 1.1 * truths[id(scores)]), sets)
  assert not list_broken(honest)
  assert honest.score == pytest.approx(0.9)
  # At ε = 0 ten per cent more is nothing.
  assert list_broken(bold) == {one.group for one in sets}
  assert [*bold.groups.loc['Gaussian', ['above', 'sets']]] == [30, 40]
  assert bold.score == 0.0
  excused = stand(
    promise(lambda scores: 1.1 * truths[id(scores)], 'independence, a shape'),
    sets,
  )
  assert list_broken(excused) == {'Gaussian', score_sets.RUNS}
  assert excused.score == 0.0
  table = leaderboard.make_table([bold, honest, excused])
  assert [*table.score] == ['0.90', '0.00', '0.00']
  assert [*table.exceeds.str.contains('broken')] == [False, True, True]


def test_ours_and_those_of_others_estimate(sets):
  competing = entries.list_entries()
  assert {entry.origin.split()[0] for entry in competing} == {
    'epe_jax',
    'jax-privacy',
    'privacy-estimates',
  }
  names = [(entry.origin, entry.name) for entry in competing]
  assert len(set(names)) == len(names)
  easy = Scores(np.arange(60.0) + 55, np.arange(60.0), design='coin_flip')
  for entry in competing:
    if 'multisplit' not in entry.name:
      assert 0 <= entry.estimate(easy) < np.inf


def test_a_row_of_yours_is_in_a_file(tmp_path):
  path = tmp_path / 'mine.py'
  path.write_text(
    'from benchmarks.bounds.entries import Entry\n'
    "ENTRIES = [Entry('zero', 'me', lambda scores: 0.0, True)]\n"
  )
  assert entries.list_entries(str(path))[-1].name == 'zero'
  path.write_text('')
  with pytest.raises(ValueError, match='has no list ENTRIES'):
    entries.list_entries(str(path))
