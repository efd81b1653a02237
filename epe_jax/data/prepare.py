"""All splits of a source as stores in a folder, from which runs are fed."""

from collections.abc import Callable, Iterator, Sequence
import importlib
import itertools
import os
import pathlib
import re
import time
from typing import NamedTuple

from epe_jax import io
from epe_jax.data import (
  decoding,
  download,
  emnist,
  formats,
  imports,
  sources,
  stackoverflow,
  store,
  vocabulary,
)


class Text(NamedTuple):
  """How sentences are written.

  Attributes:
    vocabulary_size: how many words have a number of their own, >= 1.
    max_words: words of a sentence that are kept, >= 1.
    word_count: file of "word count" lines, the most frequent first; None to
      count the words of the train split.
  """

  vocabulary_size: int = 10_000
  max_words: int = 20
  word_count: str | os.PathLike | None = None


PAPER = Text()
"""As in the literature."""


class Written(NamedTuple):
  """A split that is now a store.

  Attributes:
    split: its name.
    clients: how many it has.
    examples: of all clients.
    bytes: of its files.
    seconds: what it took; 0 if it was there.
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
  text: Text = PAPER,
  public: str | None = None,
  workers: int = 0,
) -> Iterator[Written]:
  """Writes splits into stores, out/SPLIT; finished ones are left as they are.

  What is written follows from the features of the examples: 'tokens' become
  numbers of words; 'pixels' and 'label' EMNIST; others arrays as they are. A
  call that was killed is continued by the next.

  Args:
    path: what `formats.opened` understands.
    out: folder to write into.
    splits: which ones; None: all.
    text: how sentences are written.
    public: name in `download.PUBLIC` of a file that should be this; None: any.
    workers: processes that decode, as for `decoding.decoded`.

  Yields:
    Each split, when it is written.

  Raises:
    FileNotFoundError, ValueError: if the source is missing, of no known form
      or damaged, has no such split, or out/SPLIT was made of something else.
  """
  out, opened = pathlib.Path(out), formats.opened(path)
  mark = _fingerprint(path)
  with io.explain_disk_errors(out), opened as source:
    # Before hours are spent on it, where it knows its numbers; and after.
    if public and all(None not in known for known in source.splits.values()):
      download.check_counts(public, source.splits)
    splits = [*source.splits] if splits is None else splits
    for split in splits:
      _check_split(source, split)
    found = {}
    recipe_of = _recipes(source, splits, text, out, mark, workers)
    for split in splits:
      recipe, start = recipe_of(split), time.monotonic()
      meta = {'fingerprint': mark}
      there = (out / split).exists()
      if there:
        _check_same(out / split, {**recipe.meta, **meta})
      else:
        imports.written(
          out / split, source, split, recipe, meta=meta, workers=workers
        )
      seconds = 0.0 if there else time.monotonic() - start
      described = store.manifest(out / split)
      size = sum(file['bytes'] for file in described['files'].values())
      found[split] = sources.Split(
        described['num_clients'], described['num_examples']
      )
      yield Written(
        split,
        described['num_clients'],
        described['num_examples'],
        size,
        seconds,
      )
    if public and found.keys() == source.splits.keys():
      download.check_counts(public, found)


def _fingerprint(path: str | os.PathLike) -> str:
  if formats.is_function(path):
    module = importlib.import_module(str(path).partition(':')[0])
    return imports.fingerprint(str(module.__file__))
  return imports.fingerprint(path)


def _check_split(source: sources.Source, split: str) -> None:
  if split not in source.splits:
    raise ValueError(
      f'{source.name} has no split {split!r}, only {sorted(source.splits)}. '
      'Choose some of them.'
    )
  # It becomes the name of a folder.
  if not re.fullmatch(r'\w[\w.-]*', split):
    raise ValueError(
      f'{source.name}: the split {split!r} cannot be the name of a folder. '
      "Rename it to letters, digits, '_', '-' and '.'."
    )


def _check_same(path: pathlib.Path, meta: dict) -> None:
  found = store.manifest(path)['meta']
  for name in sorted(meta.keys() | found.keys()):
    if found.get(name) != meta.get(name):
      what = 'the file' if name == 'fingerprint' else name
      raise ValueError(
        f'{path} is there, but {what} was another when it was made. Delete it '
        'to make it anew, or choose another folder.'
      )


def _recipes(
  source: sources.Source,
  splits: Sequence[str],
  text: Text,
  out: pathlib.Path,
  mark: str,
  workers: int,
) -> Callable[[str], decoding.Recipe]:
  """split -> recipe, by the features that there are."""
  if _has(source, splits[0], vocabulary.FEATURES):
    counted = imports.digest((mark, text.vocabulary_size))
    words = stackoverflow.words_for(
      source,
      text.vocabulary_size,
      text.word_count,
      out / f'.{stackoverflow.TRAIN}-{counted}.word_count',
      workers=workers,
    )
    recipe = stackoverflow.recipe(words, text.max_words)
    return lambda split: recipe
  if _has(source, splits[0], emnist.FEATURES):
    return emnist.recipe
  if source.features is None:
    raise ValueError(
      f'{source.name} has neither tokens nor pixels and label. Give its rows by '
      'a function, package.module:function.'
    )
  return lambda split: _as_it_is(source.features or {})


def _has(
  source: sources.Source, split: str, features: sources.Features
) -> bool:
  if source.features is not None:
    return features.keys() <= source.features.keys()
  try:
    for _, raw in itertools.islice(source.read(split, features, None), 1):
      source.decode(raw, features)
  except ValueError:
    return False
  return True


def _as_it_is(features: sources.Features) -> decoding.Recipe:
  texts = sorted(name for name, spec in features.items() if spec[0] is bytes)
  if texts or not features:
    raise ValueError(
      f'the features {texts} are byte strings, which have no width to be stored '
      "in. Leave them out, or call sentences of words 'tokens'."
    )
  return decoding.Recipe(
    features, _same, {'recipe': 'arrays', 'features': sorted(features)}
  )


def _same(columns: sources.Columns) -> sources.Columns:
  return columns
