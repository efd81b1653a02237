"""Federated EMNIST: handwritten characters by the people who wrote them."""

import functools
import os

import numpy as np

from epe_jax.data import decoding, federated, formats, imports, sources, store

FEATURES = {'pixels': (np.float32, (28, 28)), 'label': (np.int32, ())}
"""Background 1.0, ink 0.0; and the class."""

# Raise it when what is imported changes, so that old imports are not used.
_VERSION = 1


def load(
  path: str | os.PathLike | sources.Source,
  *,
  only_digits: bool,
  cache: str | os.PathLike | None = None,
) -> tuple[federated.FederatedData, federated.FederatedData]:
  """Loads the train and test characters of 3,400 writers.

  The first call imports the file into a columnar store, later calls map it
  into memory; a file of another path, size or time is imported anew.

  Args:
    path: emnist_all.sqlite, plain or LZMA-compressed, or another form of these
      splits that `formats.open_source` knows; or a folder that
      `epe-jax data` made of one.
    only_digits: True for the splits with 10 classes (3,383 writers), False for
      those with 62 (3,400 writers).
    cache: directory of the imports; `io.user_cache` if None.

  Returns:
    (train, test) with columns pixels, float32 [n, 28, 28], as stored:
    background 1.0, ink 0.0; and label, int32 [n].

  Raises:
    FileNotFoundError, ValueError: if the file is missing, of no known form, or
      damaged, a label or a pixel is out of range, or the folder is of
      something else.

  Reference: Caldas et al. 2018, LEAF: A Benchmark for Federated Settings; in the
  form of TensorFlow Federated's emnist_all.sqlite.
  """
  kind = 'digits_only' if only_digits else 'all'
  splits = (f'{kind}_train', f'{kind}_test')
  generated = isinstance(path, sources.Source)
  if not generated and imports.is_prepared(path):
    train, test = (
      imports.load_prepared(path, split, make_recipe(split).meta)
      for split in splits
    )
    return train, test
  if not generated:
    path = formats.check_exists(path)
  paths = {
    split: imports.choose_cache_path(path, split, key=_VERSION, cache=cache)
    for split in splits
  }
  if not all(kept.exists() for kept in paths.values()):
    with formats.open_source(path) as source:
      for split, kept in paths.items():
        imports.import_split(kept, source, split, make_recipe(split))
  train, test = map(store.load, paths.values())
  return train, test


def make_recipe(split: str) -> decoding.Recipe:
  """Makes the recipe of pixels and labels, of 10 classes in 'digits_only_*', else 62."""
  num_classes = 10 if split.startswith('digits_only') else 62
  return decoding.Recipe(
    FEATURES,
    functools.partial(_check_values, num_classes=num_classes),
    {'recipe': 'emnist', 'num_classes': num_classes},
  )


def _check_values(
  columns: sources.Columns, num_classes: int
) -> sources.Columns:
  labels = columns['label']
  wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
  if wrong.size:
    raise ValueError(
      f'row {wrong[0]}: label {labels[wrong[0]]} is not in [0, {num_classes}). '
      'Correct it in the source.'
    )
  pixels = columns['pixels']
  if not ((pixels >= 0) & (pixels <= 1)).all():
    row = np.argwhere(~((pixels >= 0) & (pixels <= 1)))[0]
    raise ValueError(
      f'row {row[0]}: a pixel is {pixels[tuple(row)]}, not in [0, 1]. Give ink as '
      '0 and background as 1, and correct what is neither in the source.'
    )
  return columns
