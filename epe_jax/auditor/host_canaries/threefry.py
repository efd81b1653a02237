"""Threefry-2x32 in NumPy: the words of `epe_jax.canaries._threefry`."""

from typing import NamedTuple

from jaxtyping import UInt32
import numpy as np

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)  # Of the key schedule of Threefish, of 32 bits.


class Root(NamedTuple):
  """The two words that a generator is keyed by."""

  first: np.uint32
  second: np.uint32


def derive_root(key: Root, purpose: int) -> Root:
  """Derives the generator of one purpose from a key, as JAX does from its own.

  Args:
    key: the two words of a key, those of `jax.random.wrap_key_data`.
    purpose: a number that each family of canaries has for itself.
  """
  zero, one = np.zeros(1, np.uint32), np.ones(1, np.uint32)
  # jax.random.fold_in encrypts the purpose; of jax.random.bits word i is both
  # words of counter i, in one.
  folded = Root(*(word[0] for word in draw_words(key, zero, purpose * one)))
  counters = np.arange(2, dtype=np.uint32)
  a, b = draw_words(folded, np.zeros(2, np.uint32), counters)
  bits = a ^ b
  return Root(bits[0], bits[1])


def draw_words(
  root: Root, low: UInt32[np.ndarray, ' n'], high: UInt32[np.ndarray, ' n']
) -> tuple[UInt32[np.ndarray, ' n'], UInt32[np.ndarray, ' n']]:
  """Draws the two words of each counter (low, high), in 20 rounds.

  Args:
    root: the generator.
    low: first words of the counters.
    high: second words of the counters.

  References:
    Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3".

  >>> zero = np.zeros(1, np.uint32)
  >>> a, b = draw_words(Root(zero[0], zero[0]), zero, zero)
  >>> f'{a[0]:x} {b[0]:x}'  # The first known answer that the authors give.
  '6b200159 99ba4efe'
  """
  keys = (root.first, root.second, root.first ^ root.second ^ _PARITY)
  a, b = low + keys[0], high + keys[1]
  shifted = np.empty_like(b)
  for i in range(5):
    for bits in _ROTATIONS[i % 2]:
      a += b
      np.left_shift(b, np.uint32(bits), out=shifted)
      b >>= np.uint32(32 - bits)
      b |= shifted
      b ^= a
    a += keys[(i + 1) % 3]
    # In an array, where sums are modulo 2^32 without a warning.
    b += keys[(i + 2) % 3]
    b += np.uint32(i + 1)
  return a, b
