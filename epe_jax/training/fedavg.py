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
from epe_jax.training import clipping as clipping_lib
from epe_jax.training import local_training, padding
from epe_jax.training import noise as noise_lib
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
  """

  direction: Callable[[], Float[Array, ' d'] | Float[Array, '']]
  count: Int[Array, '']


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
  """

  round: Int[Array, '']
  params: Params
  opt_state: optax.OptState
  clip_state: Any


class RoundInfo(NamedTuple):
  """What the server computed in a round, and what a person plots of it.

  Attributes:
    aggregate: the noisy mean (ρ + Z) / m, [d].
    client_part: what the real clients put into it, Σ_i CLIP(x_i; S) / m, [d].
    metrics: name -> float32 scalar.
  """

  aggregate: Float[Array, ' d'] | None
  client_part: Float[Array, ' d'] | None
  metrics: dict[str, Float[Array, '']]


class ClippedSums(NamedTuple):
  """Sums over the real clients of a round, or examples of a step of DP-SGD.

  Attributes:
    vector: of clipped updates, or gradients, [d]; within DP-FedAvg in the unit
      of `noise.Noise`.
    num: how many clients or examples there are.
    num_unclipped: how many of their vectors had a norm of at most S.
    norm: of the norms of vectors, before clipping.
    loss: of the mean training losses.
  """

  vector: Float[Array, ' d'] | Int[Array, ' d']
  num: Float[Array, '']
  num_unclipped: Float[Array, '']
  norm: Float[Array, '']
  loss: Float[Array, '']


class Algorithm(NamedTuple):
  """A training algorithm: a pair of pure functions.

  Attributes:
    init: params -> state.
    step: (state, cohort, ...) -> (state, info), one round.
  """

  init: Callable[..., Any]
  step: Callable[..., tuple[Any, RoundInfo]]


def dp_fedavg(
  task: Task,
  *,
  client_opt: optax.GradientTransformation,
  server_opt: optax.GradientTransformation,
  clipping: clipping_lib.Clipping,
  noise_multiplier: float,
  expected_clients: float,
  make_noise: noise_lib.MakeNoise = noise_lib.float32,
  divisor: str = 'expected',
  precision: str = 'float32',
  mesh: sharding.Mesh | None = None,
) -> Algorithm:
  """ρ = Σ_i CLIP(x_i; S) + S Σ_j c_j;  θ <- server(θ, (ρ + Z) / m).

  x_i is the update of client i and c_j a canary of the round. Z ~ N(0, (z S)^2
  I_d), with z split between updates and count when clipping is adaptive. The
  server optimizer is given -(ρ + Z) / m as its gradient.

  Args:
    task: the model and its loss.
    client_opt: optimizer of the clients. Its state starts anew in each round.
    server_opt: optimizer of the server.
    clipping: gives S, and moves it from round to round.
    noise_multiplier: z, finite and >= 0. With 0 no noise is drawn at all.
    expected_clients: m > 0, clients and canaries expected in a round.
    make_noise: makes the noise. `noise.float32` is for simulations, and
      `noise.exact(max_clients)` hides sums to the last bit in a model for
      release. Adaptive clipping needs the same.
    divisor: 'expected' divides the noisy sum by m, as the analytic ε assumes.
      'actual' divides by the number of clients and canaries of the round, which
      an attacker would learn from the result.
    precision: in which clients compute, one of `local_training.PRECISIONS`. All
      that follows is in float32.
    mesh: the devices that share the chunks of a cohort, equally many each; each
      device scans its own. None for one device.

  Returns:
    init(params), and step(state, cohort, injection, training_key, noise_key),
    to be jitted by the caller. Each key must be new for each round: the noise
    key from the operating system, the training key (dropout) from any source.

  Raises:
    ValueError: noise_multiplier, expected_clients, divisor or precision is out
      of range.

  References:
    One-shot Empirical Privacy Estimation, Algorithm 2.
  """
  if not (noise_multiplier >= 0 and math.isfinite(noise_multiplier)):
    raise ValueError(
      f'noise_multiplier={noise_multiplier}; give a finite z >= 0.'
    )
  if not expected_clients > 0:
    raise ValueError(f'expected_clients={expected_clients}; give m > 0.')
  if divisor not in ('expected', 'actual'):
    raise ValueError(f"divisor={divisor!r}; give 'expected' or 'actual'.")
  train = local_training.local_training(task, client_opt, precision=precision)
  vector_noise = clipping.vector_noise(noise_multiplier)
  # Without noise there is nothing to hide behind, and no step of a grid.
  noise = (make_noise if noise_multiplier else noise_lib.float32)(vector_noise)
  sum_clipped_updates = functools.partial(_sum_clipped_updates, train, noise)
  if mesh is not None:
    replicated, sharded = sharding.REPLICATED, sharding.SHARDED
    sum_clipped_updates = sharding.sum_over_devices(
      sum_clipped_updates, mesh, (replicated, sharded, replicated, replicated)
    )

  def init(params: Params) -> TrainState:
    return TrainState(
      round=jnp.zeros((), jnp.int32),
      # A copy, so that a caller may donate the state and keep the parameters.
      params=jax.tree.map(jnp.copy, params),
      opt_state=server_opt.init(params),
      clip_state=clipping.init(),
    )

  def step(
    state: TrainState,
    cohort: Cohort,
    injection: Injection,
    training_key: Key,
    noise_key: Key,
  ) -> tuple[TrainState, RoundInfo]:
    clip_norm = clipping.clip_norm(state.clip_state)
    sums = sum_clipped_updates(state.params, cohort, clip_norm, training_key)
    # Materialize the canaries after the client scan; otherwise XLA may keep
    # their d floats live during training.
    direction = fusion_barrier(sums.num >= 0, injection.direction)
    rho = sums.vector + noise.multiply(direction, clip_norm, clip_norm)
    num_clients = sums.num + injection.count
    count_key = None
    if noise_multiplier > 0:
      vector_key, count_key = jax.random.split(noise_key)
      # Bits follow from key and coordinate alone, whichever device draws them.
      rho = rho + sharding.shard_if_divisible(
        mesh, noise.draw(vector_key, rho.size, clip_norm), axes=(0,)
      )
    m = (
      expected_clients if divisor == 'expected' else jnp.maximum(num_clients, 1)
    )
    aggregate = noise.read(rho, clip_norm) / m
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
    )
    info = describe_round(
      sums._replace(vector=noise.read(sums.vector, clip_norm)),
      aggregate,
      injection,
      clip_norm=clip_norm,
      noise_multiplier=vector_noise,
      divisor=m,
    )
    return new_state, info

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


