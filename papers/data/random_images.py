"""Random pixels and labels of CIFAR-10's shape, which can only be memorized."""

import math
import os

import numpy as np

from epe_jax import streams
from papers.data.examples import ExampleLevel, Examples

_SHAPE = (32, 32, 3)


def load_examples(path: str | os.PathLike | None, rng_seed: int) -> Examples:
  """Draws as many images as CIFAR-10 has, with uniform pixels and labels."""
  if path is not None:
    raise ValueError(f"'random' is drawn, not read, but path={str(path)!r}.")
  splits = []
  for split, size in (('train', 50_000), ('test', 10_000)):
    rng = streams.host_rng(rng_seed, f'random examples {split}')
    pixels = np.frombuffer(rng.bytes(size * math.prod(_SHAPE)), np.uint8)
    label = rng.integers(10, size=size, dtype=np.int32)
    splits.append({'pixels': pixels.reshape(size, *_SHAPE), 'label': label})
  source = "random pixels and labels of CIFAR-10's shape"
  return Examples(splits[0], splits[1], source)


DATA_SET = ExampleLevel(load_examples)
