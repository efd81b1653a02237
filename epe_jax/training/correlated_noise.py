"""Noise that is correlated over rounds, as a stream: round t adds (B Z)_t.

Z is independent, and C = B⁻¹ the strategy of a matrix mechanism. Noise that later
rounds take back disturbs training less; `accounting.matrix_mechanism` says what it
hides. Matrices are those of jax_privacy, and the tree of DP-FTRL. All are scaled so
that the longest column of C has the norm 1: one participation then has the μ = 1/z
of independent noise at most. `rounds` is T >= 1 in all of them; a ValueError is raised
for a size that is out of range.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float
import numpy as np
from scipy import linalg

from epe_jax import extras
from epe_jax.accounting import matrix_mechanism
from epe_jax.training import aggregation
from epe_jax.training.aggregation import Draw
from epe_jax.types import Array, Key


class Stream(NamedTuple):
  """Makes the noise of a round from what was drawn for it and before.

  Attributes:
    init: noise, or its shape and dtype -> state, which is held from round to round
      like the parameters.
    next: (draw, key, state) -> (noise [d], state).
  """

  init: Callable[[Any], Any]
  next: Callable[[Draw, Key, Any], tuple[Array, Any]]


INDEPENDENT = Stream(
  lambda noise: (), lambda draw, key, state: (draw(key), state)
)
"""Each round has noise of its own."""


def correlated(stream: Stream) -> aggregation.MakeAggregation:
  """Float32 sums with the noise of a stream, for simulations with fixed clipping."""

  def finish(
    draw: Draw, key: Key, total: Array, state: Any
  ) -> aggregation.Finished:
    noise, state = stream.next(draw, key, state)
    return aggregation.Finished(total + noise, state)

  def make(noise_multiplier: float) -> aggregation.Aggregation:
    return aggregation.float32(noise_multiplier)._replace(
      finish=finish,
      init=lambda dim: stream.init(jnp.zeros(dim, jnp.float32)),
    )

  return make


class Correlation(NamedTuple):
  """A matrix mechanism for a number of rounds.

  Attributes:
    strategy: C, [n, T], whose longest column has the norm 1.
    noising: B, [T, n], of rank T.
    stream: draws B Z.
  """

  strategy: Float[np.ndarray, 'n T']
  noising: Float[np.ndarray, 'T n']
  stream: Stream

  @property
  def whitened(self) -> Float[np.ndarray, 'T T']:
    """The strategy of an attacker who sees the rounds; C itself if it is square."""
    if self.strategy.shape[0] == self.strategy.shape[1]:
      return self.strategy
    return matrix_mechanism.whiten(self.noising)


def independent(rounds: int) -> Correlation:
  """C = I: each round has noise of its own."""
  return Correlation(np.eye(rounds), np.eye(rounds), INDEPENDENT)


def banded(rounds: int, *, bands: int) -> Correlation:
  """A banded Toeplitz C of least mean squared error of the prefix sums.

  Args:
    bands: diagonals of C, 1 to T. The state has bands - 1 vectors.

  References:
    Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization: A unified
    approach to private training".
  """
  _check_size('bands', bands, rounds)
  if bands == 1:
    return independent(rounds)
  with extras.explain_missing():
    from jax_privacy.matrix_factorization import toeplitz
  coefficients = np.asarray(
    toeplitz.optimize_banded_toeplitz(rounds, bands), np.float64
  )
  coefficients /= coefficients[0]
  matrix = toeplitz.inverse_as_streaming_matrix(
    jnp.asarray(coefficients, jnp.float32)
  )
  return _make_square(_make_toeplitz(coefficients, rounds), matrix)


def blt(
  rounds: int,
  *,
  buffers: int,
  schema: matrix_mechanism.ParticipationSchema,
) -> Correlation:
  """A buffered linear Toeplitz C of least maximum error of the prefix sums.

  Args:
    buffers: vectors of the state, >= 1. Coefficients of C are sums of as many powers.
    schema: of the participants that C is made for.

  References:
    McMahan, Xu and Zhang 2024, "A Hassle-free Algorithm for Strong Differential
    Privacy in Federated Learning Systems".
  """
  _check_size('buffers', buffers, rounds)
  with extras.explain_missing():
    from jax_privacy.matrix_factorization import buffered_toeplitz
  # Its roots are too close to 1 for float32.
  with jax.enable_x64(True):
    best = buffered_toeplitz.optimize(
      n=rounds,
      min_sep=schema.min_separation,
      max_participations=schema.max_participations,
      min_buffers=buffers,
      max_buffers=buffers,
    )
    coefficients = np.asarray(best.toeplitz_coefs(rounds), np.float64)
    inverse = best.inverse()
    decay, scale = (
      np.asarray(x, np.float32)
      for x in (inverse.buf_decay, inverse.output_scale)
    )
  # Noise is float32, and so is what makes it; matrices are not.
  matrix = buffered_toeplitz.BufferedToeplitz(
    buf_decay=jnp.asarray(decay), output_scale=jnp.asarray(scale)
  ).as_streaming_matrix()
  return _make_square(_make_toeplitz(coefficients, rounds), matrix)


def bisr(rounds: int, *, bands: int) -> Correlation:
  """C⁻¹ is the banded square root of the matrix of differences.

  Args:
    bands: diagonals of C⁻¹, 1 to T. The state has bands - 1 vectors.

  References:
    Kalinin, McKenna, Upadhyay and Lampert 2026, "Back to Square Roots: An Optimal
    Bound on the Matrix Factorization Error for Multi-Epoch Differentially Private
    SGD".
  """
  _check_size('bands', bands, rounds)
  if bands == 1:
    return independent(rounds)
  # (1 - x)^(1/2) as a power series.
  i = np.arange(1, bands)
  coefficients = np.cumprod(np.append(1.0, (i - 1.5) / i))
  noising = _make_toeplitz(coefficients, rounds)
  past = jnp.asarray(coefficients[1:], jnp.float32)

  def init(noise: Any) -> Array:
    return jnp.zeros((bands - 1, *noise.shape), noise.dtype)

  def multiply(noise: Array, state: Array) -> tuple[Array, Array]:
    correlated = noise + jnp.tensordot(past, state, axes=1)
    return correlated, jnp.roll(state, 1, axis=0).at[0].set(noise)

  return _make_correlation(np.linalg.inv(noising), noising, init, multiply)


def tree(rounds: int) -> Correlation:
  """The tree of DP-FTRL, of whose nodes each prefix sum takes the best estimate.

  A node of the tree is the sum of 2^l rounds, and has noise of its own; it is also
  estimated by its two halves. The state has log₂ T + 2 vectors.

  References:
    Kairouz et al. 2021, "Practical and Private (Deep) Learning without Sampling or
    Shuffling"; Honaker 2015, "Efficient Use of Differentially Private Binary Trees".
  """
  if rounds < 1:
    raise ValueError(f'rounds={rounds}; give 1 or more.')
  levels = rounds.bit_length()
  # Weight of the noise of a node itself in its estimate.
  own = 1 / (2 - 0.5 ** np.arange(levels))
  strategy, nodes = [], {}
  for level in range(levels):
    for stop in range(2**level, rounds + 1, 2**level):
      nodes[level, stop] = len(strategy)
      t = np.arange(rounds)
      strategy.append((t >= stop - 2**level) & (t < stop))
  c = np.array(strategy, np.float64)
  scale = float(np.linalg.norm(c, axis=0).max())
  noise_of = np.zeros((len(nodes), len(nodes)))
  prefix = np.zeros((rounds + 1, len(nodes)))
  for (level, stop), i in nodes.items():
    noise_of[i, i] = own[level]
    if level:
      halves = [nodes[level - 1, s] for s in (stop - 2 ** (level - 1), stop)]
      noise_of[i] += (1 - own[level]) * noise_of[halves].sum(axis=0)
  for stop in range(1, rounds + 1):
    level = (stop & -stop).bit_length() - 1
    prefix[stop] = prefix[stop - 2**level] + noise_of[nodes[level, stop]]
  weight = jnp.asarray(own, jnp.float32)

  def init(noise: Any) -> tuple[Array, Array, Array]:
    zeros = jnp.zeros((levels, *noise.shape), noise.dtype)
    # Estimates of the last node of each level, and of the prefix sums of which the
    # last node is of this level or a higher one.
    return jnp.zeros((), jnp.int32), zeros, jnp.zeros_like(zeros[0])

  def draw_next(draw: Draw, key: Key, state: Any) -> tuple[Array, Any]:
    t, waiting, last = state
    stop = t + 1
    top = jax.lax.population_count((stop & -stop) - 1)

    def merge(level: Array, estimate: Array) -> Array:
      halves = waiting[level - 1] + estimate
      alone = draw(jax.random.fold_in(key, level))
      return weight[level] * alone + (1 - weight[level]) * halves

    estimate = jax.lax.fori_loop(
      1, top + 1, merge, draw(jax.random.fold_in(key, 0))
    )
    # A left half waits for its right one, and is in prefix sums until then.
    is_kept = (stop >> jnp.arange(levels)) & 1
    waiting = waiting.at[top].set(estimate)
    total = jnp.tensordot(is_kept.astype(waiting.dtype), waiting, axes=1)
    return scale * (total - last), (stop, waiting, total)

  return Correlation(
    c / scale,
    scale * np.diff(prefix, axis=0),
    Stream(init, draw_next),
  )


def restart(
  correlation: Callable[[int], Correlation], rounds: int, every: int
) -> Correlation:
  """Starts a mechanism, made for 1 <= every <= T rounds, again after so many."""
  _check_size('every', every, rounds)
  part = correlation(every)
  stream = part.stream

  def init(noise: Any) -> Any:
    return jnp.zeros((), jnp.int32), stream.init(noise)

  def draw_next(draw: Draw, key: Key, state: Any) -> tuple[Array, Any]:
    t, inner = state
    inner = jax.tree.map(lambda x: jnp.where(t % every == 0, 0, x), inner)
    noise, inner = stream.next(draw, key, inner)
    return noise, (t + 1, inner)

  times = np.eye(-(-rounds // every))
  noising = np.kron(times, part.noising)[:rounds]
  # Drop unused noise columns.
  used = noising.any(axis=0)
  strategy = np.kron(times, part.strategy)[used][:, :rounds]
  return Correlation(strategy, noising[:, used], Stream(init, draw_next))


def _make_square(
  strategy: Float[np.ndarray, 'T T'], inverse: Any
) -> Correlation:
  """Of C and a streaming matrix C⁻¹ of jax_privacy."""
  return _make_correlation(
    strategy,
    np.linalg.inv(strategy),
    inverse.init_multiply,
    inverse.multiply_next,
  )


def _make_correlation(
  strategy: Float[np.ndarray, 'T T'],
  noising: Float[np.ndarray, 'T T'],
  init: Callable[[Any], Any],
  multiply: Callable[[Array, Any], tuple[Array, Any]],
) -> Correlation:
  scale = float(np.linalg.norm(strategy, axis=0).max())

  def draw_next(draw: Draw, key: Key, state: Any) -> tuple[Array, Any]:
    noise, state = multiply(draw(key), state)
    return scale * noise, state

  return Correlation(strategy / scale, scale * noising, Stream(init, draw_next))


def _make_toeplitz(
  coefficients: Float[np.ndarray, ' n'], rounds: int
) -> Float[np.ndarray, 'T T']:
  column = np.zeros(rounds)
  column[: coefficients.size] = coefficients[:rounds]
  return linalg.toeplitz(column, np.zeros(rounds))


def _check_size(name: str, value: int, rounds: int) -> None:
  if not 1 <= value <= rounds:
    raise ValueError(f'{name}={value} of {rounds} rounds; give 1 to {rounds}.')


CORRELATIONS: dict[str, Callable[..., Correlation]] = {
  'independent': lambda rounds, **settings: independent(rounds),
  'tree': lambda rounds, **settings: tree(rounds),
  'banded': lambda rounds, *, bands, **settings: banded(rounds, bands=bands),
  'bisr': lambda rounds, *, bands, **settings: bisr(rounds, bands=bands),
  'blt': lambda rounds, *, buffers, schema, **settings: blt(
    rounds, buffers=buffers, schema=schema
  ),
}
"""Correlations by name, of rounds, bands, buffers and a `ParticipationSchema`."""
