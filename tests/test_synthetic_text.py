"""Synthetic text: StackOverflow's sizes, a Zipf law, topics and bigrams."""

import collections
import hashlib
import itertools

import numpy as np
import pytest

from epe_jax.data import synthetic_text

SIZE = 2000
RANK = {
  word.encode(): rank
  for rank, word in enumerate(synthetic_text.vocabulary(SIZE))
}


def _users(source, split, num=None):
  read = source.read(split, synthetic_text.FEATURES, None)
  found = []
  for _, (client_id, raw) in zip(range(num or 10**9), read):
    columns = synthetic_text.decode(raw, synthetic_text.FEATURES)
    found.append((client_id, columns['tokens'].tolist()))
  return found


def _ranks(sentences):
  return [[RANK[word] for word in line.split(b' ')] for line in sentences]


@pytest.fixture(scope='module')
def users():
  """300 users: the ranks of the words of up to 150 sentences of each."""
  source = synthetic_text.source(
    3, num_clients=300, max_sentences=150, vocabulary_size=SIZE
  )
  return [_ranks(sentences) for _, sentences in _users(source, 'train')]


def test_the_sizes_are_exactly_those_of_stackoverflow():
  source = synthetic_text.source(0)
  assert 'synthetic' in source.name
  assert {k: tuple(v) for k, v in source.splits.items()} == {
    'train': (342_477, 135_818_730),
    'heldout': (38_758, 16_491_230),
    'test': (204_088, 16_586_035),
  }


def test_sizes_have_a_heavy_tail_and_a_cap_that_only_caps():
  whole, capped = (
    synthetic_text.source(0, num_clients=20_000, max_sentences=most)
    for most in (None, 100)
  )
  sizes, kept = (
    np.array([raw.num_sentences for _, raw in s.read('train', {}, None)])
    for s in (whole, capped)
  )
  assert len(sizes) == whole.splits['train'].clients == 20_000
  assert sizes.sum() == whole.splits['train'].examples
  assert abs(sizes.mean() - 135_818_730 / 342_477) < 0.1
  assert sizes.min() >= 1
  np.testing.assert_array_equal(kept, np.minimum(sizes, 100))
  assert kept.sum() == capped.splits['train'].examples
  # With a tail of index 2, four times the size has a sixteenth of the users.
  above = [(sizes > x).mean() for x in (1000, 4000)]
  assert 10 < above[0] / above[1] < 24


def test_a_user_has_as_many_sentences_as_the_source_says():
  source = synthetic_text.source(0, num_clients=40, max_sentences=30)
  for split, (clients, sentences) in source.splits.items():
    found = _users(source, split)
    assert len(found) == clients
    assert sum(len(lines) for _, lines in found) == sentences


# Pinned: whoever changes a word changes the data that results name by seed.
def test_the_bits_are_those_of_every_other_machine():
  digest = hashlib.sha256()
  source = synthetic_text.source(7, num_clients=20, max_sentences=40)
  for split in source.splits:
    for client_id, lines in _users(source, split):
      digest.update(b'\n'.join([client_id.encode(), *lines]))
  assert digest.hexdigest()[:16] == '01c174aedbe90fb7'


def test_other_seeds_users_and_splits_give_other_sentences():
  raw = synthetic_text.User(1, 2, 'train', 50, SIZE)
  decode = lambda raw: set(
    synthetic_text.decode(raw, synthetic_text.FEATURES)['tokens'].tolist()
  )
  for other in (
    raw._replace(seed=2),
    raw._replace(number=3),
    raw._replace(split='test'),
  ):
    # Only the shortest sentences can be the same by chance.
    assert len(decode(raw) & decode(other)) < 5


def test_fewer_sentences_are_the_first_of_more():
  raw = synthetic_text.User(1, 2, 'train', 50, SIZE)
  more = synthetic_text.decode(raw, synthetic_text.FEATURES)['tokens']
  for n in (1, 7, 49):
    less = raw._replace(num_sentences=n)
    found = synthetic_text.decode(less, synthetic_text.FEATURES)['tokens']
    assert found.tolist() == more[:n].tolist()


