"""Federated EMNIST: handwritten characters by the people who wrote them."""

from collections.abc import Iterator
import os

import numpy as np
import tqdm

from epe_jax.data import federated, store, tff

_FEATURES = {'pixels': (np.float32, (28, 28)), 'label': (np.int32, ())}
# Raise it when what is imported changes, so that old imports are not used.
_VERSION = 1


def load(
  path: str | os.PathLike,
  *,
  only_digits: bool,
  cache: str | os.PathLike | None = None,
) -> tuple[federated.FederatedData, federated.FederatedData]:
  """The train and test characters of 3,400 writers.

  The first call imports the file into a columnar store, later calls map it
  into memory; a file of another path, size or time is imported anew.

  Args:
    path: emnist_all.sqlite, plain or LZMA-compressed.
    only_digits: True for the splits with 10 classes (3,383 writers), False for
      those with 62 (3,400 writers).
    cache: directory of the imports; $XDG_CACHE_HOME/epe_jax or
      ~/.cache/epe_jax if None.

  Returns:
    (train, test) with columns pixels, float32 [n, 28, 28], as stored:
    background 1.0, ink 0.0; and label, int32 [n].

  Raises:
    FileNotFoundError, ValueError: as `tff.opened` and `tff.read`, or if a label
      is out of range.

  Source: Caldas et al. 2018, LEAF: A Benchmark for Federated Settings; in the
  form of TensorFlow Federated's emnist_all.sqlite.
  """
  path = tff.existing(path)
  kind, num_classes = ('digits_only', 10) if only_digits else ('all', 62)
  places = {
    split: store.place_of_import(path, split, version=_VERSION, cache=cache)
    for split in (f'{kind}_train', f'{kind}_test')
  }
  if not all(place.exists() for place in places.values()):
    with tff.opened(path) as file:
      for split, place in places.items():
        clients = _clients(file, split, num_classes)
        source = f'{path}, split {split!r}'
        store.write(place, clients, source=source, exist_ok=True)
  train, test = map(store.load, places.values())
  return train, test


def _clients(
  file: tff.File, split: str, num_classes: int
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
  """The clients of a split, with a progress bar and checked labels."""
  _, total = tff.splits(file).get(split, (0, 0))
  # disable=None: no bar where stderr is not a terminal.
  with tqdm.tqdm(
    total=total, desc=f'importing {split}', unit=' examples', disable=None
  ) as bar:
    for client_id, columns in tff.read(file, split, _FEATURES):
      labels = columns['label']
      wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
      if wrong.size:
        raise ValueError(
          f'{file.path}, split {split!r}, client {client_id!r}, row '
          f'{wrong[0]}: label {labels[wrong[0]]} is not in [0, {num_classes}). '
          f'{tff.CURE}'
        )
      yield client_id, columns
      bar.update(len(labels))
