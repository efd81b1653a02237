"""What the package knows of the data sets, by their names.

A data set is a module with a `DATA_SET` and a line in `MODULES`. Config checks, help
texts, downloads, imports and workloads follow from the declaration.
"""

from collections.abc import Callable, Mapping
import importlib
from typing import Any, NamedTuple

from epe_jax.data import fields, sources

MODULES = {
  'digits': 'epe_jax.data.digits',
  'emnist': 'epe_jax.data.emnist',
  'stackoverflow': 'epe_jax.data.stackoverflow',
}
"""name -> module. Modules load neither JAX nor Arrow until they load data."""

TFF_BUCKET = 'https://storage.googleapis.com/tff-datasets-public/'

FILE_FIELDS = {
  'data.path': fields.or_none(fields.PATH, 'data.synthetic=True'),
  'data.cache': fields.or_none(fields.PATH, "a folder in the user's cache"),
  'data.synthetic': fields.FLAG,
}
"""The config fields of a data set that is read from a file or generated."""


class PublicFile(NamedTuple):
  """A file that can be downloaded.

  Attributes:
    name: in the bucket and on the disk.
    sha256: None if it was published without one.
  """

  name: str
  sha256: str | None = None


class Download(NamedTuple):
  """The public files of a data set in one form.

  Attributes:
    files: the first one holds the examples.
    splits: the published numbers of clients and examples, which stand in for a
      missing hash.
  """

  files: tuple[PublicFile, ...]
  splits: Mapping[str, sources.Split]


class Federated(NamedTuple):
  """A data set of clients, on which a config trains: task=NAME.

  Attributes:
    load: config -> `workload.Workload`, as a task of a user's own.
    fields: the fields of the groups `data` and `model` in its configs.
    features: what the examples of its files have, for `epe-jax data`; None if
      it is not read from files.
    make_recipes: (source, `vocabulary.Text`, path for counted words, workers) ->
      (split -> `decoding.Recipe`). Given with `features`.
    downloads: name for `epe-jax data --download` -> public files.
  """

  load: Callable[[Any], Any]
  fields: Mapping[str, fields.Field]
  features: sources.Features | None = None
  make_recipes: Callable[..., Callable[[str], Any]] | None = None
  downloads: Mapping[str, Download] = {}


def list_federated() -> list[str]:
  """Lists the data sets of clients, the values of config.task."""
  return sorted(MODULES)


def find_federated(name: str) -> Federated:
  """Finds a data set of clients.

  Raises:
    ValueError: there is none of this name.
  """
  names = list_federated()
  if name not in names:
    raise ValueError(f'no data {name!r}. Use one of {names}.')
  return importlib.import_module(MODULES[name]).DATA_SET


def list_downloads() -> dict[str, Download]:
  """Lists the public files of all data sets, by the names of --download."""
  downloads = {}
  for name in list_federated():
    downloads |= find_federated(name).downloads
  return dict(sorted(downloads.items()))


def find_download(name: str) -> Download:
  """Finds public files by the name of --download.

  Raises:
    ValueError: there are none of this name.
  """
  downloads = list_downloads()
  if name not in downloads:
    raise ValueError(
      f'no public files {name!r}. Use one of {sorted(downloads)}.'
    )
  return downloads[name]


def check_counts(name: str, splits: Mapping[str, sources.Split]) -> None:
  """Compares the splits of a file with those that it was published with.

  It stands in for the hash that the SQLite files lack.

  Args:
    name: of `list_downloads`.
    splits: all splits of the file that holds the examples, as counted.

  Raises:
    ValueError: if a split is missing, is not known, or has another number of
      clients or examples; names both numbers.
  """
  download = find_download(name)
  expected = download.splits
  if wrong := [s for s in sorted(expected) if splits.get(s) != expected[s]]:
    wrong = '; '.join(
      f'{s!r}: {splits.get(s)}, not {expected[s]}' for s in wrong
    )
  elif extra := sorted(splits.keys() - expected.keys()):
    wrong = f'the splits {extra} should not be there'
  if wrong:
    raise ValueError(
      f'{name}: this is not the public file {download.files[0].name}. {wrong}. '
      'Delete it and fetch it again, or import it as a file of your own, '
      'without --download.'
    )