def test_reading_after_a_user_gives_the_others():
  source = synthetic_text.source(0, num_clients=120, max_sentences=5)
  for split in source.splits:
    everyone = list(source.read(split, {}, None))
    ids = [client_id for client_id, _ in everyone]
    assert ids == sorted(set(ids))
    for i, client_id in enumerate(ids):
      assert list(source.read(split, {}, client_id)) == everyone[i + 1 :]
    assert list(source.read(split, {}, '')) == everyone


def test_test_users_are_of_both_other_splits_which_share_none():
  source = synthetic_text.source(0, num_clients=1000, max_sentences=1)
  train, heldout, test = (
    {client_id for client_id, _ in source.read(split, {}, None)}
    for split in ('train', 'heldout', 'test')
  )
  assert not train & heldout
  assert test <= train | heldout
  assert len(test) == source.splits['test'].clients
  assert len(test & train) / len(test) == pytest.approx(
    len(train) / (len(train) + len(heldout)), abs=0.01
  )


def test_sentences_are_as_long_as_people_write(users):
  lengths = np.array([len(line) for user in users for line in user])
  assert 13 < lengths.mean() < 17
  assert 0.1 < (lengths > 20).mean() < 0.3
  assert 0.03 < (lengths <= 3).mean() < 0.1
  assert lengths.min() == 1
  assert lengths.max() > 80


def _counts(users, size=SIZE):
  words = [rank for user in users for line in user for rank in line]
  return np.bincount(words, minlength=size)


def test_words_follow_the_law_of_zipf(users):
  counts = _counts(users)
  law = 1 / (np.arange(SIZE) + 3)
  law /= law.sum()
  # Successors stay in groups of words, so that these have the mass of the law.
  # Topics of 300 users are no perfect mixture: 5 %.
  for low, high in [
    (0, 3),
    (3, 7),
    (7, 50),
    (50, 200),
    (200, 800),
    (800, SIZE),
  ]:
    share = counts[low:high].sum() / counts.sum()
    assert share == pytest.approx(law[low:high].sum(), rel=0.05)
  # On logarithmic axes the counts fall by 1 for 1.
  ranks = np.arange(20, SIZE)
  slope = np.polyfit(np.log(ranks + 3), np.log(counts[20:] + 0.5), 1)[0]
  assert slope == pytest.approx(-1, abs=0.1)


def test_a_user_has_topics_and_all_together_have_all(users):
  own = []
  for user in users:
    ranks = _counts([user])[50:]
    topics = ranks.reshape(-1, 50).sum(0)
    if topics.sum() > 500:
      own.append(np.sort(topics)[::-1] / topics.sum())
  # Three quarters of the words, and of what follows them, are of the topic of
  # their sentence: the four topics of a user have most of the words.
  assert np.mean([shares[:4].sum() for shares in own]) > 0.6
  assert np.mean([shares[0] for shares in own]) > 0.3
  everyone = _counts(users)[50:].reshape(-1, 50).sum(0)
  assert everyone.max() / everyone.sum() < 0.06
  assert everyone.min() / everyone.sum() > 0.005


def _topic_shares(split, numbers):
  found = []
  for number in numbers:
    raw = synthetic_text.User(3, number, split, 1200, SIZE)
    lines = synthetic_text.decode(raw, synthetic_text.FEATURES)['tokens']
    topics = _counts([_ranks(lines)])[50:].reshape(-1, 50).sum(0)
    found.append(topics / topics.sum())
  return np.stack(found)


def test_users_keep_most_of_their_topics_in_the_test(users):
  before, after = (_topic_shares(s, range(40)) for s in ('train', 'test'))
  distance = lambda a, b: np.abs(a - b).sum(1).mean() / 2
  again = distance(before, _topic_shares('heldout', range(40)))
  # In total variation: the same topics, the same but for a quarter, others.
  assert again < 0.1 < distance(before, after) < 0.35
  assert distance(before, np.roll(after, 1, axis=0)) > 0.5


def _pairs(users):
  return collections.Counter(
    pair for user in users for line in user for pair in itertools.pairwise(line)
  )


