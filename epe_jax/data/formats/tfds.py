"""Federated data sets in the form of TensorFlow Datasets, without TensorFlow.

There is one example per record, with its client's id, in array_record files: client
after client, sorted by id.
"""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import functools
import importlib
import itertools
import operator
import os
import pathlib
from typing import Any

from epe_jax import extras
from epe_jax.data import sources
from epe_jax.data.formats import example_proto

with extras.explain_missing():
  import tensorflow_datasets as tfds

  # tensorflow_datasets imports it late, and with a message of its own.
  importlib.import_module('array_record.python.array_record_module')

CURE = (
  'Expected the directory of a version, such as DIR/my_data/1.0.0, prepared by a '
  "builder with disable_shuffling=True, file_format='array_record' and a feature "
  'client_id, which yields clients in the order of their ids.'
)
"""Ends every message about a directory that is not what it should be."""

_CLIENT = 'client_id'
_BATCH = 1024


@contextlib.contextmanager
def open_source(directory: str | os.PathLike) -> Iterator[sources.Source]:
  """Opens a data set.

  Args:
    directory: of a version, e.g. DIR/my_data/1.0.0. Any TFDS data set of array_record
      files can be read whose examples have a `client_id` and whose records are sorted
      by it.

  Yields:
    A source with the splits of the data set. The numbers of clients are not
    known before they are read.

  Raises:
    FileNotFoundError, ValueError: the directory is not one of a data set, or, while
      reading, a file is missing, or a record is damaged or out of order.
  """
  with _explain_damage(directory, CURE):
    builder = _open_builder(directory)
    features = _read_features(builder.info)
    records = {
      split: _open_records(builder, split) for split in builder.info.splits
    }
  yield sources.Source(
    name=str(directory),
    splits={
      split: sources.Split(None, len(rows)) for split, rows in records.items()
    },
    read=functools.partial(_read_clients, str(directory), records),
    decode=example_proto.stack,
    features=features,
  )


def read_splits(
  directory: str | os.PathLike, splits: Sequence[str], cure: str
) -> list[list[bytes]]:
  """Reads all records of some splits of any data set of array_record files.

  Args:
    directory: of a version.
    splits: which ones.
    cure: ends messages.

  Returns:
    For each split the serialized examples.

  Raises:
    FileNotFoundError, ValueError: as `open_source`.
  """
  with _explain_damage(directory, cure):
    builder = _open_builder(directory)
    opened = [_open_records(builder, split) for split in splits]
    return [records.__getitems__(range(len(records))) for records in opened]


def _open_builder(directory: str | os.PathLike) -> Any:
  """The builder that TFDS makes of the directory of a version."""
  if not pathlib.Path(directory, 'dataset_info.json').is_file():
    raise FileNotFoundError(f'{directory} has no dataset_info.json')
  return tfds.builder_from_directory(directory)


def _open_records(builder: Any, split: str) -> Any:
  raw = tfds.decode.DeserializeMethod.RAW_BYTES
  return builder.as_data_source(split=split, deserialize_method=raw)


@contextlib.contextmanager
def _explain_damage(path: str | os.PathLike, cure: str) -> Iterator[None]:
  try:
    yield
  except FileNotFoundError as error:
    raise FileNotFoundError(f'{error}. {cure}') from error
  except Exception as error:
    # TFDS, protobuf and etils have errors of their own for damaged files.
    raise ValueError(f'{path} cannot be read: {error}. {cure}') from error


def _read_features(info: tfds.core.DatasetInfo) -> sources.Features:
  """The features of numbers and byte strings, without the client."""
  if info.file_format != tfds.core.FileFormat.ARRAY_RECORD:
    raise ValueError(f'its files are {info.file_format}, not array_record')
  held: Any = info.features.get_serialized_info() if info.features else {}
  if _CLIENT not in held:
    raise ValueError(f'no feature {_CLIENT!r} among {sorted(held)}')
  features = {}
  for name, spec in held.items():
    fixed = isinstance(spec, tfds.features.TensorInfo)
    if name == _CLIENT or not fixed or None in spec.shape:
      continue
    if spec.np_dtype.kind in 'OSU':
      features[name] = (bytes, spec.shape)
    elif spec.np_dtype.kind in 'iuf':
      features[name] = (spec.np_dtype, spec.shape)
  return features


def _read_clients(
  name: str,
  splits: Mapping[str, Any],
  split: str,
) -> Iterator[tuple[str, list[bytes]]]:
  """The records of the clients of a split; see `sources.Source`."""
  records = sources.find_split(splits, split, name)
  place = f'{name}, split {split!r}'
  rows = itertools.chain.from_iterable(
    _read_records(records, at, min(at + _BATCH, len(records)), place)
    for at in range(0, len(records), _BATCH)
  )
  previous = None
  for client_id, group in itertools.groupby(rows, operator.itemgetter(0)):
    if previous is not None and client_id <= previous:
      raise ValueError(
        f'{place}: the client {client_id!r} is behind {previous!r}, but records '
        f'have to be sorted by {_CLIENT}. {CURE}'
      )
    previous = client_id
    yield client_id, [blob for _, blob in group]


def _read_records(
  records: Any, start: int, stop: int, place: str
) -> list[tuple[str, bytes]]:
  """(client id, record) of some records."""
  try:
    blobs = records.__getitems__(range(start, stop))
    columns = example_proto.stack(blobs, {_CLIENT: (bytes, ())})
    client_ids = [raw.decode() for raw in columns[_CLIENT]]
  except (IndexError, RuntimeError, ValueError) as error:
    raise ValueError(
      f'{place}, records {start} to {stop - 1}: {error}. {CURE}'
    ) from error
  return list(zip(client_ids, blobs))
