"""Fashion-MNIST, or MNIST, from its four idx files, plain or compressed by gzip."""

import gzip
import math
import os
import pathlib
import zlib

import numpy as np

from epe_jax.data import sources
from papers.data.examples import Examples

CURE = (
  'Give a folder of train-images-idx3-ubyte, train-labels-idx1-ubyte, '
  't10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, each plain or as .gz.'
)
"""Ends every message about a file that is not what it should be."""


def load_examples(path: str | os.PathLike, rng_seed: int) -> Examples:
  """Loads the four files of a folder; its splits are given."""
  del rng_seed
  return Examples(*read_splits(path), 'Fashion-MNIST')


def read_splits(
  folder: str | os.PathLike,
) -> tuple[sources.Columns, sources.Columns]:
  """Reads the train and test images of a folder with the four files.

  Returns:
    (train, test) with columns pixels, uint8 [n, h, w, 1], and label, int32 [n].

  Raises:
    FileNotFoundError, ValueError: a file is missing or damaged; names it.

  References:
    Xiao et al. 2017, Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine
    Learning Algorithms.
  """
  folder = pathlib.Path(folder)
  splits = []
  for prefix in ('train', 't10k'):
    pixels = _read(folder, f'{prefix}-images-idx3-ubyte', 3)
    labels = _read(folder, f'{prefix}-labels-idx1-ubyte', 1)
    if len(pixels) != len(labels):
      raise ValueError(
        f'{folder} has {len(pixels)} images {prefix!r}, but {len(labels)} '
        f'labels. {CURE}'
      )
    splits.append(
      {'pixels': pixels[..., None], 'label': labels.astype(np.int32)}
    )
  return splits[0], splits[1]


def _read(folder: pathlib.Path, name: str, ndim: int) -> np.ndarray:
  """One file: a magic number, the sizes of the axes, and bytes."""
  plain, compressed = folder / name, folder / f'{name}.gz'
  path = plain if plain.exists() else compressed
  if not path.exists():
    raise FileNotFoundError(f'{folder} has no file {name}(.gz). {CURE}')
  try:
    with gzip.open(path) if path is compressed else open(path, 'rb') as file:
      data = file.read()
  except (EOFError, zlib.error, gzip.BadGzipFile) as error:
    raise ValueError(f'{path} is damaged ({error}). {CURE}') from error
  head = 4 * (1 + ndim)
  # Type 8: bytes without a sign; then the number of axes.
  if data[:4] != bytes([0, 0, 8, ndim]) or len(data) < head:
    raise ValueError(
      f'{path} is not an idx file of {ndim} axes of bytes. {CURE}'
    )
  shape = tuple(int(n) for n in np.frombuffer(data[4:head], '>u4'))
  if len(data) - head != math.prod(shape):
    raise ValueError(
      f'{path} has {len(data) - head} bytes for shape {shape}. {CURE}'
    )
  return np.frombuffer(data, np.uint8, offset=head).reshape(shape)
