"""A vector in pieces, read and written by chunks of consecutive coordinates.

A model is a list of tensors, and copying it into one vector would take d more floats.
A chunk within one tensor is a view; any other is assembled in a buffer.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from jaxtyping import Float
import numpy as np

from epe_jax.auditor.host_canaries.base import Pieces

_CHUNK = 1 << 14


def iterate_views(
  pieces: Pieces, size: int
) -> Iterator[tuple[int, list[np.ndarray]]]:
  """Iterates over chunks, each as its first coordinate and the views that form it.

  Args:
    pieces: 1-D arrays.
    size: coordinates of a chunk, >= 1; the last one may have fewer.
  """
  start, views, missing = 0, [], size
  for piece in pieces:
    taken = 0
    while taken < piece.size:
      view = piece[taken : taken + missing]
      views.append(view)
      taken += view.size
      missing -= view.size
      if not missing:
        yield start, views
        start, views, missing = start + size, [], size
  if views:
    yield start, views


def iterate_chunks(
  vectors: Sequence[Pieces], size: int
) -> Iterator[tuple[int, list[Float[np.ndarray, ' n']]]]:
  """Iterates over chunks of vectors of one length: a coordinate, and float32 arrays.

  They are read-only, and valid until the next iteration.
  """
  buffers = [np.empty(size, np.float32) for _ in vectors]
  parts = [iterate_views(pieces, size) for pieces in vectors]
  for chunks in zip(*parts, strict=True):
    yield (
      chunks[0][0],
      [_join(views, buffer) for (_, views), buffer in zip(chunks, buffers)],
    )


def add_chunks(
  make: Callable[[int, Float[np.ndarray, ' n']], None], out: Pieces, size: int
) -> None:
  """Adds a vector to another, chunk by chunk, in place.

  Args:
    make: (first coordinate, buffer [n]) -> None; writes the chunk to add.
    out: the vector to add to.
    size: coordinates of a chunk.
  """
  buffer = np.empty(size, np.float32)
  for start, views in iterate_views(out, size):
    chunk = buffer[: sum(view.size for view in views)]
    make(start, chunk)
    taken = 0
    for view in views:
      view += chunk[taken : taken + view.size]
      taken += view.size


def _join(
  views: Sequence[np.ndarray], buffer: Float[np.ndarray, ' n']
) -> Float[np.ndarray, ' m']:
  if len(views) == 1 and views[0].dtype == np.float32:
    # Not to be strided: its bits are viewed as integers.
    return np.ascontiguousarray(views[0])
  return np.concatenate(views, out=buffer[: sum(x.size for x in views)])


class Measure(NamedTuple):
  """The norm and effective dimension of a vector.

  Attributes:
    norm: |v|, not finite if an entry is not.
    effective_dimension: (Σ x²)² / Σ x⁴, as `canaries.effective_dimension`; 0 if
      v = 0.
  """

  norm: float
  effective_dimension: float


def measure(vector: Pieces) -> Measure:
  """Measures a vector, in float64 over chunks."""
  squares, fourths = 0.0, 0.0
  # Powers of small numbers would vanish in float32.
  buffer = np.empty(_CHUNK)
  for _, (chunk,) in iterate_chunks([vector], _CHUNK):
    powers = np.square(chunk, out=buffer[: chunk.size], dtype=np.float64)
    squares += float(powers.sum())
    # Not a BLAS product, whose threads would compete with those of training.
    np.multiply(powers, powers, out=powers)
    fourths += float(powers.sum())
  ratio = squares**2 / fourths if fourths > 0 else 0.0
  return Measure(float(np.sqrt(squares)), ratio)
