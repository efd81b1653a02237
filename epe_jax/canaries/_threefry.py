"""Threefry-2x32: random words as a function of a key and a counter.

A word can be drawn without those before it, so canaries are made piece by
piece, in any order, on any device, and made again when they are next needed.
The rounds are written out, so that XLA fuses them, and what is done with the
words, into one pass with no array in between. Both words of a pair are used.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import UInt32

from epe_jax.types import Array, Key

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA  # Of the key schedule of Threefish, of 32 bits.


class Root(NamedTuple):
  """The two words that a generator is keyed by; traced or not."""

  first: UInt32[Array, '']
  second: UInt32[Array, '']


def derive_root(key: Key, purpose: int) -> Root:
  """Derives the generator of one purpose from a key.

  Args:
    key: the canary key, of any implementation; may be traced.
    purpose: a number that each family of canaries has for itself, so that two
      families with one key share no words.

  Raises:
    ValueError: key is no key of JAX.
  """
  if not isinstance(key, jax.Array):
    raise ValueError(
      f'key={key!r} is no key; give one of JAX, such as jax.random.key(0).'
    )
  bits = jax.random.bits(jax.random.fold_in(key, purpose), (2,), jnp.uint32)
  return Root(bits[0], bits[1])


def draw_words(
  root: Root, low: UInt32[Array, '*a'], high: UInt32[Array, '*b']
) -> tuple[UInt32[Array, '*c'], UInt32[Array, '*c']]:
  """Draws the two words of each counter (low, high), in 20 rounds.

  Args:
    root: the generator.
    low: first words of the counters.
    high: second words of the counters; broadcasts against low.

  Returns:
    Two independent uniform words for each counter.

  References:
    Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3".

  >>> zero = jnp.uint32(0)
  >>> a, b = draw_words(Root(zero, zero), zero, zero)
  >>> f'{a:x} {b:x}'  # The first known answer that the authors give.
  '6b200159 99ba4efe'
  """
  keys = (
    root.first,
    root.second,
    root.first ^ root.second ^ jnp.uint32(_PARITY),
  )
  a, b = low + keys[0], high + keys[1]
  for i in range(5):
    for bits in _ROTATIONS[i % 2]:
      a = a + b
      b = a ^ ((b << jnp.uint32(bits)) | (b >> jnp.uint32(32 - bits)))
    a = a + keys[(i + 1) % 3]
    b = b + keys[(i + 2) % 3] + jnp.uint32(i + 1)
  return a, b
