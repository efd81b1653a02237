"""StackOverflow: sentences by the people who wrote them, as numbers of words."""

from collections.abc import Sequence
import functools
import os
import pathlib

from epe_jax.data import (
  decoding,
  federated,
  formats,
  imports,
  sources,
  store,
  vocabulary,
)

TRAIN = 'train'
"""The split of the users who train, whose words are counted."""

# Raise it when what is imported changes, so that old imports are not used.
_VERSION = 1


def load(
  path: str | os.PathLike | sources.Source,
  *,
  vocabulary_size: int,
  max_words: int,
  word_count: str | os.PathLike | None = None,
  test_split: str = 'heldout',
  cache: str | os.PathLike | None = None,
) -> tuple[federated.FederatedData, federated.FederatedData, tuple[str, ...]]:
  """Loads the train and test sentences of some users, and their vocabulary.

  The first call imports the file into a columnar store, later calls map it
  into memory; a file of another path, size or time is imported anew.

  Args:
    path: stackoverflow.sqlite, plain or LZMA-compressed, or another form of
      these splits that `formats.open_source` knows; or a folder that
      `epe-jax data` made of one.
    vocabulary_size: V, how many words have a number of their own; 10,000 in
      the literature.
    max_words: words of a sentence that are kept, >= 1; 20 in the literature.
    word_count: file of "word count" lines, the most frequent first; None to
      count the words of the train split.
    test_split: 'heldout', of users who do not train, or 'test', of later
      sentences.
    cache: directory of the imports; `io.user_cache` if None.

  Returns:
    (train, test, words): the data have the column words, int16 [n, max_words],
    of 1 to V for the V words, V + 1 for any other, and 0 behind the last.

  Raises:
    FileNotFoundError, ValueError: if a file is missing, of no known form, or
      damaged, or the folder was prepared otherwise.

  Reference: Authors of TensorFlow Federated 2019, TFF Stack Overflow dataset;
  Reddi et al. 2021, Adaptive Federated Optimization, for the task.
  """
  splits = (TRAIN, test_split)
  generated = isinstance(path, sources.Source)
  if not generated and imports.is_prepared(path):
    expected = {
      'recipe': 'stackoverflow',
      'vocabulary_size': vocabulary_size,
      'max_words': max_words,
    }
    if word_count is not None:
      words = vocabulary.read(word_count, vocabulary_size)
      expected['vocabulary'] = list(words)
    train, test = (
      imports.load_prepared(path, split, expected) for split in splits
    )
    words = _read_words(imports.locate_split(path, TRAIN))
    if words != _read_words(imports.locate_split(path, test_split)):
      raise ValueError(
        f'{path}: {TRAIN!r} and {test_split!r} were prepared with different '
        'vocabularies. Prepare them together, in another folder.'
      )
    return train, test, words
  if not generated:
    path = formats.check_exists(path)
  counts = word_count and imports.compute_fingerprint(word_count)
  key = (_VERSION, vocabulary_size, max_words, counts)
  paths = {
    split: imports.choose_cache_path(path, split, key=key, cache=cache)
    for split in splits
  }
  if not all(kept.exists() for kept in paths.values()):
    with formats.open_source(path) as source:
      words = load_words(
        source,
        vocabulary_size,
        word_count,
        imports.choose_cache_path(
          path, 'words', key=key, suffix='.word_count', cache=cache
        ),
      )
      for split, kept in paths.items():
        imports.import_split(kept, source, split, make_recipe(words, max_words))
  train, test = map(store.load, paths.values())
  return train, test, _read_words(paths[TRAIN])


def find_size(folder: str | os.PathLike) -> int:
  """V of a folder that `epe-jax data` made of text.

  Raises:
    ValueError: it was not made of text, or has no users who train.
  """
  meta = store.read_header(imports.locate_split(folder, TRAIN)).meta
  if 'vocabulary_size' not in meta:
    raise ValueError(
      f'{folder} was prepared as {meta.get("recipe")!r}, and not of text; give a '
      'folder of sentences.'
    )
  return meta['vocabulary_size']


def load_words(
  source: sources.Source,
  size: int,
  word_count: str | os.PathLike | None,
  kept: pathlib.Path,
  *,
  workers: int = 0,
) -> tuple[str, ...]:
  """Loads the vocabulary of a file, or counts that of a source.

  Args:
    source: whose train split is counted.
    size: number of words.
    word_count: the file, or None.
    kept: file in which to keep what was counted, and to find it again.
    workers: as for `decoding.decode_clients`.
  """
  if word_count is not None:
    return vocabulary.read(word_count, size)
  return vocabulary.read_or_count(
    kept,
    size,
    lambda: vocabulary.count_words(source, TRAIN, size, workers=workers),
  )


def make_recipe(words: Sequence[str], max_words: int) -> decoding.Recipe:
  """Makes the recipe of sentences as numbers of words; see `vocabulary.encode`."""
  if max_words < 1:
    raise ValueError(f'max_words={max_words} is not positive. Use e.g. 20.')
  ids = {word.encode(): i for i, word in enumerate(words, 1)}
  return decoding.Recipe(
    vocabulary.FEATURES,
    functools.partial(_encode, ids=ids, max_words=max_words),
    {
      'recipe': 'stackoverflow',
      'vocabulary_size': len(words),
      'max_words': max_words,
      'vocabulary': list(words),
    },
  )


def _encode(
  columns: sources.Columns, ids: dict[bytes, int], max_words: int
) -> sources.Columns:
  tokens = columns['tokens'].tolist()
  return {'words': vocabulary.encode(tokens, ids, max_words)}


def _read_words(path: pathlib.Path) -> tuple[str, ...]:
  return tuple(store.read_header(path).meta['vocabulary'])
