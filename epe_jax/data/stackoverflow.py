"""StackOverflow: sentences as word ids, a client per user."""

from collections.abc import Sequence
import functools
import os
import pathlib
from typing import Any

import numpy as np

from epe_jax.data import (
  data_sets,
  decoding,
  federated,
  fields,
  sources,
  synthetic,
  vocabulary,
)

TRAIN = 'train'
"""The split of the training users, whose words are counted."""


def load_workload(config: Any) -> Any:
  """Loads the workload of a config with task='stackoverflow'."""
  from epe_jax.data import imports, workload
  from epe_jax.tasks import stackoverflow as stackoverflow_task

  options = config.data
  origin = workload.choose_origin(
    config,
    'stackoverflow.sqlite',
    lambda: synthetic.generate_sentences(
      config.seed,
      max_sentences=options.max_sentences,
      **workload.drop_none(num_clients=options.num_clients),
    ),
  )
  size = options.vocabulary_size
  if size is None:
    prepared = imports.is_prepared(origin)
    meta = imports.read_meta(origin, TRAIN) if prepared else {}
    size = meta.get('vocabulary_size', 1_000)
  train, test, words = load(
    origin,
    vocabulary_size=size,
    max_words=options.max_words,
    word_count=options.word_count,
    test_split=options.test_split,
    cache=options.cache,
  )
  test = workload.sample_test(config, test)
  # As accuracy counts them: neither padding nor words outside of the vocabulary.
  targets = test.columns['words']
  targets = targets[(targets > 0) & (targets <= len(words))]
  counts = np.bincount(targets, minlength=1)
  described = workload.describe_origin(origin, train, TRAIN, DATA_SET.downloads)
  train, clients = workload.take_clients(config, train)
  return workload.Workload(
    stackoverflow_task.task(
      len(words),
      embedding_size=config.model.embedding_size,
      hidden_size=config.model.hidden_size,
    ),
    train,
    test,
    f'{described}, {clients}, accuracy on the split {options.test_split!r}',
    float(counts.max() / max(targets.size, 1)),
  )


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

  The first call imports the file into a store; later calls memory-map the store. A file
  with another path, size or time is imported again.

  Args:
    path: stackoverflow.sqlite, plain or LZMA-compressed, or another form of
      these splits that `sources.open_source` knows; or a folder that
      `epe-jax data` made of one.
    vocabulary_size: V, the number of words with an id of their own; 10,000 in the
      literature.
    max_words: words of a sentence that are kept, >= 1; 20 in the literature.
    word_count: file of "word count" lines, the most frequent first; None to
      count the words of the train split.
    test_split: 'heldout', of users outside the train split, or 'test', of later
      sentences.
    cache: directory of the imports; `io.user_cache` if None.

  Returns:
    (train, test, words): the data have the column words, int16 [n, max_words]: 1
    to V for the V words, V + 1 for any other, and 0 for padding.

  Raises:
    FileNotFoundError, ValueError: if a file is missing, of no known form, or
      damaged, or the folder was prepared otherwise.

  References:
    Authors of TensorFlow Federated 2019, TFF Stack Overflow dataset; Reddi et al.
    2021, Adaptive Federated Optimization, for the task.
  """
  # Only here: help texts list data sets without Arrow.
  from epe_jax.data import imports

  splits = (TRAIN, test_split)
  text = vocabulary.Text(vocabulary_size, max_words, word_count)
  expected: dict[str, Any] = {
    'recipe': 'stackoverflow',
    'vocabulary_size': vocabulary_size,
    'max_words': max_words,
  }
  if word_count is not None:
    words = vocabulary.read(word_count, vocabulary_size)
    expected['vocabulary'] = list(words)
  folder = imports.locate(path, splits, make_recipes, text=text, cache=cache)
  train, test = (
    imports.load_split(folder, split, expected) for split in splits
  )
  words, others = (
    tuple(imports.read_meta(folder, split)['vocabulary']) for split in splits
  )
  if words != others:
    raise ValueError(
      f'{path}: {TRAIN!r} and {test_split!r} were prepared with different '
      'vocabularies. Prepare them together, in another folder.'
    )
  return train, test, words


def make_recipes(
  source: sources.Source,
  text: vocabulary.Text,
  counts: pathlib.Path,
  workers: int = 0,
) -> decoding.ChooseRecipe:
  """Makes the recipe of all splits, with the vocabulary of a file or a source.

  Args:
    source: whose train split is counted, if `text` names no file.
    text: how sentences are written.
    counts: file in which counted words are kept.
    workers: as for `decoding.decode_clients`.
  """
  size = text.vocabulary_size
  if text.word_count is not None:
    words = vocabulary.read(text.word_count, size)
  else:
    words = vocabulary.read_or_count(
      counts,
      size,
      lambda: vocabulary.count_words(source, TRAIN, size, workers=workers),
    )
  recipe = make_recipe(words, text.max_words)
  return lambda split: recipe


def make_recipe(words: Sequence[str], max_words: int) -> decoding.Recipe:
  """Makes the recipe of sentences as word ids; see `vocabulary.encode`."""
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


_SPLITS = {k: sources.Split(*n) for k, n in synthetic.STACKOVERFLOW.items()}
_WORD_COUNT = data_sets.PublicFile(
  'stackoverflow.word_count.tar.bz2',
  '1dc00256d6e527c54b9756d968118378ae14e6692c0b3b6cad470cdd3f0c519c',
)
DATA_SET = data_sets.Federated(
  load=load_workload,
  fields={
    **data_sets.FILE_FIELDS,
    'data.word_count': fields.or_none(
      fields.PATH, "the words of the split 'train'"
    ),
    'data.vocabulary_size': fields.or_none(
      fields.integer(1, 32_000), 'that of a prepared folder'
    ),
    'data.max_words': fields.integer(1, 10_000),
    'data.test_split': fields.one_of('heldout', 'test'),
    'data.num_clients': fields.or_none(
      fields.integer(1), 'all of a file, or as many as StackOverflow has'
    ),
    'data.max_sentences': fields.integer(1),
    'model.embedding_size': fields.integer(1, 65_536),
    'model.hidden_size': fields.integer(1, 65_536),
  },
  features=vocabulary.FEATURES,
  make_recipes=make_recipes,
  # Hashes and counts are as published. The SQLite file has no hash.
  downloads={
    'stackoverflow': data_sets.Download(
      (data_sets.PublicFile('stackoverflow.sqlite.lzma'), _WORD_COUNT),
      _SPLITS,
    ),
  },
)
