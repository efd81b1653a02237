"""Words: the most frequent ones, and their numbers in sentences."""

import collections

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from epe_jax.data import sources, vocabulary


def _write(path, content):
  path.write_bytes(content if isinstance(content, bytes) else content.encode())
  return path


def test_the_first_words_of_a_file_are_read(tmp_path):
  path = _write(tmp_path / 'w', 'the 9\né 7\n! 7\nrare 1\n')
  assert vocabulary.read(path, 3) == ('the', 'é', '!')
  assert vocabulary.read(path, 4) == ('the', 'é', '!', 'rare')


@pytest.mark.parametrize(
  ('content', 'message'),
  [
    ('a 9\na 8\n', "line 2: 'a' is on line 1 too"),
    ('a 8\nb 9\n', 'line 2: 9 comes after 8'),
    ('a 9\nb\n', r"line 2: b'b\\n' is not a word and a count"),
    ('a 9\nb -8\n', 'line 2: .* is not a word and a count'),
    (b'a 9\n\xff 8\n', 'line 2: .*is not UTF-8'),
    ('a 9\n', 'has 1 different words, fewer than vocabulary_size=2. Use voc'),
  ],
)
def test_a_wrong_line_is_named(tmp_path, content, message):
  path = _write(tmp_path / 'w', content)
  with pytest.raises(ValueError, match=f'{path}.*{message}'):
    vocabulary.read(path, 2)


def test_a_missing_file_and_a_size_below_one_are_refused(tmp_path):
  with pytest.raises(FileNotFoundError, match='nowhere is not a file'):
    vocabulary.read(tmp_path / 'nowhere', 2)
  with pytest.raises(ValueError, match='vocabulary_size=0 is not positive'):
    vocabulary.read(_write(tmp_path / 'w', 'a 1\n'), 0)


def _source(*clients):
  """Of one split, 'train'."""

  def read(split):
    for i, sentences in enumerate(clients):
      tokens = np.empty(len(sentences), object)
      tokens[:] = sentences
      yield str(i), {'tokens': tokens}

  splits = {'train': sources.Split(len(clients), None)}
  return sources.Source('clients', splits, read, sources.decode_columns)


_TEXT = st.text('abcé \t', max_size=30).map(str.encode)
_CLIENTS = st.lists(st.lists(_TEXT, min_size=1, max_size=4), min_size=1)


@hypothesis.settings(max_examples=50, derandomize=True, deadline=None)
@hypothesis.given(_CLIENTS, st.integers(1, 5))
def test_the_most_frequent_words_are_counted(clients, size):
  whole = b' '.join(s for sentences in clients for s in sentences)
  counts = collections.Counter(whole.decode().split())
  # Ties by the word: code points are in the order of their UTF-8.
  expected = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
  hypothesis.assume(len(expected) >= size)
  found = vocabulary.count_words(_source(*clients), 'train', size)
  assert found == expected[:size]


def test_too_few_words_and_what_is_no_text_are_refused():
  with pytest.raises(
    ValueError, match=r"'train', has 2 .* vocabulary_size=2 or"
  ):
    vocabulary.count_words(_source([b'a b a']), 'train', 3)
  message = "clients, split 'train', client '1', row 1: .* is not UTF-8"
  with pytest.raises(ValueError, match=message):
    vocabulary.count_words(_source([b'a'], [b'b', b'\xff']), 'train', 1)


def test_counted_words_are_kept_and_found_again(tmp_path):
  path = tmp_path / 'new' / 'words'
  assert vocabulary.read_or_count(path, 2, lambda: [('é', 3), ('a', 1)]) == (
    'é',
    'a',
  )
  assert vocabulary.read_or_count(path, 2, lambda: pytest.fail('counted')) == (
    'é',
    'a',
  )
  assert path.read_text(encoding='utf-8') == 'é 3\na 1\n'


def _slowly(sentence, words, max_words):
  numbers = [
    words.index(word) + 1 if word in words else len(words) + 1
    for word in sentence.decode().split()
  ][:max_words]
  return numbers + [0] * (max_words - len(numbers))


@hypothesis.settings(max_examples=100, derandomize=True, deadline=None)
@hypothesis.given(
  st.lists(_TEXT),
  st.lists(st.text('abcé', min_size=1), unique=True),
  st.integers(1, 6),
)
def test_sentences_become_numbers_of_words(tokens, words, max_words):
  ids = {word.encode(): i for i, word in enumerate(words, 1)}
  encoded = vocabulary.encode(tokens, ids, max_words)
  assert encoded.shape == (len(tokens), max_words)
  assert encoded.dtype == np.int16
  assert encoded.tolist() == [_slowly(s, words, max_words) for s in tokens]


@pytest.mark.parametrize(
  ('size', 'dtype'), [(32764, np.int16), (32765, np.int32)]
)
def test_numbers_have_the_bits_that_the_largest_needs(size, dtype):
  # The largest is V + 3, the end of a sentence.
  ids = {str(i).encode(): i for i in range(1, size + 1)}
  encoded = vocabulary.encode([b'1 oov', str(size).encode()], ids, 2)
  assert encoded.dtype == dtype
  assert encoded.tolist() == [[1, size + 1], [size, 0]]
