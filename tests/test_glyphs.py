"""Glyphs: EMNIST's form and sizes, writers of their own, classes to learn."""

import hashlib
import math

import numpy as np
import pytest

from epe_jax.data import glyphs, strokes


def _clients(source, split, num=None, after=None):
  read = source.read(split, glyphs.FEATURES, after)
  found = []
  for _, (client_id, raw) in zip(range(num or 10**9), read):
    found.append((client_id, glyphs.decode(raw, glyphs.FEATURES)))
  return found


@pytest.fixture(scope='module')
def writers():
  """40 writers of 100 images on average, and some more images by each."""
  source = glyphs.source(5, num_clients=40, num_examples=4000)
  return _clients(source, 'all_train'), _clients(source, 'all_test')


def _stacked(clients):
  names = ('pixels', 'label')
  return [np.concatenate([c[name] for _, c in clients]) for name in names]


def test_the_sizes_are_exactly_those_of_emnist():
  source = glyphs.source(0)
  assert 'synthetic' in source.name
  expected = {
    'all_train': (3400, 671_585),
    'all_test': (3400, 77_483),
    'digits_only_train': (3383, 341_873),
    'digits_only_test': (3383, 40_832),
  }
  assert {k: tuple(v) for k, v in source.splits.items()} == expected
  for split, (clients, examples) in expected.items():
    found = list(source.read(split, glyphs.FEATURES, None))
    sizes = np.array([raw.num_images for _, raw in found])
    assert (len(found), sizes.sum(), sizes.min() > 0) == (
      clients,
      examples,
      True,
    )
    # The logarithms of sizes are as spread as those of EMNIST's writers.
    assert 0.3 < np.log(sizes).std() < 0.6
    ids = [client_id for client_id, _ in found]
    assert ids == sorted(set(ids))


def test_smaller_sizes_are_exact_too():
  source = glyphs.source(0, num_clients=7, num_examples=1234)
  for split, (clients, examples) in source.splits.items():
    found = _clients(source, split)
    assert len(found) == clients
    assert sum(len(c['label']) for _, c in found) == examples


def test_images_have_the_form_of_emnist(writers):
  for _, columns in writers[0]:
    pixels, label = columns['pixels'], columns['label']
    assert (pixels.dtype, label.dtype) == (np.float32, np.int32)
    assert pixels.shape == (len(label), 28, 28)
    assert pixels.min() >= 0
    levels = np.arange(256, dtype=np.float32) / 255
    assert np.isin(pixels, levels).all()
    # Every image has a background and ink, and most is background.
    assert (pixels == 1).mean(axis=(1, 2)).min() > 0.3
    assert (pixels.min(axis=(1, 2)) < 0.5).all()
  pixels, label = _stacked(writers[0])
  assert pixels.min() == 0
  assert set(label) == set(range(62))


# Pinned: whoever changes a glyph changes the data that results name by seed.
def test_the_bits_are_those_of_every_other_machine():
  digest = hashlib.sha256()
  source = glyphs.source(7, num_clients=3, num_examples=400)
  for split in source.splits:
    for client_id, columns in _clients(source, split):
      digest.update(client_id.encode())
      digest.update(columns['label'].astype('<i4').tobytes())
      levels = np.rint(columns['pixels'] * 255).astype(np.uint8)
      digest.update(levels.tobytes())
  assert digest.hexdigest()[:16] == '93eb38869b127551'


def test_other_seeds_writers_and_splits_give_other_images():
  raw = glyphs.Writer(1, 2, 'all_train', 30, 0.5)
  same = glyphs.decode(raw, glyphs.FEATURES)['pixels']
  for other in (
    raw._replace(seed=2),
    raw._replace(number=3),
    raw._replace(split='all_test'),
  ):
    pixels = glyphs.decode(other, glyphs.FEATURES)['pixels']
    assert (pixels != same).any(axis=(1, 2)).all()


@pytest.mark.parametrize('fewer', [1, 127, 128, 129, 256])
def test_fewer_images_are_the_first_of_more(fewer):
  raw = glyphs.Writer(1, 2, 'all_train', 300, 0.5)
  more = glyphs.decode(raw, glyphs.FEATURES)
  less = glyphs.decode(raw._replace(num_images=fewer), glyphs.FEATURES)
  for name in glyphs.FEATURES:
    np.testing.assert_array_equal(less[name], more[name][:fewer])


