"""The workload of a config: its task and data."""

from collections.abc import Callable
import pathlib
from typing import Any, NamedTuple

import numpy as np

from epe_jax import functions
from epe_jax.data import download, federated, imports, sources, store
from epe_jax.experiment import workdirs
from epe_jax.types import Task

Config = workdirs.Config


class Workload(NamedTuple):
  """A task and its data: what a function of your own gives for a config.

  Attributes:
    task: what is trained.
    train: the data of the clients that train.
    test: the data that the model is evaluated on.
    source: where the data come from, in words; '' for the name of the function.
    baseline: the majority-class baseline: the accuracy on the test data, in [0,
      1], of always answering the most frequent class of the training data. If
      the model will be released, the class is that of the test data, because
      counts of the training data are hidden by no noise. None to take it from
      the integers in the column 'label' or 'y'.
  """

  task: Task
  train: federated.FederatedData
  test: federated.FederatedData
  source: str = ''
  baseline: float | None = None


def load_workload(config: Config) -> Workload:
  """Loads the workload of config.task, one of this package or of a user's own.

  A task of a user's own is 'package.module:function', a function config ->
  `Workload`. It is called in every process of a run, and gives the same each time.

  Args:
    config: the config of the run, with every field set. It names the data, and
      config.evaluate_examples is the number of test examples.

  Raises:
    ValueError: a field is out of range or contradicts another.
    FileNotFoundError: the data file is missing.
  """
  if functions.is_function(config.task):
    return _load_own(config)
  if config.task not in _LOADERS:
    names = ', '.join(map(repr, _LOADERS))
    raise ValueError(
      f'task={config.task!r}; give one of {names}, or package.module:function.'
    )
  return _LOADERS[config.task](config)


def _load_own(config: Config) -> Workload:
  from epe_jax.experiment import own_task

  name = config.task
  workload = functions.import_function(name)(config)
  if not isinstance(workload, Workload):
    raise ValueError(
      f'task={name!r} gives a {type(workload).__name__}; give an '
      'experiment.Workload(task, train, test).'
    )
  own_task.check_task(name, workload.task, workload.train)
  test, baseline = _sample_test(config, workload.test), workload.baseline
  if baseline is None:
    known = workload.train if config.simulation else test
    baseline = own_task.find_baseline(name, known, test)
  return Workload(
    workload.task, workload.train, test, workload.source or name, baseline
  )


def _load_digits(config: Config) -> Workload:
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
  test = _sample_test(config, test)
  return Workload(
    digits_task.task(config.model.width),
    train,
    test,
    source,
    _majority_class_accuracy(train if config.simulation else test, test),
  )


def _load_emnist(config: Config) -> Workload:
  from epe_jax.data import emnist, synthetic
  from epe_jax.tasks import emnist as emnist_task

  fields = config.data
  kind = 'digits-only' if fields.only_digits else '62-class'
  origin = _choose_origin(
    config,
    'emnist_all.sqlite',
    lambda: synthetic.generate_images(
      config.seed,
      **_drop_none(
        num_clients=fields.num_clients, num_examples=fields.num_examples
      ),
    ),
  )
  train, test = emnist.load(
    origin, only_digits=fields.only_digits, cache=fields.cache
  )
  test = _sample_test(config, test)
  published = 'digits_only_train' if fields.only_digits else 'all_train'
  return Workload(
    emnist_task.task(
      10 if fields.only_digits else 62, width=config.model.width
    ),
    train,
    test,
    f'{_describe_source(origin, train, published)}, {kind} split, '
    f'{train.num_clients:,} clients',
    _majority_class_accuracy(train if config.simulation else test, test),
  )


def _load_stackoverflow(config: Config) -> Workload:
  from epe_jax.data import stackoverflow, synthetic
  from epe_jax.tasks import stackoverflow as stackoverflow_task

  fields = config.data
  origin = _choose_origin(
    config,
    'stackoverflow.sqlite',
    lambda: synthetic.generate_sentences(
      config.seed,
      max_sentences=fields.max_sentences,
      **_drop_none(num_clients=fields.num_clients),
    ),
  )
  size = fields.vocabulary_size
  if size is None:
    is_prepared = not isinstance(origin, sources.Source) and (
      imports.is_prepared(origin)
    )
    size = stackoverflow.find_size(origin) if is_prepared else 1_000
  train, test, words = stackoverflow.load(
    origin,
    vocabulary_size=size,
    max_words=fields.max_words,
    word_count=fields.word_count,
    test_split=fields.test_split,
    cache=fields.cache,
  )
  test = _sample_test(config, test)
  targets = test.columns['words']
  targets = targets[(targets > 0) & (targets <= len(words))]
  # The first word of the vocabulary is the most frequent one.
  majority_class = 1
  if not config.simulation and targets.size:
    majority_class = np.bincount(targets).argmax()
  return Workload(
    stackoverflow_task.task(
      len(words),
      embedding_size=config.model.embedding_size,
      hidden_size=config.model.hidden_size,
    ),
    train,
    test,
    f'{_describe_source(origin, train, "train")}, {train.num_clients:,} train '
    f'users, accuracy on the split {fields.test_split!r}',
    float(np.sum(targets == majority_class) / max(targets.size, 1)),
  )


def _choose_origin(
  config: Config, usual: str, generate: Callable[[], sources.Source]
) -> str | sources.Source:
  """Gives the path of the data, or the source of synthetic data."""
  path = config.data.path
  if config.data.synthetic:
    if path is not None:
      raise ValueError(
        f'data.synthetic=True, but data.path={path!r}. Give one of them.'
      )
    return generate()
  if path is None:
    raise ValueError(
      f'data.path=None; give {usual}, another file or a folder of prepared '
      'data by --config.data.path=PATH, or --config.data.synthetic=True.'
    )
  return path


def _describe_source(
  origin: str | sources.Source, train: federated.FederatedData, split: str
) -> str:
  """Names the source, and says whether it is the public data of its name."""
  if isinstance(origin, sources.Source):
    return origin.name
  # The folder it lies in is the business of its owner.
  name = pathlib.Path(origin).name
  if imports.is_prepared(origin):
    header = store.read_header(imports.locate_split(origin, split))
    name += f', made of {header.source}'
  if 'synthetic' in name:
    return name
  is_public = download.is_published(
    split, num_clients=train.num_clients, num_examples=train.num_examples
  )
  kind = 'the public data' if is_public else 'not the public data'
  return f'{name} ({kind}, by its {train.num_examples:,} train examples)'


def _drop_none(**options: Any) -> dict[str, Any]:
  return {name: x for name, x in options.items() if x is not None}


def _sample_test(
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
  majority_class = np.bincount(train.columns['label']).argmax()
  return float(np.mean(test.columns['label'] == majority_class))


_LOADERS = {
  'digits': _load_digits,
  'emnist': _load_emnist,
  'stackoverflow': _load_stackoverflow,
}
