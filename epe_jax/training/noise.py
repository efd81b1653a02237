"""Privacy noise, and the numbers in which a round is summed so that it hides.

The sum of float32 vectors and float32 noise tells more than the noise hides:
`jax.random.normal` has 2^23 values, so that a release less the right sum lies on
their grid, and a release less a wrong sum does not; and it ends at 5.4 standard
deviations. A simulation does not mind, as everybody may know its seed. In a
model for release clients send whole steps of a grid, which are added without
rounding, and the noise is whole steps too. Every release is then a possible one
whatever the clients sent.
"""

from collections.abc import Callable
import functools
import math
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int
import numpy as np

from epe_jax.parallel import sharding
from epe_jax.parallel.barrier import fusion_barrier
from epe_jax.training import integer_gaussian
from epe_jax.types import Array, Key

_LANES = 512  # Terms of a sum that XLA may add in any order.
_MAX_SHIFT = 12
_VECTOR = 64  # Drawn in multiples of it.


class Noise(NamedTuple):
  """How vectors are summed, and the noise of noise multiplier z on the sum.

  Attributes:
    dtype: of a sum: float32, in parameter units, or int32, in steps.
    norm: x [d] -> |x|, float32 scalar.
    multiply: (x, factor, S, key) -> factor x, as it enters a sum. Where |x| factor
      is at most S, the norm of the result is too. The key is for rounding at random.
    draw: (key, d, S) -> noise [d] for a sum, of standard deviation z S.
    read: (sum, S) -> the sum in parameter units, float32.
    size: d -> the length of a sum.
    reduce: sum -> what is seen of it, and of how many coordinates that is not all, int32.
      Vectors then enter one by one. None if all is seen, and a sum of vectors may enter
      as one.
  """

  dtype: Any
  norm: Callable[[Float[Array, ' d']], Float[Array, '']]
  multiply: Callable[..., Array]
  draw: Callable[[Key, int, Any], Array]
  read: Callable[[Array, Any], Float[Array, '*d']]
  size: Callable[[int], int] = lambda dim: dim
  reduce: Callable[[Array], tuple[Array, Int[Array, '']]] | None = None


MakeNoise: TypeAlias = Callable[[float], Noise]
"""z -> `Noise` of this noise multiplier."""


def float32(noise_multiplier: float) -> Noise:
  """Noise for simulations: float32 normals, added to a float32 sum.

  Args:
    noise_multiplier: z >= 0.
  """

  def draw(key: Key, dim: int, clip_norm: Any) -> Float[Array, ' d']:
    normals = jax.random.normal(key, (dim,), jnp.float32)
    return noise_multiplier * clip_norm * normals

  return Noise(
    dtype=jnp.float32,
    norm=jnp.linalg.norm,
    multiply=lambda x, factor, clip_norm, key=None: x * factor,
    draw=draw,
    read=lambda total, clip_norm: total,
  )


ROUNDING = np.uint32(2**32 - 2)
"""Folded into the key of a client, which is folded by less for anything else."""


def sum_canaries(
  noise: Noise,
  injection: Any,
  clip_norm: Float[Array, ''],
  key: Key,
  *,
  always: Bool[Array, ''],
) -> Array:
  """Returns Σ_j S c_j of an `Injection` for a sum, each by itself if that matters.

  Args:
    noise: of the sum.
    injection: of the round.
    clip_norm: S.
    key: of the round, for rounding.
    always: as for `fusion_barrier`, and known once clients have trained.

  Raises:
    ValueError: vectors enter the sum one by one, and the injection has only their sum.
  """
  # Materialize the canaries after the client scan; otherwise XLA may keep
  # their d floats live during training.
  if noise.reduce is None:
    direction = fusion_barrier(always, injection.direction)
    return noise.multiply(direction, clip_norm, clip_norm)
  if injection.messages is None:
    if jax.eval_shape(injection.direction).shape:
      raise ValueError(
        'the injection has a sum of directions, but vectors enter this sum one by '
        'one; give its `messages` too.'
      )
    return jnp.zeros((), noise.dtype)
  key_of_canaries = jax.random.fold_in(key, ROUNDING)

  def encode(canary: Float[Array, ' d'], j: Int[Array, ''] | int) -> Array:
    key_of_canary = jax.random.fold_in(key_of_canaries, j)
    return noise.multiply(canary, clip_norm, clip_norm, key_of_canary)

  return fusion_barrier(always, lambda: injection.messages(encode))


