"""Rows of a Hadamard matrix, tiled over d with random signs, in NumPy.

As `epe_jax.canaries.hadamard`: c_j = s ∘ (H_j, ..., H_j) / sqrt(d). Signs are made
by the tile of 65,536 coordinates, so memory is a few tiles, whatever d is.
"""

import math

from jaxtyping import Float, Int, UInt32
import numpy as np

from epe_jax.auditor.host_canaries import pieces
from epe_jax.auditor.host_canaries.base import (
  HostCanaries,
  Pieces,
  derive_root,
)
from epe_jax.canaries import threefry
from epe_jax.canaries.threefry import ALL_ROWS, LANES, ORDER, ROWS, SIGN, TILE

_CHUNK_TILES = 4  # Whose words are drawn at once, and stay in the cache.
_SHIFTS = threefry.count_shifts(ALL_ROWS)


def make_hadamard(key: threefry.Root, num: int, dim: int) -> HostCanaries:
  """Makes k canaries that are rows of a Hadamard matrix."""
  root = derive_root(key, threefry.HADAMARD)
  order = threefry.compute_order(dim)
  groups = -(-num // order)
  chunk = TILE * _CHUNK_TILES

  def project(vectors) -> Float[np.ndarray, 'r k']:
    folded = np.zeros((len(vectors), groups, ORDER))
    signs = np.empty((ROWS, 2, 2, LANES), np.uint32)
    signed = np.empty_like(signs)
    for start, chunks in pieces.iterate_chunks(vectors, chunk):
      for group in range(groups):
        words = _draw_words(root, start // TILE, group)
        for i, first in enumerate(range(0, chunks[0].size, TILE)):
          _place_signs(words, i, signs)
          for v, x in zip(folded, chunks):
            v[group] += _fold_tile(x[first : first + TILE], signs, signed)
    short = folded.reshape(len(vectors), groups, -1, order).sum(2)
    products = transform(short) / math.sqrt(dim)
    return products.reshape(len(vectors), -1)[:, :num]

  def add(
    ids: Int[np.ndarray, ' m'], weights: Float[np.ndarray, ' m'], out: Pieces
  ) -> None:
    used, group_of = np.unique(ids // order, return_inverse=True)
    rows = np.zeros((len(used), order))
    np.add.at(rows, (group_of, ids % order), weights)
    # Divided last: of one canary every entry is ± the same float.
    shorts = transform(rows) * (np.float32(1) / np.float32(math.sqrt(dim)))
    shorts = np.tile(shorts.astype(np.float32), ORDER // order)
    shorts = shorts.reshape(-1, 2, 2, LANES).view(np.uint32)
    signs = np.empty((ROWS, 2, 2, LANES), np.uint32)

    def make(start: int, buffer: Float[np.ndarray, ' n']) -> None:
      buffer[:] = 0
      for group, short in zip(used, shorts):
        words = _draw_words(root, start // TILE, int(group))
        for i, first in enumerate(range(0, buffer.size, TILE)):
          _place_signs(words, i, signs)
          np.bitwise_xor(signs, short, out=signs)
          tile = buffer[first : first + TILE]
          tile += signs.view(np.float32).reshape(-1)[: tile.size]

    pieces.add_chunks(make, out, chunk)

  return HostCanaries(num, dim, project, add)


def transform(x: Float[np.ndarray, '*r b']) -> Float[np.ndarray, '*r b']:
  """Returns H x, with the unscaled Hadamard matrix of order b = 2^n.

  >>> transform(np.array([1.0, 0.0, 0.0, 2.0])).tolist()
  [3.0, -1.0, -1.0, 3.0]
  """
  y, order = np.array(x), x.shape[-1]
  width = 1
  while width < order:
    pair = y.reshape(*y.shape[:-1], -1, 2, width)
    a, b = pair[..., 0, :], pair[..., 1, :]
    y = np.stack([a + b, a - b], axis=-2).reshape(y.shape)
    width *= 2
  return y


def _draw_words(
  root: threefry.Root, tile: int, group: int
) -> UInt32[np.ndarray, 'w=2 n']:
  """Draws the words of a chunk of tiles."""
  low = np.arange(LANES * _CHUNK_TILES, dtype=np.uint32)
  # Modulo 2^32, as the counters of a device are.
  low += np.uint32(tile * LANES % 2**32)
  return np.stack(threefry.draw_words(root, low, np.full_like(low, group)))


def _place_signs(
  words: UInt32[np.ndarray, 'w=2 n'],
  i: int,
  out: UInt32[np.ndarray, 'rows=16 w=2 h=2 l'],
) -> None:
  """Writes the sign bits of tile i of a chunk."""
  of_tile = words[:, None, i * LANES : (i + 1) * LANES]
  np.left_shift(of_tile, _SHIFTS, out=out)
  np.bitwise_and(out, SIGN, out=out)


def _fold_tile(
  x: Float[np.ndarray, ' n'],
  signs: UInt32[np.ndarray, 'rows=16 w=2 h=2 l'],
  out: UInt32[np.ndarray, 'rows=16 w=2 h=2 l'],
) -> Float[np.ndarray, ' b=4096']:
  """Sums s ∘ x over the rows of a tile."""
  if x.size < TILE:
    x = np.concatenate([x, np.zeros(TILE - x.size, np.float32)])
  np.bitwise_xor(signs, x.view(np.uint32).reshape(signs.shape), out=out)
  return out.view(np.float32).reshape(ROWS, ORDER).sum(axis=0)
