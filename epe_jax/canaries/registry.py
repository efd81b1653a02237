"""The families of canaries: what each is, needs and costs, by name.

A new family is a file with its maker and an entry here. Nothing in this module
needs JAX, so that an auditor on the host can ask it too; makers are imported when
they are called for.
"""

from collections.abc import Callable
import functools
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
  """

  make: str
  make_sharded: str | None = None
  one_by_one: bool = False
  min_effective_dimension: Callable[[int], float] | None = None


def _min_for_signs(dim: int) -> float:
  # For vectors of equal entries, 1,000 of them were enough for the test of Anderson
  # and Darling to detect no difference in 2,000 cosines, and 300 were not
  # (`benchmarks/speed/canary_law.py`); 6,000 leaves a margin of six for others. In small
  # dimensions it is half of what normal noise has.
  return min(6000.0, dim / 6)


FAMILIES: dict[str, Family] = {
  'sphere': Family(
    'epe_jax.canaries.sphere:sphere',
    'epe_jax.canaries.sphere:shard_sphere',
    one_by_one=True,
  ),
  'hadamard': Family(
    'epe_jax.canaries.hadamard:hadamard',
    'epe_jax.canaries.hadamard:shard_hadamard',
    min_effective_dimension=_min_for_signs,
  ),
  'hadamard2': Family('epe_jax.canaries.hadamard2:hadamard2'),
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
  if mesh is not None and declared.make_sharded is not None:
    make_sharded = pkgutil.resolve_name(declared.make_sharded)
    return functools.partial(make_sharded, mesh=mesh, **options)
  make = functools.partial(pkgutil.resolve_name(declared.make), **options)
  if mesh is None:
    return make
  return pkgutil.resolve_name('epe_jax.canaries.base:replicate')(make, mesh)


def min_effective_dimension(name: str, dim: int) -> float | None:
  """Minimum effective dimension for normal cosines, or None if any vector will do.

  Any vector that does not depend on the canaries, that is.

  Args:
    name: one of `FAMILIES`.
    dim: d.

  Raises:
    ValueError: there is no such family.

  >>> min_effective_dimension('hadamard', 10**6)
  6000.0
  >>> min_effective_dimension('sphere', 10**6)
  """
  minimum = find_family(name).min_effective_dimension
  return None if minimum is None else minimum(dim)
