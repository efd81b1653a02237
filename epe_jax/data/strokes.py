"""Handwriting as strokes: curves through points of a table.

A character can be written in several ways, a way is a few strokes, and a
stroke is a row of dots, each a mean of the four points that are nearest along
it. So whoever moves points moves the dots by the same weights.
"""

import functools
import itertools
import math
from typing import NamedTuple

import numpy as np

CHARACTERS = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz'
"""The character of each label, in EMNIST's order."""

# Ways to write each character, separated by '|', of strokes, separated by ','.
# A point is two digits of base 36: x to the right, y down, capitals from 0 to
# 18 (i), small letters from 6; a point written twice is a corner, and in a
# stroke that begins with '-' every point is.
_TABLE = {
  '0': '50 13 09 1f 5i 9f a9 93 50|60 11 0a 3h 8h a8 81 40|'
  '50 13 09 1f 5i 9f a9 93 50,-92 1g',
  '1': '-14 60 6i|-14 60 6i,-1i bi',
  '2': '04 21 60 a2 a6 6b 0i 0i bi|04 21 60 a2 a6 6c 1h 0f 3e 7h bh',
  '3': '02 40 91 a4 88 49 49 89 bc ag 5i 0g|00 00 a0 a0 47 47 98 bc ag 5i 0g',
  '4': '-10 0b ab,-80 8i|-8i 80 0c bc',
  '5': 'a0 a0 20 20 18 18 67 bb ag 5i 0g',
  '6': '90 43 19 1f 5i ag ab 69 2b 1e|60 25 0c 1g 5i 9g 9c 6a 3b 1d',
  '7': '-00 b0 4i|-00 b0 4i,-29 a9|03 01 30 80 b0 b0 67 4i',
  '8': '92 50 13 37 8b af 5i 0f 2b 87 a3 92|'
  '50 21 14 27 58 87 94 81 50,58 1a 0d 1g 5i 9g ad 9a 58',
  '9': 'a3 60 12 17 59 97 a2 a2 9c 7i|a3 60 12 17 59 97 a3,-a1 ai',
  'A': '-0i 60 ci,-2c ac|0i 18 40 80 b8 ci,-0b cb',
  'B': '-00 0i,00 70 a3 a6 78 09 09 8a cd cf 8i 0i',
  'C': 'b3 80 41 06 0c 4h 8i cf',
  'D': '-00 0i,00 60 b3 c9 bf 6i 0i',
  'E': '-b0 00 0i bi,-09 99|a2 60 13 38 69 69 2a 0e 3i bg',
  'F': '-b0 00 0i,-09 89',
  'G': 'b3 80 41 06 0c 4h 8i cf ca ca 6a|b2 60 15 0c 3h 7i cf,-7b eb,-cb ci',
  'H': '-00 0i,-b0 bi,-09 b9',
  'I': '-50 5i,-00 a0,-0i ai|-50 5i,-20 80,-2i 8i',
  'J': '90 9c 8g 4i 0f,-40 e0|90 9c 8g 4i 0f',
  'K': '-00 0i,-b0 0b,-38 bi|-00 0i,-b0 09 bi',
  'L': '-00 0i ai',
  'M': '-0i 10 7c d0 ei|-0i 00 7b e0 ei',
  'N': '-0i 00 bi b0|-00 0i,-00 bi,-b0 bi',
  'O': '60 21 06 0c 3h 6i 9h cc c6 a1 60',
  'P': '-00 0i,00 70 b2 b7 7a 0a',
  'Q': '60 21 06 0c 3h 6i 9h cc c6 a1 60,-7d dj',
  'R': '-00 0i,00 70 b2 b6 79 09,-59 bi',
  'S': 'b2 70 21 05 38 9a cd ag 5i 0g',
  'T': '-00 c0,-60 6i',
  'U': '00 0c 3h 6i 9h cc c0',
  'V': '-00 6i c0',
  'W': '-00 3i 75 bi e0|00 1d 3i 6g 75 75 8g bi dc e0',
  'X': '-00 bi,-b0 0i',
  'Y': '-00 69 6i,-c0 69|-00 69,-c0 3i',
  'Z': '-00 b0 0i bi|-00 b0 0i bi,-29 99',
  'a': '98 56 18 0d 2h 5i 9e,96 9f bi|18 36 76 99 9i,9b 4b 0e 1h 5i 9f',
  'b': '-00 0i,0a 37 67 9a 9e 6i 3i 0f',
  'c': '98 66 28 0c 2g 5i 9g',
  'd': '98 56 18 0d 2h 5i 9e,-90 9i|98 56 18 0d 2h 5i 9e,90 9f bi',
  'e': '0c 0c 5c 9b 87 56 18 0d 2h 6i 9g',
  'f': '92 70 42 36 3i,-07 87|92 70 42 36 3h 2n 0o,-07 87',
  'g': '98 56 18 0c 2g 5h 9d,96 9i 7n 3o 0m|'
  '56 27 19 2b 5c 8b 99 87 56,-87 a6,3c 1e 4g 8h 9k 7n 3n 1l 2i 4g',
  'h': '-00 0i,0b 37 66 99 9i',
  'i': '-56 5i,-51 52|56 5f 6i 8h,-51 52',
  'j': '66 6i 5n 2o 0m,-61 62',
  'k': '-00 0i,-86 0d,-3b 9i',
  'l': '-50 5i|50 5e 6i 9h|2f 89 93 60 43 4d 6i ag',
  'm': '-06 0i,0a 36 66 79 7i,7a a6 d6 e9 ei',
  'n': '-06 0i,0a 36 66 99 9i',
  'o': '56 28 0c 2g 5i 8g ac 88 56',
  'p': '-06 0o,0a 36 66 9a 9e 6i 3i 0e',
  'q': '98 56 18 0d 2h 5i 9e,-96 9o cl|98 56 18 0d 2h 5i 9e,-96 9o,-6l cl',
  'r': '-06 0i,0b 37 66 97',
  's': '97 56 17 19 4b 8d 9g 5i 0g',
  't': '41 4f 6i 9h,-06 86|-41 4i,-06 96',
  'u': '06 0e 2i 5i 9e,-96 9i|06 0e 2i 5i 9e,96 9f bi',
  'v': '-06 4i 86|06 2e 4i 6e 86 96',
  'w': '-06 3i 69 9i c6|06 0e 3i 6f 69 69 6f 9i ce c6',
  'x': '-06 8i,-86 0i|07 26 5c 8i ah,-96 0i',
  'y': '-06 5h,-a6 2o|06 0d 3h 6h 9d,96 9i 7n 3o 0m',
  'z': '-06 86 0i 8i|-06 86 0i 8i,-1c 8c',
}
_SAMPLE = 0.7  # distance of the dots of a pen, in units of the table


