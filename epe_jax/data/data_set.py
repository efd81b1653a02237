"""What the package knows of a data set, declared in the file of the data set.

A data set is a module with a `DATA_SET` and a line in `registry`. Config checks, help
texts, downloads, imports and workloads follow from the declaration.
"""

from collections.abc import Callable, Mapping
import os
from typing import Any, NamedTuple

from epe_jax.data import fields, sources

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
    base_url: where the files are, http or https.
  """

  files: tuple[PublicFile, ...]
  splits: Mapping[str, sources.Split]
  base_url: str = TFF_BUCKET


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
    tfds_features: what records of TensorFlow Datasets hold, from which
      `epe-jax data --tfds` gets a builder; None for no builder.
  """

  load: Callable[[Any], Any]
  fields: Mapping[str, fields.Field]
  features: sources.Features | None = None
  make_recipes: Callable[..., Callable[[str], Any]] | None = None
  downloads: Mapping[str, Download] = {}
  tfds_features: sources.Features | None = None


class Examples(NamedTuple):
  """Labelled examples for training and for the test.

  Attributes:
    train: columns: the inputs, uint8 from 0 to `scale`, or float32 in [0, 1] if
      scale is 1; and label, integers [n] in [0, num_classes).
    test: the same columns of other examples.
    source: what they are, a phrase that every result prints.
    inputs: name of the column of inputs: 'pixels' [n, h, w, c] or 'features'
      [n, 600].
    num_classes: number of classes.
    scale: the largest input.
  """

  train: sources.Columns
  test: sources.Columns
  source: str
  inputs: str = 'pixels'
  num_classes: int = 10
  scale: int = 255


class ExampleLevel(NamedTuple):
  """A data set of single examples in memory, for DP-SGD.

  Attributes:
    load: (path or None, seed of what is drawn) -> `Examples`.
    path: what the path should name, to follow "give"; '' if the data can be
      generated.
  """

  load: Callable[[str | os.PathLike | None, int], Examples]
  path: str = ''


def is_published(
  downloads: Mapping[str, Download], split: str, numbers: sources.Split
) -> bool:
  """Whether a split has the published numbers of clients and examples."""
  return any(x.splits.get(split) == numbers for x in downloads.values())
