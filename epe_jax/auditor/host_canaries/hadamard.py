"""Rows of a Hadamard matrix, tiled over d with random signs, in NumPy.

As `epe_jax.canaries.hadamard`: c_j = s ∘ (H_j, ..., H_j) / sqrt(d). Signs are made
by the tile of 65,536 coordinates, so memory is a few tiles, whatever d is.
"""

import math

from jaxtyping import Float, Int, UInt32
import numpy as np

from epe_jax.auditor.host_canaries import pieces, threefry
from epe_jax.auditor.host_canaries.base import HostCanaries, Pieces

_PURPOSE = 2
_ORDER = 4096
_LANES = _ORDER // 4
_ROWS = 16
_TILE = _ROWS * _ORDER
_CHUNK_TILES = 4  # Whose words are drawn at once, and stay in the cache.
_SIGN = np.uint32(0x80000000)
# Bit 16 half + row of a word becomes the sign of (row, word, half, lane).
_LEFT = (
  31 - np.arange(_ROWS)[:, None, None, None] - 16 * np.arange(2)[:, None]
).astype(np.uint32)


def make_hadamard(key: threefry.Root, num: int, dim: int) -> HostCanaries:
  """Makes k canaries that are rows of a Hadamard matrix.

  Args:
    key: the canary key; never that of the privacy noise.
    num: k >= 1.
    dim: d >= 2.
  """
  root = threefry.derive_root(key, _PURPOSE)
  order = min(_ORDER, 1 << (dim.bit_length() - 1))
  groups = -(-num // order)
  chunk = _TILE * _CHUNK_TILES

  def project(vectors) -> Float[np.ndarray, 'r k']:
    folded = np.zeros((len(vectors), groups, _ORDER))
    signs = np.empty((_ROWS, 2, 2, _LANES), np.uint32)
    signed = np.empty_like(signs)
    for start, chunks in pieces.iterate_chunks(vectors, chunk):
      for group in range(groups):
        words = _draw_words(root, start // _TILE, group)
        for i, first in enumerate(range(0, chunks[0].size, _TILE)):
          _place_signs(words, i, signs)
          for v, x in zip(folded, chunks):
            v[group] += _fold_tile(x[first : first + _TILE], signs, signed)
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
    shorts = np.tile(shorts.astype(np.float32), _ORDER // order)
    shorts = shorts.reshape(-1, 2, 2, _LANES).view(np.uint32)
    signs = np.empty((_ROWS, 2, 2, _LANES), np.uint32)

    def make(start: int, buffer: Float[np.ndarray, ' n']) -> None:
      buffer[:] = 0
      for group, short in zip(used, shorts):
        words = _draw_words(root, start // _TILE, int(group))
        for i, first in enumerate(range(0, buffer.size, _TILE)):
          _place_signs(words, i, signs)
          np.bitwise_xor(signs, short, out=signs)
          tile = buffer[first : first + _TILE]
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
  low = np.arange(_LANES * _CHUNK_TILES, dtype=np.uint32)
  # Modulo 2^32, as the counters of a device are.
  low += np.uint32(tile * _LANES % 2**32)
  return np.stack(threefry.draw_words(root, low, np.full_like(low, group)))


def _place_signs(
  words: UInt32[np.ndarray, 'w=2 n'],
  i: int,
  out: UInt32[np.ndarray, 'rows=16 w=2 h=2 l'],
) -> None:
  """Writes the sign bits of tile i of a chunk."""
  of_tile = words[:, None, i * _LANES : (i + 1) * _LANES]
  np.left_shift(of_tile, _LEFT, out=out)
  np.bitwise_and(out, _SIGN, out=out)


def _fold_tile(
  x: Float[np.ndarray, ' n'],
  signs: UInt32[np.ndarray, 'rows=16 w=2 h=2 l'],
  out: UInt32[np.ndarray, 'rows=16 w=2 h=2 l'],
) -> Float[np.ndarray, ' b=4096']:
  """Sums s ∘ x over the rows of a tile."""
  if x.size < _TILE:
    x = np.concatenate([x, np.zeros(_TILE - x.size, np.float32)])
  np.bitwise_xor(signs, x.view(np.uint32).reshape(signs.shape), out=out)
  return out.view(np.float32).reshape(_ROWS, _ORDER).sum(axis=0)
