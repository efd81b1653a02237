"""What the host of a program does: name its devices, place arrays on them and copy them.

`mesh` is None for a single device, as in `epe_jax.parallel.sharding`.
"""

import ctypes
import os
from typing import Any

import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np

from epe_jax.parallel import sharding
from epe_jax.types import Array, Key, PyTree

# Some systems have no affinities.
_AFFINITY = hasattr(os, 'sched_getaffinity')
# It has conditionals run side by side. Where both have collectives, processes of CPUs
# take the messages of one for those of the other.
_CONCURRENCY = 'xla_cpu_enable_concurrency_optimized_scheduler'
# M_TRIM_THRESHOLD, M_TOP_PAD and M_MMAP_THRESHOLD of glibc's mallopt, in bytes.
_KEEP_FREED = {-1: 2**31 - 1, -2: 500 * 2**20, -3: 2**30}


def use_cores(max_devices: int) -> None:
  """Makes each core of the processor a device; call it before anything else.

  Clients side by side use the cores better than one client on all of them, as
  the steps of a small model are too short to be shared. JAX_NUM_CPU_DEVICES and
  XLA_FLAGS have precedence, and an accelerator is used where there is one.

  Args:
    max_devices: the number of devices that there is work for, >= 1, such as the
      clients of a round.

  Raises:
    RuntimeError: JAX has been used already.
  """
  flags = os.environ.get('XLA_FLAGS', '')
  if (
    'JAX_NUM_CPU_DEVICES' not in os.environ
    and 'xla_force_host_platform_device_count' not in flags
  ):
    cores = len(os.sched_getaffinity(0)) if _AFFINITY else os.cpu_count() or 1
    jax.config.update('jax_num_cpu_devices', min(cores, max_devices))


def keep_freed_memory() -> None:
  """Keeps what is freed for the next step, where the C library is glibc.

  It returns blocks of more than 32 MB to the system otherwise, which clears them again
  before a program has them: a step that needs one takes a fifth longer.
  """
  library = ctypes.CDLL(None)
  if hasattr(library, 'mallopt'):
    for option, value in _KEEP_FREED.items():
      library.mallopt(option, value)


def initialize_distributed(
  coordinator: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
) -> None:
  """Makes this process one of several that run the same program.

  Call it before anything else of JAX. Without arguments JAX finds out by itself
  on the clusters that it recognises: Slurm, Open MPI, Kubernetes, Cloud TPU.

  Args:
    coordinator: host:port of the primary process, process 0, which writes the files
      of a run.
    num_processes: the number of processes of all hosts, >= 1.
    process_id: index of this process, from 0.

  Raises:
    ValueError: some arguments are given and others are not, or one is out of
      range.
  """
  given = (coordinator, num_processes, process_id)
  if given != (None, None, None):
    if coordinator is None or num_processes is None or process_id is None:
      raise ValueError(
        f'coordinator={coordinator}, num_processes={num_processes}, '
        f'process_id={process_id}; give all three, or on a cluster that JAX '
        'recognises none.'
      )
    if not 0 <= process_id < num_processes:
      raise ValueError(
        f'process_id={process_id} of num_processes={num_processes}; give one '
        f'from 0 to {num_processes - 1} to each process.'
      )
  flags = os.environ.get('XLA_FLAGS', '')
  if _CONCURRENCY not in flags:
    os.environ['XLA_FLAGS'] = f'{flags} --{_CONCURRENCY}=false'.strip()
  jax.distributed.initialize(*given)


def local_devices_of(mesh: sharding.Mesh | None) -> list[int]:
  """Returns the indices in the mesh of the devices of this process."""
  if mesh is None:
    return [0]
  here = jax.process_index()
  return [i for i, d in enumerate(mesh.devices) if d.process_index == here]


