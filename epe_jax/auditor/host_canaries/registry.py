"""The families of canaries that are available on the host, by name."""

from epe_jax.auditor.host_canaries import hadamard, sphere
from epe_jax.auditor.host_canaries.base import HostCanaries
from epe_jax.canaries import threefry

_MAKERS = {'hadamard': hadamard.make_hadamard, 'sphere': sphere.make_sphere}
FAMILIES = tuple(_MAKERS)


def make_canaries(
  family: str, key: threefry.Root, num: int, dim: int
) -> HostCanaries:
  """Makes the canaries that `canaries.family(family)` makes from the same key.

  Args:
    family: one of `FAMILIES`.
    key: the two words of the canary key, which `jax.random.wrap_key_data` takes.
    num: k >= 1.
    dim: d >= 2.

  Raises:
    ValueError: there is no such family, or a number is out of range.
  """
  if family not in _MAKERS:
    raise ValueError(
      f'family={family!r}; give one of {FAMILIES}, which are made on the host.'
    )
  threefry.check_sizes(num, dim)
  return _MAKERS[family](key, num, dim)
