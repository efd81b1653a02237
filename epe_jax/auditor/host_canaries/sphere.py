"""Uniform points of the unit sphere, in NumPy.

They equal those of `epe_jax.canaries.sphere` to float32 rounding. Each projection
generates all k x d normals, which takes tens of seconds for 1,000 canaries and a
million parameters. Hadamard rows take milliseconds.
"""

from collections.abc import Sequence

from jaxtyping import Float, Int
import numpy as np

from epe_jax.auditor.host_canaries import pieces
from epe_jax.auditor.host_canaries.base import (
  HostCanaries,
  Pieces,
  derive_root,
)
from epe_jax.canaries import threefry


def make_sphere(key: threefry.Root, num: int, dim: int) -> HostCanaries:
  """Makes k independent uniform points of the unit sphere."""
  root = derive_root(key, threefry.SPHERE)

  def project(vectors: Sequence[Pieces]) -> Float[np.ndarray, 'r k']:
    dense = np.stack([np.concatenate(v, dtype=np.float64) for v in vectors])
    # One canary at a time is d floats, as each vector is.
    return np.stack([dense @ _make_canary(root, j, dim) for j in range(num)], 1)

  def add(
    ids: Int[np.ndarray, ' m'], weights: Float[np.ndarray, ' m'], out: Pieces
  ) -> None:
    total = np.zeros(dim, np.float32)
    for j, weight in zip(ids, weights):
      total += np.float32(weight) * _make_canary(root, int(j), dim).astype(
        np.float32
      )
    pieces.add_chunks(lambda _, buffer: np.copyto(buffer, total), out, dim)

  return HostCanaries(num, dim, project, add)


def _make_canary(
  root: threefry.Root, j: int, dim: int
) -> Float[np.ndarray, ' d']:
  half = -(-dim // 2)
  low = np.arange(half, dtype=np.uint32)
  x, y = _convert_to_normals(
    *threefry.draw_words(root, low, np.full_like(low, j))
  )
  z = np.concatenate([x, y[: dim - half]])
  return z / np.linalg.norm(z)


def _convert_to_normals(
  first: np.ndarray, second: np.ndarray
) -> tuple[Float[np.ndarray, ' n'], Float[np.ndarray, ' n']]:
  """By Box and Muller, as `epe_jax.canaries.sphere`, in float64."""
  u = (first >> np.uint32(1)) * 2.0**-31 + 2.0**-32
  radius = np.sqrt(2.0**-27 - np.log(u))
  angle = (second << np.uint32(2)).view(np.int32) * 2.0**-31 * (np.pi / 4)
  sin, cos = np.sin(angle), np.cos(angle)
  sign = lambda word: np.where(word >> np.uint32(31), -1.0, 1.0)
  return (
    radius * (cos - sin) * sign(second),
    radius * (cos + sin) * sign(second << np.uint32(1)),
  )