def assemble_global(
  mesh: sharding.Mesh | None, parts: PyTree, *, axis: int = 0
) -> PyTree:
  """Assembles global arrays from the shards that each process has.

  Args:
    parts: NumPy arrays, with the shards of this process's devices one after
      another along an axis.
    axis: the axis that is sharded.
  """
  if mesh is None:
    return jax.device_put(parts)
  spec = sharding.sharding_over(mesh, axis)
  return jax.tree.map(
    lambda x: jax.make_array_from_process_local_data(spec, x), parts
  )


def shard_first_axis(mesh: sharding.Mesh | None, x: PyTree) -> PyTree:
  """Shards arrays that every process has along the first axis."""
  return _put(mesh, x, sharding.SHARDED)


def replicate(mesh: sharding.Mesh | None, x: PyTree) -> PyTree:
  """Puts arrays that every process has on every device."""
  return _put(mesh, x, sharding.REPLICATED)


def replicate_key(mesh: sharding.Mesh | None, key: Key) -> Key:
  """Puts a key that every process has on every device."""
  if mesh is None:
    return key
  data = replicate(mesh, jax.random.key_data(key))
  return jax.random.wrap_key_data(data, impl=jax.random.key_impl(key))


def current_shardings(mesh: sharding.Mesh | None, state: PyTree) -> Any:
  """Returns the `out_shardings` that keep a state as it is sharded now."""
  return None if mesh is None else jax.tree.map(lambda x: x.sharding, state)


def step_shardings(mesh: sharding.Mesh | None, state: PyTree) -> Any:
  """Returns the `out_shardings` of a step to (state, replicated arrays)."""
  if mesh is None:
    return None
  return current_shardings(mesh, state), NamedSharding(
    mesh, sharding.REPLICATED
  )


def shard_like(x: PyTree, template: PyTree) -> PyTree:
  """Shards arrays that every process has as those of a template are sharded.

  Where the template has NumPy arrays, they stay on the host and are copies that
  may be written into. Where its arrays are committed to no device, nor are they:
  a program that was compiled for the one is compiled for the other.
  """

  def shard(x: Any, like: Any) -> Any:
    if isinstance(like, np.ndarray):
      return np.array(x)
    return _put_one(x, like.sharding) if like.committed else jnp.array(x)

  return jax.tree.map(shard, x, template)


def copy_to_host(x: PyTree) -> PyTree:
  """Copies arrays to NumPy in every process, however they are sharded.

  All processes must call it, as each sends its shards.
  """

  def copy(x: Any) -> Any:
    if isinstance(x, np.ndarray):
      return x.copy()
    if not (x.is_fully_addressable or x.is_fully_replicated):
      assert isinstance(x.sharding, NamedSharding)
      replicated = NamedSharding(x.sharding.mesh, sharding.REPLICATED)
      x = jax.jit(jnp.copy, out_shardings=replicated)(x)
    if x.is_fully_replicated:
      return np.array(x.addressable_data(0))
    # Not by device_get, which keeps the assembled array for as long as x.
    assembled = np.empty(x.shape, x.dtype)
    for shard in x.addressable_shards:
      assembled[shard.index] = shard.data
    return assembled

  return jax.tree.map(copy, x)


def broadcast_from_primary(x: PyTree) -> PyTree:
  """Returns what the primary process has, in NumPy; shapes are the same in all.

  >>> int(broadcast_from_primary(3))
  3
  """
  return multihost_utils.broadcast_one_to_all(x)


def is_primary() -> bool:
  """Whether this is the primary process, the one that writes files."""
  return jax.process_index() == 0


def _put(mesh: sharding.Mesh | None, x: PyTree, spec: PartitionSpec) -> PyTree:
  if mesh is None:
    return x
  return jax.tree.map(lambda x: _put_one(x, NamedSharding(mesh, spec)), x)


def _put_one(x: Any, sharding: jax.sharding.Sharding) -> Array:
  x = jax.device_get(x)
  # device_put would compare what the processes have.
  return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])
