"""Workloads: what a config says is what is trained on, and it says what it is."""

from absl import flags
import jax
from jax import numpy as jnp
import numpy as np
import pytest

from epe_jax.cli import data
from epe_jax.data import imports, synthetic, vocabulary
from epe_jax.experiment.setup import workloads
from tests import tff_files
from tests.helpers import load_config


def _sentence(text):
  return tff_files.example(tokens=tff_files.strings([text.encode()]))


@pytest.fixture
def sentences(tmp_path):
  rows = [
    ('train', 'a', _sentence('the cat sat')),
    ('train', 'b', _sentence('the cat ran .')),
    ('train', 'b', _sentence('the dog')),
    ('heldout', 'c', _sentence('the cat flew')),
    ('heldout', 'c', _sentence('dog')),
    ('test', 'a', _sentence('the the')),
  ]
  return tff_files.write(tmp_path / 'text.sqlite', rows)


def _text_config(path, cache, **changes):
  return load_config(
    'stackoverflow',
    **{
      'data.path': str(path),
      'data.cache': str(cache),
      'data.vocabulary_size': 4,
      'data.max_words': 3,
      'evaluate_examples': None,
    }
    | changes,
  )


@pytest.mark.parametrize(
  ('split', 'baseline'), [('heldout', 1 / 3), ('test', 1.0)]
)
def test_text_comes_from_the_file_with_its_baseline(
  sentences, tmp_path, split, baseline
):
  config = _text_config(
    sentences, tmp_path / 'cache', **{'data.test_split': split}
  )
  found = workloads.load_workload(config)
  assert found.train.client_ids.tolist() == ['a', 'b']
  # By frequency and then by spelling: the, cat, '.', dog; others are OOV.
  assert found.train.columns['words'].tolist() == [
    [1, 2, 5],
    [1, 2, 5],
    [1, 4, 0],
  ]
  # Of the words in the vocabulary that are to be predicted, those that are
  # 'the': 1 of the, cat, dog, or 2 of 2.
  assert found.baseline == baseline
  assert 'text.sqlite' in found.source
  assert repr(split) in found.source
  assert str(tmp_path) not in found.source


@pytest.mark.integration
def test_the_baseline_of_text_is_the_best_constant_answer(tmp_path):
  rows = [('train', 'a', _sentence('the the'))]
  rows += [
    ('heldout', 'b', _sentence(text))
    for text in ('dog cat', 'dog', 'fish fish fish', 'the cat dog fish fish')
  ]
  path = tff_files.write(tmp_path / 'text.sqlite', rows)
  # What is frequent elsewhere is not here, and 'fish' has no id.
  counted = tmp_path / 'words'
  counted.write_text('the 9\ncat 5\ndog 4\nbird 1\n')
  config = _text_config(
    path, tmp_path / 'cache', **{'data.word_count': str(counted)}
  )
  found = workloads.load_workload(config)
  params = found.task.init(jax.random.key(0))
  batch = {'words': jnp.asarray(found.test.columns['words'])}
  accuracies = []
  for answer in range(8):
    last = jax.tree.map(jnp.zeros_like, params['linear_1'])
    last['b'] = last['b'].at[answer].set(1.0)
    metrics = found.task.metrics(params | {'linear_1': last}, batch)
    value, weight = metrics['accuracy']
    accuracies.append(float(value.sum() / weight.sum()))
  assert found.baseline == pytest.approx(max(accuracies)) == 0.5
  assert accuracies[1] < 0.5


def test_images_come_from_the_file_with_their_baseline(tmp_path):
  labels = [('all_train', 7), ('all_train', 7), ('all_train', 61)]
  labels += [('all_test', 7), ('all_test', 61), ('all_test', 3)]
  rows = [(split, 'w', tff_files.image(label)) for split, label in labels]
  path = tff_files.write(tmp_path / 'images.sqlite', rows)
  config = load_config(
    'emnist', **{'data.path': str(path), 'data.cache': str(tmp_path)}
  )
  found = workloads.load_workload(config)
  assert found.train.num_examples == found.test.num_examples == 3
  assert found.baseline == pytest.approx(1 / 3)
  assert found.source == (
    'images.sqlite (not the public data, by its 3 train examples), 62-class '
    'split, 1 clients'
  )


def test_a_folder_of_synthetic_data_is_synthetic_whatever_its_name(tmp_path):
  folder = tmp_path / 'emnist'
  made = synthetic.generate_images(0, num_clients=12, num_examples=200)
  list(imports.import_(made, folder, splits=['all_train', 'all_test']))
  found = workloads.load_workload(
    load_config('emnist', **{'data.path': str(folder)})
  )
  assert 'synthetic' in found.source
  assert 'public' not in found.source


