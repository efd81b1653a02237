"""Runs of many seeds: the runs of one, made at once."""

import dataclasses

import numpy as np
import pytest

from epe_jax import experiment, results, seeds
from epe_jax.tasks import digits as digits_task
from tests.test_experiment import load_config


def small_config(**changes):
  config = load_config('digits', rounds=3, evaluate_every=3)
  config.canaries.update(observed=5, unobserved=4)
  config.client.update(epochs=1)
  config.audit.buffer = 2
  config.update_from_flattened_dict(changes)
  return config


def quiet(**_):
  return Counted()


class Counted:
  """A bar that nobody sees."""

  total = 0

  def __enter__(self):
    return self

  def __exit__(self, *_):
    return None

  def update(self, n):
    Counted.total += n


@pytest.fixture(scope='module')
def one_by_one(tmp_path_factory):
  """Seed -> what a run of it recorded, and its accuracy."""
  found = {}
  for seed in (0, 1, 2):
    workdir = tmp_path_factory.mktemp('runs') / str(seed)
    result = experiment.run(small_config(seed=seed), workdir)
    found[seed] = (
      results.read_scores(workdir / 'scores.npz'),
      result['accuracy'],
    )
  return found


@pytest.fixture
def traces(monkeypatch):
  """A list that grows by one whenever a training step is traced."""
  counted, task = [], digits_task.task()
  monkeypatch.setattr(
    digits_task,
    'task',
    lambda: task._replace(loss=lambda *a: counted.append(1) or task.loss(*a)),
  )
  return counted


@pytest.mark.parametrize('at_once', [1, 3])
def test_many_seeds_are_the_runs_of_each_seed(one_by_one, traces, at_once):
  outcomes = seeds.run(
    small_config(), [0, 1, 2], at_once=at_once, progress=quiet
  )
  assert len(traces) == 1
  assert [outcome.seed for outcome in outcomes] == [0, 1, 2]
  for outcome in outcomes:
    recorded, accuracy = one_by_one[outcome.seed]
    assert outcome.accuracy == pytest.approx(accuracy, abs=0.005)
    for field in dataclasses.fields(results.Recorded):
      a = getattr(outcome.recorded, field.name)
      b = getattr(recorded, field.name)
      if isinstance(b, np.ndarray) and b.dtype.kind == 'f':
        # A cosine is some 1 / sqrt(d) = 3e-3.
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6)
      else:
        np.testing.assert_array_equal(a, b)
  # Seeds differ, or the law above would be an easy one.
  first, second = (o.recorded.final for o in outcomes[:2])
  assert np.abs(first - second).max() > 1e-3
