"""A vector in pieces, read and written by chunks of consecutive coordinates.

A model is a list of tensors, and copying it into one vector would take d more floats.
A chunk within one tensor is a view; any other is assembled in a buffer.
"""

from collections.abc import Callable, Iterator, Sequence

from jaxtyping import Float
import numpy as np

from epe_jax.auditor.host_canaries.base import Pieces


def count_coordinates(pieces: Pieces) -> int:
  """Returns d."""
  return sum(piece.size for piece in pieces)


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
  """Iterates over chunks of several vectors, as float32.

  Args:
    vectors: vectors of the same length.
    size: coordinates of a chunk.

  Yields:
    The first coordinate and the chunk of each vector, read-only and valid until the
    next iteration.
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
  taken = 0
  for view in views:
    buffer[taken : taken + view.size] = view
    taken += view.size
  return buffer[:taken]
