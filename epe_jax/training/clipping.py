"""The clip norm S and how it moves: the bound that every update is cut to."""

from collections.abc import Callable
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from epe_jax.types import Array, Key

State = Any


class Clipping(NamedTuple):
  """How the clip norm starts, moves, and shares the privacy budget.

  Attributes:
    init: () -> state.
    bound: state -> S, float32 scalar, in parameter units, > 0.
    update: (key, state, below, clients) -> state. `below` of the `clients` who
      took part (float32 scalars, canaries included) had a norm of at most S.
      A key of None says that the run has no privacy noise.
    vector_noise: z >= 0 -> the noise on the sum of updates, as a multiple of S,
      such that sum and count together cost what z costs; 0 for 0.
  """

  init: Callable[[], State]
  bound: Callable[[State], Float[Array, '']]
  update: Callable[
    [Key | None, State, Float[Array, ''], Float[Array, '']], State
  ]
  vector_noise: Callable[[float], float]


def clip(
  x: Float[Array, ' d'], bound: Float[Array, '']
) -> tuple[Float[Array, ' d'], Float[Array, '']]:
  """CLIP(x; S) = x min(1, S / |x|), and |x|.

  Source: One-shot Empirical Privacy Estimation, Algorithm 2.
  """
  norm = jnp.linalg.norm(x)
  return x * jnp.minimum(1.0, bound / jnp.maximum(norm, 1e-30)), norm


def fixed(clip_norm: float) -> Clipping:
  """The same S in every round.

  Args:
    clip_norm: S, in parameter units, finite and > 0.

  Raises:
    ValueError: clip_norm is out of range.
  """
  _check_positive('clip_norm', clip_norm)
  return Clipping(
    init=lambda: jnp.asarray(clip_norm, jnp.float32),
    bound=lambda state: state,
    update=lambda key, state, below, clients: state,
    vector_noise=float,
  )


def adaptive(
  initial: float,
  *,
  quantile: float,
  learning_rate: float,
  count_noise: float,
  expected_clients: float,
) -> Clipping:
  """S follows a quantile of the norms: S <- S exp(-eta_C (b - gamma)).

  b is the noisy share of clients with norm at most S: the mean over m of
  1[|x_i| <= S] - 1/2, plus N(0, (count_noise / m)^2), plus 1/2. The shift by
  1/2 halves the count's sensitivity. Noise on the count costs privacy, so the
  vectors get more than z: z_x = (z^-2 - (2 count_noise)^-2)^(-1/2).

  Args:
    initial: S_0, in parameter units, finite and > 0.
    quantile: gamma in (0, 1), the share of clients to leave unclipped.
    learning_rate: eta_C > 0.
    count_noise: sigma_b, std of the noise on the count, in clients; more than
      z / 2 in a run with noise.
    expected_clients: m > 0, the divisor, canaries included.

  Raises:
    ValueError: an argument is out of range; from vector_noise, if z is too
      large for count_noise.

  Source: Andrew et al. 2021, "Differentially Private Learning with Adaptive
  Clipping", Algorithm 1 and Theorem 1.
  """
  _check_positive('initial', initial)
  _check_positive('learning_rate', learning_rate)
  _check_positive('expected_clients', expected_clients)
  if not 0 < quantile < 1:
    raise ValueError(f'quantile={quantile} is a share of clients in (0, 1).')

  def update(
    key: Key | None,
    bound: Float[Array, ''],
    below: Float[Array, ''],
    clients: Float[Array, ''],
  ) -> Float[Array, '']:
    total = below - clients / 2
    if key is not None:
      total += count_noise * jax.random.normal(key, (), jnp.float32)
    b = total / expected_clients + 0.5
    return bound * jnp.exp(-learning_rate * (b - quantile))

  def vector_noise(z: float) -> float:
    if z > 0 and not count_noise > z / 2:
      raise ValueError(
        f'count_noise={count_noise} clients leaves nothing of the budget of '
        f'noise_multiplier={z} to the updates; give it more than {z / 2} '
        '(usual: 0.05 x clients per round).'
      )
    return (z**-2 - (2 * count_noise) ** -2) ** -0.5 if z > 0 else 0.0

  return Clipping(
    init=lambda: jnp.asarray(initial, jnp.float32),
    bound=lambda state: state,
    update=update,
    vector_noise=vector_noise,
  )


def _check_positive(name: str, value: float) -> None:
  if not (value > 0 and math.isfinite(value)):
    raise ValueError(f'{name}={value}; give a finite number > 0.')