@pytest.mark.parametrize(
  ('task', 'size', 'column', 'shape'),
  [
    ('emnist', {'data.num_examples': 200}, 'pixels', (28, 28)),
    (
      'stackoverflow',
      {'data.max_sentences': 3, 'data.vocabulary_size': 200},
      'words',
      (20,),
    ),
  ],
)
def test_synthetic_data_say_so_and_are_made_once(
  tmp_path, task, size, column, shape
):
  config = load_config(
    task,
    **{
      'data.synthetic': True,
      'data.num_clients': 12,
      'data.cache': str(tmp_path / 'cache'),
    }
    | size,
  )
  one = workloads.load_workload(config)
  assert 'synthetic' in one.source
  assert one.train.num_clients == 12
  assert one.train.columns[column].shape[1:] == shape
  assert 0 <= one.baseline < 0.5
  made = sorted((tmp_path / 'cache').iterdir())
  two = workloads.load_workload(config)
  assert sorted((tmp_path / 'cache').iterdir()) == made
  np.testing.assert_array_equal(
    one.train.columns[column], two.train.columns[column]
  )
  config.seed = 1
  other = workloads.load_workload(config)
  assert not np.array_equal(
    other.train.columns[column], one.train.columns[column]
  )


@pytest.mark.parametrize('task', ['emnist', 'stackoverflow'])
def test_data_are_a_file_or_synthetic_and_not_both(task):
  with pytest.raises(ValueError, match=r'data\.path=None; give .*\.sqlite'):
    workloads.load_workload(load_config(task))
  config = load_config(
    task, **{'data.path': 'x.sqlite', 'data.synthetic': True}
  )
  with pytest.raises(ValueError, match=r"data\.path='x\.sqlite'"):
    workloads.load_workload(config)


def test_an_evaluation_is_on_a_sample_of_as_many_examples(sentences, tmp_path):
  config = _text_config(sentences, tmp_path, evaluate_examples=1)
  assert workloads.load_workload(config).test.num_examples == 1


@pytest.mark.parametrize('task', ['digits', 'emnist', 'stackoverflow'])
def test_every_config_has_its_modes_and_no_other(task):
  modes = {'full', 'smoke'} | ({'5x34'} if task == 'emnist' else set())
  for mode in modes:
    assert load_config(task, mode).task == task
  with pytest.raises(ValueError, match="mode='fast'; give 'full'"):
    load_config(task, 'fast')


def test_a_folder_that_data_made_is_right_for_every_mode(sentences, tmp_path):
  values = flags.FlagValues()
  data.define_flags(values)
  for mode in ('full', 'smoke'):
    config = load_config('stackoverflow', mode)
    size = values['vocabulary_size'].default
    assert config.data.vocabulary_size in (None, size)
    assert config.data.max_words == values['max_words'].default
  text = vocabulary.Text(3, values['max_words'].default, None)
  list(imports.import_(sentences, tmp_path / 'out', text=text))
  config = load_config(
    'stackoverflow',
    'smoke',
    **{'data.path': str(tmp_path / 'out'), 'evaluate_examples': None},
  )
  assert workloads.load_workload(config).train.num_clients == 2


def test_the_configs_have_the_settings_of_the_paper():
  text = load_config('stackoverflow', 'full')
  images, earlier = (load_config('emnist', mode) for mode in ('full', '5x34'))
  assert (text.rounds, text.clients_per_round) == (2048, 167)
  assert (images.rounds, images.clients_per_round) == (500, 101)
  assert (earlier.rounds, earlier.clients_per_round) == (500, 34)
  assert (text.client.learning_rate, text.server.learning_rate) == (1.0, 0.56)
  for config in (images, earlier):
    assert config.client.learning_rate == 0.031
    assert config.server.learning_rate == 1.0
    assert config.server.momentum == 0.9
  for config in (text, images, earlier):
    assert (config.client.batch_size, config.client.epochs) == (16, 1)
    assert config.clipping.kind == 'adaptive'
    assert config.clipping.initial == 0.1
    assert config.clipping.quantile == 0.5
    assert config.clipping.learning_rate == 0.2
    assert config.clipping.count_noise == 0.05
    assert (config.canaries.observed, config.canaries.unobserved) == (
      1000,
      1000,
    )
    assert config.canaries.repetitions == 1
    assert config.evaluate_every == config.checkpoint_every == 50
