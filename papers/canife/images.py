"""Fashion-MNIST as vectors of pixels, or generated images in its place."""

import os
from typing import NamedTuple

from jaxtyping import Float, Int
import numpy as np

from epe_jax import streams
from papers.data import fashion_mnist

CLASSES = 10


class Images(NamedTuple):
  """Images of ten classes.

  Attributes:
    train_x: pixels in [0, 1], float32 [n, p].
    train_y: classes, int32 [n].
    test_x: the same of others.
    test_y: the same.
    source: what they are, in a sentence without a full stop.
  """

  train_x: Float[np.ndarray, 'n p']
  train_y: Int[np.ndarray, ' n']
  test_x: Float[np.ndarray, 'm p']
  test_y: Int[np.ndarray, ' m']
  source: str


def load_images(
  folder: str | os.PathLike | None, *, num_train: int, num_test: int
) -> Images:
  """Loads Fashion-MNIST, or generates as many images.

  Args:
    folder: of the four idx files; None generates a mean for each class, and pixels
      that scatter around it.
    num_train: images for training, the first of the file.
    num_test: images for the test.

  Raises:
    FileNotFoundError, ValueError: a file is missing or damaged, or holds fewer
      images.
  """
  if folder is None:
    return _generate(num_train, num_test)
  columns = []
  for name, split, num in zip(
    ('num_train', 'num_test'),
    fashion_mnist.read_splits(folder),
    (num_train, num_test),
  ):
    if len(split['label']) < num:
      raise ValueError(
        f'{name}={num}, but {folder} has {len(split["label"])} such images; give '
        'at most as many.'
      )
    pixels = split['pixels'][:num].reshape(num, -1)
    columns += [pixels.astype(np.float32) / 255, split['label'][:num]]
  train_x, train_y, test_x, test_y = columns
  source = f'Fashion-MNIST, {num_train:,} images'
  return Images(train_x, train_y, test_x, test_y, source)


def _generate(num_train: int, num_test: int) -> Images:
  rng = streams.host_rng(0, 'canife images')
  means = rng.random((CLASSES, 784))
  columns = []
  for num in (num_train, num_test):
    labels = rng.integers(CLASSES, size=num).astype(np.int32)
    pixels = means[labels] + rng.normal(scale=0.3, size=(num, 784))
    columns += [np.clip(pixels, 0, 1).astype(np.float32), labels]
  train_x, train_y, test_x, test_y = columns
  source = f'synthetic, {num_train:,} images'
  return Images(train_x, train_y, test_x, test_y, source)
