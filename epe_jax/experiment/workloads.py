"""What a config trains on: a task and its data."""

from collections.abc import Callable
import pathlib
from typing import Any, NamedTuple

import numpy as np

from epe_jax.data import download, federated, imports, sources, store
from epe_jax.types import Task

# An ml_collections ConfigDict, whose fields type checkers know nothing of.
Config = Any


class Workload(NamedTuple):
  """A task and its data.

  Attributes:
    task: what is trained.
    train: the clients that train.
    test: what it is evaluated on.
    source: where the data come from, in words.
    baseline: accuracy on the test data of the majority class of training. Of a
      model that will be released, of that of the test data, as the majority class
      of training follows from counts that no noise hides.
  """

  task: Task
  train: federated.FederatedData
  test: federated.FederatedData
  source: str
  baseline: float


def load_workload(config: Config) -> Workload:
  """The workload of config.task, with as many test examples as are asked for.

  Raises:
    ValueError: a field is out of range or contradicts another.
    FileNotFoundError: the data file is missing.
  """
  if config.task not in _LOADERS:
    names = ', '.join(map(repr, _LOADERS))
    raise ValueError(f'task={config.task!r}; give one of {names}.')
  return _LOADERS[config.task](config)


def _digits(config: Config) -> Workload:
  from epe_jax.data import digits
  from epe_jax.tasks import digits as digits_task

  train, test = digits.load(
    config.seed,
    num_clients=config.data.num_clients,
    concentration=config.data.concentration,
  )
  source = (
    "scikit-learn's handwritten digits (real images), dealt to "
    f'{train.num_clients} clients with Dirichlet({config.data.concentration}) '
    'label skew'
  )
  test = _sampled(config, test)
  return Workload(
    digits_task.task(config.model.width),
    train,
    test,
    source,
    _majority_class_accuracy(train if config.simulation else test, test),
  )


def _emnist(config: Config) -> Workload:
  from epe_jax.data import emnist, synthetic
  from epe_jax.tasks import emnist as emnist_task

  asked = config.data
  kind = 'digits-only' if asked.only_digits else '62-class'
  origin = _origin(
    config,
    'emnist_all.sqlite',
    lambda: synthetic.generate_images(
      config.seed,
      **_given(num_clients=asked.num_clients, num_examples=asked.num_examples),
    ),
  )
  train, test = emnist.load(
    origin, only_digits=asked.only_digits, cache=asked.cache
  )
  test = _sampled(config, test)
  published = 'digits_only_train' if asked.only_digits else 'all_train'
  return Workload(
    emnist_task.task(10 if asked.only_digits else 62, width=config.model.width),
    train,
    test,
    f'{_described(origin, train, published)}, {kind} split, '
    f'{train.num_clients:,} clients',
    _majority_class_accuracy(train if config.simulation else test, test),
  )


def _stackoverflow(config: Config) -> Workload:
  from epe_jax.data import stackoverflow, synthetic
  from epe_jax.tasks import stackoverflow as stackoverflow_task

  asked = config.data
  origin = _origin(
    config,
    'stackoverflow.sqlite',
    lambda: synthetic.generate_sentences(
      config.seed,
      max_sentences=asked.max_sentences,
      **_given(num_clients=asked.num_clients),
    ),
  )
  train, test, words = stackoverflow.load(
    origin,
    vocabulary_size=asked.vocabulary_size,
    max_words=asked.max_words,
    word_count=asked.word_count,
    test_split=asked.test_split,
    cache=asked.cache,
  )
  test = _sampled(config, test)
  targets = test.columns['words']
  counted = targets[(targets > 0) & (targets <= len(words))]
  # The first word of the vocabulary is the most frequent one.
  answer = 1
  if not config.simulation and counted.size:
    answer = np.bincount(counted).argmax()
  return Workload(
    stackoverflow_task.task(
      len(words),
      embedding_size=config.model.embedding_size,
      hidden_size=config.model.hidden_size,
    ),
    train,
    test,
    f'{_described(origin, train, "train")}, {train.num_clients:,} train users, accuracy on the split '
    f'{asked.test_split!r}',
    float(np.sum(counted == answer) / max(counted.size, 1)),
  )


def _origin(
  config: Config, usual: str, generated: Callable[[], sources.Source]
) -> str | sources.Source:
  """The data file, or the source of synthetic data."""
  path = config.data.path
  if config.data.synthetic:
    if path is not None:
      raise ValueError(
        f'data.synthetic=True, but data.path={path!r}. Give one of them.'
      )
    return generated()
  if path is None:
    raise ValueError(
      f'data.path=None; give {usual}, another file or a folder of prepared data '
      'by --config.data.path=PATH, or --config.data.synthetic=True.'
    )
  return path


def _described(
  origin: str | sources.Source, train: federated.FederatedData, split: str
) -> str:
  """Its name, and whether it is what its name may make one think."""
  if isinstance(origin, sources.Source):
    return origin.name
  # The folder it lies in is the business of its owner.
  name = pathlib.Path(origin).name
  if imports.is_prepared(origin):
    header = store.read_header(imports.locate_split(origin, split))
    name += f', made of {header.source}'
  if 'synthetic' in name:
    return name
  same = download.is_published(
    split, num_clients=train.num_clients, num_examples=train.num_examples
  )
  known = 'the public data' if same else 'not the public data'
  return f'{name} ({known}, by its {train.num_examples:,} train examples)'


def _given(**options: Any) -> dict[str, Any]:
  return {name: x for name, x in options.items() if x is not None}


def _sampled(
  config: Config, test: federated.FederatedData
) -> federated.FederatedData:
  if config.evaluate_examples is None:
    return test
  return federated.sample(
    test, config.seed, num_examples=config.evaluate_examples
  )


def _majority_class_accuracy(
  train: federated.FederatedData, test: federated.FederatedData
) -> float:
  """Accuracy on test of the majority class of train."""
  answer = np.bincount(train.columns['label']).argmax()
  return float(np.mean(test.columns['label'] == answer))


_LOADERS = {
  'digits': _digits,
  'emnist': _emnist,
  'stackoverflow': _stackoverflow,
}
