"""How the clipped vectors of a round are summed, and noise is added to the sum.

A round encodes vectors as messages, adds them up, finishes the sum with noise, and
decodes it. Here is the aggregation of float32 vectors, for simulations; exact noise,
correlated noise and secure aggregation have files of their own.
"""

from collections.abc import Callable
import math
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Float
import numpy as np

from epe_jax.parallel import sharding
from epe_jax.types import Array, Key

_LANES = 512  # Terms of a sum that XLA may add in any order.

Draw: TypeAlias = Callable[[Key], Array]
"""Key -> independent noise for a sum, [s], of the standard deviation z S."""

ROUNDING = np.uint32(2**32 - 2)
"""Folded into the key of a client, which is folded by less for anything else."""


class Finished(NamedTuple):
  """The noisy sum of a round.

  Attributes:
    total: what is decoded, [s].
    state: for the next round.
    wrapped: number of coordinates that wrapped around a ring; None without one.
  """

  total: Array
  state: Any
  wrapped: Float[Array, ''] | None = None


def add_noise(draw: Draw, key: Key, total: Array, state: Any) -> Finished:
  """Finishes a sum with noise that is independent of that of other rounds."""
  return Finished(total + draw(key), state)


class Aggregation(NamedTuple):
  """The sum of vectors, and noise of noise multiplier z on it.

  Attributes:
    norm: x [d] -> |x|, float32 scalar.
    encode: (x, factor, S, key) -> factor x as a message [s]. Where |x| factor is at
      most S, the norm of the message is too. The key is for rounding at random.
    draw: (key, d, S) -> independent noise for a sum, of standard deviation z S.
    decode: (sum, S) -> the sum in parameter units, float32.
    finish: (draw, key, sum, state) -> `Finished`.
    init: d -> the state of the first round.
    size: d -> s, the length of a message.
    dtype: of a message: float32, in parameter units, or int32, in steps.
    one_by_one: whether each vector is a message of its own, so that a sum of vectors
      may not enter as one.
  """

  norm: Callable[[Float[Array, ' d']], Float[Array, '']]
  encode: Callable[..., Array]
  draw: Callable[[Key, int, Any], Array]
  decode: Callable[[Array, Any], Float[Array, '*d']]
  finish: Callable[[Draw, Key, Array, Any], Finished] = add_noise
  init: Callable[[int], Any] = lambda dim: ()
  size: Callable[[int], int] = lambda dim: dim
  dtype: Any = jnp.int32
  one_by_one: bool = False


MakeAggregation: TypeAlias = Callable[[float], Aggregation]
"""z -> `Aggregation` of this noise multiplier."""


def float32(noise_multiplier: float) -> Aggregation:
  """Float32 sums with float32 normals, for simulations.

  Args:
    noise_multiplier: z >= 0.
  """

  def draw(key: Key, dim: int, clip_norm: Any) -> Float[Array, ' d']:
    normals = jax.random.normal(key, (dim,), jnp.float32)
    return noise_multiplier * clip_norm * normals

  return Aggregation(
    norm=jnp.linalg.norm,
    encode=lambda x, factor, clip_norm, key=None: x * factor,
    draw=draw,
    decode=lambda total, clip_norm: total,
    dtype=jnp.float32,
  )


def shard(aggregation: Aggregation, mesh: sharding.Mesh | None) -> Aggregation:
  """Shards noise and the state over devices, by coordinates.

  Bits follow from key and coordinate alone, whichever device draws them.
  """

  def shard_last_axis(x: Array) -> Array:
    axes = (x.ndim - 1,) if x.ndim else ()
    return sharding.shard_if_divisible(mesh, x, axes=axes)

  return aggregation._replace(
    draw=lambda *args: shard_last_axis(aggregation.draw(*args)),
    init=lambda dim: jax.tree.map(shard_last_axis, aggregation.init(dim)),
  )


def norm_by_halves(x: Float[Array, ' d']) -> Float[Array, '']:
  """|x| with a relative error of less than `bound_rounding(d)`.

  Added in one sum, a million squares may be off by 6 % in the worst order.
  """
  rows = -(-x.size // _LANES)
  padded = jnp.pad(x, (0, rows * _LANES - x.size)).reshape(rows, _LANES)
  sums = jnp.sum(jnp.square(padded), axis=1)
  # XLA may merge two sums into one, but not additions of halves.
  sums = jnp.pad(sums, (0, (1 << (rows - 1).bit_length()) - rows))
  while sums.size > 1:
    sums = sums[: sums.size // 2] + sums[sums.size // 2 :]
  return jnp.sqrt(sums[0])


def bound_rounding(dim: int) -> float:
  """By which factor less than 1 float32 may have made a norm of d numbers.

  A square, 511 sums in any order and one in each halving are off by 2^-24 each,
  and a root halves that. What follows, five operations, has as much again.
  """
  return (_LANES + math.log2(max(dim, 2)) + 16) * 2.0**-24
