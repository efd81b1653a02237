"""A training algorithm: two pure functions, which know nothing of auditing.

DP-FedAvg and DP-SGD are both one. Their one opening is `Injection`: a vector of unit
directions that enters the sum at the clip norm, and the number of clients that it
stands for. In DP-SGD a client is an example, and its update minus its gradient.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int
import optax

from epe_jax.parallel.sharding import fusion_barrier
from epe_jax.training.aggregation import ROUNDING, Aggregation
from epe_jax.training.round_scalars import RoundScalars
from epe_jax.types import Array, Key, Params


class Injection(NamedTuple):
  """Clients that send given unit directions at exactly the clip norm.

  Attributes:
    direction: () -> the sum of their unit vectors, [d], or a scalar 0 if there
      are none. It is called after the clients have trained, as its d floats
      would take room that training needs. To cross jit, make it a
      `jax.tree_util.Partial`.
    count: the number of these clients, int32 >= 0.
    messages: encode -> Σ_j encode(c_j, j) of their unit vectors, for sums that round
      each; None if it is not known, or there are none.
  """

  direction: Callable[[], Float[Array, ' d'] | Float[Array, '']]
  count: Int[Array, '']
  messages: Callable[[Callable[..., Array]], Array] | None = None


def no_canaries() -> Injection:
  """The injection of a round without canaries."""
  zero = jax.tree_util.Partial(jnp.zeros, ())
  return Injection(zero, jnp.zeros((), jnp.int32))


class RoundMetrics(NamedTuple):
  """Metrics for logging only: float32 scalars, means over the clients of the round.

  Attributes:
    loss: mean training loss; None if the algorithm does not compute it.
    fraction_unclipped: fraction of the clients whose update has a norm of at
      most S.
    update_norm: mean norm of the client updates before clipping.
    wrapped: coordinates that wrapped around the ring of secure aggregation; None
      without.
  """

  loss: Float[Array, ''] | None = None
  fraction_unclipped: Float[Array, ''] | None = None
  update_norm: Float[Array, ''] | None = None
  wrapped: Float[Array, ''] | None = None


class Round(NamedTuple):
  """What the server computed in a round.

  Attributes:
    aggregate: the noisy mean (ρ + Z) / m, [d].
    client_part: the part of the real clients, Σ_i CLIP(x_i; S) / m, [d]. It
      has no canaries: an audit adds those that it injected, so that an
      algorithm that loses them is noticed.
    scalars: what an audit records.
    metrics: for logging only.
  """

  aggregate: Float[Array, ' d'] | None
  client_part: Float[Array, ' d'] | None
  scalars: RoundScalars
  metrics: RoundMetrics

  def by_name(self) -> dict[str, Float[Array, '']]:
    """Returns the scalars and metrics that were measured, by name."""
    numbers = self.scalars._asdict() | self.metrics._asdict()
    return {name: x for name, x in numbers.items() if x is not None}


class Algorithm(NamedTuple):
  """A training algorithm: a pair of pure functions.

  Attributes:
    init: params -> state.
    step: (state, cohort, ...) -> (state, `Round`).
  """

  init: Callable[..., Any]
  step: Callable[..., tuple[Any, Round]]


class ClippedSums(NamedTuple):
  """Sums over the real clients of a round.

  Attributes:
    vector: sum of the clipped updates, [d], or of their messages, [s].
    num: the number of clients.
    num_unclipped: the number of them whose update has a norm of at most S.
    norm: sum of the norms of their updates before clipping.
    loss: sum of their mean training losses; None if not computed.
  """

  vector: Float[Array, ' d'] | Int[Array, ' s']
  num: Float[Array, '']
  num_unclipped: Float[Array, '']
  norm: Float[Array, '']
  loss: Float[Array, ''] | None


def sum_canaries(
  aggregation: Aggregation,
  injection: Injection,
  clip_norm: Float[Array, ''] | float,
  key: Key,
  *,
  always: Bool[Array, ''],
) -> Array:
  """Returns Σ_j S c_j of an `Injection` for a sum, each by itself if that matters.

  Args:
    aggregation: of the sum.
    injection: of the round.
    clip_norm: S.
    key: of the round, for rounding.
    always: as for `fusion_barrier`, and known once clients have trained.

  Raises:
    ValueError: vectors enter the sum one by one, and the injection has only their sum.
  """
  # Materialize the canaries after the client scan; otherwise XLA may keep
  # their d floats live during training.
  if not aggregation.one_by_one:
    direction = fusion_barrier(always, injection.direction)
    return aggregation.encode(direction, clip_norm, clip_norm)
  if injection.messages is None:
    if jax.eval_shape(injection.direction).shape:
      raise ValueError(
        'the injection has a sum of directions, but vectors enter this sum one by '
        'one; give its `messages` too.'
      )
    return jnp.zeros((), aggregation.dtype)
  encode_each = injection.messages
  key_of_canaries = jax.random.fold_in(key, ROUNDING)

  def encode(canary: Float[Array, ' d'], j: Int[Array, ''] | int) -> Array:
    key_of_canary = jax.random.fold_in(key_of_canaries, j)
    return aggregation.encode(canary, clip_norm, clip_norm, key_of_canary)

  return fusion_barrier(always, lambda: encode_each(encode))


def apply_gradient(
  optimizer: optax.GradientTransformation,
  gradient: Float[Array, ' d'],
  params: Params,
  opt_state: optax.OptState,
) -> tuple[Params, optax.OptState]:
  """A step of an optimizer by a flat gradient: new parameters and new state."""
  _, unravel = ravel_pytree(params)
  updates, opt_state = optimizer.update(unravel(gradient), opt_state, params)
  return optax.apply_updates(params, updates), opt_state


def make_round(
  sums: ClippedSums,
  aggregate: Float[Array, ' d'],
  injection: Injection,
  *,
  clip_norm: Float[Array, ''] | float,
  noise_multiplier: float,
  divisor: Float[Array, ''] | float,
  wrapped: Float[Array, ''] | None = None,
) -> Round:
  """Makes the round of an algorithm, with its numbers.

  Args:
    sums: sums over the real clients.
    aggregate: the noisy mean.
    injection: the canaries of the round.
    clip_norm: S.
    noise_multiplier: of the noise on the sum of updates.
    divisor: m, by which the noisy sum was divided.
    wrapped: as in `RoundMetrics`.
  """
  num = jnp.maximum(sums.num, 1)
  scalars = RoundScalars(
    clip_norm=jnp.float32(clip_norm),
    canary_norm=jnp.float32(clip_norm / divisor),
    noise_std=jnp.float32(noise_multiplier * clip_norm / divisor),
    num_clients=sums.num,
    num_canaries=injection.count.astype(jnp.float32),
    sum_norm=jnp.linalg.norm(sums.vector),
    aggregate_norm=jnp.linalg.norm(aggregate),
  )
  metrics = RoundMetrics(
    loss=None if sums.loss is None else sums.loss / num,
    fraction_unclipped=sums.num_unclipped / num,
    update_norm=sums.norm / num,
    wrapped=wrapped,
  )
  return Round(aggregate, sums.vector / divisor, scalars, metrics)
