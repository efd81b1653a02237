"""The families of canaries by name, and the vectors that each is right for."""

from collections.abc import Callable
import functools

import jax.numpy as jnp
from jaxtyping import Float

from epe_jax.canaries import sharded
from epe_jax.canaries.base import Canaries
from epe_jax.canaries.dirac import dirac
from epe_jax.canaries.hadamard import hadamard
from epe_jax.canaries.hadamard2 import hadamard2
from epe_jax.canaries.requirements import FAMILIES, ONE_BY_ONE
from epe_jax.canaries.sign import project_sign, sign
from epe_jax.canaries.sphere import project_sphere, sphere
from epe_jax.parallel import sharding
from epe_jax.types import Array, Key

_PROJECTIONS = {'sphere': project_sphere, 'sign': project_sign}


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
