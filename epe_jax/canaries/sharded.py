"""Canaries whose work is shared by the devices of a mesh.

A map C is split by its rows, where each canary is made by itself, or by its
columns, where all of them are one pass over v. The bits of a canary follow from
its id and those of its coordinates, so they are the same however C is split.
Sums over devices agree to rounding.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Float, Int

from epe_jax.canaries import _blocks, _threefry, _walsh
from epe_jax.canaries.base import Canaries, accept_stacks
from epe_jax.canaries.registry import check_sizes
from epe_jax.parallel import sharding
from epe_jax.types import Array, Key


def hadamard_of_parts(
  key: Key, num: int, dim: int, *, mesh: sharding.Mesh
) -> Canaries:
  """The canaries of `hadamard`, for vectors that are sharded over devices.

  They audit a model that is larger than the memory of a device. Each device
  folds its own shard of v; the devices add up 4096 floats for each group and
  vector, and send nothing else. `superpose` sends nothing at all.

  Args:
    key: the canary key; never the key of the privacy noise.
    num: k >= 1.
    dim: d >= 2, parameters of the model.
    mesh: the devices.

  Returns:
    Canaries whose vectors have `padded_width(dim, mesh)` entries,
    sharded evenly over the devices. Those past d are 0, and must be 0 in
    vectors that are projected.

  >>> import jax
  >>> mesh = sharding.make_mesh()
  >>> c = hadamard_of_parts(jax.random.key(0), num=5, dim=8192, mesh=mesh)
  >>> v = c.superpose(jnp.array([3, 4]), jnp.array([1.0, 2.0]))
  >>> v.shape, abs(c.project(v)).round(3).tolist()
  ((65536,), [0.0, 0.0, 0.0, 1.0, 2.0])
  """
  length = padded_width(dim, mesh)
  shard_length = length // mesh.size
  columns = sharding.sharding_over(mesh, 1).spec
  replicated = sharding.REPLICATED

  def fold(
    root: _threefry.Root, stream: Int[Array, ''], x: Float[Array, 'r d']
  ) -> Float[Array, 'r b']:
    return _walsh.fold(
      root, stream, x, sharding.device_index() * (shard_length // _walsh.TILE)
    )

  def unfold(
    root: _threefry.Root, streams: Int[Array, ' g'], shorts: Float[Array, 'g b']
  ) -> Float[Array, ' d']:
    p = sharding.device_index()
    v = _walsh.unfold(
      root, streams, shorts, shard_length, p * (shard_length // _walsh.TILE)
    )
    return jnp.where(jnp.arange(shard_length) < dim - p * shard_length, v, 0)

  passes = _walsh.Passes(
    length,
    sharding.sum_over_devices(mesh, (replicated, replicated, columns))(fold),
    sharding.concatenate_over_devices(mesh, [replicated] * 3)(unfold),
  )
  return _walsh.make_canaries(
    _threefry.derive_root(key, _walsh.PURPOSE), num, dim, passes
  )


def padded_width(dim: int, mesh: sharding.Mesh) -> int:
  """Returns d rounded up to whole tiles, equally many on each device.

  This is at most 65536 more than d for each device.
  """
  tiles = -(-dim // _walsh.TILE)
  return -(-tiles // mesh.size) * mesh.size * _walsh.TILE


def shard_by_coordinate(
  key: Key, num: int, dim: int, *, mesh: sharding.Mesh
) -> Canaries:
  """The canaries of `hadamard` for vectors [d], replicated or sharded."""
  padded = hadamard_of_parts(key, num, dim, mesh=mesh)
  margin = padded_width(dim, mesh) - dim

  project = lambda v: padded.project(jnp.pad(v, ((0, 0), (0, margin))))
  return Canaries(
    num,
    dim,
    accept_stacks(project, num, dim),
    lambda ids, w: padded.superpose(ids, w)[:dim],
  )


def shard_by_canary(
  make: Callable[[Key, int, int], Canaries],
  project: Callable[[Key, Array, _blocks.Shard], Float[Array, 'r k']],
  key: Key,
  num: int,
  dim: int,
  *,
  block: int,
  mesh: sharding.Mesh,
) -> Canaries:
  """Canaries that the devices share, equally many each.

  Vectors stay where they are, equally many on each device. Each device sends
  its own to all others, a piece of their coordinates at a time.

  Args:
    make: (key, k, d) -> the canaries of one device.
    project: projection onto a shard, such as `sphere.project_sphere`.
    key: the canary key.
    num: k >= 1.
    dim: d >= 2.
    block: canaries that a device holds at once, >= 1.
    mesh: the devices.

  Raises:
    ValueError: num, dim or block is out of range.
  """
  check_sizes(num, dim, block)
  replicated, share = sharding.REPLICATED, -(-num // mesh.size)

  def project_all_rows(vectors: Float[Array, 'r d']) -> Float[Array, 'r k']:
    is_sharded = len(vectors) % mesh.size == 0

    def project_own(
      key: Key, v: Float[Array, 'r d']
    ) -> Float[Array, 's all_r']:
      shard = _blocks.Shard(share, block, first=share * sharding.device_index())
      if is_sharded:
        shard = shard._replace(gather=sharding.all_gather)
      return project(key, v, shard).T

    project_all = sharding.concatenate_over_devices(
      mesh, (replicated, sharding.SHARDED if is_sharded else replicated)
    )(project_own)
    return sharding.constrain_replicated(mesh, project_all(key, vectors))[
      :num
    ].T

  def superpose(
    ids: Int[Array, ' m'], weights: Float[Array, ' m']
  ) -> Float[Array, ' d']:
    # Padded by canaries of weight 0.
    margin = (0, -len(ids) % mesh.size)
    summed = sharding.sum_over_devices(
      mesh, (replicated, sharding.SHARDED, sharding.SHARDED)
    )(lambda key, ids, weights: make(key, num, dim).superpose(ids, weights))
    return summed(key, jnp.pad(ids, margin), jnp.pad(weights, margin))

  return Canaries(
    num, dim, accept_stacks(project_all_rows, num, dim), superpose
  )


def replicate(
  make: Callable[..., Canaries],
  key: Key,
  num: int,
  dim: int,
  *,
  mesh: sharding.Mesh,
) -> Canaries:
  """Canaries that every device makes in full, being too cheap to share."""
  inner = make(key, num, dim)
  return inner._replace(
    project=lambda v: inner.project(sharding.constrain_replicated(mesh, v)),
    superpose=lambda ids, weights: sharding.constrain_replicated(
      mesh, inner.superpose(ids, weights)
    ),
  )
