"""Canaries whose work is shared by the devices of a mesh.

A map C is cut by its rows, where each canary is made by itself, or by its
columns, where all of them are one pass over v. The bits of a canary follow from
its number and those of its coordinates, so they are the same however it is cut;
what is added up over devices agrees to rounding.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Float, Int

from epe_jax.canaries import _blocks, _threefry, _walsh
from epe_jax.canaries.base import Canaries, accept_stacks, check_sizes
from epe_jax.parallel import sharding
from epe_jax.types import Array, Key


def hadamard_of_parts(
  key: Key, num: int, dim: int, *, mesh: sharding.Mesh
) -> Canaries:
  """The canaries of `hadamard`, for vectors that no device has the whole of.

  With them a model is audited that is larger than the memory of a device. Each
  device folds its own part of v; 4096 floats a group and vector are added up
  over devices, and nothing else is sent. `superpose` sends nothing at all.

  Args:
    key: the canary key; never the key of the privacy noise.
    num: k >= 1.
    dim: d >= 2, parameters of the model.
    mesh: of the devices.

  Returns:
    Canaries whose vectors have `width(dim, mesh)` entries, split evenly over
    the devices; those past d are 0 and have to be so in what is projected.

  >>> import jax
  >>> mesh = sharding.make_mesh()
  >>> c = hadamard_of_parts(jax.random.key(0), num=5, dim=8192, mesh=mesh)
  >>> v = c.superpose(jnp.array([3, 4]), jnp.array([1.0, 2.0]))
  >>> v.shape, abs(c.project(v)).round(3).tolist()
  ((65536,), [0.0, 0.0, 0.0, 1.0, 2.0])
  """
  length = padded_width(dim, mesh)
  own = length // mesh.size
  columns = sharding.sharding_over(mesh, 1).spec
  whole = sharding.REPLICATED

  def fold(
    root: _threefry.Root, stream: Int[Array, ''], x: Float[Array, 'r d']
  ) -> Float[Array, 'r b']:
    return _walsh.fold(
      root, stream, x, sharding.device_index() * (own // _walsh.TILE)
    )

  def unfold(
    root: _threefry.Root, streams: Int[Array, ' g'], shorts: Float[Array, 'g b']
  ) -> Float[Array, ' d']:
    p = sharding.device_index()
    v = _walsh.unfold(root, streams, shorts, own, p * (own // _walsh.TILE))
    return jnp.where(jnp.arange(own) < dim - p * own, v, 0)

  passes = _walsh.Passes(
    length,
    sharding.sum_over_devices(fold, mesh, (whole, whole, columns)),
    sharding.concatenate_over_devices(unfold, mesh, (whole, whole, whole)),
  )
  return _walsh.rows(_threefry.root(key, _walsh.PURPOSE), num, dim, passes)


def padded_width(dim: int, mesh: sharding.Mesh) -> int:
  """Entries of a vector of d that is cut into whole tiles, equally many each.

  At most 65536 per device more than d, of which no canary depends.
  """
  tiles = -(-dim // _walsh.TILE)
  return -(-tiles // mesh.size) * mesh.size * _walsh.TILE


def by_coordinate(
  key: Key, num: int, dim: int, *, mesh: sharding.Mesh
) -> Canaries:
  """The canaries of `hadamard` for vectors [d], whole or split in any way."""
  parts = hadamard_of_parts(key, num, dim, mesh=mesh)
  more = padded_width(dim, mesh) - dim

  project = lambda v: parts.project(jnp.pad(v, ((0, 0), (0, more))))
  return Canaries(
    num,
    dim,
    accept_stacks(project, num, dim),
    lambda ids, w: parts.superpose(ids, w)[:dim],
  )


def by_canary(
  make: Callable[[Key, int, int], Canaries],
  project: Callable[[Key, Array, _blocks.Part], Float[Array, 'r k']],
  key: Key,
  num: int,
  dim: int,
  *,
  block: int,
  mesh: sharding.Mesh,
) -> Canaries:
  """Canaries of which each device makes its own, equally many.

  Vectors may lie where they are, equally many on each device: all are sent to
  all, a piece of their coordinates at a time.

  Args:
    make: the canaries of one device.
    project: as `sphere.project_sphere`.
    key: the canary key.
    num: k.
    dim: d.
    block: canaries that a device holds at once.
    mesh: of the devices.

  Raises:
    ValueError: num, dim or block is out of range.
  """
  check_sizes(num, dim, block)
  whole, share = sharding.REPLICATED, -(-num // mesh.size)

  def look_at_all(vectors: Float[Array, 'r d']) -> Float[Array, 'r k']:
    spread = len(vectors) % mesh.size == 0

    def project_own(
      key: Key, v: Float[Array, 'r d']
    ) -> Float[Array, 's all_r']:
      mine = _blocks.Part(share, block, first=share * sharding.device_index())
      if spread:
        mine = mine._replace(fetched=sharding.all_gather)
      return project(key, v, mine).T

    project_all = sharding.concatenate_over_devices(
      project_own, mesh, (whole, sharding.SHARDED if spread else whole)
    )
    return sharding.constrain_replicated(mesh, project_all(key, vectors))[
      :num
    ].T

  def superpose(
    ids: Int[Array, ' m'], weights: Float[Array, ' m']
  ) -> Float[Array, ' d']:
    # Filled up by canaries of weight 0.
    more = (0, -len(ids) % mesh.size)
    summed = sharding.sum_over_devices(
      lambda key, ids, weights: make(key, num, dim).superpose(ids, weights),
      mesh,
      (whole, sharding.SHARDED, sharding.SHARDED),
    )
    return summed(key, jnp.pad(ids, more), jnp.pad(weights, more))

  return Canaries(num, dim, accept_stacks(look_at_all, num, dim), superpose)


def on_each(
  make: Callable[..., Canaries],
  key: Key,
  num: int,
  dim: int,
  *,
  mesh: sharding.Mesh,
) -> Canaries:
  """Canaries of which every device makes all: too cheap to be shared."""
  inner = make(key, num, dim)
  return inner._replace(
    project=lambda v: inner.project(sharding.constrain_replicated(mesh, v)),
    superpose=lambda ids, weights: sharding.constrain_replicated(
      mesh, inner.superpose(ids, weights)
    ),
  )
