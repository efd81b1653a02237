"""CIFAR-10: the public archive of its binary form, or TensorFlow Datasets."""

from collections.abc import Iterable, Mapping
import io
import os
import pathlib
import tempfile

from jaxtyping import UInt8
import numpy as np

from epe_jax import extras
from epe_jax.data import sources
from papers.data.examples import Examples

CURE = (
  'Give cifar-10-binary.tar.gz or the folder that is in it. The Python archive holds '
  'pickles, which could run any program.'
)
"""Ends every message about a file that is not what it should be."""

TFDS_CURE = (
  'Expected the directory of a version of array_record files, such as '
  "DIR/cifar10/3.0.2, made by tfds.builder('cifar10', data_dir=DIR, "
  "file_format='array_record').download_and_prepare(), with the splits train "
  'and test of image and label.'
)
"""Ends every message about a directory of TFDS that is not what it should be."""

_TRAIN = tuple(f'data_batch_{i}.bin' for i in range(1, 6))
_TEST = ('test_batch.bin',)
# Channels, rows, columns of an image, in the order in which bytes are stored.
_SHAPE = (3, 32, 32)
_IMAGE = (32, 32, 3)


def load_examples(path: str | os.PathLike, rng_seed: int) -> Examples:
  """Loads the images of either form of CIFAR-10; its splits are given.

  Args:
    path: cifar-10-binary.tar.gz, the folder in it, or the directory of a version of
      a TFDS data set.
    rng_seed: not used.
  """
  del rng_seed
  path = pathlib.Path(path)
  if (path / 'dataset_info.json').is_file():
    return Examples(*_read_tfds(path), 'CIFAR-10, from TensorFlow Datasets')
  return Examples(*read_splits(path), 'CIFAR-10')


def _read_tfds(
  directory: pathlib.Path,
) -> tuple[sources.Columns, sources.Columns]:
  """The images of a version of TFDS's cifar10, without TensorFlow."""
  # Only here: it needs packages that other forms do not.
  from epe_jax.data.formats import example_proto, tfds

  features: sources.Features = {'image': (bytes, ()), 'label': ('int32', ())}
  splits = []
  for blobs in tfds.read_splits(directory, ('train', 'test'), TFDS_CURE):
    try:
      stored = example_proto.stack(blobs, features)
      pixels = _decode_images(stored['image'])
    except ValueError as error:
      raise ValueError(f'{directory}, {error}. {TFDS_CURE}') from error
    splits.append({'pixels': pixels, 'label': stored['label']})
  return splits[0], splits[1]


def read_splits(
  path: str | os.PathLike,
) -> tuple[sources.Columns, sources.Columns]:
  """Reads the train and test images of an archive or of its folder.

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
  from epe_jax.data import archives

  with tempfile.TemporaryDirectory() as folder:
    unpacked = archives.extract(path, folder, suffix='')
    files = {pathlib.PurePosixPath(n).name: f for n, f in unpacked.items()}
    return _read_batches(path, files)


def _read_batches(
  path: pathlib.Path, files: Mapping[str, pathlib.Path]
) -> tuple[sources.Columns, sources.Columns]:
  splits = []
  for names in (_TRAIN, _TEST):
    batches = []
    for name in names:
      if name not in files:
        raise FileNotFoundError(f'{path} has no file {name!r}. {CURE}')
      try:
        batches.append(_read_batch(files[name].read_bytes()))
      except ValueError as error:
        raise ValueError(f'{path}, file {name!r}: {error}. {CURE}') from error
    pixels, labels = (np.concatenate(parts) for parts in zip(*batches))
    splits.append({'pixels': pixels, 'label': labels.astype(np.int32)})
  return splits[0], splits[1]


def _read_batch(data: bytes) -> tuple[np.ndarray, np.ndarray]:
  """The images [n, 32, 32, 3] and labels [n] of a file: a label before each image."""
  size = 1 + np.prod(_SHAPE)
  if not data or len(data) % size:
    raise ValueError(f'its {len(data)} bytes are not a multiple of {size}')
  rows = np.frombuffer(data, np.uint8).reshape(-1, size)
  labels = rows[:, 0]
  wrong = np.flatnonzero(labels > 9)
  if wrong.size:
    raise ValueError(
      f'row {wrong[0]}: label {labels[wrong[0]]} is not in [0, 10)'
    )
  return rows[:, 1:].reshape(-1, *_SHAPE).transpose(0, 2, 3, 1), labels


def _decode_images(files: Iterable[bytes]) -> UInt8[np.ndarray, 'n 32 32 3']:
  """Decodes JPEG or PNG images; a ValueError names the row."""
  with extras.explain_missing():
    from PIL import Image, UnidentifiedImageError

  images = []
  for row, data in enumerate(files):
    try:
      with Image.open(io.BytesIO(data), formats=('JPEG', 'PNG')) as image:
        if (image.height, image.width) != _IMAGE[:2]:
          raise ValueError(f'it has {image.height} x {image.width} pixels')
        pixels = np.asarray(image.convert('RGB'))
    except (OSError, SyntaxError, UnidentifiedImageError, ValueError) as error:
      raise ValueError(f'row {row}: no image of {_IMAGE}: {error}') from error
    images.append(pixels)
  return np.array(images, np.uint8).reshape(-1, *_IMAGE)
