"""DP-FedAvg: clip, sum, add noise, divide, step. It knows nothing of auditing.

Its one opening is `Injection`: a vector of unit directions that enters the sum
at the clip norm, and the number of clients that it stands for.
"""

from collections.abc import Callable
import functools
import math
from typing import Any, NamedTuple

import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int
import optax

from epe_jax.parallel import sharding
from epe_jax.parallel.barrier import fusion_barrier
from epe_jax.training import aggregation as aggregation_lib
from epe_jax.training import clipping as clipping_lib
from epe_jax.training import local_training, padding
from epe_jax.training.round_scalars import RoundScalars
from epe_jax.types import Array, Batch, Key, Params, Task


class Cohort(NamedTuple):
  """The clients of one round. Those of a chunk are vmapped; chunks are scanned.

  Attributes:
    batches: the examples, arrays [chunks, chunk, steps, b, ...].
    mask: [chunks, chunk, steps, b], true where an example is real.
    clients: [chunks, chunk], index of each client, int32 >= 0; -1 for an empty
      slot.
  """

  batches: Batch
  mask: Bool[Array, 'chunks chunk steps b']
  clients: Int[Array, 'chunks chunk']


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


class TrainState(NamedTuple):
  """The state that a round leaves to the next one.

  Attributes:
    round: the number of rounds done, int32.
    params: the model.
    opt_state: state of the server optimizer.
    clip_state: state of the clipping rule.
    noise_state: state of the aggregation: that of the stream of correlated noise, or
      the number of coordinates that wrapped around in secure aggregation.
  """

  round: Int[Array, '']
  params: Params
  opt_state: optax.OptState
  clip_state: Any
  noise_state: Any = ()


class RoundMetrics(NamedTuple):
  """What a person plots of a round; nothing reads it back.

  Each is a float32 scalar. Means are over the real clients of the round (in
  DP-SGD, the examples of the step), and 0 if it has none.

  Attributes:
    loss: mean training loss; None if the algorithm does not compute it.
    fraction_unclipped: fraction of the clients whose update has a norm of at
      most S.
    update_norm: mean norm of the client updates before clipping.
    wrapped: coordinates that went round the ring of secure aggregation; None without.
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
    metrics: what only a person looks at.
  """

  aggregate: Float[Array, ' d'] | None
  client_part: Float[Array, ' d'] | None
  scalars: RoundScalars
  metrics: RoundMetrics

  def by_name(self) -> dict[str, Float[Array, '']]:
    """Returns the scalars and metrics that were measured, by name."""
    numbers = self.scalars._asdict() | self.metrics._asdict()
    return {name: x for name, x in numbers.items() if x is not None}


class ClippedSums(NamedTuple):
  """Sums over the real clients of a round, or the examples of a DP-SGD step.

  Attributes:
    vector: sum of the clipped updates, or gradients, [d]; within DP-FedAvg in
      the unit of the `Aggregation`.
    num: the number of clients or examples.
    num_unclipped: the number of them whose vector has a norm of at most S.
    norm: sum of the norms of their vectors before clipping.
    loss: sum of their mean training losses; None if not computed.
  """

  vector: Float[Array, ' d'] | Int[Array, ' d']
  num: Float[Array, '']
  num_unclipped: Float[Array, '']
  norm: Float[Array, '']
  loss: Float[Array, ''] | None


class Algorithm(NamedTuple):
  """A training algorithm: a pair of pure functions.

  Attributes:
    init: params -> state.
    step: (state, cohort, ...) -> (state, `Round`).
  """

  init: Callable[..., Any]
  step: Callable[..., tuple[Any, Round]]


