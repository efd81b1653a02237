"""All splits of a source as stores in a folder, the `data.path` of configs."""

from collections.abc import Callable, Iterator, Sequence
import itertools
import os
import pathlib
import re
import time
from typing import NamedTuple

from epe_jax import io, python_path
from epe_jax.data import (
  data_sets,
  decoding,
  imports,
  sources,
  store,
  vocabulary,
)

PAPER = vocabulary.Text()
"""The settings of the literature."""


class Written(NamedTuple):
  """A split that was written into a store.

  Attributes:
    split: its name.
    clients: number of clients.
    examples: number of examples of all clients.
    bytes: size of its file.
    seconds: duration of the import; 0 if the store existed.
  """

  split: str
  clients: int
  examples: int
  bytes: int
  seconds: float


def prepare(
  path: str | os.PathLike,
  out: str | os.PathLike,
  *,
  splits: Sequence[str] | None = None,
  text: vocabulary.Text = PAPER,
  public: str | None = None,
  workers: int = 0,
) -> Iterator[Written]:
  """Writes splits into stores, out/SPLIT.arrow; existing ones are left unchanged.

  The features of the examples determine what is written: if they are those of a data
  set of `data_sets`, its recipe is used; otherwise arrays are written unchanged. An
  interrupted call is resumed by the next one.

  Args:
    path: a source, as for `sources.open_source`.
    out: folder to write into.
    splits: which ones; None: all.
    text: how sentences are written.
    public: name in `data_sets.list_downloads` of the file that this should be; None:
      any file.
    workers: processes that decode, as for `decoding.decode_clients`.

  Yields:
    Each split, once it is written.

  Raises:
    FileNotFoundError, ValueError: if the source is missing, of no known form
      or damaged, has no such split, or out/SPLIT.arrow was made of
      something else.
  """
  out, opening = pathlib.Path(out), sources.open_source(path)
  mark = _fingerprint_source(path)
  with io.explain_disk_errors(out), opening as source:
    if public:
      data_sets.check_counts(public, source.splits)
    splits = [*source.splits] if splits is None else splits
    for split in splits:
      _check_split(source, split)
    recipe_of = _choose_recipes(source, splits, text, out, mark, workers)
    for split in splits:
      recipe, start = recipe_of(split), time.monotonic()
      store_path, meta = imports.locate_split(out, split), {'fingerprint': mark}
      exists = store_path.exists()
      if exists:
        _check_same(store_path, {**recipe.meta, **meta})
      else:
        imports.import_split(
          store_path, source, split, recipe, meta=meta, workers=workers
        )
      seconds = 0.0 if exists else time.monotonic() - start
      header, size = store.read_header(store_path), store_path.stat().st_size
      yield Written(
        split, header.num_clients, header.num_examples, size, seconds
      )


def _fingerprint_source(path: str | os.PathLike) -> str:
  if python_path.is_function(path):
    module = python_path.import_module(str(path).partition(':')[0])
    return imports.compute_fingerprint(str(module.__file__))
  return imports.compute_fingerprint(path)


def _check_split(source: sources.Source, split: str) -> None:
  sources.find_split(source.splits, split, source.name)
  # It becomes the name of a file.
  if not re.fullmatch(r'\w[\w.-]*', split):
    raise ValueError(
      f'{source.name}: the split {split!r} cannot be the name of a file. '
      "Rename it to letters, digits, '_', '-' and '.'."
    )


def _check_same(path: pathlib.Path, meta: dict) -> None:
  before = store.read_header(path).meta
  for name in sorted(meta.keys() | before.keys()):
    if before.get(name) != meta.get(name):
      what = 'the file' if name == 'fingerprint' else name
      raise ValueError(
        f'{path} exists, but {what} was another when it was made. Delete it '
        'to make it again, or choose another folder.'
      )


def _choose_recipes(
  source: sources.Source,
  splits: Sequence[str],
  text: vocabulary.Text,
  out: pathlib.Path,
  mark: str,
  workers: int,
) -> Callable[[str], decoding.Recipe]:
  """split -> recipe, of the data set that has the features of the source."""
  for declared in map(data_sets.find_federated, data_sets.list_federated()):
    make = declared.make_recipes
    features = declared.features
    if make and features and _has_features(source, splits[0], features):
      digits = imports.hash_key((mark, text.vocabulary_size))
      counts = out / f'.train-{digits}.word_count'
      return make(source, text, counts, workers)
  if source.features is None:
    raise ValueError(
      f'{source.name} has neither tokens nor pixels and label. Give its rows by '
      'a function, package.module:function.'
    )
  recipe = decoding.Recipe(
    source.features,
    _keep,
    {'recipe': 'arrays', 'features': sorted(source.features)},
  )
  return lambda split: recipe


def _has_features(
  source: sources.Source, split: str, features: sources.Features
) -> bool:
  if source.features is not None:
    return features.keys() <= source.features.keys()
  try:
    for _, raw in itertools.islice(source.read(split), 1):
      source.decode(raw, features)
  except ValueError:
    return False
  return True


def _keep(columns: sources.Columns) -> sources.Columns:
  return columns
