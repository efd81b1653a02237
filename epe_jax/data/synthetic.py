"""Synthetic data with the form and size of EMNIST and StackOverflow.

An image is the sum of a pattern of its class, a pattern of its writer, and noise. The
words of a sentence follow a Zipf law, and half of the rarer ones belong to the topic of
their user. Both are drawn while they are read; the examples of a client depend only on
the seed, the split and the client. An accuracy on them says nothing about the real task.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import functools
from typing import NamedTuple

import numpy as np

from epe_jax import streams
from epe_jax.data import sources

IMAGES: sources.Features = {
  'pixels': (np.float32, (28, 28)),
  'label': (np.int32, ()),
}
"""The features of an image, as in TFF's EMNIST: background 1, ink 0."""

SENTENCES: sources.Features = {'tokens': (bytes, ())}
"""The feature of a sentence: words, separated by spaces."""

EMNIST = {
  'all_train': (3_400, 671_585),
  'all_test': (3_400, 77_483),
  'digits_only_train': (3_383, 341_873),
  'digits_only_test': (3_383, 40_832),
}
"""Clients and examples of the public splits of EMNIST."""

STACKOVERFLOW = {
  'train': (342_477, 135_818_730),
  'heldout': (38_758, 16_491_230),
  'test': (204_088, 16_586_035),
}
"""Clients and examples of the public splits of StackOverflow."""

VOCABULARY_SIZE = 20_000
"""The number of different words."""

# Shares of digits, capitals and small letters in EMNIST.
_SHARES = np.repeat([0.0495, 0.27 / 26, 0.235 / 26], [10, 26, 26])
_TOPICS = 50
_SLOTS = 1 << 20


class Client(NamedTuple):
  """The examples of a client in a split, which are drawn together."""

  seed: int
  split: str
  number: int
  num_examples: int


