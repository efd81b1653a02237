"""The posts of a Stack Exchange site: sentences by the people who wrote them.

Every site publishes a `Posts.xml`: `<posts>` with one `<row .../>` a post. It
is read once, as a stream, into a temporary file that is sorted by user; of
100 GB no more than some rows are in memory at a time.
"""

import collections
from collections.abc import Iterator, Mapping
import contextlib
import datetime
import functools
import hashlib
import os
import pathlib
import re
from typing import NamedTuple

from absl import logging
import numpy as np

from epe_jax.data import example_proto, posts_xml, sentences, sources, spool

FEATURES: example_proto.Features = {
  'creation_date': (bytes, ()),
  'score': (np.int64, ()),
  'tags': (bytes, ()),
  'title': (bytes, ()),
  'tokens': (bytes, ()),
  'type': (bytes, ()),
}
"""Of a sentence; as TFF's StackOverflow has them."""

_KINDS = {'1': b'question', '2': b'answer'}
_INTEGER = re.compile(r'-?[0-9]{1,18}')
_DATE = re.compile(r'[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}(\.[0-9]{1,6})?')
_NEVER = b'9999-99-99'


class _Rule(NamedTuple):
  """What decides to which split a sentence belongs."""

  min_sentences: int
  heldout_fraction: float
  first_test_day: bytes


@contextlib.contextmanager
def opened(
  path: str | os.PathLike,
  *,
  min_sentences: int = 1,
  heldout_fraction: float = 0.1,
  test_fraction: float = 0.1,
  folder: str | os.PathLike | None = None,
) -> Iterator[sources.Source]:
  """Opens the posts of a site; examples are sentences, clients are users.

  Sentences are those of questions and answers that have an owner; see
  `sentences.of_html` for what a sentence is. The splits are TFF's: 'test' is
  what was written on or after a day, the first day since which at most
  test_fraction of the sentences were written; 'heldout' is the rest of
  heldout_fraction of the users, drawn by a hash of their id, so that a user is
  held out of every dump or of none; 'train' is all else. A split without
  sentences is left out. What is left out is counted in the name of the source.

  Args:
    path: Posts.xml.
    min_sentences: users with fewer, in all splits together, are left out; >= 1.
    heldout_fraction: share of users, in [0, 1).
    test_fraction: share of sentences, in [0, 1).
    folder: where to keep the temporary file, of about the size of the text;
      the temporary directory (`TMPDIR`) if None.

  Yields:
    A source with the FEATURES: the date and score of the post; its title and
    its tags, separated by '|', which answers do not have; the words of the
    sentence, separated by spaces; and b'question' or b'answer'. Clients are
    the numbers of the users, with zeros to 8 digits, and their sentences are
    in the order of the file.

  Raises:
    FileNotFoundError, ValueError: the file is missing, truncated, not XML, not
      of this form, or has a DOCTYPE; a row is named by number and Id.

  Source: Stack Exchange data dump, "Posts"; TensorFlow Federated's
  stackoverflow for the features and splits.
  """
  path = pathlib.Path(path)
  _check_options(min_sentences, heldout_fraction, test_fraction)
  tally, days = collections.Counter(), collections.Counter()
  with spool.grouped(
    _stream(path, tally, days), name=str(path), folder=folder
  ) as posts:
    first_test_day = _first_test_day(days, test_fraction)
    rule = _Rule(min_sentences, heldout_fraction, first_test_day)
    splits = _census(posts, rule, tally)
    if not splits:
      raise ValueError(
        f'{path}: min_sentences={min_sentences} leaves no user of '
        f'{posts.clients}. Give a smaller number.'
      )
    name = f'{path} ({_words(rule, tally)})'
    logging.info('%s', name)
    yield sources.Source(
      name=name,
      splits=splits,
      read=functools.partial(_read, str(path), posts, rule, splits),
      decode=decode,
      features=FEATURES,
    )


def decode(
  raw: sources.Columns, features: example_proto.Features
) -> sources.Columns:
  """The features of the sentences of some posts; see `sources.Source`."""
  lines = b'\n'.join(raw['tokens']).split(b'\n')
  columns = {'tokens': np.array(lines, object)}
  for name in FEATURES.keys() & features.keys() - {'tokens'}:
    columns[name] = np.repeat(raw[name], raw['num_sentences'])
  return sources.decode_columns(columns, features)


def _check_options(
  min_sentences: int, heldout_fraction: float, test_fraction: float
) -> None:
  if min_sentences < 1:
    raise ValueError(f'min_sentences={min_sentences}; give 1 or more.')
  fractions = {
    'heldout_fraction': heldout_fraction,
    'test_fraction': test_fraction,
  }
  for name, fraction in fractions.items():
    if not 0 <= fraction < 1:
      raise ValueError(f'{name}={fraction} is not in [0, 1).')


