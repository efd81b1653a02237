"""Text by users that do not exist, on topics of their own (synthetic).

A word is known by its rank in a Zipf law. The 50 most frequent words belong to
all topics, of the others every 50th to one. With a chance of 1/2 a word is one
of three successors of the word before, and otherwise it is drawn from the law;
what is drawn outside the topic of the sentence is mostly exchanged for the word
of the topic that is nearest in rank. So there is something to learn from the
last word, and something from all words before, and frequencies stay those of
the law: a successor is about as frequent as its predecessor, and topics are as
frequent as each other.
"""

from collections.abc import Iterator, Mapping
import functools
import itertools
from typing import NamedTuple

import numpy as np

from epe_jax import streams
from epe_jax.data import chance, example_proto, sources

FEATURES: example_proto.Features = {'tokens': (bytes, ())}
"""Of a sentence: words, separated by spaces."""

NUM_TOPICS = 50
"""The word of rank r > 50 belongs to the topic (r - 1) % 50."""

# Users and sentences of StackOverflow's splits.
_SPLITS = {
  'train': (342_477, 135_818_730),
  'heldout': (38_758, 16_491_230),
  'test': (204_088, 16_586_035),
}
_COMMON = 50  # words of all topics
_MOST_WORDS = 50_000  # each with more than one slot
_SLOTS = 1 << 20  # equally likely draws that the law is made of
_CONSONANTS, _VOWELS = b'bcdfghjklmnprstvwxyz', b'aeiou'


class User(NamedTuple):
  """What `decode` writes: the sentences of a user in a split."""

  seed: int
  number: int
  split: str
  num_sentences: int
  vocabulary_size: int


def source(
  seed: int,
  *,
  num_clients: int = 342_477,
  max_sentences: int | None = None,
  vocabulary_size: int = 20_000,
) -> sources.Source:
  """Sentences by synthetic users, written as they are read.

  As large as federated StackOverflow unless sentences are capped: users have
  396 on average in 'train', with a heavy tail, and sentences 15 words, from
  1 to more than 100. A sentence depends only on the seed, the user, the
  split, vocabulary_size and its number among the user's, and how many a user
  has also on num_clients; the same bits come out on every machine.

  The users of 'heldout' are others than those of 'train'. Those of 'test' are
  spread over both, and write in it later in time: a quarter of their sentences
  is on topics that they then had taken up.

  Args:
    seed: >= 0, of any size.
    num_clients: users of 'train', from 9 to 1,000,000; the other splits have
      users and sentences in the proportions of StackOverflow.
    max_sentences: the first so many of a user are kept, 1 or more; all if None.
    vocabulary_size: number of different words, a multiple of 50 from 1,000 to
      50,000.

  Returns:
    A source with the FEATURES and the splits train, heldout and test. At the
    default sizes they have StackOverflow's 135,818,730, 16,491,230 and
    16,586,035 sentences of 342,477, 38,758 and 204,088 users.

  Raises:
    ValueError: if an argument is out of its range.

  >>> text = source(0, num_clients=9, max_sentences=3)
  >>> user, raw = next(text.read('train', FEATURES, None))
  >>> user, len(text.decode(raw, FEATURES)['tokens'])
  ('user0', 3)
  """
  streams.check_root(seed)
  if not 9 <= num_clients <= 1_000_000:
    raise ValueError(
      f'num_clients={num_clients} is not in [9, 1000000]. Use e.g. 1000.'
    )
  if max_sentences is not None and max_sentences < 1:
    raise ValueError(
      f'max_sentences={max_sentences} is not positive. Use e.g. 256, or None '
      'for no cap.'
    )
  if not 1_000 <= vocabulary_size <= _MOST_WORDS or vocabulary_size % 50:
    raise ValueError(
      f'vocabulary_size={vocabulary_size} is not a multiple of 50 in [1000, '
      f'{_MOST_WORDS}]. Use e.g. 20000.'
    )
  whole = _SPLITS['train'][0]
  sizes = {
    name: _sizes(
      seed,
      name,
      num_clients * clients // whole,
      num_clients * sentences // whole,
      max_sentences,
    )
    for name, (clients, sentences) in _SPLITS.items()
  }
  return sources.Source(
    name=(
      f'synthetic text, version 2, seed={seed}, num_clients={num_clients}, '
      f'max_sentences={max_sentences}, vocabulary_size={vocabulary_size}'
    ),
    splits={
      name: sources.Split(len(size), int(size.sum()))
      for name, size in sizes.items()
    },
    read=functools.partial(_read, seed, sizes, vocabulary_size),
    decode=decode,
    features=FEATURES,
  )


