"""Noise for models to be released, which hides a sum to the last bit.

The sum of float32 vectors and float32 noise tells more than the noise hides:
`jax.random.normal` has 2^23 values, so that a release less the right sum lies on
their grid, and a release less a wrong sum does not; and it ends at 5.4 standard
deviations. Here clients send whole steps of a grid, which are added without
rounding, and the noise is whole steps too: integers of a discrete Gaussian law, right
to 2^-63 in all and far into its tails. Every release is then a possible one whatever
the clients sent.

X = 512 A + B, where A and B are drawn from the discrete Gaussian of standard
deviation 880, ρ(x) ~ exp(-x²/(2·880²)). That of X is `STD`: the pairs (A, B) of
one sum are a discrete Gaussian of deviation s = 880 / √(512² + 1) = 1.72 on a
shifted lattice, whose mass differs by a factor of at most 1 ± 2 exp(-2π²s²) <
1 ± 2^-82 from shift to shift.

A and B come from a table by Walker's alias method, with 14 random bits for the
row and 64 for the choice in it. Its masses are multiples of 2^-78, and what lies
beyond 9.3 standard deviations, less than 2^-65, is left out.

References:
  Walker 1977, "An Efficient Method for Generating Discrete Random Variables
  with General Distributions"; Micciancio and Walter 2017, "Gaussian Sampling
  over the Integers", section 4 (the sum); Salmon et al. 2011 (Threefry).
"""

import decimal
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Int, UInt32
import numpy as np

from epe_jax.canaries import threefry
from epe_jax.parallel import sharding
from epe_jax.parallel.sharding import fusion_barrier
from epe_jax.training import aggregation
from epe_jax.types import Array, Key

_SMALL_STD = 880
_SPREAD = 512
_ROW_BITS = 14
_ROWS = 1 << _ROW_BITS
_CHOICE_BITS = 64
_ZERO = _ROWS // 2  # The row of the outcome 0.

STD = _SMALL_STD * math.sqrt(_SPREAD**2 + 1)
"""The standard deviation, 450,561."""
MAX = (_ZERO - 1) * (_SPREAD + 1)
"""The largest absolute value, 9.3 standard deviations."""

_MAX_SHIFT = 12
_VECTOR = 64  # Drawn in multiples of it.


