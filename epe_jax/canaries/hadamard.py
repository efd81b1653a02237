"""Canaries that are rows of a Hadamard matrix, tiled over d with random signs.

c_j = s ∘ (H_j, H_j, ..., H_j) / sqrt(d) with random signs s and row j of the
Hadamard matrix of order B. All k inner products <c_j, x> are then one pass over
x, which adds s ∘ x up into B numbers, and one Walsh-Hadamard transform of
these.
"""

from epe_jax.canaries import _threefry, _walsh
from epe_jax.canaries.base import Canaries
from epe_jax.types import Key


def hadamard(key: Key, num: int, dim: int) -> Canaries:
  """Rows of a Hadamard matrix, folded: k cosines for a few passes over v.

  Canary j has entries ±1/sqrt(d), so norm 1. B is 4096, or the largest power of
  two <= d; canaries j with the same j // B are a group, with signs of its own.
  Within a group <c_i, c_j> is 0 if B divides d, and else at most min(L, B - L)
  / d in magnitude, L = d mod B; between groups it is N(0, 1/d), as on the
  sphere. Memory is B floats a group, time one pass over v for each group.

  For each pair of v and j, cos(c_j, v) has mean 0 and variance 1/d exactly. It
  is normal if the mass of v lies on many coordinates: see
  `effective_dimension`, and `hadamard2` for those v that are sparse. A v that
  is a non-linear function of sums of canaries, coordinate by coordinate, as
  after Adam with little noise, depends on rows that are not in the sums, and is
  for `sphere`.

  Args:
    key: the canary key; never the key of the privacy noise.
    num: k >= 1.
    dim: d >= 2.

  Raises:
    ValueError: num or dim is out of range.

  >>> import jax, jax.numpy as jnp
  >>> canaries = hadamard(jax.random.key(0), num=5, dim=4096)
  >>> two = canaries.superpose(jnp.array([3, 4]), jnp.array([1.0, 2.0]))
  >>> canaries.project(two).round(3).tolist()
  [0.0, 0.0, 0.0, 1.0, 2.0]
  """
  return _walsh.make_canaries(
    _threefry.derive_root(key, _walsh.PURPOSE), num, dim
  )
