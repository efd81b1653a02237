"""The worst participant of a matrix mechanism with nested sums, as in a tree.

Each row of C is a number on consecutive rounds, and the rounds of two rows are
disjoint or nested. |C p|² = Σ_rows (number x rounds of p within)². A dynamic program
finds its largest value from small sums to large ones: what lies within a sum depends
on all else only by the number of rounds of p in it, and by how far the first and the
last of these are from its ends.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from jaxtyping import Bool, Float, Int
import numpy as np

Row = tuple[int, int, float]
"""The first round of a row of C, that after its last, and the square of its number."""


class _Part(NamedTuple):
  """Rounds that follow one another.

  Attributes:
    name: parts of one name are the same but for where they start.
    size: number of rounds.
    largest: |C p|² of the rows within, by the number n >= 1 of rounds of p, less one,
      and by how far the first and the last are from the ends at least.
    halves: the two parts that it consists of; None of one round.
  """

  name: int
  size: int
  largest: Float[np.ndarray, 'n w w']
  halves: 'tuple[_Part, _Part] | None'


def find_rows(c: Float[np.ndarray, 'n T']) -> list[Row] | None:
  """The rows of C, inner ones first; None if they are not nested sums."""
  rows, stops = [], []
  for row in c[c.any(axis=1)]:
    used = np.flatnonzero(row)
    start, stop = int(used[0]), int(used[-1]) + 1
    if np.ptp(row[start:stop]) > 1e-9 * abs(row[start]):
      return None
    rows.append((start, stop, float(row[start]) ** 2))
  for start, stop, _ in sorted(rows, key=lambda x: (x[0], -x[1])):
    while stops and stops[-1] <= start:
      stops.pop()
    if stops and stops[-1] < stop:
      return None
    stops.append(stop)
  return sorted(rows, key=lambda x: x[1] - x[0])


def find_worst(
  rows: Sequence[Row], places: Int[np.ndarray, ' T'], step: int, k: int
) -> Bool[np.ndarray, ' T']:
  """Finds up to k rounds p of the largest |C p|.

  Args:
    rows: as `find_rows` gives them.
    places: of rounds, falling nowhere, and rising by 1 at most from one to the next.
    step: >= 1, the least difference of the places of two rounds of p.
    k: >= 1.

  References:
    Kairouz et al. 2021, "Practical and Private (Deep) Learning without Sampling or
    Shuffling", appendix D.
  """
  known: dict[object, _Part] = {}

  # A tree has many parts of one kind; each is made once.
  def remember(key: object, make: Callable[[], _Part]) -> _Part:
    if key not in known:
      known[key] = make()._replace(name=len(known))
    return known[key]

  def join(start: int, a: _Part, b: _Part) -> _Part:
    inside = places[start : start + a.size + b.size] - places[start]
    return remember(
      (a.name, b.name, inside.tobytes()), lambda: _join(a, b, inside, step, k)
    )

  def weigh(part: _Part, square: float) -> _Part:
    counts = np.arange(1, len(part.largest) + 1)[:, None, None]
    return remember(
      (part.name, square),
      lambda: part._replace(largest=part.largest + square * counts**2),
    )

  # From 0 to the most that a neighbor may ask to be left free.
  has_ties = np.any(np.diff(places) == 0)
  width = step + 1 if has_ties else min(step, len(places))
  alone = np.full((1, width, width), -np.inf)
  alone[0, 0, 0] = 0
  single = remember('a round', lambda: _Part(0, 1, alone, None))
  part_at = dict.fromkeys(range(len(places)), single)
  for start, stop, square in [*rows, (0, len(places), 0.0)]:
    part = part_at[start]
    while start + part.size < stop:
      part = join(start, part, part_at[start + part.size])
    part_at[start] = weigh(part, square)
  return _trace(part_at[0], places, step)


def _join(
  a: _Part, b: _Part, places: Int[np.ndarray, ' T'], step: int, k: int
) -> _Part:
  """Two parts as one, of whose rounds p has some in one of them, or in both."""
  most = min(k, 1 + int(places[-1]) // step)
  size = min(most, len(a.largest) + len(b.largest))
  largest = np.full((size, *a.largest.shape[1:]), -np.inf)
  free = np.arange(a.largest.shape[1])
  last, first = _measure_others(a, places)
  largest[: len(a.largest)] = a.largest[:, :, np.maximum(free - last, 0)]
  of_second = largest[: len(b.largest)]
  others = b.largest[:, np.maximum(free - first, 0)]
  np.maximum(of_second, others, out=of_second)
  for n in range(1, min(len(a.largest), size - 1) + 1):
    others = b.largest[: size - n]
    of_both = largest[n : n + len(others)]
    for x, y in _list_gaps(a, places, step):
      sums = a.largest[n - 1, :, x, None] + others[:, None, y, :]
      np.maximum(of_both, sums, out=of_both)
  return _Part(0, a.size + b.size, largest, (a, b))


def _measure_others(a: _Part, places: Int[np.ndarray, ' T']) -> tuple[int, int]:
  """What is free after the first part, and before the second, without rounds there."""
  return int(places[-1] - places[a.size - 1]), int(places[a.size] - places[0])


def _list_gaps(
  a: _Part, places: Int[np.ndarray, ' T'], step: int
) -> list[tuple[int, int]]:
  """What may be free at the end of one part and at the start of the other."""
  gap = step - int(places[a.size] - places[a.size - 1])
  return [(x, gap - x) for x in range(gap + 1)]


def _trace(
  part: _Part, places: Int[np.ndarray, ' T'], step: int
) -> Bool[np.ndarray, ' T']:
  """The rounds whose |C p|² is the largest of a part."""
  pattern = np.zeros(part.size, bool)
  n = int(np.argmax(part.largest[:, 0, 0])) + 1
  todo = [(part, 0, n, 0, 0)]
  while todo:
    part, start, n, left, right = todo.pop()
    if part.halves is None:
      pattern[start] = True
      continue
    a, b = part.halves
    middle, inside = start + a.size, places[start : start + part.size]
    last, first = _measure_others(a, inside)
    after, before = max(right - last, 0), max(left - first, 0)
    ways = [
      *([[(a, start, n, left, after)]] if n <= len(a.largest) else []),
      *([[(b, middle, n, before, right)]] if n <= len(b.largest) else []),
      *(
        [(a, start, m, left, x), (b, middle, n - m, y, right)]
        for m in range(max(1, n - len(b.largest)), min(n, len(a.largest) + 1))
        for x, y in _list_gaps(a, inside, step)
      ),
    ]
    todo += max(
      ways, key=lambda way: sum(p.largest[m - 1, x, y] for p, _, m, x, y in way)
    )
  return pattern
