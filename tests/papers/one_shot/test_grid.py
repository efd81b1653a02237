"""Grids of runs: their configs, and what tables say of their models."""

import pathlib

import pytest

from epe_jax.experiment.sweeps import sweep, sweep_points
from papers import grid
from papers.item import Workspace
from papers.one_shot import utility
from papers.registry import ITEMS
from tests import recorded_runs


def make_run(noise, accuracy):
  result = recorded_runs.result(
    noise_multiplier=noise, accuracy=accuracy, baseline_accuracy=0.069
  )
  return grid.Run(result, None, ())


def test_a_table_says_at_which_noise_the_model_did_not_learn():
  runs = [make_run(0.0, 0.15), make_run(0.2317, 0.071), make_run(0.2317, 0.069)]
  majority, failed = grid.describe_learning(runs)
  assert '6.90 %' in majority
  assert failed.startswith('Caution: ')
  assert 'at noise 0.2317 (accuracy 6.9 %)' in failed
  assert len(grid.describe_learning(runs[:1])) == 1
  # Hardly more than the majority class is nothing that was learnt.
  assert len(grid.describe_learning([make_run(0.1, 0.07)])) == 2


def test_an_estimate_of_few_canaries_comes_with_a_caution():
  assert not grid.warn_of_few(200)
  (caution,) = grid.warn_of_few(199)
  assert caution.startswith('Caution: ')
  assert '199' in caution


def test_runs_with_and_without_canaries_move_as_far_for_one_sum():
  settings = ITEMS['accuracy'].experiment.load('medium')
  workspace = Workspace(pathlib.Path(), synthetic=True)
  base = grid.make_base_config(settings, workspace)
  points = sweep_points.make_grid(base, settings.axes)
  utility.equalize_steps(points)
  moves = {
    c.server.learning_rate
    / (c.clients_per_round + c.canaries.observed / c.rounds)
    for c in (point.config for point in points)
  }
  assert len(moves) == 1
  assert base.server.learning_rate in {
    point.config.server.learning_rate for point in points
  }


def test_fields_of_a_workspace_replace_those_of_the_scale():
  settings = ITEMS['stackoverflow'].experiment.load('smoke')
  fields = {'rounds': 7, 'server.learning_rate': 0.25}
  workspace = Workspace(pathlib.Path(), synthetic=True, fields=fields)
  config = grid.make_base_config(settings, workspace)
  assert (config.rounds, config.server.learning_rate) == (7, 0.25)
  assert config.clients_per_round == 4
  wrong = workspace._replace(fields={'server.lr': 1.0})
  with pytest.raises(ValueError, match=r'server\.lr'):
    grid.make_base_config(settings, wrong)


def test_the_medium_scale_trains_the_papers_model():
  workspace = Workspace(pathlib.Path(), synthetic=True)
  experiments = [ITEMS[name].experiment for name in ('bars', 'accuracy')]
  for experiment in experiments:
    ours, theirs = (
      grid.make_base_config(experiment.load(scale), workspace)
      for scale in ('medium', 'paper')
    )
    assert ours.model == theirs.model
    assert ours.data == theirs.data
    assert ours.canaries.observed == 1000


def list_runs(monkeypatch, item, workspace):
  """The names of the runs that an item at medium scale would train."""
  listed = []

  def stop(points, *_, **__):
    listed.extend(x.name for x in points)
    raise InterruptedError

  monkeypatch.setattr(sweep, 'run_sweep', stop)
  with pytest.raises(InterruptedError):
    ITEMS[item].make(ITEMS[item].experiment.load('medium'), workspace)
  return listed


def test_repetitions_are_trained_at_the_noise_level_that_is_given(monkeypatch):
  every = Workspace(pathlib.Path(), synthetic=True)
  one = every._replace(fields={'noise_multiplier': 0.0496})
  names = {
    item: list_runs(monkeypatch, item, workspace)
    for item, workspace in (
      ('stackoverflow', every),
      ('bars', one),
      ('anderson', one),
    )
  }
  assert len(names['stackoverflow']) == 4
  assert all(x.endswith('repetitions=1') for x in names['stackoverflow'])
  assert len(names['bars']) == 4
  assert names['bars'] == names['anderson']
  # That of one participation is shared.
  assert len({*names['stackoverflow'], *names['bars']}) == 7
  apart = every._replace(fields={'canaries.unobserved': 10})
  with pytest.raises(ValueError, match='leave it out'):
    ITEMS['accuracy'].make(ITEMS['accuracy'].experiment.load('medium'), apart)


def test_an_accuracy_that_swings_is_averaged_over_the_last_evaluations():
  history = [{'round': 0, 'test_accuracy': 1.0}]
  for t, accuracy in ((10, 0.9), (20, 0.1), (30, 0.3), (40, 0.2)):
    history += [{'round': t - 1, 'loss': 1.0}]
    history += [{'round': t, 'test_accuracy': accuracy}]
  run = grid.Run(recorded_runs.result(), None, history)
  assert utility.average_last_accuracies(run) == pytest.approx(0.2)
  short = run._replace(history=history[:3])
  assert utility.average_last_accuracies(short) == pytest.approx(0.9)