def describe_round(
  sums: ClippedSums,
  aggregate: Float[Array, ' d'],
  injection: Injection,
  *,
  clip_norm: Float[Array, ''] | float,
  noise_multiplier: float,
  divisor: Float[Array, ''] | float,
) -> RoundInfo:
  """What a server computed in a round, with metrics.

  Args:
    sums: of clipped updates.
    aggregate: the noisy mean.
    injection: the canaries of the round.
    clip_norm: S.
    noise_multiplier: of the noise in the sum, in units of S.
    divisor: by which the noisy sum was divided.
  """
  # Means over real clients; 0 if there are none.
  num = jnp.maximum(sums.num, 1)
  metrics = {
    'loss': sums.loss / num,
    'fraction_unclipped': sums.num_unclipped / num,
    'update_norm': sums.norm / num,
    'clip_norm': jnp.float32(clip_norm),
    'sum_norm': jnp.linalg.norm(sums.vector),
    'aggregate_norm': jnp.linalg.norm(aggregate),
    # What a canary adds to the aggregate of its round.
    'canary_norm': jnp.float32(clip_norm / divisor),
    'noise_std': jnp.float32(noise_multiplier * clip_norm / divisor),
    'num_clients': sums.num,
    'num_canaries': injection.count.astype(jnp.float32),
  }
  return RoundInfo(aggregate, sums.vector / divisor, metrics)


def _sum_clipped_updates(
  train: local_training.LocalTraining,
  noise: noise_lib.Noise,
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
    delta = ravel_pytree(update.delta)[0]
    x, norm = clipping_lib.clip(delta, clip_norm, noise)
    is_real = (client >= 0).astype(jnp.float32)
    is_unclipped = (norm <= clip_norm).astype(jnp.float32)
    values = 1.0, is_unclipped, norm, update.loss
    return ClippedSums(
      is_real.astype(noise.dtype) * x, *(is_real * value for value in values)
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
    jnp.zeros(dim, noise.dtype), scalar, scalar, scalar, scalar
  )
  return jax.lax.scan(add_chunk, zero, cohort)[0]
