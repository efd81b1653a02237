"""The norm and the effective dimension of a vector in pieces."""

from typing import NamedTuple

import numpy as np

from epe_jax.auditor.host_canaries import pieces
from epe_jax.auditor.host_canaries.base import Pieces

_CHUNK = 1 << 14


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
  for _, (chunk,) in pieces.iterate_chunks([vector], _CHUNK):
    powers = np.square(chunk, out=buffer[: chunk.size], dtype=np.float64)
    squares += float(powers.sum())
    # Not a BLAS product, whose threads would compete with those of training.
    np.multiply(powers, powers, out=powers)
    fourths += float(powers.sum())
  ratio = squares**2 / fourths if fourths > 0 else 0.0
  return Measure(float(np.sqrt(squares)), ratio)