def test_reading_after_a_writer_gives_the_others():
  source = glyphs.source(0, num_clients=12, num_examples=300)
  everyone = list(source.read('all_test', glyphs.FEATURES, None))
  for i, (client_id, _) in enumerate(everyone):
    rest = list(source.read('all_test', glyphs.FEATURES, client_id))
    assert rest == everyone[i + 1 :]
  assert list(source.read('all_test', glyphs.FEATURES, 'a')) == everyone
  assert list(source.read('all_test', glyphs.FEATURES, 'x')) == []


def _slow_spread(dots, n):
  ink = np.zeros((n, 28, 28))
  for image, x, y, dark in dots:
    for row in range(28):
      for column in range(28):
        gets = dark - math.hypot(column - x, row - y)
        ink[image, row, column] = max(ink[image, row, column], gets)
  return ink


def test_a_pixel_is_as_dark_as_its_nearest_dot_makes_it():
  rng = np.random.default_rng(0)
  offsets = np.array([0, 5, 6, 16])
  dots = rng.uniform([1, 1, 0.6], [26, 26, 3.2], (16, 3)).astype(np.float32)
  # On a pixel, between two, and between four.
  dots[:3, :2] = [[9, 9], [9.5, 20], [20.5, 3.5]]
  image = np.repeat([0, 1, 2], np.diff(offsets))
  expected = _slow_spread([(i, *dot) for i, dot in zip(image, dots)], 3)
  found = glyphs._spread(dots, offsets)
  np.testing.assert_allclose(found, expected, atol=1e-5)


def test_no_stroke_is_cut_off_at_the_edge(monkeypatch):
  seen, spread = [], glyphs._spread
  monkeypatch.setattr(
    glyphs, '_spread', lambda dots, o: seen.append(dots) or spread(dots, o)
  )
  for number in range(60):
    raw = glyphs.Writer(3, number, 'all_train', 62, 0.5)
    glyphs.decode(raw, glyphs.FEATURES)
  x, y, dark = np.concatenate(seen).T
  assert len(x) > 100_000
  # Pixels -1 and 28 would get ink within `dark` of a dot.
  for at in (x, y):
    assert (at - dark).min() > -1.001
    assert (at + dark).max() < 28.001
  # And the images are no smaller than they need be.
  assert (x - dark).min() < 1


def test_every_character_is_drawn_in_one_piece_per_stroke():
  table = strokes.table()
  for weights in (table.curve, table.straight):
    np.testing.assert_allclose(weights.sum(1), 1, atol=1e-12)
  assert len(table.way_offsets) == 63
  assert np.diff(table.way_offsets).min() >= 1
  for way in range(len(table.dot_offsets) - 1):
    dots = slice(table.dot_offsets[way], table.dot_offsets[way + 1])
    points = slice(table.point_offsets[way], table.point_offsets[way + 1])
    near = table.points[points][table.nearest[dots]]
    at = (table.curve[dots, :, None] * near).sum(1)
    # Each point of the table is on the curve.
    distance = np.linalg.norm(table.points[points][:, None] - at, axis=2)
    assert distance.min(1).max() < 1e-9
    # A gap between dots is one between strokes, which begin with a point.
    gap = np.linalg.norm(np.diff(at, axis=0), axis=1)
    begins = distance.min(0)[1:] < 1e-9
    assert begins[gap > 1.4].all()


def _centroids(x, label, num):
  return np.stack([x[label == i].mean(0) for i in range(num)])


def _nearest(x, centroids):
  return ((x[:, None] - centroids) ** 2).sum(2).argmin(1)


def test_classes_are_learned_from_other_writers():
  source = glyphs.source(5, num_clients=60, num_examples=6000)
  clients = _clients(source, 'all_train')
  x, label = _stacked(clients[:45])
  centroids = _centroids(x.reshape(-1, 784), label, 62)
  x, label = _stacked(clients[45:])
  found = _nearest(x.reshape(-1, 784), centroids)
  # The crudest classifier there is; at random it is right in 1 of 62.
  assert (found == label).mean() > 0.5
  right = [(found == label)[label == i].mean() for i in range(62)]
  assert np.min(right) > 3 / 62