def dp_fedavg(
  task: Task,
  *,
  client_opt: optax.GradientTransformation,
  server_opt: optax.GradientTransformation,
  clipping: clipping_lib.Clipping,
  noise_multiplier: float,
  expected_clients: float,
  aggregation: aggregation_lib.MakeAggregation = aggregation_lib.float32,
  precision: str = 'float32',
  mesh: sharding.Mesh | None = None,
) -> Algorithm:
  """ρ = Σ_i CLIP(x_i; S) + S Σ_j c_j;  θ <- server(θ, (ρ + Z) / m).

  x_i is the update of client i and c_j a canary of the round. Z ~ N(0, (z S)^2
  I_d), with z split between updates and count when clipping is adaptive. The
  server optimizer is given -(ρ + Z) / m as its gradient.

  Args:
    task: the model and its loss.
    client_opt: optimizer of the clients, initialized in each round.
    server_opt: optimizer of the server.
    clipping: gives S, and moves it from round to round.
    noise_multiplier: z, finite and >= 0. With 0 no noise is drawn at all.
    expected_clients: m > 0, clients and canaries expected in a round.
    aggregation: sums messages and adds noise. `aggregation.float32` is for
      simulations, and `exact_noise.exact(max_clients)` hides sums to the last bit
      in a model for release; adaptive clipping needs the same. For fixed clipping
      there are `correlated_noise.correlated(stream)`, where Z is (B Z)_t, row t of
      a matrix mechanism, and those of `secure_aggregation`.
    precision: in which clients compute, one of `local_training.PRECISIONS`. All
      that follows is in float32.
    mesh: the devices that share the chunks of a cohort, equally many each; each
      device scans its own. None for one device.

  Returns:
    init(params), and step(state, cohort, injection, training_key, noise_key),
    to be jitted by the caller. Each key must be new for each round: the noise
    key from the operating system, the training key (dropout) from any source.

  Raises:
    ValueError: noise_multiplier, expected_clients or precision is out of range.

  References:
    One-shot Empirical Privacy Estimation, Algorithm 2.
  """
  if not (noise_multiplier >= 0 and math.isfinite(noise_multiplier)):
    raise ValueError(
      f'noise_multiplier={noise_multiplier}; give a finite z >= 0.'
    )
  if not expected_clients > 0:
    raise ValueError(f'expected_clients={expected_clients}; give m > 0.')
  train = local_training.local_training(task, client_opt, precision=precision)
  vector_noise = clipping.vector_noise(noise_multiplier)
  # Without noise there is nothing to hide behind, and no step of a grid.
  make = aggregation if noise_multiplier else aggregation_lib.float32
  summed = aggregation_lib.shard(make(vector_noise), mesh)
  sum_clipped_updates = make_sum(train, summed, mesh)

  def init(params: Params) -> TrainState:
    return TrainState(
      round=jnp.zeros((), jnp.int32),
      # A copy, so that a caller may donate the state and keep the parameters.
      params=jax.tree.map(jnp.copy, params),
      opt_state=server_opt.init(params),
      clip_state=clipping.init(),
      noise_state=summed.init(sum(x.size for x in jax.tree.leaves(params))),
    )

  def step(
    state: TrainState,
    cohort: Cohort,
    injection: Injection,
    training_key: Key,
    noise_key: Key,
  ) -> tuple[TrainState, Round]:
    clip_norm = clipping.clip_norm(state.clip_state)
    sums = sum_clipped_updates(state.params, cohort, clip_norm, training_key)
    rho = sums.vector + sum_canaries(
      summed, injection, clip_norm, training_key, always=sums.num >= 0
    )
    num_clients = sums.num + injection.count
    count_key = None
    finished = aggregation_lib.Finished(rho, state.noise_state)
    if noise_multiplier > 0:
      vector_key, count_key = jax.random.split(noise_key)
      draw = lambda key: summed.draw(key, rho.size, clip_norm)
      finished = summed.finish(draw, vector_key, rho, state.noise_state)
    aggregate = summed.decode(finished.total, clip_norm) / expected_clients
    params, opt_state = apply_gradient(
      server_opt, -aggregate, state.params, state.opt_state
    )
    new_state = TrainState(
      round=state.round + 1,
      params=params,
      opt_state=opt_state,
      # A canary has norm S as a client that was clipped to it, so it counts as
      # a client and not as an unclipped one.
      clip_state=clipping.update(
        count_key, state.clip_state, sums.num_unclipped, num_clients
      ),
      noise_state=finished.state,
    )
    round = make_round(
      sums._replace(vector=summed.decode(sums.vector, clip_norm)),
      aggregate,
      injection,
      clip_norm=clip_norm,
      noise_multiplier=vector_noise,
      divisor=expected_clients,
    )
    metrics = round.metrics._replace(wrapped=finished.wrapped)
    return new_state, round._replace(metrics=metrics)

  return Algorithm(init, step)


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
) -> Round:
  """Makes the round of an algorithm, with its numbers.

  Args:
    sums: sums over the real clients.
    aggregate: the noisy mean.
    injection: the canaries of the round.
    clip_norm: S.
    noise_multiplier: of the noise on the sum of updates.
    divisor: m, by which the noisy sum was divided.
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
  )
  return Round(aggregate, sums.vector / divisor, scalars, metrics)


def make_sum(
  train: local_training.LocalTraining,
  aggregation: aggregation_lib.Aggregation,
  mesh: sharding.Mesh | None = None,
) -> Callable[[Params, Cohort, Float[Array, ''], Key], ClippedSums]:
  """Makes the function that trains the clients of a round, clips and sums.

  Args:
    train: makes the update of a client.
    aggregation: encodes the vectors that are summed.
    mesh: the devices that share the chunks; None for one device.

  Returns:
    (params, cohort, S, training key) -> sums.
  """
  add_up = functools.partial(_sum_clipped_updates, train, aggregation)
  if mesh is None:
    return add_up
  replicated, sharded = sharding.REPLICATED, sharding.SHARDED
  return sharding.sum_over_devices(
    add_up, mesh, (replicated, sharded, replicated, replicated)
  )


def sum_canaries(
  aggregation: aggregation_lib.Aggregation,
  injection: Injection,
  clip_norm: Float[Array, ''],
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
  key_of_canaries = jax.random.fold_in(key, aggregation_lib.ROUNDING)

  def encode(canary: Float[Array, ' d'], j: Int[Array, ''] | int) -> Array:
    key_of_canary = jax.random.fold_in(key_of_canaries, j)
    return aggregation.encode(canary, clip_norm, clip_norm, key_of_canary)

  return fusion_barrier(always, lambda: encode_each(encode))


def _sum_clipped_updates(
  train: local_training.LocalTraining,
  aggregation: aggregation_lib.Aggregation,
  params: Params,
  cohort: Cohort,
  clip_norm: Float[Array, ''],
  key: Key,
) -> ClippedSums:
  """Σ_i CLIP(x_i; S), holding chunk x d numbers at a time."""

  def train_and_clip(
    batches: Batch, mask: Bool[Array, 'steps b'], client: Array, rows: Array
  ) -> ClippedSums:
    # The key follows from the client and not from its slot, so that the order
    # of clients changes nothing.
    key_of_client = jax.random.fold_in(key, client)
    update = train(params, batches, mask, rows, key_of_client)
    client_update = ravel_pytree(update.client_update)[0]
    rounding_key = jax.random.fold_in(key_of_client, aggregation_lib.ROUNDING)
    x, norm = clipping_lib.clip(
      client_update, clip_norm, aggregation, rounding_key
    )
    is_real = (client >= 0).astype(jnp.float32)
    is_unclipped = (norm <= clip_norm).astype(jnp.float32)
    values = 1.0, is_unclipped, norm, update.loss
    return ClippedSums(
      is_real.astype(aggregation.dtype) * x,
      *(is_real * value for value in values),
    )

  def add_chunk(sums: ClippedSums, chunk: Cohort) -> tuple[ClippedSums, None]:
    # The chunk takes as many steps and rows as any of its clients needs.
    rows = padding.count_rows_in_use(chunk.mask.any(axis=0))
    each = jax.vmap(train_and_clip, in_axes=(0, 0, 0, None))(
      chunk.batches, chunk.mask, chunk.clients, rows
    )
    return jax.tree.map(lambda s, x: s + x.sum(axis=0), sums, each), None

  dim = sum(leaf.size for leaf in jax.tree.leaves(params))
  scalar = jnp.zeros((), jnp.float32)
  zero = ClippedSums(
    jnp.zeros(aggregation.size(dim), aggregation.dtype),
    scalar,
    scalar,
    scalar,
    scalar,
  )
  return jax.lax.scan(add_chunk, zero, cohort)[0]
