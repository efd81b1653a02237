"""Handwriting-like characters by writers that do not exist (synthetic).

A character is a few strokes, curves through points (`strokes`). A
writer bends the points in a way of their own, and slants, squeezes and rotates
the plane; every image bends them once more. Along the strokes a pen of the
writer's width is put down, and a pixel is as dark as the nearest of its dots
makes it.
"""

from collections.abc import Iterator, Mapping
import functools
import math
from typing import NamedTuple

import numpy as np

from epe_jax import streams
from epe_jax.data import chance, example_proto, sources, strokes

FEATURES: example_proto.Features = {
  'pixels': (np.float32, (28, 28)),
  'label': (np.int32, ()),
}
"""Of an image; as TFF's EMNIST has them."""

# Writers and images of EMNIST's splits.
_SPLITS = {
  'all_train': (3_400, 671_585),
  'all_test': (3_400, 77_483),
  'digits_only_train': (3_383, 341_873),
  'digits_only_test': (3_383, 40_832),
}
_MAX_SHIFT = 1.75  # of an image from the middle, in pixels
_BLOCK = 128  # images drawn at once, so that what they need stays in a cache


class Writer(NamedTuple):
  """What `decode` draws: the images of a writer in a split."""

  seed: int
  number: int
  split: str
  num_images: int
  class_skew: float


class _Style(NamedTuple):
  """How a writer writes."""

  points: np.ndarray  # float64 [points, 2], in pixels
  way: np.ndarray  # int64 [62]
  weights: np.ndarray  # float64 [dots, 4]
  tilt: float  # tan of half the angle
  radius: float  # of the pen, in pixels
  softness: float  # half the width of the edge of a stroke, in pixels
  wobble: float  # standard deviation of points between images, in pixels
  roughness: float  # and of the radius, along a stroke
  grain: float  # share of ink that may be missing in a pixel


