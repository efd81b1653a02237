"""An evaluation is a mean over all that weighs, however it is cut."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest

from epe_jax.data import digits as digits_data
from epe_jax.data import federated
from epe_jax.experiment import (
  audited_run,
  loop,
  model_evaluation,
  model_file,
)
from epe_jax.experiment.setup import build
from epe_jax.tasks import kernels
from epe_jax.tasks._cpu import winograd
from epe_jax.types import Task, Weighted
from tests.helpers import load_config

pytestmark = pytest.mark.usefixtures('quick_compilation')


def task_of(metrics):
  return Task(lambda key: {}, lambda params, batch, key: batch['n'], metrics)


def data_of(n):
  return federated.from_arrays({'n': n}, np.full(len(n), 'a'))


@pytest.mark.parametrize('batch', [1, 32])
@pytest.mark.parametrize('batches', [1, 64])
@pytest.mark.parametrize('num', [1, 331])
def test_an_evaluation_is_a_mean_over_all_that_weighs(
  monkeypatch, batch, batches, num
):
  monkeypatch.setattr(model_evaluation, '_BATCH', batch)
  monkeypatch.setattr(model_evaluation, '_BATCHES', batches)
  words = np.arange(3, 3 + num) % 7
  task = task_of(
    lambda params, batch: {
      'of_sentences': (batch['n'] > 2).astype(jnp.float32),
      'of_words': Weighted(1.0 * (batch['n'] > 2), 1.0 * batch['n']),
      'of_none': Weighted(0.0 * batch['n'], 0.0 * batch['n']),
    }
  )
  assert model_evaluation.evaluator(task)({}, data_of(words)) == {
    'test_of_sentences': pytest.approx(np.mean(words > 2)),
    'test_of_words': pytest.approx(np.sum(words > 2) / words.sum()),
    'test_of_none': 0.0,
  }


def test_examples_that_fill_up_a_batch_count_for_nothing():
  # Padding is zeros, which give a loss that is not a number here.
  task = task_of(lambda params, batch: {'inverse': 1.0 / batch['n']})
  found = model_evaluation.evaluator(task)({}, data_of(np.array([1, 2, 4])))
  assert found == {'test_inverse': pytest.approx(1.75 / 3)}


def test_counts_beyond_those_of_float32_are_exact():
  # 20,001 examples of 1,001 words; float32 has no odd numbers of that size.
  num, words = 20_001, 1_001
  assert int(np.float32(num * words)) != num * words
  hits = np.zeros(num, np.int32)
  hits[-1] = 1
  task = task_of(
    lambda params, batch: {
      'accuracy': Weighted(
        batch['n'] * 1.0, jnp.full(batch['n'].shape, float(words))
      )
    }
  )
  found = model_evaluation.evaluator(task)({}, data_of(hits))
  assert found['test_accuracy'] == 1 / (num * words)


def test_batches_are_such_that_a_cpu_convolves_quickly(monkeypatch):
  convolve, shapes = winograd.convolve, []
  monkeypatch.setattr(
    winograd,
    'convolve',
    lambda *a: shapes.append(a[0].shape) or convolve(*a),
  )

  def metrics(params, batch):
    convolution = kernels.conv3x3(batch['n'], jnp.ones((3, 3, 32, 32)))
    return {'mean': convolution.mean(axis=(1, 2, 3))}

  images = np.ones((70, 4, 4, 32), np.float32)
  found = model_evaluation.evaluator(task_of(metrics))({}, data_of(images))
  assert found == {'test_mean': 9 * 32}
  # One trace, whatever the number of examples.
  assert shapes == [(model_evaluation._BATCH, 4, 4, 32)]


def test_a_long_evaluation_shows_how_far_it_is(monkeypatch, capsys):
  task = task_of(lambda params, batch: {'mean': 1.0 * batch['n']})
  evaluate = model_evaluation.evaluator(task)
  evaluate({}, data_of(np.arange(5_000)))
  assert capsys.readouterr().err == ''
  monkeypatch.setattr(model_evaluation, '_PATIENCE', 0)
  evaluate({}, data_of(np.arange(5_000)))
  shown = capsys.readouterr().err
  assert 'evaluation' in shown
  assert '5000' in shown


@pytest.fixture
def wrongly_labelled(monkeypatch, small_task, unestimated):
  """A config whose test data have all labels wrong by one.

  Who has learnt from the training data is right about these, and wrong about
  all the others that it knows.
  """
  load = digits_data.load

  def shifted(*args, **options):
    train, test = load(*args, **options)
    labels = (test.columns['label'] + 1) % 10
    columns = test.columns | {'label': labels}
    return train, dataclasses.replace(test, columns=columns)

  monkeypatch.setattr(digits_data, 'load', shifted)
  config = load_config('digits', noise_multiplier=0.0, rounds=6)
  config.clipping.initial = 1.0
  config.client.epochs = 5
  config.canaries.update(family='hadamard', observed=2, unobserved=2)
  config.update(evaluate_every=2, checkpoint_every=3)
  return config


def numpy_metrics(params, data):
  """Accuracy and mean cross entropy of softmax regression, in float64."""
  pixels = data.columns['pixels'].reshape(-1, 64).astype(np.float64)
  logits = pixels @ np.float64(params['w']) + np.float64(params['b'])
  labels = data.columns['label']
  own = np.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
  losses = np.logaddexp.reduce(logits, axis=1) - own
  return np.mean(logits.argmax(axis=1) == labels), losses.mean()


def assert_of_test_clients(result, setup, workdir):
  """The accuracy and loss of a run are those of its model on its test data."""
  params = model_file.load_params(workdir, setup.params)
  accuracy, loss = numpy_metrics(params, setup.test)
  assert result.accuracy == pytest.approx(accuracy, abs=0.005)
  assert result.loss == pytest.approx(loss, rel=1e-4)
  # Far from what it is on training clients, or this would show nothing.
  of_train = numpy_metrics(params, setup.train)
  assert accuracy < 0.2 < 0.6 < of_train[0]
  assert loss > 1.5 * of_train[1]


@pytest.mark.integration
def test_a_run_is_evaluated_on_test_clients(tmp_path, wrongly_labelled):
  result = audited_run.run(wrongly_labelled, tmp_path)
  setup = build.build(wrongly_labelled)
  assert_of_test_clients(result, setup, tmp_path)
  lines = (tmp_path / 'private/metrics.jsonl').read_text().splitlines()
  found = {
    line['round']: line
    for line in map(json.loads, lines)
    if 'test_accuracy' in line
  }
  assert sorted(found) == [0, 2, 4, 6]
  at_first = numpy_metrics(setup.params, setup.test)
  assert found[0]['test_loss'] == pytest.approx(at_first[1], rel=1e-4)
  assert at_first[1] != pytest.approx(
    numpy_metrics(setup.params, setup.train)[1], rel=1e-3
  )
  assert max(found[t]['test_accuracy'] for t in (2, 4, 6)) < 0.1
  assert found[6]['test_accuracy'] == result.accuracy


@pytest.mark.integration
def test_a_run_that_was_cut_off_behind_its_last_round_is_too(
  tmp_path, wrongly_labelled, monkeypatch
):
  def full(*args):
    raise OSError('the disk is full')

  with monkeypatch.context() as patch:
    patch.setattr(loop, 'write_record', full)
    with pytest.raises(OSError, match='full'):
      audited_run.run(wrongly_labelled, tmp_path)
  # Nothing is trained again.
  monkeypatch.setattr(loop, 'Group', pytest.fail)
  result = audited_run.run(wrongly_labelled, tmp_path)
  assert_of_test_clients(result, build.build(wrongly_labelled), tmp_path)
