"""Labelled images in the form of TensorFlow Datasets, without TensorFlow."""

import os
import pathlib

from epe_jax.data import coded_images, example_proto, sources, tfds

CURE = (
  'Expected the directory of a version of array_record files, such as '
  "DIR/cifar10/3.0.2, made by tfds.builder('cifar10', data_dir=DIR, "
  "file_format='array_record').download_and_prepare(), with the splits train "
  'and test of image and label.'
)
"""Ends every message about a directory that is not what it should be."""


def read_splits(
  directory: str | os.PathLike, shape: tuple[int, int, int]
) -> tuple[sources.Columns, sources.Columns]:
  """Reads the train and test images of a data set such as TFDS's cifar10.

  Args:
    directory: of a version, with its dataset_info.json.
    shape: height, width and 3 of the images.

  Returns:
    (train, test) with columns pixels, uint8 [n, h, w, 3], and label, int32 [n].

  Raises:
    FileNotFoundError, ValueError: it is no such directory, or a file or an
      image in it is damaged; names it.
  """
  path = pathlib.Path(directory)
  if not (path / 'dataset_info.json').is_file():
    raise FileNotFoundError(f'{path} has no dataset_info.json. {CURE}')
  try:
    builder = tfds.tfds.builder_from_directory(path)
    records = [tfds.open_records(path, builder, s) for s in ('train', 'test')]
  except Exception as error:
    # TFDS, protobuf and etils have errors of their own for damaged files.
    raise ValueError(f'{path} cannot be read: {error}. {CURE}') from error
  splits = []
  for rows in records:
    try:
      stored = example_proto.stack(
        rows.__getitems__(range(len(rows))),
        {'image': (bytes, ()), 'label': ('int32', ())},
      )
      pixels = coded_images.decode_images(stored['image'], shape)
    except ValueError as error:
      raise ValueError(f'{path}, {error}. {CURE}') from error
    splits.append({'pixels': pixels, 'label': stored['label']})
  return splits[0], splits[1]
