"""Random signs: one bit each, put where a float has its own.

64 signs come from the two words of one counter. A tile is 64 x n coordinates
for n counters: coordinate (row, word, half, lane), row-major, of 16 rows, 2
words, 2 halves and n lanes has the sign of bit 16 half + row of that word of
the counter of that lane. So lanes lie side by side in memory, and so do the 4 n
coordinates of a row, which is what a sum over rows wants.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int, UInt32
import numpy as np

from epe_jax.canaries import _threefry
from epe_jax.parallel.barrier import fusion_barrier
from epe_jax.types import Array

ROWS = 16
PER_LANE = 64
ALL_ROWS = np.arange(ROWS)[:, None, None, None]
"""Flips all rows of a tile together."""


def draw_words(
  root: _threefry.Root,
  tile: Int[Array, ''],
  streams: Int[Array, ' b'],
  lanes: int,
) -> UInt32[Array, 'b w=2 h=1 n']:
  """Draws the words of a tile in each of the given streams.

  Args:
    root: generator of the words.
    tile: index of the tile, >= 0; traced, such as the index of a loop.
    streams: numbers of independent sequences of tiles.
    lanes: n, the number of counters of a tile.
  """
  low = (tile * lanes).astype(jnp.uint32) + jnp.arange(lanes, dtype=jnp.uint32)
  high = streams.astype(jnp.uint32)[:, None]
  shape = (streams.shape[0], lanes)

  def make() -> UInt32[Array, 'b w=2 h=1 n']:
    pair = _threefry.draw_words(
      root, jnp.broadcast_to(low, shape), jnp.broadcast_to(high, shape)
    )
    return jnp.stack(pair, 1)[:, :, None]

  return fusion_barrier(tile >= 0, make)


def apply_signs(
  x: Float[Array, '*r w=2 h=2 n'],
  words: UInt32[Array, '*b w=2 h=1 n'],
  row: int | Int[np.ndarray, 'rows=16 1 1 1'],
) -> Float[Array, '*s w=2 h=2 n']:
  """Gives one row of a tile, or all 16, the signs that it has there."""
  left = (31 - row - ROWS * np.arange(2)[:, None]).astype(np.uint32)
  signs = (words << left) & jnp.uint32(0x80000000)
  bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
  return jax.lax.bitcast_convert_type(bits ^ signs, jnp.float32)
