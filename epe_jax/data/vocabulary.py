"""Vocabularies: the most frequent words of a text, and sentences as their ids."""

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
import heapq
import itertools
import os
import pathlib
from typing import NamedTuple

import numpy as np

from epe_jax import io, locks
from epe_jax.data import decoding, sources

FEATURES = {'tokens': (bytes, ())}
"""Sentences: words between spaces, in UTF-8."""


class Text(NamedTuple):
  """How sentences are written.

  Attributes:
    vocabulary_size: number of words with an id of their own, >= 1.
    max_words: words of a sentence that are kept, >= 1.
    word_count: file of "word count" lines, the most frequent first; None to
      count the words of the train split.
  """

  vocabulary_size: int = 10_000
  max_words: int = 20
  word_count: str | os.PathLike | None = None


PAPER = Text()
"""The settings of the literature."""

# Seconds to wait for another process that counts the same words.
_MAX_WAIT = 24 * 3600.0


def read(path: str | os.PathLike, size: int) -> tuple[str, ...]:
  """Reads the first words of a file of `word count` lines, most frequent first.

  Args:
    path: e.g. TFF's stackoverflow.word_count.
    size: how many words, V >= 1.

  Returns:
    V different words.

  Raises:
    FileNotFoundError: if there is no such file.
    ValueError: if a line is not of this form, or not UTF-8, or has a word
      again or a larger count than the line before, or there are fewer words;
      names the file and the line.
  """
  path = pathlib.Path(path)
  if not path.is_file():
    raise FileNotFoundError(
      f'{path} is not a file. Give one of "word count" lines, most frequent '
      'first, like stackoverflow.word_count; or none, to have words counted.'
    )
  _check_size(size)
  words, last = {}, None
  with open(path, 'rb') as lines:
    for number, line in enumerate(itertools.islice(lines, size), 1):
      try:
        word, count = _parse_line(line)
        if word in words:
          raise ValueError(f'{word!r} is on line {words[word]} too')
        if last is not None and count > last:
          raise ValueError(f'{count} comes after {last}')
      except ValueError as error:
        raise ValueError(
          f'{path}, line {number}: {error}. Each line should be "word count", '
          'most frequent first, in UTF-8.'
        ) from error
      words[word] = number
      last = count
  if len(words) < size:
    raise _make_size_error(str(path), len(words), size)
  return tuple(words)


def count_words(
  source: sources.Source, split: str, size: int, *, workers: int = 0
) -> list[tuple[str, int]]:
  """Counts the words of a split and gives the most frequent ones.

  Equally frequent words come in the order of their UTF-8. The different words are held
  in memory, some 100 bytes each.

  Args:
    source: with the feature 'tokens'.
    split: where to count.
    size: how many words, V >= 1.
    workers: as for `decoding.decode_clients`.

  Returns:
    V words and how often they occur.

  Raises:
    ValueError: there are fewer words, or a sentence is not text.
  """
  # Only here: help texts list data sets without it.
  from epe_jax import progress

  _check_size(size)
  recipe = decoding.Recipe(FEATURES, _count_client, {})
  counts = collections.Counter()
  for _, client_counts in progress.bar(
    decoding.decode_clients(
      source.read(split), source, split, recipe, workers=workers
    ),
    total=source.splits.get(split, sources.Split(None, None)).clients,
    desc=f'counting words of {split}',
    unit=' clients',
  ):
    counts.update(client_counts)
  if len(counts) < size:
    where = f'{source.name}, split {split!r},'
    raise _make_size_error(where, len(counts), size)
  largest = heapq.nsmallest(size, counts.items(), key=lambda x: (-x[1], x[0]))
  return [(word.decode(), count) for word, count in largest]


def read_or_count(
  path: pathlib.Path, size: int, count: Callable[[], list[tuple[str, int]]]
) -> tuple[str, ...]:
  """Reads the words of a file, which are counted first if it is missing or damaged.

  Args:
    path: of "word count" lines.
    size: number of words, >= 1.
    count: gives words and counts.
  """

  def make(draft: pathlib.Path) -> None:
    lines = ''.join(f'{word} {n}\n' for word, n in count())
    io.write_text(draft, lines, private=True)

  return locks.make_once(
    path, make, lambda file: read(file, size), max_wait=_MAX_WAIT
  )


def encode(
  tokens: Sequence[bytes], ids: Mapping[bytes, int], max_words: int
) -> np.ndarray:
  """Encodes sentences as word ids: 1 to V, V + 1 for other words, 0 for padding.

  Words are separated by spaces or other ASCII white space.

  Args:
    tokens: n sentences in UTF-8.
    ids: word -> id; all of 1 to V.
    max_words: words of a sentence that are kept, >= 1.

  Returns:
    [n, max_words], int16; int32 where V + 3, the largest id of the task, needs
    it.

  Raises:
    ValueError: a sentence is not UTF-8 or has a NUL; names the row.

  >>> encode([b'to be', b'or not to be', b''], {b'to': 1, b'be': 2}, 3)
  array([[1, 2, 0],
         [3, 3, 1],
         [0, 0, 0]], dtype=int16)
  """
  _check_text(tokens)
  rows = [sentence.split(None, max_words)[:max_words] for sentence in tokens]
  lengths = np.array([len(row) for row in rows], np.int64)
  other, find = len(ids) + 1, ids.get
  small = len(ids) + 3 <= np.iinfo(np.int16).max
  encoded = np.zeros((len(rows), max_words), np.int16 if small else np.int32)
  encoded[np.arange(max_words) < lengths[:, None]] = [
    find(word, other) for row in rows for word in row
  ]
  return encoded


def _count_client(columns: sources.Columns) -> collections.Counter[bytes]:
  tokens = columns['tokens'].tolist()
  _check_text(tokens)
  return collections.Counter(b' '.join(tokens).split())


def _check_text(tokens: Iterable[bytes]) -> None:
  try:
    text = b'\n'.join(tokens)
    text.decode()
    wrong = b'\0' in text
  except UnicodeDecodeError:
    wrong = True
  if not wrong:
    return
  for row, sentence in enumerate(tokens):
    try:
      _check_word(sentence)
    except ValueError as error:
      raise ValueError(f'row {row}: {error}') from error


def _check_word(text: bytes) -> str:
  if b'\0' in text:
    raise ValueError(f'{text[:60]!r} has a NUL')
  try:
    return text.decode()
  except UnicodeDecodeError as error:
    raise ValueError(f'{text[:60]!r} is not UTF-8 ({error.reason})') from error


def _parse_line(line: bytes) -> tuple[str, int]:
  parts = line.split()
  if len(parts) != 2 or not parts[1].isdigit() or len(parts[1]) > 18:
    raise ValueError(f'{line[:60]!r} is not a word and a count')
  return _check_word(parts[0]), int(parts[1])


def _check_size(size: int) -> None:
  if size < 1:
    raise ValueError(f'vocabulary_size={size} is not positive. Use 1 or more.')


def _make_size_error(where: str, num_words: int, size: int) -> ValueError:
  return ValueError(
    f'{where} has {num_words} different words, fewer than vocabulary_size={size}. '
    f'Use vocabulary_size={num_words} or less, or more text.'
  )
