"""Purchase-100: which of 600 products people bought, and a class of shoppers."""

import os
import pathlib
import tempfile

import numpy as np

from epe_jax import extras, streams
from epe_jax.data import sources
from papers.data.examples import Examples

NUM_FEATURES = 600
NUM_CLASSES = 100
NUM_EXAMPLES = 197_324
"""Of the public file."""

CURE = (
  'Expected dataset_purchase, or the .tgz that it is published in: a line for '
  'each person, of a class from 1 to 100 and 600 times 0 or 1, with commas '
  'between them.'
)
"""Ends every message about a file that is not what it should be."""


def load_examples(path: str | os.PathLike | None, rng_seed: int) -> Examples:
  """Loads the public file, or generates data of its size; a tenth is the test."""
  if path is None:
    columns = generate(rng_seed)
    source = "synthetic data of Purchase-100's shape"
  else:
    columns, source = read(path), 'Purchase-100'
  size = len(columns['label'])
  rng = streams.host_rng(rng_seed, 'purchase100 test')
  order, num_test = rng.permutation(size), max(1, size // 10)
  train, test = (
    {key: column[np.sort(rows)] for key, column in columns.items()}
    for rows in (order[num_test:], order[:num_test])
  )
  return Examples(
    train,
    test,
    f'{source}, split at random',
    inputs='features',
    num_classes=NUM_CLASSES,
    scale=1,
  )


def read(path: str | os.PathLike) -> sources.Columns:
  """Reads the public file.

  Args:
    path: dataset_purchase, or a .tgz or .tar.gz that holds it alone.

  Returns:
    Columns features, uint8 [n, 600] of 0 and 1, and label, int32 [n] in
    [0, 100): the published class less 1.

  Raises:
    FileNotFoundError, ValueError: it is missing, damaged, or not as above.

  References:
    Shokri et al. 2017, Membership Inference Attacks against Machine Learning
    Models, section VI.A.
  """
  path = pathlib.Path(path)
  if not path.is_file():
    raise FileNotFoundError(f'{path} does not exist. {CURE}')
  if path.suffix not in ('.tgz', '.gz'):
    return _parse(path, path)
  from epe_jax.data import archives

  with tempfile.TemporaryDirectory() as folder:
    files = archives.extract(path, folder, suffix='dataset_purchase')
    if len(files) != 1:
      raise ValueError(f'{path} holds {sorted(files)}, not one file. {CURE}')
    return _parse(path, *files.values())


def generate(
  rng_seed: int, *, num_examples: int = NUM_EXAMPLES
) -> sources.Columns:
  """Generates data of the public file's shape.

  Each class has its own probabilities of the 600 products, from Beta(1/2, 2), for
  most products are rare; a person buys each product independently.

  Returns:
    Columns as those of `read`.

  >>> generate(0, num_examples=3)['features'].shape
  (3, 600)
  """
  rng = streams.host_rng(rng_seed, 'synthetic purchases')
  rates = rng.beta(0.5, 2, (NUM_CLASSES, NUM_FEATURES)).astype(np.float32)
  label = rng.integers(NUM_CLASSES, size=num_examples, dtype=np.int32)
  features = np.empty((num_examples, NUM_FEATURES), np.uint8)
  # Blocks, so that the random numbers take little memory.
  for start in range(0, num_examples, 1 << 14):
    rows = slice(start, start + (1 << 14))
    uniform = rng.random(features[rows].shape, np.float32)
    features[rows] = uniform < rates[label[rows]]
  return {'features': features, 'label': label}


def _parse(path: pathlib.Path, plain: pathlib.Path) -> sources.Columns:
  with extras.explain_missing():
    import pyarrow
    from pyarrow import csv

  names = [str(i) for i in range(1 + NUM_FEATURES)]
  try:
    table = csv.read_csv(
      plain,
      read_options=csv.ReadOptions(column_names=names),
      convert_options=csv.ConvertOptions(
        column_types=dict.fromkeys(names, pyarrow.uint8()), null_values=[]
      ),
    )
  except pyarrow.ArrowInvalid as error:
    raise ValueError(f'{path} cannot be read: {error}. {CURE}') from error
  label = table['0'].to_numpy().astype(np.int32)
  features = np.empty((len(label), NUM_FEATURES), np.uint8)
  for i, name in enumerate(names[1:]):
    features[:, i] = table[name].to_numpy()
  wrong = (features > 1).any(axis=1) | (label < 1) | (label > NUM_CLASSES)
  if wrong.any():
    row = np.flatnonzero(wrong)[0]
    raise ValueError(
      f'{path}, line {row + 1}: class {label[row]} and largest feature '
      f'{features[row].max()}. {CURE}'
    )
  return {'features': features, 'label': label - 1}
