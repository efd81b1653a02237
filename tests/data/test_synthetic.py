"""Synthetic data: the sizes of the real ones, and laws that are what they say."""

import functools
import pickle

import numpy as np
import pytest

from epe_jax.data import synthetic

SIZE = synthetic.VOCABULARY_SIZE
DRAWN = [
  (
    functools.partial(synthetic.generate_images, num_examples=400),
    synthetic.IMAGES,
  ),
  (
    functools.partial(synthetic.generate_sentences, max_sentences=20),
    synthetic.SENTENCES,
  ),
]


def _clients(source, split):
  features = source.features
  return {
    client_id: source.decode(raw, features)
    for client_id, raw in source.read(split)
  }


def _stacked(clients, name):
  return np.concatenate([columns[name] for columns in clients.values()])


def test_the_sizes_are_those_of_the_public_data():
  assert synthetic.generate_images(0).splits == {
    'all_train': (3400, 671_585),
    'all_test': (3400, 77_483),
    'digits_only_train': (3383, 341_873),
    'digits_only_test': (3383, 40_832),
  }
  assert synthetic.generate_sentences(0).splits == {
    'train': (342_477, 135_818_730),
    'heldout': (38_758, 16_491_230),
    'test': (204_088, 16_586_035),
  }


@pytest.mark.parametrize(('make', 'features'), DRAWN)
def test_a_source_has_as_many_clients_and_examples_as_it_says(make, features):
  source = make(0, num_clients=20)
  assert 'synthetic' in source.name
  (column, *_) = features
  for split, (clients, examples) in source.splits.items():
    found = _clients(source, split)
    assert list(found) == sorted(found)
    sizes = [len(columns[column]) for columns in found.values()]
    assert (len(sizes), sum(sizes), min(sizes) > 0) == (clients, examples, True)


@pytest.mark.parametrize(('make', 'features'), DRAWN)
def test_a_client_depends_on_seed_split_and_number_alone(make, features):
  (column, *_) = features
  drawn = lambda source, split: _stacked(_clients(source, split), column)
  one, same, other = (make(seed, num_clients=20) for seed in (0, 0, 1))
  splits = list(one.splits)
  found = drawn(one, splits[0])
  np.testing.assert_array_equal(found, drawn(same, splits[0]))
  few = min(len(found), 20)
  for different in (drawn(other, splits[0]), drawn(one, splits[1])):
    assert not np.array_equal(found[:few], different[:few])
  # The size of a client depends on all; what it draws comes first or not at all.
  (client_id, raw), *_ = one.read(splits[0])
  decode = pickle.loads(pickle.dumps(one.decode))
  np.testing.assert_array_equal(
    decode(raw, features)[column], _clients(one, splits[0])[client_id][column]
  )


def test_sizes_have_a_heavy_tail_and_a_cap_that_only_caps():
  whole, capped = (
    synthetic.generate_sentences(0, num_clients=20_000, max_sentences=most)
    for most in (None, 100)
  )
  sizes, kept = (
    np.array([raw.num_examples for _, raw in s.read('train')])
    for s in (whole, capped)
  )
  np.testing.assert_array_equal(kept, np.minimum(sizes, 100))
  assert sizes.max() > 10 * sizes.mean()


def test_users_of_heldout_are_others_and_those_of_test_are_of_both():
  source = synthetic.generate_sentences(0, num_clients=1000, max_sentences=1)
  train, heldout, test = (
    {client_id for client_id, _ in source.read(split)}
    for split in ('train', 'heldout', 'test')
  )
  assert not train & heldout
  assert test <= train | heldout
  assert test & train
  assert test & heldout


def test_images_have_the_form_of_emnist():
  source = synthetic.generate_images(0, num_clients=20, num_examples=4000)
  clients = _clients(source, 'all_train')
  pixels, label = (_stacked(clients, name) for name in ('pixels', 'label'))
  assert (pixels.dtype, label.dtype) == (np.float32, np.int32)
  assert pixels.shape == (4000, 28, 28)
  assert (pixels.min(), pixels.max()) == (0, 1)
  assert set(label) == set(range(62))
  assert (pixels > 0.5).mean() > 0.6  # Background.
  digits = _stacked(_clients(source, 'digits_only_train'), 'label')
  assert set(digits) == set(range(10))


def test_classes_can_be_told_apart_and_so_can_writers():
  source = synthetic.generate_images(0, num_clients=20, num_examples=4000)
  train, test = (_clients(source, split) for split in ('all_train', 'all_test'))
  pixels, label = (_stacked(train, name) for name in ('pixels', 'label'))
  means = np.stack([pixels[label == c].mean(0) for c in range(62)])
  asked, answer = (_stacked(test, name) for name in ('pixels', 'label'))
  distances = ((asked[:, None] - means) ** 2).sum((2, 3))
  assert (distances.argmin(1) == answer).mean() > 0.9
  # What is left of an image without its class is like that of the same writer.
  left = lambda c: (c['pixels'] - means[c['label']]).mean(0).ravel()
  before, after = (
    np.stack([left(c) for c in x.values()]) for x in (train, test)
  )
  assert (np.corrcoef(before, after)[:20, 20:].argmax(1) == np.arange(20)).all()


def _ranks(clients):
  lines = b' '.join(_stacked(clients, 'tokens')).split()
  return np.array([int(word[1:]) for word in lines])


def test_words_follow_the_law_of_zipf():
  source = synthetic.generate_sentences(0, num_clients=300, max_sentences=150)
  clients = _clients(source, 'train')
  lengths = [line.count(b' ') + 1 for line in _stacked(clients, 'tokens')]
  # A mean of 16 and a standard deviation of about 9.5, of 30,000 sentences or
  # more: 5 standard errors are 0.3.
  assert abs(np.mean(lengths) - 16) < 0.3
  counts = np.bincount(_ranks(clients), minlength=SIZE)
  law = 1 / (np.arange(SIZE) + 3)
  # Topics of 300 users are no perfect mixture.
  for low, high in [(0, 10), (10, 50), (50, 200), (200, SIZE)]:
    share = counts[low:high].sum() / counts.sum()
    assert share == pytest.approx(law[low:high].sum() / law.sum(), rel=0.03)


@pytest.mark.parametrize(
  ('make', 'arguments', 'message'),
  [
    (synthetic.generate_images, {'seed': -1}, 'seed=-1; give an integer'),
    (
      synthetic.generate_images,
      {'num_clients': 0},
      r'num_clients=0 of generated data is not in \[1, ',
    ),
    (
      synthetic.generate_images,
      {'num_clients': 10**6 + 1},
      r'not in \[1, 1000000\]',
    ),
    (
      synthetic.generate_images,
      {'num_examples': 55_921},
      r'num_examples=55921: .* give at least 55922 of num_examples',
    ),
    (
      synthetic.generate_sentences,
      {'num_clients': 8},
      r'num_clients=8 of generated data is not in \[9, ',
    ),
    (
      synthetic.generate_sentences,
      {'max_sentences': 0},
      'max_sentences=0 of generated data is not in',
    ),
  ],
)
def test_arguments_out_of_range_are_refused(make, arguments, message):
  with pytest.raises(ValueError, match=message):
    make(**{'seed': 0} | arguments)


@pytest.mark.parametrize('num_clients', [1, 10, 999])
def test_at_the_smallest_size_every_writer_has_an_image(num_clients):
  least = -(-num_clients * 671_585 // 40_832)
  source = synthetic.generate_images(
    0, num_clients=num_clients, num_examples=least
  )
  for split in source.splits:
    sizes = [raw.num_examples for _, raw in source.read(split)]
    assert min(sizes) >= 1