def exact(
  max_clients: int, *, mesh: sharding.Mesh | None = None
) -> aggregation.MakeAggregation:
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
    mesh: the devices; each draws its own coordinates; None for one.

  Returns:
    z -> aggregation. It raises a ValueError where z is too small for the clients.

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
    @sharding.concatenate_over_devices(mesh, [sharding.REPLICATED] * 2)
    def draw_own(key: Key, always: Array) -> Array:
      return _draw_part(key, always, part, sharding.device_index() * part)

    return draw_own(key, always)

  def make(noise_multiplier: float) -> aggregation.Aggregation:
    shift = 0
    while (
      max_clients * (STD / noise_multiplier) + MAX
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
    std = STD / 2**shift

    def encode(
      x: Array, factor: Any, clip_norm: Any, key: Key | None = None
    ) -> Array:
      del key
      max_steps = np.float32(
        std / noise_multiplier * (1 - aggregation.bound_rounding(x.size))
      )
      steps = x * (factor * (max_steps / clip_norm))
      # A client that has diverged sends nothing; no integer stands for it.
      return jnp.where(jnp.isfinite(steps), steps, 0).astype(jnp.int32)

    def draw(key: Key, dim: int, clip_norm: Any) -> Array:
      noise = draw_over_devices(key, dim, jnp.asarray(clip_norm) > 0)
      return (noise + (1 << shift >> 1)) >> shift

    def decode(total: Array, clip_norm: Any) -> Array:
      return total.astype(jnp.float32) * (clip_norm * (noise_multiplier / std))

    return aggregation.Aggregation(
      aggregation.norm_by_halves, encode, draw, decode
    )

  return make


def _draw_part(
  key: Key, always: Array, dim: int, start: Array | int = 0
) -> Array:
  """Draws coordinates from `start` on, once for all their uses."""
  # XLA:CPU takes eight times as long over a number that does not fill vectors.
  padded = -(-dim // _VECTOR) * _VECTOR
  make = functools.partial(
    draw_integers, key, padded, always=always, start=start
  )
  return fusion_barrier(always, make)[:dim]


def draw_integers(
  key: Key,
  dim: int,
  *,
  always: Bool[Array, ''],
  start: UInt32[Array, ''] | int = 0,
) -> Int[Array, ' d']:
  """Draws d independent integers; each follows from the key and its position.

  Args:
    key: of any implementation. 128 bits of it count.
    dim: d, less than 2^32.
    always: as for `fusion_barrier`, which materializes the rows.
    start: the position of the first.
  """
  # A generator of 64 bits can be searched for its key: the words of two are
  # added modulo 2.
  words = jax.random.bits(key, (4,), jnp.uint32)
  roots = threefry.Root(*words[:2]), threefry.Root(*words[2:])

  def draw_words(purpose: int) -> tuple[Array, Array]:
    position = jnp.uint32(start) + jax.lax.iota(jnp.uint32, dim)
    (a, b), (c, d) = (
      threefry.draw_words(root, position, jnp.uint32(purpose)) for root in roots
    )
    return a ^ c, b ^ d

  # Materialized, as each of six reads from the table would draw it again.
  rows = fusion_barrier(always, lambda: draw_words(0)[0])
  columns = [jnp.asarray(column) for column in make_table().T]

  def choose(row: UInt32[Array, ' d'], purpose: int) -> Int[Array, ' d']:
    row = (row & jnp.uint32(_ROWS - 1)).astype(jnp.int32)
    high, low, other = (
      column.at[row].get(mode='promise_in_bounds') for column in columns
    )
    a, b = draw_words(purpose)
    is_own = (a < high) | ((a == high) & (b < low))
    return jnp.where(is_own, row, other.astype(jnp.int32)) - _ZERO

  return _SPREAD * choose(rows, 1) + choose(rows >> jnp.uint32(_ROW_BITS), 2)


@functools.cache
def make_table() -> UInt32[np.ndarray, 'rows 3']:
  """Makes the alias table of a discrete Gaussian of standard deviation 880.

  Row r, which a drawing takes with probability 2^-14, gives the outcome
  r - 2^13 if 64 random bits are less than a threshold, and another outcome if
  not.

  Returns:
    For each row the threshold, as its first and its last 32 bits, and the row
    of the other outcome.
  """
  masses = _round_masses()
  capacity = 1 << _CHOICE_BITS  # Of a row, in units of 2^-78.
  other = list(range(_ROWS))
  short = [row for row in range(_ROWS) if masses[row] < capacity]
  long = [row for row in range(_ROWS) if masses[row] > capacity]
  while short:
    row, giver = short.pop(), long[-1]
    other[row] = giver
    masses[giver] -= capacity - masses[row]
    if masses[giver] <= capacity:
      long.pop()
      if masses[giver] < capacity:
        short.append(giver)
  # A row that is full has itself for the other outcome, whatever the threshold.
  bits = [(mass >> 32) % 2**32 for mass in masses], [m % 2**32 for m in masses]
  return np.array([*bits, other], np.uint32).T


def _round_masses() -> list[int]:
  """The probability of each outcome in units of 2^-78; their sum is 1."""
  total = 1 << (_ROW_BITS + _CHOICE_BITS)
  with decimal.localcontext(prec=50):
    weights = [
      (decimal.Decimal(-x * x) / (2 * _SMALL_STD**2)).exp()
      for x in range(_ZERO)
    ]
    unit = total / (2 * sum(weights, decimal.Decimal(0)) - 1)
    half = [int((weight * unit).to_integral_value()) for weight in weights]
  # No row has the outcome 2^13, so that the law is symmetric without -2^13.
  masses = [0, *half[:0:-1], *half]
  masses[_ZERO] += total - sum(masses)
  return masses
