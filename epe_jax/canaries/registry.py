"""The families of canaries by name, and the vectors that each is right for."""

from collections.abc import Callable
import functools
import math

import jax.numpy as jnp
from jaxtyping import Float

from epe_jax.canaries import sharded
from epe_jax.canaries.base import Canaries
from epe_jax.canaries.dirac import dirac
from epe_jax.canaries.hadamard import hadamard
from epe_jax.canaries.hadamard2 import hadamard2
from epe_jax.canaries.sign import project_sign, sign
from epe_jax.canaries.sphere import project_sphere, sphere
from epe_jax.parallel import sharding
from epe_jax.types import Array, Key

FAMILIES = ('sphere', 'sign', 'hadamard', 'hadamard2', 'dirac')

_PROJECTIONS = {'sphere': project_sphere, 'sign': project_sign}
ONE_BY_ONE = frozenset(_PROJECTIONS)
"""The families that make each canary anew for each projection, whose cost the
vectors that are projected together share. In the others all canaries together
cost a few passes over a vector, and vectors share next to nothing."""


def family(
  name: str, *, block: int = 64, mesh: sharding.Mesh | None = None
) -> Callable[[Key, int, int], Canaries]:
  """Returns the function (key, k, d) -> Canaries of a family.

  Args:
    name: one of `FAMILIES`.
    block: canaries made at once, for families that are made in blocks, which
      are 'sphere' and 'sign'; >= 1.
    mesh: devices that share the work, of 'sphere' and 'sign' by canaries and of
      'hadamard' by coordinates; None for one. Bits of canaries do not depend
      on it.

  Raises:
    ValueError: there is no such family.
  """
  makers: dict[str, Callable[..., Canaries]] = {
    'sphere': functools.partial(sphere, block=block),
    'sign': functools.partial(sign, block=block),
    'hadamard': hadamard,
    'hadamard2': hadamard2,
    'dirac': dirac,
  }
  if name not in makers:
    raise ValueError(f'canaries.family={name!r}; give one of {FAMILIES}.')
  if mesh is None:
    return makers[name]
  if name == 'hadamard':
    return functools.partial(sharded.shard_by_coordinate, mesh=mesh)
  if name in ONE_BY_ONE:
    return functools.partial(
      sharded.shard_by_canary,
      makers[name],
      _PROJECTIONS[name],
      block=block,
      mesh=mesh,
    )
  return functools.partial(sharded.replicate, makers[name], mesh=mesh)


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


def effective_dimension(v: Float[Array, '*r d']) -> Float[Array, '*r']:
  """Returns d_eff = (Σ x²)² / Σ x⁴: on how many coordinates the mass of v lies.

  It is d if all entries are ±1, d/3 if they are normal, 1 if one alone is not
  0, and 0 for v = 0. With signed canaries, `sign` and `hadamard`, a cosine with
  v is 1/sqrt(d) times a number of excess kurtosis -2 / d_eff: close to normal
  if d_eff is in the thousands, and not if it is in the hundreds.

  Args:
    v: one vector or a stack of them.

  >>> v = jnp.array([[1.0, -1.0, 1.0], [0.0, 2.0, 0.0]])
  >>> effective_dimension(v).tolist()
  [3.0, 1.0]
  """
  # Fourth powers of small numbers would vanish in float32.
  largest = jnp.max(jnp.abs(v), axis=-1, keepdims=True)
  square = (v / jnp.where(largest > 0, largest, 1)) ** 2
  fourth = jnp.sum(square**2, axis=-1)
  return jnp.sum(square, axis=-1) ** 2 / jnp.where(fourth > 0, fourth, 1)
