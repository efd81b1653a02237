"""Algorithm 1: the one-shot audit of a single Gaussian mechanism.

The mechanism releases rho = c_1 + ... + c_k + N(0, sigma^2 I_d). Here are two
laws of the k cosines <c_j, rho>/|rho|, which are the same law, and the
estimates made from them. `simulate_literal` is the paper's simulation in d dimensions;
`simulate_exact` draws the cosines in O(k^2) operations whatever d is.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Complex, Float, Int
import numpy as np

from epe_jax import canaries
from epe_jax.audit import observers
from epe_jax.canaries import threefry
from epe_jax.canaries.base import derive_root
from epe_jax.canaries.sphere import convert_to_normals
from epe_jax.epsilon import tradeoff, two_gaussians
from epe_jax.epsilon import types as epsilon_types
from epe_jax.epsilon.checks import check_delta
from epe_jax.parallel.sharding import fusion_barrier
from epe_jax.types import Array, Key

ESTIMATORS = ('null', 'fitted')  # The calibrated one first.
_PAIRS = 4096  # Pairs of normals that are made at once: they stay in the cache.
_BLOCK = 128  # Rows of the triangular factor held at once by `simulate_exact`.


class Row(NamedTuple):
  """What one estimator says of the audits at one noise level."""

  sigma: float  # Standard deviation of the noise, per coordinate.
  analytic_epsilon: float
  estimator: str  # 'null': std fixed at 1/sqrt(d). 'fitted': of the cosines.
  mean: float  # Of the estimates, over the simulations.
  std: float  # Their sample standard deviation; nan for one simulation.
  simulations: int
  dim: int
  num_canaries: int
  delta: float


def simulate_exact(
  seed: np.random.SeedSequence, sigma: float, *, num_canaries: int, dim: int
) -> Float[np.ndarray, ' k']:
  """The k cosines of one audit, drawn from their exact law in O(k^2).

  The canaries are the rows of X with N(0, 1) entries, normalised. X = L Q^T with Q
  orthonormal and L lower trapezoidal, independent of it: L_ii ~ chi_{d-i+1} and
  L_ij ~ N(0, 1) (Bartlett 1933). With A, the rows of L normalised, r = min(k, d)
  and u = A^T 1 + sigma N(0, I_r): C rho = A u and |rho|^2 = |u|^2 + sigma^2
  chi^2_{d-r}, neither of which needs Q. The rows of A are drawn twice, so that
  memory is O(k): one audit with k = 10^4 takes seconds.

  Args:
    seed: source of all randomness; the same seed gives the same cosines.
    sigma: standard deviation of the noise per coordinate, >= 0.
    num_canaries: k, >= 1; it may exceed d.
    dim: d, >= 2.

  >>> seed = np.random.SeedSequence(0)
  >>> g = simulate_exact(seed, 0.5, num_canaries=1000, dim=10**8)
  >>> print(f'{1e4 * g.mean():.1f}')  # Theorem 3.3: sqrt(d) mean(g) -> 1/sigma.
  2.0
  """
  rank = min(num_canaries, dim)
  rng = np.random.default_rng(seed)
  u = np.zeros(rank)
  for rows in _draw_triangle(rng, num_canaries, dim):
    u[: rows.shape[1]] += rows.sum(axis=0)
  u += sigma * rng.standard_normal(rank)
  outside = rng.chisquare(dim - rank) if dim > rank else 0.0
  replay = _draw_triangle(np.random.default_rng(seed), num_canaries, dim)
  dots = np.concatenate([rows @ u[: rows.shape[1]] for rows in replay])
  return dots / math.sqrt(u @ u + sigma**2 * outside)


def simulate_literal(
  seed: np.random.SeedSequence,
  sigma: float,
  *,
  num_canaries: int,
  dim: int,
  family: Callable[[Key, int, int], canaries.Canaries] = canaries.sphere,
) -> Float[np.ndarray, ' k']:
  """The k cosines of one audit, computed in d dimensions as the paper does.

  It checks `simulate_exact`, and runs canaries that are not uniform on the sphere.

  Args:
    seed, sigma, num_canaries, dim: as for `simulate_exact`.
    family: (key, k, d) -> Canaries, fresh ones for every audit.

  Returns:
    The cosines, computed in float32.
  """
  words = jnp.asarray(seed.generate_state(2, np.uint32))
  key = jax.random.wrap_key_data(words, impl='threefry2x32')
  cosines = _release_and_score(key, sigma, num_canaries, dim, family)
  return np.asarray(cosines, np.float64)


def run_estimators(
  seed: int,
  sigmas: Sequence[float],
  *,
  num_canaries: int,
  dim: int,
  delta: float,
  simulations: int,
  law: Callable[..., Float[np.ndarray, ' k']] = simulate_exact,
  progress: Callable[[Iterable[Any]], Iterable[Any]] = iter,
) -> dict[str, Float[np.ndarray, 'sigmas simulations']]:
  """Epsilon estimates of independent audits, both estimators of each.

  Each audit draws from a stream of its own, fixed by (seed, sigma, index of the
  simulation), so an estimate does not depend on which others are made with it.

  Args:
    seed: >= 0.
    sigmas: standard deviations of the noise per coordinate, each >= 0.
    num_canaries: k, >= 2, or >= 3 if a sigma is 0.
    dim: d, >= 2.
    delta: target delta, in (0, 1).
    simulations: audits for each sigma, >= 1.
    law: `simulate_exact` or `simulate_literal`.
    progress: wraps the list of audits, as `tqdm.tqdm` does.

  Returns:
    For 'null' and 'fitted' the estimates, made from the same cosines.

  Raises:
    ValueError: an argument is out of range.

  Source: One-shot Empirical Privacy Estimation, section 3 and Table 2.
  """
  for sigma in sigmas:
    if not 0 <= sigma < math.inf:
      raise ValueError(f'sigma={sigma}; give finite sigma >= 0.')
  check_delta(delta)
  # Without noise two canaries score alike: no std can be fitted to them.
  for name, value, least in (
    ('num_canaries', num_canaries, 3 if 0 in sigmas else 2),
    ('dim', dim, 2),
    ('simulations', simulations, 1),
  ):
    if value < least:
      raise ValueError(f'{name}={value}; give {name} >= {least}.')
  cosines = np.empty((len(sigmas), simulations, num_canaries))
  for i, n in progress(list(np.ndindex(len(sigmas), simulations))):
    stream = _make_stream(seed, sigmas[i], n)
    cosines[i, n] = law(stream, sigmas[i], num_canaries=num_canaries, dim=dim)
  scores = epsilon_types.Scores(
    observed=cosines,
    unobserved=np.empty((*cosines.shape[:2], 0)),
    null=epsilon_types.Sphere(dim),
  )
  return {
    std: np.asarray(
      two_gaussians.two_gaussian(scores, delta=delta, std=std).epsilon
    )
    for std in ESTIMATORS
  }


def summarize(
  sigmas: Sequence[float],
  epsilons: dict[str, Float[np.ndarray, 'sigmas simulations']],
  *,
  num_canaries: int,
  dim: int,
  delta: float,
) -> list[Row]:
  """Mean and spread of what `run_estimators` returned, next to the analytic ε.

  Returns:
    For each sigma one row of each estimator, the calibrated one first.
  """
  rows = []
  for i, sigma in enumerate(sigmas):
    analytic = float(
      tradeoff.epsilon_gdp(1 / sigma if sigma else math.inf, delta)
    )
    for estimator, values in epsilons.items():
      n = len(values[i])
      with np.errstate(invalid='ignore'):  # An estimate may be infinite.
        std = float(values[i].std(ddof=1)) if n > 1 else math.nan
      row = Row(
        sigma=float(sigma),
        analytic_epsilon=analytic,
        estimator=estimator,
        mean=float(values[i].mean()),
        std=std,
        simulations=n,
        dim=dim,
        num_canaries=num_canaries,
        delta=delta,
      )
      rows.append(row)
  return rows


@functools.partial(jax.jit, static_argnames=('num_canaries', 'dim', 'family'))
def _release_and_score(
  key: Key,
  sigma: float | Float[Array, ''],
  num_canaries: int,
  dim: int,
  family: Callable[[Key, int, int], canaries.Canaries],
) -> Float[Array, ' k']:
  canary_key, noise_key = jax.random.split(key)
  c = family(canary_key, num_canaries, dim)
  total = c.superpose(jnp.arange(num_canaries), jnp.ones(num_canaries))
  rho = total + sigma * draw_normals(derive_root(noise_key, 0), dim)
  return observers.compute_cosines(c, rho)


def draw_normals(root: threefry.Root, dim: int) -> Float[Array, ' d']:
  """Draws d < 2^32 independent N(0, 1), many times as fast as `jax.random` on a CPU."""
  pieces = -(-dim // (2 * _PAIRS))

  def draw_piece(i: Int[Array, '']) -> Float[Array, 'two=2 p']:
    def make() -> Complex[Array, ' p']:
      low = jnp.arange(_PAIRS, dtype=jnp.uint32)
      low = low + (i * _PAIRS).astype(jnp.uint32)
      words = threefry.draw_words(root, low, jnp.zeros_like(low))
      # As one array: two would each have both words computed for them.
      return jax.lax.complex(*convert_to_normals(*words))

    z = fusion_barrier(i >= 0, make)
    return jnp.stack([z.real, z.imag])

  return jax.lax.map(draw_piece, jnp.arange(pieces)).ravel()[:dim]


def _draw_triangle(
  rng: np.random.Generator, num_canaries: int, dim: int
) -> Iterator[Float[np.ndarray, 'block width']]:
  """Yields the rows of A in blocks, without their zeros on the right."""
  for start in range(0, num_canaries, _BLOCK):
    stop = min(start + _BLOCK, num_canaries)
    width = min(stop, dim)
    block = np.tril(rng.standard_normal((stop - start, width)), start - 1)
    i = np.arange(start, width)  # Empty once start >= d.
    block[i - start, i] = np.sqrt(rng.chisquare(dim - i))
    yield block / np.linalg.norm(block, axis=1, keepdims=True)


def _make_stream(seed: int, sigma: float, n: int) -> np.random.SeedSequence:
  # Keyed by the bits of sigma: its place in the list of sigmas does not count.
  bits = int(np.float64(sigma).view(np.uint64))
  return np.random.SeedSequence(seed, spawn_key=(bits >> 32, bits % 2**32, n))
