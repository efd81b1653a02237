"""Images that are stored as JPEG or PNG, decoded by Pillow."""

from collections.abc import Iterable
import io as bytes_io
import itertools
import os
import pathlib

from jaxtyping import UInt8
import numpy as np

from epe_jax import extras, io
from epe_jax.data import sources

CURE = (
  'Expected an .npz file of the arrays jpeg, the uint8 bytes of all files one '
  'behind the other; offsets, int64 [n + 1] in it; and labels [n].'
)
"""Ends every message about a file that is not what it should be."""


def decode_images(
  files: Iterable[bytes | memoryview], shape: tuple[int, int, int]
) -> UInt8[np.ndarray, 'n h w c']:
  """Decodes coloured images, all of one size.

  Args:
    files: JPEG or PNG, one for each image.
    shape: height, width and 3.

  Raises:
    ValueError: an image cannot be decoded or is of another shape; names its
      row.
  """
  with extras.explain_missing():
    from PIL import Image, UnidentifiedImageError

  images = []
  for row, data in enumerate(files):
    try:
      with Image.open(bytes_io.BytesIO(data), formats=('JPEG', 'PNG')) as image:
        if (image.height, image.width) != shape[:2]:
          raise ValueError(f'it has {image.height} x {image.width} pixels')
        pixels = np.asarray(image.convert('RGB'))
    except (OSError, SyntaxError, UnidentifiedImageError, ValueError) as error:
      raise ValueError(f'row {row}: no image of {shape}: {error}') from error
    images.append(pixels)
  return np.array(images, np.uint8).reshape(-1, *shape)


def read_npz(
  path: str | os.PathLike, shape: tuple[int, int, int]
) -> sources.Columns:
  """Reads an .npz file of coded images.

  Args:
    path: has the arrays jpeg, uint8 [bytes], in which image i is from
      offsets[i] to offsets[i + 1]; offsets, integers [n + 1]; and labels,
      integers [n].
    shape: height, width and 3 of the images.

  Returns:
    Columns pixels, uint8 [n, h, w, 3], and label, int32 [n].

  Raises:
    FileNotFoundError, ValueError: it is missing, damaged, or not as above.
  """
  path = pathlib.Path(path)
  if not path.is_file():
    raise FileNotFoundError(f'{path} does not exist. {CURE}')
  arrays = io.read_arrays(path)
  try:
    data, offsets, labels = (arrays[n] for n in ('jpeg', 'offsets', 'labels'))
  except KeyError as error:
    raise ValueError(f'{path} has no array {error}. {CURE}') from error
  rising = offsets.ndim == 1 and len(offsets) and np.all(np.diff(offsets) > 0)
  if (
    not rising
    or data.dtype != np.uint8
    or labels.dtype.kind not in 'iu'
    or (offsets[0], offsets[-1]) != (0, len(data))
    or labels.shape != (len(offsets) - 1,)
  ):
    raise ValueError(
      f'{path}: jpeg {data.dtype} {data.shape}, offsets {offsets.dtype} '
      f'{offsets.shape} and labels {labels.shape} do not fit. {CURE}'
    )
  raw = memoryview(data.tobytes())
  files = (raw[i:j] for i, j in itertools.pairwise(offsets))
  try:
    pixels = decode_images(files, shape)
  except ValueError as error:
    raise ValueError(f'{path}, {error}. {CURE}') from error
  return {'pixels': pixels, 'label': labels.astype(np.int32)}