def exact(max_clients: int, *, mesh: sharding.Mesh | None = None) -> MakeNoise:
  """Noise for models to be released: a discrete Gaussian on a public grid.

  Vectors are rounded towards zero to whole steps. A step is z S / σ, and σ at
  most 450,561 steps, a power of two less where sums would not fit 32 bits. A
  vector of norm S has at most σ / z steps: what clients multiply it by is less
  than that by a bound on all rounding, of 3e-5 for a million parameters. The sum
  is an integer vector, so adding noise to it and rounding both is the same as
  adding rounded noise.

  A release is thus computed from that of a Gaussian mechanism of noise
  multiplier z, but for a probability of 2^-64 for each coordinate and round:
  rounding a continuous Gaussian at random to integers, with a discrete Gaussian
  of deviation 2, gives a discrete Gaussian (Peikert 2010, Theorem 3.1). That it
  is narrower by 1e-11 of its width is within the bound on rounding.

  Args:
    max_clients: the largest number of clients and canaries in a round, >= 1.
    mesh: the devices, each of which draws its own coordinates; None for one.

  Returns:
    z -> noise. It raises a ValueError where z is too small for the clients.

  References:
    Mironov 2012, "On Significance of the Least Significant Bits for
    Differential Privacy"; Canonne, Kamath and Steinke 2020, "The Discrete
    Gaussian for Differential Privacy"; Peikert 2010, "An Efficient and Parallel
    Gaussian Sampler for Lattices".
  """

  def draw_over_devices(key: Key, dim: int, always: Array) -> Array:
    if mesh is None or dim % mesh.size:
      return _draw_part(key, always, dim)
    part = dim // mesh.size

    # By hand, as what XLA makes of a partition takes several times as long.
    def draw_own(key: Key, always: Array) -> Array:
      return _draw_part(key, always, part, sharding.device_index() * part)

    specs = sharding.REPLICATED, sharding.REPLICATED
    return sharding.concatenate_over_devices(draw_own, mesh, specs)(key, always)

  def make(noise_multiplier: float) -> Noise:
    shift = 0
    while (
      max_clients * (integer_gaussian.STD / noise_multiplier)
      + integer_gaussian.MAX
    ) / 2**shift >= 2**31 - 1:
      shift += 1
    if shift > _MAX_SHIFT:
      raise ValueError(
        f'noise_multiplier={noise_multiplier} with up to {max_clients} clients '
        'and canaries in a round: their sum and noise that hides it to the last '
        'bit do not fit 32 bits. Set a noise_multiplier of at least '
        f'{noise_multiplier * 2 ** (shift - _MAX_SHIFT):.2g}, or fewer clients '
        'and canaries.'
      )
    std = integer_gaussian.STD / 2**shift

    def multiply(
      x: Array, factor: Any, clip_norm: Any, key: Key | None = None
    ) -> Array:
      del key
      max_steps = np.float32(
        std / noise_multiplier * (1 - bound_rounding(x.size))
      )
      steps = x * (factor * (max_steps / clip_norm))
      # A client that has diverged sends nothing; no integer stands for it.
      return jnp.where(jnp.isfinite(steps), steps, 0).astype(jnp.int32)

    def draw(key: Key, dim: int, clip_norm: Any) -> Array:
      noise = draw_over_devices(key, dim, jnp.asarray(clip_norm) > 0)
      return (noise + (1 << shift >> 1)) >> shift

    def read(total: Array, clip_norm: Any) -> Array:
      return total.astype(jnp.float32) * (clip_norm * (noise_multiplier / std))

    return Noise(jnp.int32, norm_by_halves, multiply, draw, read)

  return make


def _draw_part(
  key: Key, always: Array, dim: int, start: Array | int = 0
) -> Array:
  """Draws coordinates from `start` on, once for all their uses."""
  # XLA:CPU takes eight times as long over a number that does not fill vectors.
  padded = -(-dim // _VECTOR) * _VECTOR
  make = functools.partial(
    integer_gaussian.draw_integers, key, padded, always=always, start=start
  )
  return fusion_barrier(always, make)[:dim]


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
