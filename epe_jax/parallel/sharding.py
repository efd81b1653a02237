"""The one mesh: all devices of all processes in a row.

Clients, canaries and coordinates are each split along this row. A single device
has no mesh, None: whoever is given none runs the program that knows of no other
devices.
"""

from collections.abc import Callable, Sequence
import os
from typing import Any, TypeAlias, TypeVar

import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec
import numpy as np

from epe_jax.types import Array, Key, PyTree

T = TypeVar('T')
# Not on every system.
_AFFINITY = hasattr(os, 'sched_getaffinity')
Mesh: TypeAlias = jax.sharding.Mesh

AXIS = 'devices'
SHARDED = PartitionSpec(AXIS)
"""The first axis of an array is split over the devices."""
REPLICATED = PartitionSpec()
"""Each device has all of it."""


def use_cores(most: int) -> None:
  """A device for each core of the processor, to be called before all else.

  Clients side by side use the cores better than one client on all of them: the
  steps of a small model are too short to be cut. What JAX_NUM_CPU_DEVICES or
  XLA_FLAGS say goes before it, and an accelerator is used where there is one.

  Args:
    most: devices for which there is work, >= 1, as clients of a round.

  Raises:
    RuntimeError: JAX has been used already.
  """
  flags = os.environ.get('XLA_FLAGS', '')
  if (
    'JAX_NUM_CPU_DEVICES' not in os.environ
    and 'xla_force_host_platform_device_count' not in flags
  ):
    cores = len(os.sched_getaffinity(0)) if _AFFINITY else os.cpu_count() or 1
    jax.config.update('jax_num_cpu_devices', min(cores, most))


def initialize_distributed(
  coordinator: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
) -> None:
  """Makes this process one of several that run the same program.

  To be called before anything else of JAX. Without arguments JAX looks for
  what it recognises: Slurm, Open MPI, Kubernetes, Cloud TPU.

  Args:
    coordinator: host:port of the first process.
    num_processes: of all hosts together, >= 1.
    process_id: of this one, from 0; the first one writes the files of a run.

  Raises:
    ValueError: some are given and others are not, or one is out of range.
  """
  given = (coordinator, num_processes, process_id)
  if given == (None, None, None):
    jax.distributed.initialize()
    return
  if coordinator is None or num_processes is None or process_id is None:
    raise ValueError(
      f'coordinator={coordinator}, num_processes={num_processes}, '
      f'process_id={process_id}; give all three, or on a cluster that JAX '
      'recognises none.'
    )
  if not 0 <= process_id < num_processes:
    raise ValueError(
      f'process_id={process_id} of num_processes={num_processes}; give one from '
      f'0 to {num_processes - 1} to each process.'
    )
  jax.distributed.initialize(coordinator, num_processes, process_id)


def mesh(devices: Sequence[Any] | None = None) -> Mesh | None:
  """The devices in a row, or None for one alone.

  Args:
    devices: those to use; None for all of all processes.
  """
  found = make_mesh(devices)
  return None if found.size == 1 else found


def make_mesh(devices: Sequence[Any] | None = None) -> Mesh:
  """The devices in a row, be it one alone.

  Args:
    devices: those to use; None for all of all processes.
  """
  # In the order of JAX, so that those of a process lie side by side.
  return jax.sharding.Mesh(
    jax.devices() if devices is None else devices,
    (AXIS,),
    axis_types=(AxisType.Auto,),
  )


def num_devices(mesh: Mesh | None) -> int:
  """How many devices there are."""
  return 1 if mesh is None else mesh.size


def local_devices_of(mesh: Mesh | None) -> list[int]:
  """Which of the devices belong to this process."""
  if mesh is None:
    return [0]
  here = jax.process_index()
  return [i for i, d in enumerate(mesh.devices) if d.process_index == here]


def sharding_over(mesh: Mesh, axis: int = 0) -> NamedSharding:
  """An array of which one axis is split over the devices."""
  return NamedSharding(mesh, PartitionSpec(*[None] * axis, AXIS))


def shard_if_divisible(
  mesh: Mesh | None, x: Array, *, axes: Sequence[int]
) -> Array:
  """Split along the first of some axes that the devices divide; or whole.

  So the shape of an array is the same on any number of devices, and a
  checkpoint of it can be read on another.

  Args:
    mesh: the devices.
    x: an array, within a jitted function.
    axes: those that may be split, the best first.
  """
  if mesh is None:
    return x
  for axis in axes:
    if x.shape[axis] and x.shape[axis] % mesh.size == 0:
      return jax.lax.with_sharding_constraint(x, sharding_over(mesh, axis))
  return constrain_replicated(mesh, x)


def sum_over_devices(
  function: Callable[..., PyTree], mesh: Mesh, specs: Sequence[PartitionSpec]
) -> Callable[..., PyTree]:
  """What a function returns, added up over devices.

  Each device calls it with its own part of the arguments and goes its own way,
  with loops as long as it takes, until the sum.

  Args:
    function: of arrays, or trees of them, to a tree of arrays.
    mesh: the devices.
    specs: `SHARDED` or `REPLICATED` for each argument.
  """

  def part(*arguments: PyTree) -> PyTree:
    return jax.lax.psum(function(*arguments), AXIS)

  # Unchecked: the check would make sums over devices of gradients that are
  # taken by each client on its own.
  return jax.shard_map(
    part,
    mesh=mesh,
    in_specs=tuple(specs),
    out_specs=REPLICATED,
    check_vma=False,
  )


