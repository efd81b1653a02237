"""The one mesh: all devices of all processes, along one axis.

Clients, canaries and coordinates are each sharded along this axis. In all that
follows `mesh` is None for a single device, and then the program for one device runs.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Bool

from epe_jax.types import Array, PyTree

F = TypeVar('F', bound=Callable[..., Any])
Mesh: TypeAlias = jax.sharding.Mesh

AXIS = 'devices'
SHARDED = PartitionSpec(AXIS)
"""The first axis of an array is sharded over the devices."""
REPLICATED = PartitionSpec()
"""Each device has the whole array."""


def mesh(devices: Sequence[Any] | None = None) -> Mesh | None:
  """The mesh of several devices, of all by default, or None for one."""
  mesh = make_mesh(devices)
  return None if mesh.size == 1 else mesh


def make_mesh(devices: Sequence[Any] | None = None) -> Mesh:
  """Makes a mesh of any number of devices, even of one."""
  # In the order of JAX, so that the devices of a process are consecutive.
  return jax.sharding.Mesh(
    jax.devices() if devices is None else devices,
    (AXIS,),
    axis_types=(AxisType.Auto,),
  )


def num_devices(mesh: Mesh | None) -> int:
  """The number of devices."""
  return 1 if mesh is None else mesh.size


def sharding_over(mesh: Mesh, axis: int = 0) -> NamedSharding:
  """Returns the sharding of an array along one of its axes."""
  return NamedSharding(mesh, PartitionSpec(*[None] * axis, AXIS))


def shard_if_divisible(
  mesh: Mesh | None, x: Array, *, axes: Sequence[int]
) -> Array:
  """Shards an array along the first of some axes that the devices divide.

  Without any it is replicated, within a jitted function. Its shape is thus the same on
  any number of devices, so that a checkpoint can be restored on another number.
  """
  if mesh is None:
    return x
  for axis in axes:
    if x.shape[axis] and x.shape[axis] % mesh.size == 0:
      return jax.lax.with_sharding_constraint(x, sharding_over(mesh, axis))
  return constrain_replicated(mesh, x)


def sum_over_devices(
  mesh: Mesh | None, specs: Sequence[PartitionSpec]
) -> Callable[[F], F]:
  """Decorates a function to be called on each device, and its results summed.

  Each device calls it with its own shard of the arguments. Devices wait for
  each other only for the sum, so loops take as many steps as each device needs.

  Args:
    mesh: the devices; None leaves the function as it is.
    specs: `SHARDED` or `REPLICATED` for each of its arguments, trees of arrays.
  """
  if mesh is None:
    return lambda function: function

  def decorate(function: Any) -> Any:
    def sum_results(*arguments: PyTree) -> PyTree:
      return jax.lax.psum(function(*arguments), AXIS)

    return _map_devices(sum_results, mesh, specs, REPLICATED)

  return decorate


def concatenate_over_devices(
  mesh: Mesh, specs: Sequence[PartitionSpec]
) -> Callable[[F], F]:
  """As `sum_over_devices`, but results are concatenated along their first axis.

  They remain sharded.
  """
  return lambda function: _map_devices(function, mesh, specs, SHARDED)


def _map_devices(
  function: Any,
  mesh: Mesh,
  specs: Sequence[PartitionSpec],
  out: PartitionSpec,
) -> Any:
  # Unchecked, as the check would sum over devices the gradients that each
  # client takes by itself.
  return jax.shard_map(
    function,
    mesh=mesh,
    in_specs=tuple(specs),
    out_specs=out,
    check_vma=False,
  )


def device_index() -> Array:
  """The index of this device, within a function that runs on each."""
  return jax.lax.axis_index(AXIS)


def all_gather(x: Array) -> Array:
  """Gathers the shards of all devices, within a function that runs on each."""
  return jax.lax.all_gather(x, AXIS, tiled=True)


def constrain_replicated(mesh: Mesh | None, x: PyTree) -> PyTree:
  """Replicates arrays on all devices, within a jitted function."""
  if mesh is None:
    return x
  return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, REPLICATED))


def fusion_barrier(always: Bool[Array, ''], make: Callable[[], Any]) -> Any:
  """Returns what `make` returns, materialized rather than fused into its uses.

  XLA recomputes an array inside each computation that uses it if its operations
  are cheap one by one, such as the 20 rounds of Threefry. XLA:CPU drops
  optimization barriers before it fuses, but does not fuse across the branches of
  a conditional; other platforms get the optimization barrier.

  Args:
    always: a traced condition that is true, which XLA cannot infer.
    make: () -> a tree of arrays.
  """

  def choose_always() -> Any:
    like = jax.eval_shape(make)
    zeros = lambda: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)
    return jax.lax.cond(always, make, zeros)

  return jax.lax.platform_dependent(
    cpu=choose_always, default=lambda: jax.lax.optimization_barrier(make())
  )
