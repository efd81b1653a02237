"""What each family of canaries needs of the vectors and servers that it audits."""

import math

FAMILIES = ('sphere', 'sign', 'hadamard', 'hadamard2', 'dirac')

ONE_BY_ONE = frozenset({'sphere', 'sign'})
"""The families whose canaries are drawn independently, and made anew for each
projection, whose cost the vectors that are projected together share. In the others
canaries are orthogonal, all together cost a few passes over a vector, and vectors
share next to nothing."""


def min_effective_dimension(name: str, dim: int) -> float | None:
  """Returns the effective dimension that vectors need for normal cosines.

  It is the one threshold of the project. For canaries of signs it is 6,000, or d/6
  if that is less, which is half of what normal noise has. For vectors of equal
  entries, 1,000 of them were enough for the test of Anderson and Darling to detect
  no difference in 2,000 cosines, and 300 were not (`benchmarks/canary_law.py`);
  6,000 leaves a margin of six for entries that are not equal.

  Cosines with 'dirac' are the coordinates themselves, of kurtosis d / d_eff,
  which must be the 3 of a normal law. It is d/3.5: an excess of 1/2 is some
  five standard errors of the kurtosis of 2,000 coordinates.

  Args:
    name: one of `FAMILIES`.
    dim: d.

  Returns:
    None for 'sphere' and 'hadamard2', which are right for any vector that does
    not depend on the canaries; behind a coordinate-wise server it may: see
    `min_noise_multiplier`.

  Raises:
    ValueError: there is no such family.

  >>> min_effective_dimension('hadamard', 10**6)
  6000.0
  >>> min_effective_dimension('sphere', 10**6)
  """
  signed = min(6000.0, dim / 6)
  minima = {
    'sphere': None,
    'sign': signed,
    'hadamard': signed,
    'hadamard2': None,
    'dirac': dim / 3.5,
  }
  if name not in minima:
    raise ValueError(f'canaries.family={name!r}; give one of {FAMILIES}.')
  return minima[name]


def min_noise_multiplier(name: str, dim: int, together: int) -> float:
  """Returns the noise multiplier that a coordinate-wise server needs.

  Adam and sign descent take a non-linear function of each coordinate of a sum
  of canaries. In the Hadamard families it is, up to signs, the same function of
  the same numbers in all tiles of coordinates, so what it adds is a sum of rows
  of the group, including those that were never inserted. Without noise their
  cosines are 0, or up to √(d / 4096) times as large as the null law has them.
  Noise makes the function linear where it is a few times what the canaries of
  a round add up to in one coordinate. Of `hadamard` that is n/√d, as all rows
  agree in column 0; of `hadamard2`, whose entries are like normal ones, √(n/d).

  Updates of clients do the same as noise, but nothing bounds their size in a
  coordinate from below, so they are not counted.

  Args:
    name: one of `FAMILIES`.
    dim: d.
    together: n, the maximum number of canaries of a round.

  Returns:
    4 n/√d for 'hadamard', 4 √(n/d) for 'hadamard2', at which the test of
    Anderson and Darling sees no difference in 2,000 cosines; 0 for the others,
    whose canaries are independent of each other.

  Raises:
    ValueError: there is no such family.

  >>> min_noise_multiplier('hadamard', 10**6, 10)
  0.04
  >>> min_noise_multiplier('hadamard2', 10**6, 25)
  0.02
  >>> min_noise_multiplier('sphere', 10**6, 10)
  0.0
  """
  if name not in FAMILIES:
    raise ValueError(f'canaries.family={name!r}; give one of {FAMILIES}.')
  largest = {'hadamard': float(together), 'hadamard2': math.sqrt(together)}
  return 4 * largest.get(name, 0.0) / math.sqrt(dim)
