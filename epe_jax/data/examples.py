"""Data of single examples, in memory, that say where they come from."""

from collections.abc import Callable, Mapping
import os
import pathlib
from typing import NamedTuple

import numpy as np

from epe_jax import streams
from epe_jax.data import (
  cifar10,
  coded_images,
  idx,
  purchase100,
  sources,
)

_CIFAR_SHAPE = (32, 32, 3)


class Examples(NamedTuple):
  """Labelled examples for training and for the test.

  Attributes:
    train: columns, an array of each with the examples along the first axis: the
      inputs, float32 in [0, 1], and label, int32 [n] in [0, num_classes).
    test: the same columns of other examples.
    source: a sentence on what they are, which every result prints.
    inputs: name of the column of inputs: 'pixels' [n, h, w, c] or 'features'
      [n, 600].
    num_classes: number of classes.
  """

  train: sources.Columns
  test: sources.Columns
  source: str
  inputs: str
  num_classes: int


class _Loaded(NamedTuple):
  """As `Examples`, but inputs are uint8, from 0 to `scale`."""

  train: sources.Columns
  test: sources.Columns
  source: str
  inputs: str
  num_classes: int
  scale: int


def load_examples(
  name: str,
  path: str | os.PathLike | None = None,
  *,
  rng_seed: int,
  num_train: int | None = None,
  num_test: int | None = None,
) -> Examples:
  """Loads data of single examples.

  Args:
    name: 'cifar10', 'fashion_mnist', 'purchase100' or 'random'.
    path: where it is.
      cifar10: cifar-10-python.tar.gz, cifar-10-binary.tar.gz or the folder in
        one of them; the directory of a version of a TFDS data set; or a folder
        of cifar10_train*.npz and cifar10_test*.npz with JPEG-coded images.
      fashion_mnist: the folder of the four idx files.
      purchase100: dataset_purchase or its .tgz; None generates data of the same
        size. A tenth of either, drawn at random, is for the test.
      random: None. Pixels and labels are drawn uniformly, as many as CIFAR-10
        has; nothing can be learnt from them but by heart.
    rng_seed: >= 0, of everything that is drawn: what is generated, which
      examples are for the test where the source does not say, and which are
      taken.
    num_train: how many train examples to take, at random; all if None.
    num_test: the same for the test.

  Returns:
    The examples. Their `source` says what was read, and whether it is a copy, a
    part, or generated.

  Raises:
    FileNotFoundError, ValueError: there is no such data, path is missing where
      it is needed or given where it is not, a file is damaged, or more examples
      are asked for than there are.

  >>> examples = load_examples(
  ...   'random', rng_seed=0, num_train=20, num_test=10
  ... )
  >>> examples.train['pixels'].shape
  (20, 32, 32, 3)
  >>> examples.source
  "random pixels and labels of CIFAR-10's shape (20 of 50,000 train, 10 of 10,000 test examples, drawn at random)"
  """
  if name not in _LOADERS:
    raise ValueError(f'no data {name!r}. Use one of {sorted(_LOADERS)}.')
  loaded = _LOADERS[name](path, rng_seed)
  splits, counts = [], []
  for split, num, columns in (
    ('train', num_train, loaded.train),
    ('test', num_test, loaded.test),
  ):
    size = len(columns['label'])
    if num is not None and not 1 <= num <= size:
      raise ValueError(
        f'num_{split}={num}, but {name} has {size} {split} examples. Give a '
        f'number from 1 to {size}, or None for all.'
      )
    if num is not None and num < size:
      rng = streams.host_rng(rng_seed, f'examples {name} {split}')
      rows = np.sort(rng.choice(size, num, replace=False))
      columns = {key: column[rows] for key, column in columns.items()}
    part = f'{num:,} of ' if num is not None and num < size else ''
    counts.append(f'{part}{size:,} {split}')
    splits.append(
      {
        loaded.inputs: columns[loaded.inputs] / np.float32(loaded.scale),
        'label': columns['label'].astype(np.int32, copy=False),
      }
    )
  drawn = ', drawn at random' if any(' of ' in part for part in counts) else ''
  return Examples(
    train=splits[0],
    test=splits[1],
    source=f'{loaded.source} ({", ".join(counts)} examples{drawn})',
    inputs=loaded.inputs,
    num_classes=loaded.num_classes,
  )


def _load_cifar10(path: str | os.PathLike | None, rng_seed: int) -> _Loaded:
  del rng_seed  # Its splits are given.
  path = _require_path('cifar10', path, cifar10.CURE)
  if path.is_dir() and (path / 'dataset_info.json').is_file():
    # Only here: it needs packages that the others do not.
    from epe_jax.data import tfds_images

    train, test = tfds_images.read_splits(path, _CIFAR_SHAPE)
    source = 'CIFAR-10, from TensorFlow Datasets'
  elif path.is_dir() and (coded := _find_coded(path)):
    train, test = (coded_images.read_npz(f, _CIFAR_SHAPE) for f in coded)
    source = 'CIFAR-10, JPEG-coded (lossy) copy'
  else:
    train, test = cifar10.read_splits(path)
    source = 'CIFAR-10'
  return _Loaded(train, test, source, 'pixels', 10, 255)


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


def _load_fashion_mnist(
  path: str | os.PathLike | None, rng_seed: int
) -> _Loaded:
  del rng_seed  # Its splits are given.
  path = _require_path('fashion_mnist', path, idx.CURE)
  train, test = idx.read_splits(path)
  return _Loaded(train, test, 'Fashion-MNIST', 'pixels', 10, 255)


def _load_purchase100(path: str | os.PathLike | None, rng_seed: int) -> _Loaded:
  if path is None:
    columns = purchase100.generate(rng_seed)
    source = "synthetic data of Purchase-100's shape"
  else:
    columns, source = purchase100.read(path), 'Purchase-100'
  size = len(columns['label'])
  if size < 2:
    raise ValueError(f'{path} has {size} examples, too few to leave a test.')
  rng = streams.host_rng(rng_seed, 'purchase100 test')
  order, num_test = rng.permutation(size), max(1, size // 10)
  take = lambda rows: {key: column[rows] for key, column in columns.items()}
  return _Loaded(
    train=take(np.sort(order[num_test:])),
    test=take(np.sort(order[:num_test])),
    source=f'{source}, split at random',
    inputs='features',
    num_classes=purchase100.NUM_CLASSES,
    scale=1,
  )


def _load_random(path: str | os.PathLike | None, rng_seed: int) -> _Loaded:
  if path is not None:
    raise ValueError(f"'random' is drawn, not read, but path={str(path)!r}.")
  splits = []
  for split, size in (('train', 50_000), ('test', 10_000)):
    rng = streams.host_rng(rng_seed, f'random examples {split}')
    pixels = np.frombuffer(rng.bytes(size * 3072), np.uint8)
    label = rng.integers(10, size=size, dtype=np.int32)
    splits.append(
      {'pixels': pixels.reshape(size, *_CIFAR_SHAPE), 'label': label}
    )
  source = "random pixels and labels of CIFAR-10's shape"
  return _Loaded(splits[0], splits[1], source, 'pixels', 10, 255)


def _require_path(
  name: str, path: str | os.PathLike | None, cure: str
) -> pathlib.Path:
  if path is None:
    raise ValueError(f'{name!r} is read from files, but path is None. {cure}')
  return pathlib.Path(path)


_LOADERS: Mapping[str, Callable[[str | os.PathLike | None, int], _Loaded]] = {
  'cifar10': _load_cifar10,
  'fashion_mnist': _load_fashion_mnist,
  'purchase100': _load_purchase100,
  'random': _load_random,
}
