"""CIFAR-10: the public archives, TensorFlow Datasets, or JPEG-coded copies."""

from collections.abc import Mapping
import os
import pathlib
import tempfile

import numpy as np

from epe_jax.data import (
  archives,
  coded_images,
  data_set,
  pickled_arrays,
  sources,
)

CURE = (
  'Give cifar-10-python.tar.gz or cifar-10-binary.tar.gz, or the folder that is '
  'in one of them.'
)
"""Ends every message about a file that is not what it should be."""

TFDS_CURE = (
  'Expected the directory of a version of array_record files, such as '
  "DIR/cifar10/3.0.2, made by tfds.builder('cifar10', data_dir=DIR, "
  "file_format='array_record').download_and_prepare(), with the splits train "
  'and test of image and label.'
)
"""Ends every message about a directory of TFDS that is not what it should be."""

_TRAIN = tuple(f'data_batch_{i}' for i in range(1, 6))
_TEST = ('test_batch',)
# Channels, rows, columns of an image, in the order in which bytes are stored.
_SHAPE = (3, 32, 32)
_IMAGE = (32, 32, 3)


def load_examples(
  path: str | os.PathLike | None, rng_seed: int
) -> data_set.Examples:
  """Loads the images of any of the forms of CIFAR-10; its splits are given.

  Args:
    path: cifar-10-python.tar.gz, cifar-10-binary.tar.gz or the folder in one of
      them; the directory of a version of a TFDS data set; or a folder of
      cifar10_train*.npz and cifar10_test*.npz with JPEG-coded images.
    rng_seed: not used.
  """
  del rng_seed
  if path is None:
    raise ValueError(f"'cifar10' is read from files, but path is None. {CURE}")
  path = pathlib.Path(path)
  if path.is_dir() and (path / 'dataset_info.json').is_file():
    train, test = read_tfds(path)
    source = 'CIFAR-10, from TensorFlow Datasets'
  elif path.is_dir() and (files := _find_coded(path)):
    train, test = (coded_images.read_npz(f, _IMAGE) for f in files)
    source = 'CIFAR-10, JPEG-coded (lossy) copy'
  else:
    train, test = read_splits(path)
    source = 'CIFAR-10'
  return data_set.Examples(train, test, source)


def read_tfds(
  directory: str | os.PathLike,
) -> tuple[sources.Columns, sources.Columns]:
  """Reads the train and test images of TFDS's cifar10, without TensorFlow.

  Args:
    directory: of a version, with its dataset_info.json.

  Returns:
    As `read_splits`.

  Raises:
    FileNotFoundError, ValueError: it is not such a directory, or a file or an
      image in it is damaged; names it.
  """
  # Only here: it needs packages that other forms do not.
  from epe_jax.data import example_proto, tfds

  features: sources.Features = {'image': (bytes, ()), 'label': ('int32', ())}
  splits = []
  for records in tfds.open_splits(directory, ('train', 'test'), TFDS_CURE):
    try:
      blobs = records.__getitems__(range(len(records)))
      stored = example_proto.stack(blobs, features)
      pixels = coded_images.decode_images(stored['image'], _IMAGE)
    except ValueError as error:
      raise ValueError(f'{directory}, {error}. {TFDS_CURE}') from error
    splits.append({'pixels': pixels, 'label': stored['label']})
  return splits[0], splits[1]


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

  References:
    Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images.
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


def _find_coded(folder: pathlib.Path) -> list[pathlib.Path]:
  """The coded train and test files of a folder, or nothing."""
  files = []
  for split in ('train', 'test'):
    matches = sorted(folder.glob(f'cifar10_{split}*.npz'))
    if len(matches) > 1:
      raise ValueError(
        f'{folder} has several files of the {split} split: '
        f'{[m.name for m in matches]}. Leave one of them there.'
      )
    files += matches
  if len(files) == 1:
    raise FileNotFoundError(
      f'{folder} has {files[0].name}, but not both of cifar10_train*.npz and '
      'cifar10_test*.npz. Put the other one there.'
    )
  return files


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
    raise ValueError('a label is not an integer')
  return pixels, np.array(labels)


def _read_binary(data: bytes) -> tuple[np.ndarray, np.ndarray]:
  size = 1 + np.prod(_SHAPE)
  if len(data) % size:
    raise ValueError(f'its {len(data)} bytes are not a multiple of {size}')
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


DATA_SET = data_set.ExampleLevel(
  load_examples, 'an archive or a folder of CIFAR-10'
)
