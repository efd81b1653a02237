"""CIFAR-10 as it is published: five batches for training, one for the test.

Either archive is read, that for Python and the binary one, or the folder that
is in it.
"""

from collections.abc import Mapping
import os
import pathlib
import tempfile

import numpy as np

from epe_jax.data import archives, pickled_arrays, sources

CURE = (
  'Give cifar-10-python.tar.gz or cifar-10-binary.tar.gz, or the folder that is '
  'in one of them.'
)
"""Ends every message about a file that is not what it should be."""

_TRAIN = tuple(f'data_batch_{i}' for i in range(1, 6))
_TEST = ('test_batch',)
# Channels, rows, columns of an image, in the order in which bytes are stored.
_SHAPE = (3, 32, 32)


def read_splits(
  path: str | os.PathLike,
) -> tuple[sources.Columns, sources.Columns]:
  """Reads the train and test images of an archive or of its folder.

  The Python archive is of pickles, which `pickled_arrays` reads without running
  them. The archive is unpacked in a temporary folder.

  Args:
    path: cifar-10-python.tar.gz, cifar-10-binary.tar.gz, or a folder of their
      files.

  Returns:
    (train, test) with columns pixels, uint8 [n, 32, 32, 3], and label, int32
    [n] in [0, 10).

  Raises:
    FileNotFoundError, ValueError: a file is missing, is damaged, or is not of
      the format; names it.

  Reference: Krizhevsky 2009, Learning Multiple Layers of Features from Tiny
  Images.
  """
  path = pathlib.Path(path)
  if path.is_dir():
    files = {file.name: file for file in path.iterdir()}
    return _read_batches(path, files)
  if not path.is_file():
    raise FileNotFoundError(f'{path} does not exist. {CURE}')
  with tempfile.TemporaryDirectory() as folder:
    unpacked = archives.extract(path, folder, suffix='')
    files = {pathlib.PurePosixPath(n).name: f for n, f in unpacked.items()}
    return _read_batches(path, files)


def _read_batches(
  path: pathlib.Path, files: Mapping[str, pathlib.Path]
) -> tuple[sources.Columns, sources.Columns]:
  is_binary = f'{_TEST[0]}.bin' in files
  suffix, read = ('.bin', _read_binary) if is_binary else ('', _read_pickle)
  splits = []
  for names in (_TRAIN, _TEST):
    batches = []
    for name in (name + suffix for name in names):
      if name not in files:
        raise FileNotFoundError(f'{path} has no file {name!r}. {CURE}')
      try:
        batches.append(_check_batch(*read(files[name].read_bytes())))
      except ValueError as error:
        raise ValueError(f'{path}, file {name!r}: {error}. {CURE}') from error
    pixels, labels = (np.concatenate(parts) for parts in zip(*batches))
    splits.append({'pixels': pixels, 'label': labels.astype(np.int32)})
  return splits[0], splits[1]


def _read_pickle(data: bytes) -> tuple[np.ndarray, np.ndarray]:
  batch = pickled_arrays.loads(data)
  pixels, labels = batch.get(b'data'), batch.get(b'labels')
  if not isinstance(pixels, np.ndarray) or not isinstance(labels, list):
    raise ValueError(f"it has {sorted(batch)}, not b'data' and b'labels'")
  if not all(type(label) is int for label in labels):
    raise ValueError('a label is no whole number')
  return pixels, np.array(labels)


def _read_binary(data: bytes) -> tuple[np.ndarray, np.ndarray]:
  size = 1 + np.prod(_SHAPE)
  if len(data) % size:
    raise ValueError(f'its {len(data)} bytes are no multiple of {size}')
  rows = np.frombuffer(data, np.uint8).reshape(-1, size)
  return rows[:, 1:], rows[:, 0]


def _check_batch(
  pixels: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  if pixels.shape != (len(labels), np.prod(_SHAPE)) or not len(labels):
    raise ValueError(
      f'pixels of shape {pixels.shape} for {len(labels)} labels, not (n, 3072)'
    )
  wrong = np.flatnonzero((labels < 0) | (labels > 9))
  if wrong.size:
    raise ValueError(
      f'row {wrong[0]}: label {labels[wrong[0]]} is not in [0, 10)'
    )
  return pixels.reshape(-1, *_SHAPE).transpose(0, 2, 3, 1), labels