def test_the_last_word_tells_much_about_the_next(users):
  half = len(users) // 2
  best = {}
  for (word, after), n in _pairs(users[:half]).items():
    best[word] = max(best.get(word, (0, 0)), (n, after))
  pairs = _pairs(users[half:])
  right = sum(n for (a, b), n in pairs.items() if best.get(a, (0, -1))[1] == b)
  counts = _counts(users)
  most_frequent = counts.max() / counts.sum()
  # One of two words is a successor, and one of two successors the likeliest.
  assert most_frequent < 0.06
  assert 0.2 < right / sum(pairs.values()) < 0.35


def test_successors_are_other_words_of_the_topic_as_frequent():
  for size in (1000, 1650, SIZE, 20_000, 50_000):
    successors = synthetic_text._successors(size)
    ranks = np.arange(size)[:, None]
    assert successors.min() >= 0
    assert (successors != ranks).all()
    common = ranks < 50
    assert ((successors < 50) == common).all()
    assert (common | ((successors - ranks) % 50 == 0)).all()
    odds = (successors + 3) / (ranks + 3)
    assert 1 / 4 < odds.min() <= odds.max() < 4
    # A permutation for each branch: no word becomes more frequent for good.
    for branch in successors.T:
      np.testing.assert_array_equal(np.sort(branch), np.arange(size))


def _slow_words(bits, starts, topics, size):
  """Word by word, as the module's docstring says it."""
  law, successors = synthetic_text._law(size), synthetic_text._successors(size)
  words = []
  for i, (b, topic) in enumerate(zip(bits.tolist(), topics.tolist())):
    if i not in starts and b >> 22 & 1:
      words.append(int(successors[words[-1], [0, 0, 1, 2][b >> 23 & 3]]))
      continue
    word = int(law[b % (1 << 20)])
    if word >= 50 and b >> 20 & 3:
      word = 50 + (word - 50) // 50 * 50 + topic
    words.append(word)
  return words


def test_words_are_drawn_as_one_by_one():
  rng = np.random.default_rng(0)
  bits = rng.integers(0, 1 << 64, 3000, np.uint64)
  # The chain of successors is cut where a sentence begins.
  bits[100:160] |= np.uint64(1 << 22)
  starts = np.array([0, 1, 5, 130, 131, 2999])
  topics = rng.integers(0, 50, 3000)
  found = synthetic_text._words(bits, starts, topics, SIZE)
  assert found.tolist() == _slow_words(bits, set(starts.tolist()), topics, SIZE)


@pytest.mark.parametrize('size', [1000, 50_000])
def test_every_word_can_be_drawn(size):
  counts = np.bincount(synthetic_text._law(size), minlength=size)
  assert counts.sum() == 1 << 20
  assert counts.min() >= 1
  expected = 1 / (np.arange(size) + 3)
  np.testing.assert_allclose(
    counts, expected / expected.sum() * (1 << 20), atol=1.01
  )


def test_words_are_different_and_have_no_space():
  words = synthetic_text.vocabulary(50_000)
  assert len(set(words)) == 50_000
  assert all(w.isascii() and w.isalpha() and w.islower() for w in words)
  assert synthetic_text.vocabulary(300) == words[:300]


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ({'seed': -1}, 'seed=-1; give an integer'),
    ({'num_clients': 8}, r'num_clients=8 is not in \[9, 1000000\]'),
    ({'num_clients': 1_000_001}, 'num_clients=1000001 is not'),
    ({'max_sentences': 0}, 'max_sentences=0 is not positive'),
    ({'vocabulary_size': 950}, 'vocabulary_size=950 is not a multiple of 50'),
    ({'vocabulary_size': 1001}, 'vocabulary_size=1001 is not a multiple'),
    ({'vocabulary_size': 50_050}, 'vocabulary_size=50050 is not'),
  ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    synthetic_text.source(**{'seed': 0} | arguments)


@pytest.mark.parametrize('size', [0, 50_001])
def test_a_vocabulary_out_of_range_is_refused(size):
  with pytest.raises(ValueError, match=f'size={size} is not in'):
    synthetic_text.vocabulary(size)


def test_an_unknown_split_or_feature_is_refused():
  source = synthetic_text.source(0, num_clients=9)
  with pytest.raises(ValueError, match="there is no split 'all_train', only"):
    next(source.read('all_train', {}, None))
  raw = synthetic_text.User(0, 0, 'train', 3, SIZE)
  with pytest.raises(ValueError, match="no feature 'score'"):
    source.decode(raw, {'score': (np.int64, ())})
