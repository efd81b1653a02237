"""The families of canaries that are available on the host, by name."""

from epe_jax.auditor.host_canaries import hadamard, sphere, threefry
from epe_jax.auditor.host_canaries.base import HostCanaries

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
    raise ValueError(f'family={family!r}; give one of {FAMILIES}.')
  if num < 1:
    raise ValueError(f'num={num} canaries; give num >= 1.')
  if dim < 2:
    raise ValueError(
      f'dim={dim}: a cosine needs d >= 2 parameters; audit a larger model.'
    )
  return _MAKERS[family](key, num, dim)
