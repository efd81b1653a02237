"""The families of canaries: what each is, needs and costs, by name.

A new family is a file with its maker and an entry here. Nothing in this module
needs JAX, so that an auditor on the host can ask it too; makers are imported when
they are called for.
"""

from collections.abc import Callable
import functools
import math
import pkgutil
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
  from epe_jax.canaries.base import Canaries
  from epe_jax.parallel import sharding
  from epe_jax.types import Key


class Family(NamedTuple):
  """A family of canaries.

  Attributes:
    make: 'module:function', the maker (key, k, d) -> Canaries. If canaries are
      drawn one by one it takes the keyword `block`, the number of canaries that
      are held at once.
    make_sharded: 'module:function', the same with the keyword `mesh`, for devices
      that share the work; None if each device makes all canaries.
    one_by_one: whether canaries are drawn independently and made again for each
      projection, a cost that the vectors of one projection share. The canaries of
      other families are orthogonal, all of them cost a few passes over a vector,
      and vectors share next to nothing.
    min_effective_dimension: d -> the effective dimension that vectors need for
      normal cosines; None if the cosines of any vector are normal.
    peak: n -> how large a sum of n canaries may be in one coordinate, times √d,
      where the same numbers recur in all tiles of coordinates; None if they do not.
  """

  make: str
  make_sharded: str | None = None
  one_by_one: bool = False
  min_effective_dimension: Callable[[int], float] | None = None
  peak: Callable[[int], float] | None = None


def _min_for_signs(dim: int) -> float:
  # Half of what normal noise has, in small dimensions.
  return min(6000.0, dim / 6)


def _min_for_coordinates(dim: int) -> float:
  return dim / 3.5


FAMILIES: dict[str, Family] = {
  'sphere': Family(
    'epe_jax.canaries.sphere:sphere',
    'epe_jax.canaries.sphere:shard_sphere',
    one_by_one=True,
  ),
  'sign': Family(
    'epe_jax.canaries.sign:sign',
    'epe_jax.canaries.sign:shard_sign',
    one_by_one=True,
    min_effective_dimension=_min_for_signs,
  ),
  'hadamard': Family(
    'epe_jax.canaries.hadamard:hadamard',
    'epe_jax.canaries.sharded:shard_by_coordinate',
    min_effective_dimension=_min_for_signs,
    peak=float,  # All rows agree in column 0.
  ),
  'hadamard2': Family('epe_jax.canaries.hadamard2:hadamard2', peak=math.sqrt),
  'dirac': Family(
    'epe_jax.canaries.dirac:dirac', min_effective_dimension=_min_for_coordinates
  ),
}
"""The families by name."""


def find_family(name: str) -> Family:
  """Returns the family of a name.

  Raises:
    ValueError: there is no such family.
  """
  if name not in FAMILIES:
    raise ValueError(f'canaries.family={name!r}; give one of {(*FAMILIES,)}.')
  return FAMILIES[name]


def family(
  name: str, *, block: int = 64, mesh: 'sharding.Mesh | None' = None
) -> 'Callable[[Key, int, int], Canaries]':
  """Returns the maker (key, k, d) -> Canaries of a family.

  Args:
    name: one of `FAMILIES`.
    block: canaries held at once, >= 1, in families that are drawn one by one.
    mesh: devices that share the work; None for one device. The bits of canaries do
      not depend on it.

  Raises:
    ValueError: there is no such family.
  """
  declared = find_family(name)
  options = {'block': block} if declared.one_by_one else {}
  if mesh is None:
    return functools.partial(pkgutil.resolve_name(declared.make), **options)
  if declared.make_sharded is None:
    make = functools.partial(pkgutil.resolve_name(declared.make), **options)
    replicate = pkgutil.resolve_name('epe_jax.canaries.sharded:replicate')
    return functools.partial(replicate, make, mesh=mesh)
  return functools.partial(
    pkgutil.resolve_name(declared.make_sharded), mesh=mesh, **options
  )


def min_effective_dimension(name: str, dim: int) -> float | None:
  """Returns the effective dimension that vectors need for normal cosines.

  For canaries of signs it is 6,000, or d/6 if that is less. For vectors of equal
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
    None for 'sphere' and 'hadamard2', whose cosines are normal for any vector that
    does not depend on the canaries; after a coordinate-wise server it may, see
    `min_noise_multiplier`.

  Raises:
    ValueError: there is no such family.

  >>> min_effective_dimension('hadamard', 10**6)
  6000.0
  >>> min_effective_dimension('sphere', 10**6)
  """
  minimum = find_family(name).min_effective_dimension
  return None if minimum is None else minimum(dim)


def min_noise_multiplier(name: str, dim: int, together: int) -> float:
  """Returns the noise multiplier that a coordinate-wise server needs.

  Adam and sign descent take a non-linear function of each coordinate of a sum
  of canaries. In the Hadamard families it is, up to signs, the same function of
  the same numbers in all tiles of coordinates, so what it adds is a sum of rows
  of the group, including those that were never inserted. Without noise their
  cosines are 0, or up to √(d / 4096) times as large as the null law has them.
  Noise makes the function linear where it is a few times what the canaries of
  a round add up to in one coordinate. In `hadamard` that is n/√d, as all rows
  agree in column 0; in `hadamard2`, whose entries are like normal ones, √(n/d).

  Updates of clients do the same as noise, but nothing bounds their size in a
  coordinate from below, so they are not counted.

  Args:
    name: one of `FAMILIES`.
    dim: d.
    together: n, the maximum number of canaries in a round.

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
  peak = find_family(name).peak
  return 4 * (0.0 if peak is None else peak(together)) / math.sqrt(dim)


def check_sizes(num: int, dim: int, block: int = 1) -> None:
  """Checks the sizes of a set of canaries.

  Args:
    num: k, must be >= 1.
    dim: d, must be >= 2.
    block: canaries that are held at once, must be >= 1.

  Raises:
    ValueError: one of them is out of range.
  """
  if num < 1:
    raise ValueError(f'num={num} canaries; give num >= 1.')
  if dim < 2:
    raise ValueError(
      f'dim={dim}: a cosine needs d >= 2 parameters; audit a larger model.'
    )
  if block < 1:
    raise ValueError(f'block={block} canaries at a time; give block >= 1.')
