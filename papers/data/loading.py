"""Data of single examples, in memory, that say where they come from."""

from collections.abc import Callable
import math
import os
from typing import Any

import numpy as np

from epe_jax import streams
from papers.data import cifar10, fashion_mnist, purchase100
from papers.data.examples import Examples

_SHAPE = (32, 32, 3)


def _draw_images(path: str | os.PathLike | None, rng_seed: int) -> Examples:
  """As many images as CIFAR-10 has, with uniform pixels and labels: memorized alone."""
  if path is not None:
    raise ValueError(f"'random' is drawn, not read, but path={str(path)!r}.")
  splits = []
  for split, size in (('train', 50_000), ('test', 10_000)):
    rng = streams.host_rng(rng_seed, f'random examples {split}')
    pixels = np.frombuffer(rng.bytes(size * math.prod(_SHAPE)), np.uint8)
    label = rng.integers(10, size=size, dtype=np.int32)
    splits.append({'pixels': pixels.reshape(size, *_SHAPE), 'label': label})
  return Examples(
    *splits, source="random pixels and labels of CIFAR-10's shape"
  )


DATA_SETS: dict[str, Callable[[Any, int], Examples]] = {
  'cifar10': cifar10.load_examples,
  'fashion_mnist': fashion_mnist.load_examples,
  'purchase100': purchase100.load_examples,
  'random': _draw_images,
}
"""Name -> (path or None, seed of what is drawn) -> examples."""

FILES = {'cifar10': cifar10.CURE, 'fashion_mnist': fashion_mnist.CURE}
"""What to give for those that cannot be generated."""


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
    name: of `DATA_SETS`.
    path: where it is, as its module says; None for data that are generated.
    rng_seed: >= 0, of everything that is drawn: what is generated, which
      examples are for the test where the source does not say, and which are
      taken.
    num_train: how many train examples to take, at random; all if None.
    num_test: the same for the test.

  Returns:
    The examples, with float32 inputs in [0, 1]. Their `source` says what was read,
    and whether it is a copy, a part, or generated.

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
  if name not in DATA_SETS:
    raise ValueError(f'no data {name!r}. Use one of {[*DATA_SETS]}.')
  if path is None and name in FILES:
    raise ValueError(
      f'{name!r} is read from files, but path is None. {FILES[name]}'
    )
  loaded = DATA_SETS[name](path, rng_seed)
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
    splits[0],
    splits[1],
    f'{loaded.source} ({", ".join(counts)} examples{drawn})',
    loaded.inputs,
    loaded.num_classes,
    scale=1,
  )