def _stream(
  path: pathlib.Path, tally: collections.Counter, days: collections.Counter
) -> spool.Stream:
  """Posts with sentences; counts what there is, and sentences per day."""
  for number, row in posts_xml.rows(path):
    try:
      kind = _KINDS.get(_attribute(row, 'PostTypeId'))
      # The account -1 is the site's own, and owns what belongs to all.
      owner = row.get('OwnerUserId', '-1')
      if kind is None:
        tally['other posts'] += 1
      elif _integer('OwnerUserId', owner) < 0:
        tally['posts without an owner'] += 1
      elif not (lines := sentences.of_html(_attribute(row, 'Body'))):
        tally['posts without a sentence'] += 1
      else:
        date = _date(_attribute(row, 'CreationDate'))
        columns = _post(row, kind, date, lines)
        days[date[:10]] += len(lines)
        yield f'{int(owner):08d}', columns
    except ValueError as error:
      raise ValueError(
        f'{path}, row {number} (Id {row.get("Id")}): {error}. {posts_xml.CURE}'
      ) from error


def _post(
  row: Mapping[str, str], kind: bytes, date: bytes, lines: list[str]
) -> dict[str, list]:
  # Newer dumps separate tags by '|', older ones put each into '<>'.
  tags = re.findall('[^<>|]+', row.get('Tags', ''))
  return {
    'creation_date': [date],
    'num_sentences': [len(lines)],
    'score': [_integer('Score', _attribute(row, 'Score'))],
    'tags': ['|'.join(tags)],
    'title': [row.get('Title', '')],
    'tokens': ['\n'.join(lines)],
    'type': [kind],
  }


def _attribute(row: Mapping[str, str], name: str) -> str:
  if name not in row:
    raise ValueError(f'no attribute {name} among {sorted(row)}')
  return row[name]


def _integer(name: str, text: str) -> int:
  if not _INTEGER.fullmatch(text):
    raise ValueError(f'{name}={text!r} is not an integer of up to 18 digits')
  return int(text)


def _date(text: str) -> bytes:
  try:
    if not _DATE.fullmatch(text):
      raise ValueError('not of the form 2014-01-21T20:26:05.383')
    datetime.datetime.fromisoformat(text)
  except ValueError as error:
    raise ValueError(f'CreationDate={text!r}: {error}') from error
  return text.encode()


def _first_test_day(days: Mapping[bytes, int], test_fraction: float) -> bytes:
  """The first day since which at most this share of the sentences is."""
  left = test_fraction * sum(days.values())
  first = _NEVER
  for day in sorted(days, reverse=True):
    left -= days[day]
    if left < 0:
      break
    first = day
  return first


def _census(
  posts: spool.Spool, rule: _Rule, tally: collections.Counter
) -> dict[str, sources.Split]:
  """The splits that are not empty; counts the users that are left out."""
  clients, examples = collections.Counter(), collections.Counter()
  for client_id, columns in posts.read(None):
    num_sentences = columns['num_sentences']
    parts = _parts(client_id, columns, rule)
    if not parts:
      tally['users with fewer sentences'] += 1
      tally['sentences of these'] += int(num_sentences.sum())
    for split, rows in parts.items():
      clients[split] += 1
      examples[split] += int(num_sentences[rows].sum())
  return {s: sources.Split(clients[s], examples[s]) for s in sorted(clients)}


def _parts(
  client_id: str, columns: sources.Columns, rule: _Rule
) -> dict[str, np.ndarray]:
  """split -> which posts of a user it has, [n] booleans with one True."""
  if columns['num_sentences'].sum() < rule.min_sentences:
    return {}
  digest = hashlib.sha256(f'heldout {client_id}'.encode()).digest()
  uniform = int.from_bytes(digest[:8], 'big') / 2**64
  home = 'heldout' if uniform < rule.heldout_fraction else 'train'
  is_test = columns['creation_date'] >= rule.first_test_day
  parts = {home: ~is_test, 'test': is_test}
  return {split: rows for split, rows in parts.items() if rows.any()}


def _read(
  name: str,
  posts: spool.Spool,
  rule: _Rule,
  splits: Mapping[str, sources.Split],
  split: str,
  features: example_proto.Features,
  after: str | None,
) -> Iterator[tuple[str, sources.Columns]]:
  """The posts of the users of a split; see `sources.Source`."""
  del features  # `decode` takes those it needs.
  if split not in splits:
    raise ValueError(
      f'{name} has no split {split!r}, only {sorted(splits)}. Choose one of '
      'them, or other fractions.'
    )
  for client_id, columns in posts.read(after):
    parts = _parts(client_id, columns, rule)
    if split in parts:
      yield client_id, {key: c[parts[split]] for key, c in columns.items()}


def _words(rule: _Rule, tally: collections.Counter) -> str:
  left_out = [
    f'{tally[what]} {what}'
    for what in (
      'users with fewer sentences',
      'sentences of these',
      'posts without an owner',
      'posts without a sentence',
      'other posts',
    )
  ]
  day = rule.first_test_day
  test = 'no test' if day == _NEVER else f'test since {day.decode()}'
  return (
    f'min_sentences={rule.min_sentences}, '
    f'heldout_fraction={rule.heldout_fraction}, {test}; '
    f'left out: {", ".join(left_out)}'
  )