def source(
  seed: int,
  *,
  num_clients: int = 3_400,
  num_examples: int = 671_585,
  class_skew: float = 0.5,
) -> sources.Source:
  """Images of 62 characters by synthetic writers, drawn as they are read.

  As large as federated EMNIST and of its form: background 1, ink 0, multiples
  of 1/255; digits, capitals and small letters in shares of .495, .27 and .235.
  A writer is the same in all splits, and an image depends only on the seed, the
  writer, the split, class_skew and its number among the writer's: fewer images
  are the first of more. The same bits come out on every machine.

  Args:
    seed: >= 0, of any size.
    num_clients: writers of 'all_train' and 'all_test', from 1 to 1,000,000. The
      digits are by the first 3383/3400 of them.
    num_examples: images of 'all_train', at most 2^31. The other splits have
      them in the proportions of EMNIST, and every writer one or more.
    class_skew: standard deviation of the logarithms of a writer's preferences
      among characters, in [0, 1]; 0 for none.

  Returns:
    A source with the FEATURES and the splits all_train, all_test,
    digits_only_train and digits_only_test. At the default sizes they have
    EMNIST's 671,585, 77,483, 341,873 and 40,832 images.

  Raises:
    ValueError: if an argument is out of its range.

  >>> glyphs = source(0, num_clients=3, num_examples=60)
  >>> writer, raw = next(glyphs.read('all_train', FEATURES, None))
  >>> writer, glyphs.decode(raw, FEATURES)['pixels'].shape[1:]
  ('writer0', (28, 28))
  """
  streams.check_root(seed)
  if not 1 <= num_clients <= 1_000_000:
    raise ValueError(
      f'num_clients={num_clients} is not in [1, 1000000]. Use e.g. 3400.'
    )
  if not 0 <= class_skew <= 1:
    raise ValueError(
      f'class_skew={class_skew} is not in [0, 1]. Use e.g. 0.5, or 0 for none.'
    )
  all_clients, all_examples = _SPLITS['all_train']
  # The split with the fewest images is the first without one for each writer.
  least = -(-num_clients * all_examples // _SPLITS['digits_only_test'][1])
  if not least <= num_examples <= 1 << 31:
    raise ValueError(
      f'num_examples={num_examples} is not in [{least}, 2^31], where each of '
      f'num_clients={num_clients} has an image in every split. Choose another '
      'of the two.'
    )
  splits = {
    name: (
      max(1, num_clients * clients // all_clients),
      num_examples * examples // all_examples,
    )
    for name, (clients, examples) in _SPLITS.items()
  }
  return sources.Source(
    name=(
      f'glyphs (synthetic, version 2), seed={seed}, num_clients={num_clients}, '
      f'num_examples={num_examples}, class_skew={class_skew}'
    ),
    splits={name: sources.Split(*split) for name, split in splits.items()},
    read=functools.partial(_read, seed, splits, class_skew),
    decode=decode,
    features=FEATURES,
  )


def decode(raw: Writer, features: example_proto.Features) -> sources.Columns:
  """Draws the images of a writer; see `sources.Source`."""
  n, style = raw.num_images, _style(raw.seed, raw.number)
  parts = [
    _block(raw, style, number, min(_BLOCK, n - start))
    for number, start in enumerate(range(0, n, _BLOCK))
  ]
  label, pixels = map(np.concatenate, zip(*parts))
  return sources.decode_columns({'pixels': pixels, 'label': label}, features)


def _read(
  seed: int,
  splits: Mapping[str, tuple[int, int]],
  class_skew: float,
  split: str,
  features: example_proto.Features,
  after: str | None,
) -> Iterator[tuple[str, Writer]]:
  """The writers of a split; see `sources.Source`."""
  del features
  if split not in splits:
    raise ValueError(
      f'there is no split {split!r}, only {sorted(splits)}. Choose one of them.'
    )
  num_clients, num_examples = splits[split]
  place = (list(_SPLITS).index(split),)
  raw = chance.bits(seed, 'glyph sizes', place, num_clients)
  weights = chance.exp(0.45 * chance.normal(raw)) * (1 << 16)
  sizes = chance.shares(num_examples, weights.astype(np.int64))
  # Leading zeros, so that writers sort as their numbers do.
  width = len(str(splits['all_train'][0] - 1))
  for number, size in enumerate(sizes.tolist()):
    name = f'writer{number:0{width}}'
    if after is None or name > after:
      yield name, Writer(seed, number, split, size, class_skew)


def _block(
  raw: Writer, style: _Style, number: int, n: int
) -> tuple[np.ndarray, np.ndarray]:
  """The first images of a block: labels [n] and pixels [n, 28, 28]."""
  split = list(_SPLITS).index(raw.split)
  bits = lambda purpose, num: chance.bits(
    raw.seed, f'glyph {purpose}', (raw.number, split, number), num
  )
  # Every image has a row of bits, so that fewer images are the first of more.
  most = int(np.diff(strokes.table().point_offsets).max())
  own = bits('images', n * (6 + 3 * most)).reshape(n, -1)
  label = _labels(raw, chance.uniform(own[:, 0]))
  bends = _smoothed(chance.normal(own[:, 6:]).reshape(n, most, 3))
  x, y, pressure, offsets = _curves(style, label, bends)
  rough = chance.normal(bits('dots', len(x)))
  radius = style.radius * (1 + 0.1 * pressure) + style.roughness * rough
  # However light the pen, the stroke is seen.
  dark = np.maximum(radius, 0.4) + style.softness
  room = 14.5 - _MAX_SHIFT - np.maximum.reduceat(dark, offsets[:-1])
  x, y = _placed(style, x, y, offsets, room, chance.normal(own[:, 1:6]))
  ink = _spread(np.stack([x, y, dark], 1).astype(np.float32), offsets)
  ink = np.minimum(ink * np.float32(0.5 / style.softness), 1)
  noise = bits('grain', n * 98).astype('<u8', copy=False).view(np.uint8)
  ink *= 1 - np.float32(style.grain / 255) * noise.reshape(n, 28, 28)
  return label, (255 - np.rint(ink * 255)) / 255


def _labels(raw: Writer, chances: np.ndarray) -> np.ndarray:
  """The characters that a writer writes, int32 [n]."""
  z = chance.normal(
    chance.bits(raw.seed, 'glyph preferences', (raw.number,), 62)
  )
  common = np.repeat([0.0495, 0.27 / 26, 0.235 / 26], [10, 26, 26])
  weights = common * chance.exp(raw.class_skew * z) * (1 << 30)
  if raw.split.startswith('digits_only'):
    weights = weights[:10]
  ends = np.cumsum(weights.astype(np.int64))
  drawn = (chances * ends[-1]).astype(np.int64)
  return np.searchsorted(ends, drawn, side='right').astype(np.int32)


def _style(seed: int, number: int) -> _Style:
  table = strokes.table()
  z = chance.normal(chance.bits(seed, 'glyph styles', (number,), 16))
  size, width, slant = 1.1 + 0.07 * z[0], 0.95 + 0.1 * z[1], 0.14 + 0.16 * z[2]
  own = chance.normal(
    chance.bits(seed, 'glyph bends', (number,), table.points.size)
  )
  points = table.points + 0.9 * _smoothed(own.reshape(-1, 2))
  # The whole plane is bent too, so that the same is odd about all characters.
  x, y = (points[:, 0] - 6) / 9, (points[:, 1] - 9) / 9
  bend = 0.07 * z[3:9]
  x = x + bend[0] * y * y + bend[1] * x * y + bend[2] * y * y * y
  y = y + bend[3] * x * x + bend[4] * x * y + bend[5] * x
  x, y = 9 * size * width * x - 9 * size * slant * y, 9 * size * y
  counts = np.diff(table.way_offsets)
  choice = chance.uniform(chance.bits(seed, 'glyph ways', (number,), 62))
  tension = -0.05 + 0.13 * z[9]
  return _Style(
    points=np.stack([x, y], 1),
    way=table.way_offsets[:-1] + (choice * counts).astype(np.int64),
    weights=table.curve + tension * (table.straight - table.curve),
    tilt=float(0.025 * z[10]),
    radius=float(1.3 + 0.2 * z[11]),
    softness=float(0.65 + 0.07 * z[12]),
    wobble=float(0.8 + 0.15 * z[13]),
    roughness=float(0.05 * abs(z[14])),
    grain=float(max(0.0, 0.15 * z[15])),
  )


def _smoothed(bends: np.ndarray) -> np.ndarray:
  """Bends [..., points, _] more alike where points are neighbours."""
  return (bends + (bends + np.roll(bends, 1, -2)) + np.roll(bends, -1, -2)) / 4


def _curves(
  style: _Style, label: np.ndarray, bends: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
  """Dots of the images, one image after the other: x, y, pressure; offsets."""
  table, way = strokes.table(), style.way[label]
  counts = table.dot_offsets[way + 1] - table.dot_offsets[way]
  offsets = np.concatenate([[0], np.cumsum(counts)])
  within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
  dot = np.repeat(table.dot_offsets[way], counts) + within
  image = np.repeat(np.arange(len(way)), counts)
  first = table.point_offsets[way][image]
  x, y, pressure = np.zeros((3, len(dot)))
  for k in range(4):
    weight, near = style.weights[dot, k], table.nearest[dot, k]
    point, bend = style.points[first + near], bends[image, near]
    x += weight * (point[:, 0] + style.wobble * bend[:, 0])
    y += weight * (point[:, 1] + style.wobble * bend[:, 1])
    pressure += weight * bend[:, 2]
  return x, y, pressure, offsets


def _placed(
  style: _Style,
  x: np.ndarray,
  y: np.ndarray,
  offsets: np.ndarray,
  room: np.ndarray,
  z: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
  """Dots turned, stretched and put near the middle, so that all fit in."""
  image = np.repeat(np.arange(len(room)), np.diff(offsets))
  tilt = style.tilt + 0.03 * z[:, 0]
  scale = 1 / (1 + tilt * tilt)
  cos, sin = (scale * (1 - tilt * tilt))[image], (scale * 2 * tilt)[image]
  stretch = (1 + 0.04 * z[:, 1:3])[image]
  x, y = x * stretch[:, 0], y * stretch[:, 1]
  x, half_x = _centred(cos * x - sin * y, offsets, image)
  y, half_y = _centred(sin * x + cos * y, offsets, image)
  fit = np.minimum(1, room / np.maximum(np.maximum(half_x, half_y), 1))[image]
  # A normal number is below 3.5 here.
  shift = (13.5 + _MAX_SHIFT / 3.5 * z[:, 3:5])[image]
  return x * fit + shift[:, 0], y * fit + shift[:, 1]


def _centred(
  x: np.ndarray, offsets: np.ndarray, image: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Numbers around the middle of each image, and half their range."""
  low = np.minimum.reduceat(x, offsets[:-1])
  high = np.maximum.reduceat(x, offsets[:-1])
  return x - ((low + high) / 2)[image], (high - low) / 2


def _spread(dots: np.ndarray, offsets: np.ndarray) -> np.ndarray:
  """Ink of a pen put down on dots, float32 [images, 28, 28], 0 or more.

  A pixel gets from a dot (x, y, ink) the ink less the distance, in pixels, and
  has the most that it gets from any.
  """
  counts = np.diff(offsets)
  x, y, ink = dots.T
  reach = math.ceil(float(ink.max()) - 0.5)
  side = 28 + 2 * reach
  steps = np.arange(-reach, reach + 1, dtype=np.int32)
  column, row = np.rint(x), np.rint(y)
  dx = (column - x)[:, None] + steps.astype(np.float32)
  dy = (row - y)[:, None] + steps.astype(np.float32)
  gets = np.sqrt((dy * dy)[:, :, None] + (dx * dx)[:, None, :])
  np.subtract(ink[:, None, None], gets, out=gets)
  image = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
  corner = (image * side + row.astype(np.int32) + reach) * side
  corner += column.astype(np.int32) + reach
  place = corner[:, None, None] + (steps[:, None] * side + steps)
  sheet = np.zeros(len(counts) * side * side, np.float32)
  np.maximum.at(sheet, place.ravel(), gets.ravel())
  sheet = sheet.reshape(-1, side, side)
  return sheet[:, reach : reach + 28, reach : reach + 28]