@functools.cache
def vocabulary(size: int) -> tuple[str, ...]:
  """The words by rank, the most frequent of the law first.

  Args:
    size: how many, from 1 to 50,000; fewer are the first of more.

  Raises:
    ValueError: if the size is out of its range.

  >>> vocabulary(101)[:3], vocabulary(101)[99:]
  (('ba', 'be', 'bi'), ('zu', 'baba'))
  """
  if not 1 <= size <= _MOST_WORDS:
    raise ValueError(
      f'size={size} is not in [1, {_MOST_WORDS}]. Use the vocabulary_size of '
      'the source, or less.'
    )
  return tuple(word.strip().decode() for word in _spelled(size, b' ').tolist())


def decode(raw: User, features: example_proto.Features) -> sources.Columns:
  """Writes the sentences of a user; see `sources.Source`."""
  n, split = raw.num_sentences, list(_SPLITS).index(raw.split)
  place = (raw.number, split)
  z = chance.normal(chance.bits(raw.seed, 'text lengths', place, n))
  lengths = 1 + (10 * chance.exp(0.8 * z)).astype(np.int64)
  ends = np.cumsum(lengths)
  starts = ends - lengths
  topics = _topics(raw, chance.bits(raw.seed, 'text topics', place, n))
  bits = chance.bits(raw.seed, 'text words', place, int(ends[-1]))
  words = _words(bits, starts, np.repeat(topics, lengths), raw.vocabulary_size)
  # Words of 8 bytes are copied fast; the zeros that fill them are taken out.
  text = _spelled(raw.vocabulary_size, b' ')[words]
  text[ends - 1] = _spelled(raw.vocabulary_size, b'\n')[words[ends - 1]]
  lines = text.tobytes().translate(None, b'\0').split(b'\n')
  column = np.array(lines[:-1], object)
  return sources.decode_columns({'tokens': column}, features)


def _sizes(
  seed: int, split: str, clients: int, sentences: int, most: int | None
) -> np.ndarray:
  """Numbers of sentences of the users of a split, int64 [clients]."""
  place = (list(_SPLITS).index(split),)
  raw = chance.bits(seed, 'text sizes', place, clients)
  # Of uniform u and v, u / sqrt(v) exceeds x in a share of users that falls as
  # 1/x^2; the small number ends the tail before a user fills the memory.
  u = ((raw >> 32) + 0.5) * 2.0**-32
  v = ((raw & 0xFFFFFFFF) + 0.5) * 2.0**-32
  weights = 1 + ((1 << 12) * u / np.sqrt(v + 1e-5)).astype(np.int64)
  sizes = chance.shares(sentences, weights)
  return sizes if most is None else np.minimum(sizes, most)