def _manner(pixels):
  """Slant, ink, softness and size of the characters, on average."""
  ink = 1 - pixels.astype(np.float64)
  mass = ink.sum(axis=(1, 2))
  y, x = np.mgrid[:28, :28]
  mean = lambda what: (ink * what).sum(axis=(1, 2)) / mass
  dx = x - mean(x)[:, None, None]
  dy = y - mean(y)[:, None, None]
  slant = mean(dx * dy) / mean(dy * dy)
  dark = (ink > 0.9).sum(axis=(1, 2)) / (ink > 0).sum(axis=(1, 2))
  size = np.sqrt(mean(dy * dy))
  return np.stack([slant, mass, dark, size], 1)


def test_writers_are_known_by_their_manner(writers):
  train, test = ([_manner(c['pixels']) for _, c in part] for part in writers)
  spread = np.concatenate(train).std(0)
  known = np.stack([m.mean(0) for m in train]) / spread
  found = [_nearest(m.mean(0)[None] / spread, known)[0] for m in test]
  # At random one of 40 is right on average, and 8 in less than 1e-5 of cases.
  assert (np.array(found) == np.arange(40)).sum() >= 8


def _excess(class_skew):
  """Chi-squared of labels over its expectation if all writers are alike."""
  source = glyphs.source(
    2, num_clients=30, num_examples=3000, class_skew=class_skew
  )
  counts = np.stack(
    [
      np.bincount(c['label'], minlength=62)[:10]
      for _, c in _clients(source, 'digits_only_train')
    ]
  )
  expected = counts.sum(1, keepdims=True) * counts.sum(0) / counts.sum()
  return ((counts - expected) ** 2 / expected).sum() / (29 * 9)


def test_writers_prefer_classes_as_the_skew_says():
  # Without skew chi-squared over its 261 degrees of freedom is 1 +- 0.09.
  none, some, much = (_excess(skew) for skew in (0.0, 0.5, 1.0))
  assert abs(none - 1) < 5 * 0.09
  assert 1.5 < some < much


def test_digits_capitals_and_small_letters_have_their_shares():
  raw = glyphs.Writer(0, 0, 'all_train', 20_000, 0.0)
  label = glyphs._labels(raw, (np.arange(20_000) + 0.5) / 20_000)
  counts = np.bincount(label, minlength=62) / 20_000
  expected = np.repeat([0.0495, 0.27 / 26, 0.235 / 26], [10, 26, 26])
  np.testing.assert_allclose(counts, expected, atol=1e-4)
  digits = raw._replace(split='digits_only_test')
  label = glyphs._labels(digits, (np.arange(20_000) + 0.5) / 20_000)
  np.testing.assert_allclose(np.bincount(label) / 20_000, 0.1, atol=1e-4)


def test_a_flat_list_of_pixels_can_be_asked_for():
  raw = glyphs.Writer(0, 0, 'all_train', 3, 0.5)
  flat = glyphs.decode(raw, {'pixels': (np.float32, (784,))})
  square = glyphs.decode(raw, glyphs.FEATURES)
  np.testing.assert_array_equal(
    flat['pixels'], square['pixels'].reshape(3, 784)
  )
  with pytest.raises(ValueError, match="no feature 'author'"):
    glyphs.decode(raw, {'author': (np.int32, ())})


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ({'seed': -1}, r'seed=-1; give an integer'),
    ({'num_clients': 0}, r'num_clients=0 is not in \[1, 1000000\]'),
    ({'num_clients': 1_000_001}, 'num_clients=1000001'),
    ({'num_clients': 10, 'num_examples': 164}, r'164 is not in \[165, 2\^31\]'),
    ({'num_examples': (1 << 31) + 1}, 'num_examples=2147483649 is not'),
    ({'class_skew': -0.1}, r'class_skew=-0\.1 is not in \[0, 1\]'),
    ({'class_skew': float('nan')}, 'class_skew=nan is not'),
  ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    glyphs.source(**{'seed': 0} | arguments)


@pytest.mark.parametrize('num_clients', [1, 10, 999])
def test_at_the_smallest_size_every_writer_has_an_image(num_clients):
  least = math.ceil(num_clients * 671_585 / 40_832)
  source = glyphs.source(0, num_clients=num_clients, num_examples=least)
  for split, (clients, examples) in source.splits.items():
    found = list(source.read(split, glyphs.FEATURES, None))
    assert len(found) == clients
    assert sum(raw.num_images for _, raw in found) == examples
    assert min(raw.num_images for _, raw in found) >= 1


def test_an_unknown_split_is_refused():
  with pytest.raises(ValueError, match="there is no split 'train', only"):
    next(glyphs.source(0).read('train', glyphs.FEATURES, None))
