"""DP-FedAvg, Algorithm 2 of the paper: train, clip, encode, sum, finish, decode, step."""

from collections.abc import Callable
import math
from typing import Any, NamedTuple

import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int
import optax

from epe_jax.parallel import sharding
from epe_jax.parallel.sharding import REPLICATED, SHARDED
from epe_jax.training import aggregation as aggregation_lib
from epe_jax.training import algorithms, local_training
from epe_jax.training import clipping as clipping_lib
from epe_jax.training.algorithms import (
  Algorithm,
  ClippedSums,
  Injection,
  Round,
)
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
  vector_noise = clipping.vector_noise(noise_multiplier)
  # Without noise there is nothing to hide behind, and no step of a grid.
  make = aggregation if noise_multiplier else aggregation_lib.float32
  summed = aggregation_lib.shard(make(vector_noise), mesh)
  train = local_training.local_training(task, client_opt, precision=precision)
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
    rho = sums.vector + algorithms.sum_canaries(
      summed, injection, clip_norm, training_key, always=sums.num >= 0
    )
    # A canary has norm S as a client that was clipped to it, so it counts as
    # a client and not as an unclipped one.
    num_clients = sums.num + injection.count
    count_key = None
    noisy = aggregation_lib.Finished(rho, state.noise_state)
    if noise_multiplier > 0:
      vector_key, count_key = jax.random.split(noise_key)
      draw = lambda key: summed.draw(key, rho.size, clip_norm)
      noisy = summed.finish(draw, vector_key, rho, state.noise_state)
    aggregate = summed.decode(noisy.total, clip_norm) / expected_clients
    params, opt_state = algorithms.apply_gradient(
      server_opt, -aggregate, state.params, state.opt_state
    )
    clip_state = clipping.update(
      count_key, state.clip_state, sums.num_unclipped, num_clients
    )
    round = algorithms.make_round(
      sums._replace(vector=summed.decode(sums.vector, clip_norm)),
      aggregate,
      injection,
      clip_norm=clip_norm,
      noise_multiplier=vector_noise,
      divisor=expected_clients,
      wrapped=noisy.wrapped,
    )
    return TrainState(
      state.round + 1, params, opt_state, clip_state, noisy.state
    ), round

  return Algorithm(init, step)


def make_sum(
  train: local_training.LocalTraining,
  aggregation: aggregation_lib.Aggregation,
  mesh: sharding.Mesh | None = None,
) -> Callable[[Params, Cohort, Float[Array, ''], Key], ClippedSums]:
  """Makes (params, cohort, S, training key) -> Σ_i CLIP(x_i; S), as messages.

  It holds chunk x d numbers at a time.

  Args:
    train: makes the update x_i of a client.
    aggregation: encodes what is summed.
    mesh: the devices that share the chunks; None for one device.
  """

  @sharding.sum_over_devices(
    mesh, (REPLICATED, SHARDED, REPLICATED, REPLICATED)
  )
  def sum_clipped_updates(
    params: Params, cohort: Cohort, clip_norm: Float[Array, ''], key: Key
  ) -> ClippedSums:
    def train_and_clip(
      batches: Batch, mask: Bool[Array, 'steps b'], client: Array, rows: Array
    ) -> ClippedSums:
      # The key follows from the client and not from its slot, so that the order
      # of clients changes nothing.
      client_key = jax.random.fold_in(key, client)
      update = train(params, batches, mask, rows, client_key)
      rounding_key = jax.random.fold_in(client_key, aggregation_lib.ROUNDING)
      x, norm = clipping_lib.clip(
        ravel_pytree(update.client_update)[0],
        clip_norm,
        aggregation,
        rounding_key,
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
      rows = local_training.count_rows_in_use(chunk.mask.any(axis=0))
      each = jax.vmap(train_and_clip, in_axes=(0, 0, 0, None))(
        chunk.batches, chunk.mask, chunk.clients, rows
      )
      return jax.tree.map(lambda s, x: s + x.sum(axis=0), sums, each), None

    dim = sum(leaf.size for leaf in jax.tree.leaves(params))
    zero = ClippedSums(
      jnp.zeros(aggregation.size(dim), aggregation.dtype),
      *[jnp.zeros((), jnp.float32)] * 4,
    )
    return jax.lax.scan(add_chunk, zero, cohort)[0]

  return sum_clipped_updates
