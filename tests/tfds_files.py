"""TFDS data sets of clients, written as a builder of a user's own would."""

import functools
import itertools
import pathlib

import numpy as np
import tensorflow_datasets as tfds


class FederatedEmnist(tfds.core.ShardBasedBuilder, skip_registration=True):
  """Clients of an open source, in the order of ids, one example per record."""

  VERSION = tfds.core.Version('1.0.0')

  def __init__(self, *, source, features, shard_size, **options):
    self.source, self.columns, self.shard_size = source, features, shard_size
    super().__init__(**options)

  def _info(self):
    features = {
      name: tfds.features.Tensor(
        shape=shape, dtype=np.object_ if dtype is bytes else dtype
      )
      for name, (dtype, shape) in self.columns.items()
    }
    return tfds.core.DatasetInfo(
      builder=self,
      features=tfds.features.FeaturesDict(
        {'client_id': tfds.features.Text()} | features
      ),
      disable_shuffling=True,
    )

  def _shard_iterators_per_split(self, dl_manager):
    del dl_manager
    shards = {}
    for split, counts in self.source.splits.items():
      # TFDS reads the iterators in order.
      rows = enumerate(self._list_examples(split))
      some = functools.partial(itertools.islice, rows, self.shard_size)
      shards[split] = [some] * -(-counts.examples // self.shard_size)
    return shards

  def _list_examples(self, split):
    for client_id, raw in self.source.read(split):
      columns = self.source.decode(raw, self.columns)
      for row in zip(*columns.values()):
        yield {'client_id': client_id, **dict(zip(columns, row))}


def write(source, features, folder, shard_size=100):
  """The directory of a data set that has the examples of an open source."""
  builder = FederatedEmnist(
    source=source,
    features=features,
    shard_size=shard_size,
    data_dir=str(folder),
    file_format='array_record',
  )
  builder.download_and_prepare()
  return pathlib.Path(builder.data_dir)