def concatenate_over_devices(
  function: Callable[..., PyTree], mesh: Mesh, specs: Sequence[PartitionSpec]
) -> Callable[..., PyTree]:
  """What a function returns on each device, one behind the other.

  Args:
    function: likewise; the results are split along the first axis.
    mesh: the devices.
    specs: of the arguments.
  """
  return jax.shard_map(
    function,
    mesh=mesh,
    in_specs=tuple(specs),
    out_specs=SHARDED,
    check_vma=False,
  )


def device_index() -> Array:
  """Within `sum_over_devices` and `concatenate_over_devices`: which of the devices this is."""
  return jax.lax.axis_index(AXIS)


def all_gather(x: Array) -> Array:
  """Within `sum_over_devices` and `concatenate_over_devices`: the parts of all devices along the first axis."""
  return jax.lax.all_gather(x, AXIS, tiled=True)


def constrain_replicated(mesh: Mesh | None, x: PyTree) -> PyTree:
  """Within a jitted function: each device has all of it from here on."""
  if mesh is None:
    return x
  return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, REPLICATED))


def assemble_global(
  mesh: Mesh | None, parts: PyTree, *, axis: int = 0
) -> PyTree:
  """Global arrays, of which each process gives the part of its own devices.

  Args:
    mesh: the devices.
    parts: NumPy arrays, with the devices of this process one after another
      along an axis.
    axis: which.
  """
  if mesh is None:
    return jax.device_put(parts)
  sharding = sharding_over(mesh, axis)
  return jax.tree.map(
    lambda x: jax.make_array_from_process_local_data(sharding, x), parts
  )


def shard_first_axis(mesh: Mesh | None, x: PyTree) -> PyTree:
  """Arrays that every process has, split along the first axis."""
  return (
    x
    if mesh is None
    else jax.tree.map(lambda x: _put(x, sharding_over(mesh)), x)
  )


def replicate(mesh: Mesh | None, x: PyTree) -> PyTree:
  """Arrays that every process has, on every device."""
  if mesh is None:
    return x
  sharding = NamedSharding(mesh, REPLICATED)
  return jax.tree.map(lambda x: _put(x, sharding), x)


def replicate_key(mesh: Mesh | None, key: Key) -> Key:
  """A key that every process has, on every device."""
  if mesh is None:
    return key
  data = replicate(mesh, jax.random.key_data(key))
  return jax.random.wrap_key_data(data, impl=jax.random.key_impl(key))


def current_shardings(mesh: Mesh | None, state: PyTree) -> Any:
  """`out_shardings` of a function that returns the state as it lies now."""
  return None if mesh is None else jax.tree.map(lambda x: x.sharding, state)


def step_shardings(mesh: Mesh | None, state: PyTree) -> Any:
  """`out_shardings` of a step that returns (state, what is on every device)."""
  if mesh is None:
    return None
  return current_shardings(mesh, state), NamedSharding(mesh, REPLICATED)


def shard_like(x: PyTree, model: PyTree) -> PyTree:
  """Arrays that every process has, laid out as those of a model.

  Where the model has arrays of NumPy they stay on the host, to be written into.
  """
  return jax.tree.map(
    lambda x, model: (
      np.array(x) if isinstance(model, np.ndarray) else _put(x, model.sharding)
    ),
    x,
    model,
  )


def copy_to_host(x: PyTree) -> PyTree:
  """Copies in NumPy, in every process, however the arrays are laid out.

  All processes have to call it, because all send what they have.
  """

  def copy(x: Any) -> Any:
    if isinstance(x, np.ndarray):
      return x.copy()
    if not (x.is_fully_addressable or x.is_fully_replicated):
      assert isinstance(x.sharding, NamedSharding)
      everywhere = NamedSharding(x.sharding.mesh, REPLICATED)
      x = jax.jit(jnp.copy, out_shardings=everywhere)(x)
    if x.is_fully_replicated:
      return np.array(x.addressable_data(0))
    # Not by device_get, which keeps what it put together as long as x.
    whole = np.empty(x.shape, x.dtype)
    for part in x.addressable_shards:
      whole[part.index] = part.data
    return whole

  return jax.tree.map(copy, x)


def broadcast_from_primary(x: PyTree) -> PyTree:
  """What the first process has, in NumPy; shapes are the same in all.

  >>> int(broadcast_from_primary(3))
  3
  """
  return multihost_utils.broadcast_one_to_all(x)


def is_primary() -> bool:
  """Whether this is the process that writes files."""
  return jax.process_index() == 0


def _put(x: Any, sharding: jax.sharding.Sharding) -> Array:
  x = jax.device_get(x)
  # No comparison of what the processes have, as device_put would make.
  return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])