class Strokes(NamedTuple):
  """All ways to write all characters, as dots along curves through points."""

  points: np.ndarray  # float64 [points, 2]
  point_offsets: np.ndarray  # int64 [ways + 1]
  nearest: np.ndarray  # int64 [dots, 4]: among the points of the way
  curve: np.ndarray  # float64 [dots, 4]: weights of the nearest, round
  straight: np.ndarray  # float64 [dots, 4]: and along straight lines
  dot_offsets: np.ndarray  # int64 [ways + 1]
  way_offsets: np.ndarray  # int64 [62 + 1]: ways of the characters


@functools.cache
def table() -> Strokes:
  """All ways to write the characters 0-9, A-Z and a-z."""
  points, nearest, t = [], [], []
  point_offsets, dot_offsets, way_offsets = [0], [0], [0]
  for character in CHARACTERS:
    for way in _TABLE[character].split('|'):
      for stroke in way.split(','):
        base = len(points) - point_offsets[-1]
        found, dots = _stroke(stroke)
        points += found
        nearest += [[base + i for i in at] for at, _ in dots]
        t += [t for _, t in dots]
      point_offsets.append(len(points))
      dot_offsets.append(len(t))
    way_offsets.append(len(point_offsets) - 1)
  t = np.array(t)
  zero, t2, t3 = 0 * t, t * t, t * t * t
  curve = [-t + 2 * t2 - t3, 2 - 5 * t2 + 3 * t3, t + 4 * t2 - 3 * t3, t3 - t2]
  return Strokes(
    np.array(points, np.float64),
    np.array(point_offsets),
    np.array(nearest),
    np.stack(curve, 1) / 2,
    np.stack([zero, 1 - t, t, zero], 1),
    np.array(dot_offsets),
    np.array(way_offsets),
  )


def _stroke(text: str) -> tuple[list, list]:
  """Points [x, y] and dots ([four points], where between the inner two)."""
  points, path = [], []
  for token in text.removeprefix('-').split():
    point = [int(digit, 36) for digit in token]
    if not points or point != points[-1]:
      points.append(point)
    # A curve through a point twice has a corner there.
    path += [len(points) - 1] * (2 if text[0] == '-' else 1)
  dots, last = [], len(path) - 1
  for j, (a, b) in enumerate(itertools.pairwise(path)):
    if a != b:
      at = [path[max(j - 1, 0)], a, b, path[min(j + 2, last)]]
      squares = [(p - q) ** 2 for p, q in zip(points[a], points[b])]
      n = math.ceil(math.sqrt(sum(squares)) / _SAMPLE)
      dots += [(at, i / n) for i in range(n)]
  return points, [*dots, (dots[-1][0], 1.0)]
