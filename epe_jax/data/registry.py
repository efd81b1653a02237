"""The data sets by name. A new one is a file with a `DATA_SET`, and a line here."""

import importlib
import pathlib
from typing import Any

from epe_jax.data.data_set import Download, ExampleLevel, Federated

MODULES = {
  'cifar10': 'epe_jax.data.cifar10',
  'digits': 'epe_jax.data.digits',
  'emnist': 'epe_jax.data.emnist',
  'fashion_mnist': 'epe_jax.data.fashion_mnist',
  'purchase100': 'epe_jax.data.purchase100',
  'random': 'epe_jax.data.random_images',
  'stackoverflow': 'epe_jax.data.stackoverflow',
}
"""name -> module. Modules load neither JAX nor Arrow until they load data."""


def list_federated() -> list[str]:
  """Lists the data sets of clients, the values of config.task."""
  return _list_names(Federated)


def list_example_level() -> list[str]:
  """Lists the data sets of single examples."""
  return _list_names(ExampleLevel)


def find_federated(name: str) -> Federated:
  """Finds a data set of clients.

  Raises:
    ValueError: there is none of this name.
  """
  return _find(name, Federated)


def find_example_level(name: str) -> ExampleLevel:
  """Finds a data set of single examples.

  Raises:
    ValueError: there is none of this name.
  """
  return _find(name, ExampleLevel)


def list_downloads() -> dict[str, Download]:
  """Lists the public files of all data sets, by the names of --download."""
  downloads = {}
  for name in list_federated():
    downloads |= find_federated(name).downloads
  return dict(sorted(downloads.items()))


def list_tfds_builders() -> dict[str, str]:
  """Lists the builders of TensorFlow Datasets: class, of --tfds -> data set.

  >>> list_tfds_builders()['FederatedEmnist']
  'emnist'
  """
  return {
    f'Federated{name.title().replace("_", "")}': name
    for name in list_federated()
    if find_federated(name).tfds_features
  }


def list_jobs() -> dict[str, pathlib.Path]:
  """Lists the files of the data sets that come with a config, `get_config(mode)`.

  A job that ships has its file in configs/ instead.
  """
  modules = {name: find_module(name) for name in MODULES}
  return {
    name: pathlib.Path(module.__file__)
    for name, module in modules.items()
    if hasattr(module, 'get_config')
  }


def find_module(name: str) -> Any:
  """Imports the module of a data set; raises a KeyError if there is none."""
  return importlib.import_module(MODULES[name])


def _list_names(kind: type) -> list[str]:
  return [
    name
    for name in sorted(MODULES)
    if isinstance(find_module(name).DATA_SET, kind)
  ]


def _find(name: str, kind: type) -> Any:
  names = _list_names(kind)
  if name not in names:
    raise ValueError(f'no data {name!r}. Use one of {names}.')
  return find_module(name).DATA_SET
