"""The task and the data of a run, and what federated data sets share in making them."""

from collections.abc import Callable, Mapping
import os
import pathlib
from typing import Any, NamedTuple

from epe_jax.data import data_sets, federated, imports, sources, store
from epe_jax.types import Task


class Workload(NamedTuple):
  """A task and its data: what a data set, or a function of your own, gives for a config.

  Attributes:
    task: what is trained.
    train: the data of the clients that train.
    test: the data that the model is evaluated on.
    source: where the data come from; '' for the name of the function.
    baseline: the majority-class baseline: the accuracy on the test data, in [0,
      1], of always answering one class. None to take the most frequent class of
      the training data by the integers in the column 'label' or 'y'; if the model
      will be released, that of the test data, because counts of the training data
      are hidden by no noise.
  """

  task: Task
  train: federated.FederatedData
  test: federated.FederatedData
  source: str = ''
  baseline: float | None = None


def choose_origin(
  config: Any, example: str, generate: Callable[[], sources.Source]
) -> str | sources.Source:
  """Gives config.data.path, or a generated source if config.data.synthetic.

  Args:
    config: with the fields `data_sets.FILE_FIELDS`.
    example: name of a usual file, for the error.
    generate: makes the source.

  Raises:
    ValueError: both are given, or neither.
  """
  path = config.data.path
  if config.data.synthetic:
    if path is not None:
      raise ValueError(
        f'data.synthetic=True, but data.path={path!r}. Give one of them.'
      )
    return generate()
  if path is None:
    raise ValueError(
      f'data.path=None; give {example}, another file or a folder of prepared '
      'data by --config.data.path=PATH, or --config.data.synthetic=True.'
    )
  return path


def describe_origin(
  origin: str | os.PathLike | sources.Source,
  train: federated.FederatedData,
  split: str,
  downloads: Mapping[str, data_sets.Download],
) -> str:
  """Names the origin of data, and says whether it is the public data.

  Args:
    origin: as `choose_origin` gives it.
    train: the data.
    split: the name of their split in public files.
    downloads: the public files.
  """
  if isinstance(origin, sources.Source):
    return origin.name
  # Without its folder, which is private to its owner.
  name = pathlib.Path(origin).name
  if imports.is_prepared(origin):
    header = store.read_header(imports.locate_split(origin, split))
    name += f', made of {header.source}'
  if 'synthetic' in name:
    return name
  numbers = sources.Split(train.num_clients, train.num_examples)
  is_public = any(x.splits.get(split) == numbers for x in downloads.values())
  kind = 'the public data' if is_public else 'not the public data'
  return f'{name} ({kind}, by its {train.num_examples:,} train examples)'


def drop_none(**options: Any) -> dict[str, Any]:
  """The options that are set."""
  return {name: x for name, x in options.items() if x is not None}


def take_clients(
  config: Any, train: federated.FederatedData
) -> tuple[federated.FederatedData, str]:
  """Takes config.data.num_clients of the clients of a file, if there are more.

  Returns:
    The data, and how many clients they have, in words.
  """
  n, num_clients = config.data.num_clients, train.num_clients
  # Generated data have as many already, or a few more so that each has rows.
  if n is None or n >= num_clients or config.data.synthetic:
    return train, f'{num_clients:,} clients'
  return (
    federated.take_clients(train, n),
    f'the first {n:,} of {num_clients:,} clients',
  )


def sample_test(
  config: Any, test: federated.FederatedData
) -> federated.FederatedData:
  """Draws config.evaluate_examples test examples, or gives all."""
  if config.evaluate_examples is None:
    return test
  return federated.sample(
    test, config.seed, num_examples=config.evaluate_examples
  )
