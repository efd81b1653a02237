"""Secure aggregation of integers with distributed discrete noise, as it is deployed.

A client clips its update to S, rotates it by a randomized Hadamard transform, H D / √d
with public signs D, so that no coordinate is large, divides it by the granularity and
rounds it at random to integers. It adds its share of discrete noise, and a protocol
reveals the sum of all messages modulo 2^b, and nothing else. The server takes that for
the numbers in [-2^(b-1), 2^(b-1)), rotates back and multiplies by the granularity: right
but for coordinates that wrapped around the ring.

What is simulated is this sum and not the protocol. In place of the shares their total is
drawn, from its law: that of Skellam shares is Skellam noise; that of n discrete Gaussians
is computed, n being the messages expected in a round, whatever their number in this one.
Noise has 64 random bits for a coordinate, which is for simulations.

References:
  Kairouz, Liu and Steinke 2021, "The Distributed Discrete Gaussian Mechanism for
  Federated Learning with Secure Aggregation"; Agarwal, Kairouz and Liu 2021, "The Skellam
  Mechanism for Differentially Private Federated Learning".
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int, UInt32
import numpy as np
from scipy import linalg

from epe_jax import accounting
from epe_jax.accounting import discrete_noise
from epe_jax.canaries import base, threefry
from epe_jax.training import aggregation
from epe_jax.types import Array, Key

NOISES = ('skellam', 'discrete_gaussian')
"""Laws of the shares of noise."""
ROUNDINGS = ('conditional', 'stochastic')
"""To one of the two next integers at random, drawn again while the norm is too large;
or once."""
WRAP = 1e-6
"""Chance, at most, that any coordinate of a round wraps around."""

_REJECTED = math.exp(-0.5)  # Chance, at most, that a message is drawn again.
_MAX_STD = 2.0**16  # In steps. A finer grid would need longer tables.
# Of the orders of Hadamard matrices whose product is the rotation.
_FACTOR_BITS = 4
# Noise beyond is left out; it has a mass of less than 2^-64.
_EXPONENT = 45.0
_ROTATION, _SHARE, _ROUND = 1, 2, 3  # Purposes of random words.


class SecureAggregation(NamedTuple):
  """A ring, its grid, and the noise in it.

  Attributes:
    bits: b of the ring of 2^b integers.
    granularity: step of the grid, in clip norms.
    dim: d, of the vectors of clients.
    size: coordinates of a message, the power of two from d on.
    rounding: one of `ROUNDINGS`.
    ring: what hides a client.
  """

  bits: int
  granularity: float
  dim: int
  size: int
  rounding: str
  ring: accounting.Ring

  def make_aggregation(
    self, noise_multiplier: float
  ) -> aggregation.Aggregation:
    """The `Aggregation` of noise multiplier z, that of the plan."""
    planned = self.ring.std * self.granularity
    if not math.isclose(noise_multiplier, planned, rel_tol=1e-6):
      raise ValueError(
        f'noise_multiplier={noise_multiplier}, but secure aggregation was planned for '
        f'{planned:.6g}; plan it for the noise of the run.'
      )
    # What float32 makes of norms and lengths, twice.
    slack = 1 - 2 * aggregation.bound_rounding(self.size)
    max_norm = self.ring.l2 * slack

    def encode(
      x: Float[Array, ' d'], factor: Any, clip_norm: Any, key: Key | None = None
    ) -> Int[Array, ' s']:
      assert key is not None, 'messages are rounded at random'
      steps = x * (
        factor * (np.float32(slack**2 / self.granularity) / clip_norm)
      )
      # A client that has diverged sends nothing; no integer stands for it.
      steps = jnp.where(jnp.isfinite(steps).all(), steps, 0)
      rotated = rotate(steps, self.size)
      if self.rounding == 'stochastic':
        return round_stochastically(rotated, key)
      return round_conditionally(rotated, max_norm, key)

    def draw(key: Key, dim: int, clip_norm: Any) -> Int[Array, ' s']:
      del clip_norm
      return draw_noise(key, dim, self.ring)

    def decode(total: Int[Array, ' s'], clip_norm: Any) -> Float[Array, ' d']:
      steps = rotate_back(total.astype(jnp.float32), self.dim)
      return steps * (clip_norm * self.granularity)

    def finish(
      draw: aggregation.Draw, key: Key, total: Int[Array, ' s'], state: Array
    ) -> aggregation.Finished:
      total = total + draw(key)
      reduced = reduce_sum(total, bits=self.bits)
      wrapped = jnp.count_nonzero(reduced != total).astype(jnp.int32)
      return aggregation.Finished(
        reduced, state + wrapped, jnp.float32(wrapped)
      )

    return aggregation.Aggregation(
      norm=aggregation.norm_by_halves,
      encode=encode,
      draw=draw,
      decode=decode,
      finish=finish,
      init=lambda dim: jnp.zeros((), jnp.int32),
      size=lambda dim: self.size,
      one_by_one=True,
    )


def plan(
  *,
  bits: int,
  dim: int,
  noise_multiplier: float,
  clients: float,
  granularity: float | None = None,
  rounding: str = 'conditional',
  noise: str = 'skellam',
) -> SecureAggregation:
  """Plans the ring of a run: its grid, and what hides a client in it.

  By default no grid is finer on which a round wraps around with probability
  `WRAP` at most, if it has up to m + 6 √m messages. For that a coordinate of a sum of n
  rotated vectors is taken to be subgaussian of variance n²/s, as if all were equal, that
  of rounding of n/4, and noise to have the tails of Skellam noise (Bernstein).

  Args:
    bits: b, 2 to 30.
    dim: d >= 1.
    noise_multiplier: z > 0.
    clients: m >= 1, clients and canaries expected in a round.
    granularity: step of the grid, in clip norms; None for the default.
    rounding: one of `ROUNDINGS`.
    noise: one of `NOISES`.

  Raises:
    ValueError: there is less than one client, the ring has no room for the clients, or
      the grid is too fine.

  >>> small = plan(bits=16, dim=4_050_748, noise_multiplier=1.0, clients=100)
  >>> round(small.ring.std), round(small.ring.l2 * small.granularity, 3)
  (4233, 1.029)
  """
  given = f'secure_aggregation.bits={bits}'
  if not clients >= 1:
    raise ValueError(f'clients={clients}; give 1 or more.')
  size = 1 << (dim - 1).bit_length()
  most = clients + 6 * math.sqrt(clients)
  room = _find_room(bits, size, most)
  if granularity is None:
    if not room > 0:
      enough = next(b for b in range(bits, 64) if _find_room(b, size, most) > 0)
      raise ValueError(
        f'{given}: the rounding of {clients:.6g} messages alone wraps around; '
        f'give at least {enough} bits, or a granularity of your own.'
      )
    granularity = math.sqrt((most**2 / size + noise_multiplier**2) / room)
    granularity = max(granularity, noise_multiplier / _MAX_STD)
  std = noise_multiplier / granularity
  if not std <= _MAX_STD * (1 + 1e-9) or 1 / granularity >= 2**30:
    coarsest = max(noise_multiplier / _MAX_STD, 2.0**-30)
    raise ValueError(
      f'secure_aggregation.granularity={granularity:.3g} with noise_multiplier='
      f'{noise_multiplier}: the grid is too fine; give more than {coarsest:.3g}, or None.'
    )
  l2 = bound_norm(1 / granularity, size, rounding)
  shares = round(clients) if noise == 'discrete_gaussian' else 0
  if shares > 1 and std / math.sqrt(shares) < discrete_noise.SMALLEST_SHARE:
    finest = (
      noise_multiplier / math.sqrt(shares) / discrete_noise.SMALLEST_SHARE
    )
    raise ValueError(
      f'{given} and secure_aggregation.granularity={granularity:.3g} with '
      f"secure_aggregation.noise='discrete_gaussian' of {shares} clients: their shares "
      'are less than half a step of the grid, for which no bound is known; give a '
      f"granularity of at most {finest:.3g}, which may take more bits, or 'skellam'."
    )
  ring = accounting.Ring(std, l2, size, shares)
  return SecureAggregation(bits, granularity, dim, size, rounding, ring)


def _find_room(bits: int, size: int, clients: float) -> float:
  """The variance, in steps, of what may be in a coordinate besides rounding."""
  end, exponent = 2.0 ** (bits - 1), math.log(2 * size / WRAP)
  return end**2 / (2 * exponent) - end / 3 - clients / 4


def bound_norm(norm: float, size: int, rounding: str) -> float:
  """The largest norm of a vector of some norm after it was rounded, in steps.

  References:
    Kairouz, Liu and Steinke 2021, Proposition 22.
  """
  always = norm + math.sqrt(size)
  if rounding == 'stochastic':
    return always
  likely = math.sqrt(2 * math.log(1 / _REJECTED)) * (norm + math.sqrt(size) / 2)
  return min(always, math.sqrt(norm**2 + size / 4 + likely))


def rotate(x: Float[Array, ' d'], size: int) -> Float[Array, ' s']:
  """Rotates a vector, padded with zeros: H D x / √s."""
  padded = jnp.pad(x, (0, size - x.size))
  return transform(jnp.where(_draw_signs(size), -padded, padded))


def rotate_back(x: Float[Array, ' s'], dim: int) -> Float[Array, ' d']:
  """The first d coordinates of the vector whose rotation is x."""
  back = transform(x)
  return jnp.where(_draw_signs(x.size), -back, back)[:dim]


def transform(x: Float[Array, ' s']) -> Float[Array, ' s']:
  """Returns H x / √s, with the Hadamard matrix of order s, a power of two."""
  # Of as few factors as are small: products with their matrices in turn do what the
  # butterflies of all bits do, in fewer passes.
  bits = x.size.bit_length() - 1
  num = max(1, -(-bits // _FACTOR_BITS))
  for i in range(num):
    order = 1 << (bits // num + (i < bits % num))
    matrix = linalg.hadamard(order).astype(np.float32) / math.sqrt(order)
    # The first axis goes last, so that the next is first.
    x = jnp.einsum(
      'pn,pq->nq',
      x.reshape(order, -1),
      jnp.asarray(matrix, jnp.float32),
      precision='highest',
    ).ravel()
  return x


def _draw_signs(size: int) -> Bool[Array, ' s']:
  """Draws the signs, which are public: the same in all rounds."""
  counters = jax.lax.iota(jnp.uint32, -(-size // 64))
  root = threefry.Root(jnp.uint32(0), jnp.uint32(_ROTATION))
  words = jnp.stack(threefry.draw_words(root, counters, jnp.uint32(0)))
  bits = words.ravel() >> jnp.arange(32, dtype=jnp.uint32)[:, None]
  return (bits & 1).astype(bool).ravel()[:size]


def round_stochastically(
  x: Float[Array, ' s'], key: Key, attempt: Int[Array, ''] | int = 0
) -> Int[Array, ' s']:
  """Rounds numbers below 2^30 to one of the next two integers each, of mean x."""
  below = jnp.floor(x)
  counters = jax.lax.iota(jnp.uint32, x.size)
  root = base.derive_root(key, _ROUND)
  words, _ = threefry.draw_words(root, counters, jnp.uint32(attempt))
  share = ((x - below) * 2.0**32).astype(jnp.uint32)
  return below.astype(jnp.int32) + (words < share)


def round_conditionally(
  x: Float[Array, ' s'], max_norm: float, key: Key
) -> Int[Array, ' s']:
  """Rounds stochastically, again until the norm is at most `max_norm`."""

  def is_long(state: tuple[Array, Array]) -> Bool[Array, '']:
    norm = aggregation.norm_by_halves(state[1].astype(jnp.float32))
    return norm > max_norm

  def draw_again(state: tuple[Array, Array]) -> tuple[Array, Array]:
    return state[0] + 1, round_stochastically(x, key, state[0])

  first = jnp.ones((), jnp.int32), round_stochastically(x, key)
  return jax.lax.while_loop(is_long, draw_again, first)[1]


def reduce_sum(total: Int[Array, ' s'], *, bits: int) -> Int[Array, ' s']:
  """(sum mod 2^b), from -2^(b-1) on.

  The int32 of a sum may itself wrap around: 2^b divides 2^32.

  >>> reduce_sum(jnp.array([3, 128, -129, 300]), bits=8).tolist()
  [3, -128, 127, 44]
  """
  half = 1 << (bits - 1)
  return ((total + half) & ((1 << bits) - 1)) - half


def draw_noise(key: Key, size: int, ring: accounting.Ring) -> Int[Array, ' s']:
  """Draws the noise of a sum, right but for a mass of 2^-32 in a row of a table."""
  table, zero = make_table(ring.std, ring.shares)
  row_bits = len(table).bit_length() - 1
  root = base.derive_root(key, _SHARE)
  counters = jax.lax.iota(jnp.uint32, size)
  choice, words = threefry.draw_words(root, counters, jnp.uint32(0))
  row = (words >> jnp.uint32(32 - row_bits)).astype(jnp.int32)
  threshold, other = (
    jnp.asarray(column).at[row].get(mode='promise_in_bounds')
    for column in table.T
  )
  return jnp.where(choice < threshold, row, other.astype(jnp.int32)) - zero


@functools.lru_cache(maxsize=2)
def make_table(
  std: float, shares: int
) -> tuple[UInt32[np.ndarray, 'rows 2'], int]:
  """Makes the alias table of the noise of a sum.

  Args:
    std: standard deviation, > 0.
    shares: as `discrete_noise.compute_log_law` takes them.

  Returns:
    For each row the threshold of 32 random bits below which the outcome is that of the
    row itself, and the row of the other outcome; and the row of 0.

  References:
    Walker 1977, "An Efficient Method for Generating Discrete Random Variables with
    General Distributions"; Hübschle-Schneider and Sanders 2022, "Parallel Weighted
    Random Sampling" (rows in sorted order).
  """
  third = _EXPONENT / 3
  zero = math.ceil(third + math.sqrt(third**2 + 2 * std**2 * _EXPONENT))
  # The sum of wide ones is as one: its law differs by less than float64 does.
  is_sum = shares > 1 and std**2 < 4 * shares
  law = discrete_noise.compute_log_law(
    std**2, zero, shares=shares if is_sum else min(shares, 1)
  )
  rows = 1 << (2 * zero).bit_length()
  mass = np.zeros(rows)
  mass[: law.size] = np.exp(law)
  mass *= rows / mass.sum()
  # Short rows are filled by long ones in turn; a long one that has given too much is
  # filled by the next.
  short, long = np.flatnonzero(mass < 1), np.flatnonzero(mass >= 1)
  needed = np.append(0.0, np.cumsum(1 - mass[short]))
  spare = np.cumsum(mass[long] - 1)
  giver = np.minimum(
    np.searchsorted(spare, needed[:-1], side='right'), long.size - 1
  )
  other = np.arange(rows)
  other[short] = long[giver]
  other[long[:-1]] = long[1:]
  given = needed[np.searchsorted(giver, np.arange(long.size), side='right')]
  mass[long] = 1 - np.maximum(given - spare, 0)
  threshold = np.clip(mass * 2.0**32, 0, 2**32 - 1).astype(np.uint32)
  return np.stack([threshold, other.astype(np.uint32)], axis=1), zero