def generate_images(
  seed: int, *, num_clients: int = 3_400, num_examples: int = 671_585
) -> sources.Source:
  """Makes a source of images of 62 classes by synthetic writers.

  Args:
    seed: >= 0, of any size.
    num_clients: writers of 'all_train' and 'all_test', from 1 to 1,000,000. The
      digits are by the first 3383/3400 of them.
    num_examples: images of 'all_train', at most 2^31; the other splits have
      them in the proportions of EMNIST, and every writer one or more.

  Returns:
    A source with the features `IMAGES` and the splits all_train, all_test,
    digits_only_train and digits_only_test.

  Raises:
    ValueError: if an argument is out of its range.

  >>> source = generate_images(0, num_clients=3, num_examples=60)
  >>> writer, raw = next(source.read('all_train'))
  >>> writer, source.decode(raw, IMAGES)['pixels'].shape[1:]
  ('client0000000', (28, 28))
  """
  _check_range('num_clients', num_clients, 1, 1_000_000)
  # digits_only_test has the fewest images per writer.
  min_examples = -(-num_clients * 671_585 // 40_832)
  if num_examples < min_examples:
    raise ValueError(
      f'num_clients={num_clients} with num_examples={num_examples}: every client has an '
      f'image in the smallest split; give at least {min_examples} of num_examples, or '
      'fewer of num_clients.'
    )
  _check_range('num_examples', num_examples, 1, 1 << 31)
  splits = {
    split: (
      range(max(1, num_clients * clients // 3_400)),
      num_examples * examples // 671_585,
    )
    for split, (clients, examples) in EMNIST.items()
  }
  name = f'num_clients={num_clients}, num_examples={num_examples}'
  return _make_source(
    seed, f'images, {name}', splits, None, _draw_images, IMAGES
  )


def generate_sentences(
  seed: int,
  *,
  num_clients: int = 342_477,
  max_sentences: int | None = None,
) -> sources.Source:
  """Makes a source of sentences by synthetic users, 16 of 20,000 words on average.

  The users of 'heldout' do not occur in 'train'; those of 'test' are spread over
  both.

  Args:
    seed: >= 0, of any size.
    num_clients: users of 'train', from 9 to 1,000,000; the other splits have
      users and sentences in the proportions of StackOverflow.
    max_sentences: of a user, 1 or more; None for no cap.

  Returns:
    A source with the features `SENTENCES` and the splits train, heldout, test.

  Raises:
    ValueError: if an argument is out of its range.

  >>> source = generate_sentences(0, num_clients=9, max_sentences=3)
  >>> user, raw = next(source.read('train'))
  >>> user, len(source.decode(raw, SENTENCES)['tokens'])
  ('client0000000', 3)
  """
  _check_range('num_clients', num_clients, 9, 1_000_000)
  _check_range(
    'max_sentences', 1 if max_sentences is None else max_sentences, 1, 1 << 31
  )
  counts = {
    split: [num_clients * number // 342_477 for number in numbers]
    for split, numbers in STACKOVERFLOW.items()
  }
  users = num_clients + counts['heldout'][0]
  test = counts['test'][0]
  numbers = {
    'train': range(num_clients),
    'heldout': range(num_clients, users),
    'test': [i * users // test for i in range(test)],
  }
  splits = {split: (numbers[split], counts[split][1]) for split in numbers}
  name = (
    f'sentences, num_clients={num_clients}, max_sentences={max_sentences}, '
    f'vocabulary_size={VOCABULARY_SIZE}'
  )
  return _make_source(
    seed, name, splits, max_sentences, _draw_sentences, SENTENCES
  )


def _check_range(name: str, value: int, low: int, high: int) -> None:
  if not low <= value <= high:
    raise ValueError(
      f'{name}={value} of generated data is not in [{low}, {high}].'
    )


def _make_source(
  seed: int,
  name: str,
  splits: Mapping[str, tuple[Sequence[int], int]],
  max_examples: int | None,
  draw: Callable[[Client], sources.Columns],
  features: sources.Features,
) -> sources.Source:
  """A source of split -> (numbers of its clients, number of examples)."""
  clients = {}
  for split, (numbers, total) in splits.items():
    rng = streams.host_rng(seed, f'synthetic sizes {split}')
    shares = rng.lognormal(size=len(numbers))
    sizes = 1 + rng.multinomial(total - len(numbers), shares / shares.sum())
    clients[split] = (numbers, np.minimum(sizes, max_examples or total))
  return sources.Source(
    name=f'synthetic {name}, seed={seed}, version 3',
    splits={
      split: sources.Split(len(sizes), int(sizes.sum()))
      for split, (_, sizes) in clients.items()
    },
    read=functools.partial(_read, seed, clients),
    decode=functools.partial(_decode, draw),
    features=features,
  )


def _read(
  seed: int,
  clients: Mapping[str, tuple[Sequence[int], np.ndarray]],
  split: str,
) -> Iterator[tuple[str, Client]]:
  """The clients of a split; see `sources.Source`."""
  for number, size in zip(
    *sources.find_split(clients, split, 'synthetic data')
  ):
    # Leading zeros, so that clients sort as their numbers do.
    yield f'client{number:07}', Client(seed, split, number, int(size))


def _decode(
  draw: Callable[[Client], sources.Columns],
  raw: Client,
  features: sources.Features,
) -> sources.Columns:
  return sources.decode_columns(draw(raw), features)


def _draw_images(client: Client) -> sources.Columns:
  """The images of a writer. A writer has the same style in all splits."""
  writer_rng = streams.host_rng(client.seed, 'synthetic writer', client.number)
  weights = _SHARES * np.exp(0.5 * writer_rng.normal(size=len(_SHARES)))
  if client.split.startswith('digits_only'):
    weights = weights[:10]
  rng = streams.host_rng(
    client.seed, f'synthetic images {client.split}', client.number
  )
  label = rng.choice(
    len(weights), client.num_examples, p=weights / weights.sum()
  )
  ink = rng.standard_normal((client.num_examples, 28, 28), np.float32)
  ink *= np.float32(0.1)
  ink += (_draw_patterns(client.seed) + 0.3 * _draw_blobs(writer_rng, 1))[label]
  return {'pixels': 1 - ink.clip(0, 1), 'label': label}


@functools.lru_cache(1)
def _draw_patterns(seed: int) -> np.ndarray:
  """The pattern of each class, float32 [62, 28, 28]."""
  return _draw_blobs(streams.host_rng(seed, 'synthetic classes'), len(_SHARES))


def _draw_blobs(rng: np.random.Generator, num: int) -> np.ndarray:
  """Patterns of four Gaussian blobs each, float32 [num, 28, 28] in [0, 1]."""
  distance = np.arange(28) - rng.uniform(6, 22, (2, num, 4, 1))
  x, y = np.exp(-((distance / 2.5) ** 2) / 2).astype(np.float32)
  return (x[..., None, :] * y[..., :, None]).max(1)


def _draw_sentences(client: Client) -> sources.Columns:
  """The sentences of a user. A user has the same topic in all splits."""
  user_rng = streams.host_rng(client.seed, 'synthetic user', client.number)
  rng = streams.host_rng(
    client.seed, f'synthetic sentences {client.split}', client.number
  )
  lengths = 1 + rng.poisson(rng.gamma(3, 5, client.num_examples))
  ends = np.cumsum(lengths)
  bits = rng.integers(1 << 32, size=ends[-1], dtype=np.uint32)
  words = _tabulate_zipf()[bits % _SLOTS]
  # The words of ranks below 50 are of all topics.
  moved = np.flatnonzero((words >= _TOPICS) & (bits >> 31 == 0))
  words[moved] += user_rng.integers(_TOPICS) - words[moved] % _TOPICS
  np.minimum(words, VOCABULARY_SIZE - 1, out=words)
  # Words of 8 bytes are copied fast; their padding zeros are removed.
  text = _spell_words(' ')[words]
  text[ends - 1] = _spell_words('\n')[words[ends - 1]]
  lines = text.tobytes().translate(None, b'\0').split(b'\n')
  return {'tokens': np.array(lines[:-1], object)}


@functools.lru_cache(1)
def _tabulate_zipf() -> np.ndarray:
  """Ranks of equally likely words, int64: rank r, from 0, in 1/(r + 3) parts."""
  law = np.cumsum(1 / (np.arange(VOCABULARY_SIZE) + 3))
  return np.searchsorted(law, law[-1] * (np.arange(_SLOTS) + 0.5) / _SLOTS)


@functools.lru_cache(2)
def _spell_words(end: str) -> np.ndarray:
  """The words by rank, each with an end, 8 bytes."""
  return np.array([f'w{rank}{end}' for rank in range(VOCABULARY_SIZE)], 'S8')
