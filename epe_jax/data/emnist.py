"""Federated EMNIST: handwritten characters, a client per writer."""

import functools
import os
from typing import Any

import numpy as np

from epe_jax.data import (
  data_sets,
  decoding,
  federated,
  fields,
  sources,
  synthetic,
)

FEATURES = {'pixels': (np.float32, (28, 28)), 'label': (np.int32, ())}
"""Background 1.0, ink 0.0; and the class."""


def load_workload(config: Any) -> Any:
  """Loads the workload of a config with task='emnist'."""
  from epe_jax.data import workload
  from epe_jax.tasks import emnist as emnist_task

  options = config.data
  origin = workload.choose_origin(
    config,
    'emnist_all.sqlite',
    lambda: synthetic.generate_images(
      config.seed,
      **workload.drop_none(
        num_clients=options.num_clients, num_examples=options.num_examples
      ),
    ),
  )
  train, test = load(
    origin, only_digits=options.only_digits, cache=options.cache
  )
  split, kind, num_classes = 'all_train', '62-class', 62
  if options.only_digits:
    split, kind, num_classes = 'digits_only_train', 'digits-only', 10
  described = workload.describe_origin(origin, train, split, DATA_SET.downloads)
  train, clients = workload.take_clients(config, train)
  return workload.Workload(
    emnist_task.task(num_classes, width=config.model.width),
    train,
    test,
    f'{described}, {kind} split, {clients}',
  )


def load(
  path: str | os.PathLike | sources.Source,
  *,
  only_digits: bool,
  cache: str | os.PathLike | None = None,
) -> tuple[federated.FederatedData, federated.FederatedData]:
  """Loads the train and test characters of 3,400 writers.

  The first call imports the file into a store; later calls memory-map the store. A file
  with another path, size or time is imported again.

  Args:
    path: emnist_all.sqlite, plain or LZMA-compressed, or another form of these
      splits that `sources.open_source` knows; or a folder that
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

  References:
    Caldas et al. 2018, LEAF: A Benchmark for Federated Settings; in the form of
    TensorFlow Federated's emnist_all.sqlite.
  """
  # Only here: help texts list data sets without Arrow.
  from epe_jax.data import imports

  kind = 'digits_only' if only_digits else 'all'
  splits = (f'{kind}_train', f'{kind}_test')
  folder = imports.locate(path, splits, _make_recipes, cache=cache)
  train, test = (
    imports.load_split(folder, split, make_recipe(split).meta)
    for split in splits
  )
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


def _make_recipes(*options: Any) -> decoding.ChooseRecipe:
  del options  # Pixels and labels are written as they are.
  return make_recipe


_SPLITS = {k: sources.Split(*n) for k, n in synthetic.EMNIST.items()}
DATA_SET = data_sets.Federated(
  load=load_workload,
  fields={
    **data_sets.FILE_FIELDS,
    'data.only_digits': fields.FLAG,
    'data.num_clients': fields.or_none(
      fields.integer(1), 'all of a file, or as many as EMNIST has'
    ),
    'data.num_examples': fields.or_none(
      fields.integer(1), 'as many as EMNIST has'
    ),
    'model.width': fields.integer(1, 4096),
  },
  features=FEATURES,
  make_recipes=_make_recipes,
  # Counts are as published. The file has no hash.
  downloads={
    'emnist': data_sets.Download(
      (data_sets.PublicFile('emnist_all.sqlite.lzma'),), _SPLITS
    ),
  },
)