def _read(
  seed: int,
  sizes: Mapping[str, np.ndarray],
  vocabulary_size: int,
  split: str,
  features: example_proto.Features,
  after: str | None,
) -> Iterator[tuple[str, User]]:
  """The users of a split; see `sources.Source`."""
  del features
  if split not in sizes:
    raise ValueError(
      f'there is no split {split!r}, only {sorted(sizes)}. Choose one of them.'
    )
  train, heldout, test = (len(sizes[name]) for name in _SPLITS)
  numbers = {
    'train': range(train),
    'heldout': range(train, train + heldout),
    'test': [i * (train + heldout) // test for i in range(test)],
  }
  # Leading zeros, so that users sort as their numbers do.
  width = len(str(train + heldout - 1))
  for number, size in zip(numbers[split], sizes[split].tolist()):
    name = f'user{number:0{width}}'
    if after is None or name > after:
      yield name, User(seed, number, split, size, vocabulary_size)


def _topics(raw: User, bits: np.ndarray) -> np.ndarray:
  """The topic of each sentence, int64 [n].

  A user has four topics, for 8, 4, 2 and 1 of 16 sentences; one of 16 is about
  anything. In 'test' a quarter of the sentences is about four other topics.
  """
  own = chance.bits(raw.seed, 'text users', (raw.number,), 8) % NUM_TOPICS
  own = own.astype(np.int64)
  which = np.repeat([0, 1, 2, 3, 4], [8, 4, 2, 1, 1])[bits & 15]
  later = 4 * ((raw.split == 'test') & ((bits >> 4) & 3 == 0))
  anything = ((bits >> 8) % NUM_TOPICS).astype(np.int64)
  return np.where(which == 4, anything, own[np.minimum(which, 3) + later])


def _words(
  bits: np.ndarray, starts: np.ndarray, topics: np.ndarray, size: int
) -> np.ndarray:
  """Ranks, from 0 on, of the words of sentences, int32 [words].

  Args:
    bits: uint64 [words].
    starts: where sentences begin.
    topics: of the sentence of each word.
    size: of the vocabulary.
  """
  words = _law(size)[bits % _SLOTS]
  near = words - (words - _COMMON) % NUM_TOPICS + topics
  words = np.where((words >= _COMMON) & ((bits >> 20) & 3 != 0), near, words)
  drawn = (bits >> 22) & 1 == 0
  drawn[starts] = True
  branch = np.array([0, 0, 1, 2])[(bits >> 23) & 3]
  # All first successors of drawn words, then all successors of these, ...
  at, successors = np.flatnonzero(drawn), _successors(size)
  while at.size:
    before = at[at < len(words) - 1]
    before = before[~drawn[before + 1]]
    at = before + 1
    words[at] = successors[words[before], branch[at]]
  return words


@functools.cache
def _law(size: int) -> np.ndarray:
  """The rank of each slot, int32: rank r, from 0 on, has 1/(r + 3) of them."""
  weights = (1 << 30) // np.arange(3, size + 3)
  ends = np.cumsum(weights) * _SLOTS // weights.sum()
  return np.repeat(np.arange(size, dtype=np.int32), np.diff(ends, prepend=0))


@functools.cache
def _successors(size: int) -> np.ndarray:
  """The three words that may follow each word, int32 [size, 3].

  Of the same topic, and at most 4 times as frequent or rare. Every word follows
  as many as follow it.
  """
  topics = np.arange(NUM_TOPICS)
  common = _cycled(_COMMON, np.zeros(1, np.int64))
  own = _cycled((size - _COMMON) // NUM_TOPICS, topics)
  own = _COMMON + NUM_TOPICS * own + topics[:, None]
  ranks = np.concatenate([common.reshape(-1, 3), own.reshape(-1, 3)])
  return ranks.astype(np.int32)


def _cycled(num: int, topics: np.ndarray) -> np.ndarray:
  """Three other places for each of num places, int64 [num, topics, 3].

  Of its group: 0-2, 3-6, 7-14, and so on, the last of two or more.
  """
  starts = [k for k in (0, *(2**i - 1 for i in range(2, 12))) if k + 2 <= num]
  lengths = np.diff([*starts, num])
  start = np.repeat(starts, lengths)[:, None, None]
  length = np.repeat(lengths, lengths)[:, None, None]
  place = np.arange(num)[:, None, None]
  # Never 0 modulo the length: no word follows itself.
  step = 1 + (topics[:, None] + 3) * [1, 2, 3] * 7919 % (length - 1)
  return start + (place - start + step) % length


@functools.cache
def _spelled(size: int, end: bytes) -> np.ndarray:
  """The words by rank, each with an end, 8 bytes."""
  syllables = [bytes([c, v]) for c in _CONSONANTS for v in _VOWELS]
  words = []
  for length in (1, 2, 3):
    rows = itertools.product(syllables, repeat=length)
    words += [
      b''.join(row) for row in itertools.islice(rows, size - len(words))
    ]
  return np.array([word + end for word in words], 'S8')
