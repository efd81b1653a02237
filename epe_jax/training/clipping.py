"""The clip norm S, to which every update is clipped, and how it moves."""

from collections.abc import Callable
import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Float

from epe_jax.epsilon import checks
from epe_jax.training import aggregation as aggregation_lib
from epe_jax.training.round_scalars import (
  CLIP_NORMS,
  MAX_CLIP_NORM,
  MIN_CLIP_NORM,
)
from epe_jax.types import Array, Key

State = Any

_FLOATS = aggregation_lib.float32(0.0)


class Clipping(NamedTuple):
  """A clipping rule: how the clip norm starts, moves, and what it costs.

  Attributes:
    init: () -> state.
    clip_norm: state -> S, float32 scalar, in parameter units, in `CLIP_NORMS`.
    update: (key, state, num_unclipped, num_clients) -> state. Of the
      num_clients of a round, canaries included, num_unclipped had a norm of at
      most S; both are float32 scalars. The key is for the noise on the count,
      and None in a run without privacy noise.
    vector_noise: z >= 0 -> the noise multiplier of the sum of updates with
      which sum and count together cost the privacy that z alone costs; 0 for 0.
  """

  init: Callable[[], State]
  clip_norm: Callable[[State], Float[Array, '']]
  update: Callable[
    [Key | None, State, Float[Array, ''], Float[Array, '']], State
  ]
  vector_noise: Callable[[float], float]


def clip(
  x: Float[Array, ' d'],
  clip_norm: Float[Array, ''] | float,
  aggregation: aggregation_lib.Aggregation = _FLOATS,
  key: Key | None = None,
) -> tuple[Array, Float[Array, '']]:
  """Returns CLIP(x; S) = x min(1, S / |x|), encoded as a message, and |x|.

  References:
    One-shot Empirical Privacy Estimation, Algorithm 2.
  """
  norm = aggregation.norm(x)
  factor = jnp.minimum(1.0, clip_norm / jnp.maximum(norm, 1e-30))
  return aggregation.encode(x, factor, clip_norm, key), norm


def fixed(clip_norm: float) -> Clipping:
  """A clip norm that is the same S in every round.

  Args:
    clip_norm: S, in parameter units, in `CLIP_NORMS`.

  Raises:
    ValueError: clip_norm is out of range.
  """
  checks.check_number('clip_norm', clip_norm, CLIP_NORMS)
  return Clipping(
    init=lambda: jnp.asarray(clip_norm, jnp.float32),
    clip_norm=lambda state: state,
    update=lambda key, state, num_unclipped, num_clients: state,
    vector_noise=float,
  )


def adaptive(
  initial: float,
  *,
  quantile: float,
  learning_rate: float,
  count_noise: float,
  expected_clients: float,
  aggregation: aggregation_lib.MakeAggregation = aggregation_lib.float32,
) -> Clipping:
  """S follows a quantile of the norms: S <- S exp(-eta_C (b - gamma)).

  b is the noisy fraction of clients with a norm of at most S: the sum of
  1[|x_i| <= S] - 1/2 over m, plus N(0, (count_noise / m)^2), plus 1/2. The
  shift by 1/2 halves the sensitivity of the count. Releasing the count costs
  privacy, so the updates get a noise multiplier larger than z:
  z_x = (z^-2 - (2 count_noise)^-2)^(-1/2). S stays within `CLIP_NORMS`.

  Args:
    initial: S_0, in parameter units, in `CLIP_NORMS`.
    quantile: gamma in (0, 1), the fraction of clients to leave unclipped.
    learning_rate: eta_C > 0.
    count_noise: sigma_b, standard deviation of the noise on the count, in
      clients; more than z / 2 in a run with noise.
    expected_clients: m > 0, the clients and canaries expected in a round.
    aggregation: of the count, as for `fedavg.dp_fedavg`.

  Raises:
    ValueError: an argument is out of range; or, from `vector_noise`, z is too
      large for count_noise.

  References:
    Andrew et al. 2021, "Differentially Private Learning with Adaptive
    Clipping", Algorithm 1 and Theorem 1.
  """
  checks.check_number('initial', initial, CLIP_NORMS)
  _check_positive('learning_rate', learning_rate)
  _check_positive('expected_clients', expected_clients)
  if not 0 < quantile < 1:
    raise ValueError(
      f'quantile={quantile} is a fraction of clients; give one in (0, 1).'
    )

  # Of votes, which are one for each client: 1 if it is unclipped, -1 if not.
  votes_of = aggregation(2 * count_noise) if count_noise > 0 else None

  def update(
    key: Key | None,
    clip_norm: Float[Array, ''],
    num_unclipped: Float[Array, ''],
    num_clients: Float[Array, ''],
  ) -> Float[Array, '']:
    votes = 2 * num_unclipped - num_clients
    if key is not None and votes_of is not None:
      vote = votes_of.encode(jnp.ones(1, jnp.float32), 1.0, 1.0)
      total = vote * votes.astype(votes_of.dtype) + votes_of.draw(key, 1, 1.0)
      votes = votes_of.decode(total, 1.0)[0]
    b = votes / 2 / expected_clients + 0.5
    moved = clip_norm * jnp.exp(-learning_rate * (b - quantile))
    return jnp.clip(moved, MIN_CLIP_NORM, MAX_CLIP_NORM)

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
    clip_norm=lambda state: state,
    update=update,
    vector_noise=vector_noise,
  )


CLIPPINGS: dict[str, Callable[..., Clipping]] = {
  'fixed': lambda initial, **settings: fixed(initial),
  'adaptive': adaptive,
}
"""Clipping rules by name, of the arguments of `adaptive`. A new one is an entry here."""


def _check_positive(name: str, value: float) -> None:
  if not (value > 0 and math.isfinite(value)):
    raise ValueError(f'{name}={value}; give a finite number > 0.')
