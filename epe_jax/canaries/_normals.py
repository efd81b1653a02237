"""Standard normals from random words, by the method of Box and Muller.

A radius sqrt(-2 log u) and an angle make two independent normals from two
words. The angle needs no sine of a general argument: the quadrant is two signs,
two bits of the word, and within a quadrant it is pi/4 + a with |a| <= pi/4,
where short Taylor series of sin(a) and cos(a) are exact to float32.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Complex, Float, Int, UInt32

from epe_jax.canaries import _threefry
from epe_jax.parallel.barrier import fusion_barrier
from epe_jax.types import Array

_SIGN = 0x80000000
_PIECE = 4096  # Pairs that are made at once: they stay in the cache.
# Of sin(pi t / 4) / t and cos(pi t / 4) in t^2; what is left out is < 3e-8.
_SIN = [(-1) ** i * (math.pi / 4) ** n / math.factorial(n)
        for i, n in enumerate(range(1, 10, 2))]  # fmt: skip
_COS = [(-1) ** i * (math.pi / 4) ** n / math.factorial(n)
        for i, n in enumerate(range(0, 10, 2))]  # fmt: skip


def draw_normals(root: _threefry.Root, dim: int) -> Float[Array, ' d']:
  """Draws d independent N(0, 1), on a CPU many times as fast as `jax.random`.

  Args:
    root: generator of the words.
    dim: d >= 1, below 2^32.
  """
  pieces = -(-dim // (2 * _PIECE))

  def draw_piece(i: Int[Array, '']) -> Float[Array, 'two=2 p']:
    def make() -> Complex[Array, ' p']:
      low = jnp.arange(_PIECE, dtype=jnp.uint32)
      low = low + (i * _PIECE).astype(jnp.uint32)
      words = _threefry.draw_words(root, low, jnp.zeros_like(low))
      # As one array: two would each have both words computed for them.
      return jax.lax.complex(*convert_to_normals(*words))

    z = fusion_barrier(i >= 0, make)
    return jnp.stack([z.real, z.imag])

  return jax.lax.map(draw_piece, jnp.arange(pieces)).ravel()[:dim]


def convert_to_normals(
  first: UInt32[Array, '*s'], second: UInt32[Array, '*s']
) -> tuple[Float[Array, '*s'], Float[Array, '*s']]:
  """Converts two independent uniform words to two independent N(0, 1).

  Magnitudes end at 6.7, beyond which a normal lies once in 5e10 times. The two
  are never both 0, so that even a vector of two entries has a direction.

  Args:
    first: gives the radius.
    second: gives the angle.

  Returns:
    Two arrays of the shape of the words, float32, each entry within 1e-6 of its
    value in exact arithmetic.

  References:
    Box and Muller 1958, "A Note on the Generation of Random Normal Deviates".
  """
  # Conversion of signed integers is one instruction, hence 31 bits of them.
  u = _convert_signed(first >> jnp.uint32(1)) * 2.0**-31 + 2.0**-32
  # cos and sin of pi/4 + a are (cos a -+ sin a) / sqrt 2: its square, 1/2,
  # makes -2 log u to -log u. The small number is there for u = 1.
  radius = jnp.sqrt(2.0**-27 - jnp.log(u))
  t = _convert_signed(second << jnp.uint32(2)) * 2.0**-31
  sin, cos = (
    t * _evaluate_polynomial(_SIN, t * t),
    _evaluate_polynomial(_COS, t * t),
  )
  return (
    _apply_sign(radius * (cos - sin), second),
    _apply_sign(radius * (cos + sin), second << jnp.uint32(1)),
  )


def _convert_signed(word: UInt32[Array, '*s']) -> Float[Array, '*s']:
  return jax.lax.bitcast_convert_type(word, jnp.int32).astype(jnp.float32)


def _evaluate_polynomial(
  coefficients: list[float], x: Float[Array, '*s']
) -> Float[Array, '*s']:
  total = jnp.float32(coefficients[-1])
  for c in coefficients[-2::-1]:
    total = total * x + jnp.float32(c)
  return total


def _apply_sign(
  x: Float[Array, '*s'], word: UInt32[Array, '*s']
) -> Float[Array, '*s']:
  """Negates x where the highest bit of the word is set."""
  bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
  return jax.lax.bitcast_convert_type(
    bits ^ (word & jnp.uint32(_SIGN)), jnp.float32
  )
