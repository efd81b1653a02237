"""Threefry-2x32: random words as a function of a key and a counter; for NumPy and JAX.

A word can be drawn without those before it, so canaries are made piece by piece, in any order, on any
device, and made again when they are next needed. The rounds are written out, so that
XLA fuses them, and what is done with the words, into one pass with no array in
between. Both words of a pair are used.

A sign is one bit, XORed into the sign bit of a float. 64 signs come from the two words
of one counter. A tile is 64 x n coordinates for n counters, its lanes: coordinate
(row, word, half, lane), row-major, of 16 rows, 2 words, 2 halves and n lanes has the
sign of bit 16 half + row of that word of that lane. So lanes lie side by side in
memory, and so do the 4 n coordinates of a row, which is what a sum over rows wants.
"""

from typing import Any, NamedTuple

from jaxtyping import Int, UInt32
import numpy as np

SPHERE, HADAMARD, HADAMARD2 = 1, 2, (3, 4, 7)
"""Purposes of the generators of families."""
ORDER = 4096
"""The coordinates of a row, and the largest order B of a Hadamard matrix."""
ROWS = 16
ALL_ROWS = np.arange(ROWS)[:, None, None, None]
LANES = ORDER // 4
TILE = ROWS * ORDER
"""Coordinates whose signs are made together."""
SIGN = np.uint32(0x80000000)

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)  # Of the key schedule of Threefish, of 32 bits.


class Root(NamedTuple):
  """The two uint32 words that a generator is keyed by; traced or not."""

  first: Any
  second: Any


def draw_words(
  root: Root, low: UInt32[Any, '*a'], high: UInt32[Any, '*b']
) -> tuple[UInt32[Any, '*c'], UInt32[Any, '*c']]:
  """Draws the two independent uniform words of each counter, in 20 rounds.

  Args:
    root: the generator.
    low: first words of the counters; not a NumPy scalar, which would overflow.
    high: second words of the counters; broadcasts against low.

  References:
    Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3".

  >>> zero = np.zeros(1, np.uint32)
  >>> a, b = draw_words(Root(zero[0], zero[0]), zero, zero)
  >>> f'{a[0]:x} {b[0]:x}'  # The first known answer that the authors give.
  '6b200159 99ba4efe'
  """
  keys = root.first, root.second, root.first ^ root.second ^ _PARITY
  a, b = low + keys[0], high + keys[1]
  for i in range(5):
    for bits in _ROTATIONS[i % 2]:
      a = a + b
      b = a ^ ((b << np.uint32(bits)) | (b >> np.uint32(32 - bits)))
    a = a + keys[(i + 1) % 3]
    b = b + keys[(i + 2) % 3] + np.uint32(i + 1)
  return a, b


def count_shifts(row: int | Int[np.ndarray, 'rows=16 1 1 1']) -> np.ndarray:
  """By how much the words of a tile are shifted left for the signs of one row, or all.

  Of the word w of lane l, (word[w, l] << shift[h]) & SIGN is that of (row, w, h, l).
  """
  return (31 - row - ROWS * np.arange(2)[:, None]).astype(np.uint32)


def compute_order(dim: int) -> int:
  """Returns B: 4096, or the largest power of two that is at most d."""
  return min(ORDER, 1 << (dim.bit_length() - 1))


def check_sizes(num: int, dim: int, block: int = 1) -> None:
  """Raises a ValueError unless k >= 1, d >= 2 and canaries held at once >= 1."""
  if num < 1:
    raise ValueError(f'num={num} canaries; give num >= 1.')
  if dim < 2:
    raise ValueError(
      f'dim={dim}: a cosine needs d >= 2 parameters; audit a larger model.'
    )
  if block < 1:
    raise ValueError(f'block={block} canaries at a time; give block >= 1.')
