"""DP-FedAvg: clip, sum, add noise, divide, step. It knows nothing of auditing.

The one opening is `Injection`: a vector of unit directions that is added to
the sum at the clip norm, and the number of clients it stands for.
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
from epe_jax.training import local_training as clients_lib
from epe_jax.types import Array, Batch, Key, Params, Task


class Cohort(NamedTuple):
  """The clients of one round; those of a chunk are vmapped, chunks scanned.

  Attributes:
    batches: arrays [chunks, chunk, steps, b, ...].
    mask: [chunks, chunk, steps, b], which examples are real.
    clients: [chunks, chunk] index of each client, -1 for an empty slot.
  """

  batches: Batch
  mask: Bool[Array, 'chunks chunk steps b']
  clients: Int[Array, 'chunks chunk']


class Injection(NamedTuple):
  """Clients that send a given direction at exactly the clip norm.

  Attributes:
    direction: gives the sum of their unit vectors, [d], or a 0 if there are
      none. It is asked when clients are done, whose training needs the room. A
      `jax.tree_util.Partial` may cross jit.
    count: how many they are.
  """

  direction: Callable[[], Float[Array, ' d'] | Float[Array, '']]
  count: Int[Array, '']


def no_canaries() -> Injection:
  """No canaries."""
  zero = jax.tree_util.Partial(jnp.zeros, ())
  return Injection(zero, jnp.zeros((), jnp.int32))


class TrainState(NamedTuple):
  """What the next round needs."""

  round: Int[Array, '']
  params: Params
  opt_state: optax.OptState
  clip_state: Any


class RoundInfo(NamedTuple):
  """What the server saw, and what a person plots.

  Attributes:
    aggregate: the noisy mean rho_bar = (rho + Z) / m, [d].
    known: the real clients' part of it, sum_i CLIP(x_i; S) / m, [d].
    metrics: name -> float32 scalar.
  """

  aggregate: Float[Array, ' d'] | None
  known: Float[Array, ' d'] | None
  metrics: dict[str, Float[Array, '']]


class Algorithm(NamedTuple):
  """A training algorithm: a pair of pure functions.

  Attributes:
    init: params -> state.
    step: (state, ...) -> (state, info).
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
  divisor: str = 'expected',
  precision: str = 'float32',
  mesh: sharding.Mesh | None = None,
) -> Algorithm:
  """rho = sum_i CLIP(x_i; S) + S sum_j c_j;  theta <- server((rho + Z) / m).

  Z ~ N(0, (z S)^2 I_d), with z split between updates and count when clipping is
  adaptive. The server optimizer is given -(rho + Z) / m as its gradient.

  Args:
    task: the model.
    client_opt: optimizer of the clients, fresh in each round.
    server_opt: optimizer of the server.
    clipping: how S moves.
    noise_multiplier: z >= 0; 0 draws no noise at all.
    expected_clients: m > 0, clients and canaries expected in a round.
    divisor: what the noisy sum is divided by: 'expected' m, as the analytic
      bound assumes, or the 'actual' number of the round, which an attacker
      would learn from it.
    precision: in which numbers clients compute, one of `local_training.PRECISIONS`;
      all that follows is in float32.
    mesh: devices that share the chunks of a cohort, equally many each; each
      scans its own. None for one device.

  Returns:
    init(params), and step(state, cohort, injection, training_key, noise_key),
    to be jitted by the caller. Each key must be new for each round: the noise
    key from the operating system, the training key (dropout) from any source.

  Raises:
    ValueError: noise_multiplier, expected_clients, divisor or precision is out
      of range.

  Source: One-shot Empirical Privacy Estimation, Algorithm 2.
  """
  if not (noise_multiplier >= 0 and math.isfinite(noise_multiplier)):
    raise ValueError(
      f'noise_multiplier={noise_multiplier}; give a finite z >= 0.'
    )
  if not expected_clients > 0:
    raise ValueError(f'expected_clients={expected_clients}; give m > 0.')
  if divisor not in ('expected', 'actual'):
    raise ValueError(f"divisor={divisor!r}; give 'expected' or 'actual'.")
  train = clients_lib.local_training(task, client_opt, precision=precision)
  sum_of_updates = functools.partial(_sum_of_updates, train)
  if mesh is not None:
    whole, split = sharding.REPLICATED, sharding.SHARDED
    sum_of_updates = sharding.sum_over_devices(
      sum_of_updates, mesh, (whole, split, whole, whole)
    )
  vector_noise = clipping.vector_noise(noise_multiplier)

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
    bound = clipping.bound(state.clip_state)
    total = sum_of_updates(state.params, cohort, bound, training_key)
    # Apart, and when all is added up, or XLA might make it while clients train.
    direction = fusion_barrier(total.clients >= 0, injection.direction)
    rho = total.update + bound * direction
    clients = total.clients + injection.count
    if noise_multiplier > 0:
      vector_key, count_key = jax.random.split(noise_key)
      # Bits follow from the key and the place, whoever draws which.
      noise = sharding.shard_if_divisible(
        mesh, jax.random.normal(vector_key, rho.shape, jnp.float32), axes=(0,)
      )
      rho = rho + vector_noise * bound * noise
    else:
      count_key = None
    m = expected_clients if divisor == 'expected' else jnp.maximum(clients, 1)
    aggregate = rho / m
    _, unravel = ravel_pytree(state.params)
    updates, opt_state = server_opt.update(
      unravel(-aggregate), state.opt_state, state.params
    )
    new_state = TrainState(
      round=state.round + 1,
      params=optax.apply_updates(state.params, updates),
      opt_state=opt_state,
      # A canary is scaled to the bound, as one clipped from above would be, so
      # it counts as a client and not as one below.
      clip_state=clipping.update(
        count_key, state.clip_state, total.below, clients
      ),
    )
    real = jnp.maximum(total.clients, 1)
    metrics = {
      'loss': total.loss / real,
      'clip_norm': bound,
      'fraction_unclipped': total.below / real,
      'update_norm': total.norm / real,
      'sum_norm': jnp.linalg.norm(total.update),
      'aggregate_norm': jnp.linalg.norm(aggregate),
      # What a canary adds to the aggregate of its round.
      'canary_norm': bound / m,
      'noise_std': jnp.float32(vector_noise) * bound / m,
      'num_clients': total.clients,
      'num_canaries': injection.count.astype(jnp.float32),
    }
    return new_state, RoundInfo(aggregate, total.update / m, metrics)

  return Algorithm(init, step)


class _Total(NamedTuple):
  """Sums over the real clients of a round."""

  update: Float[Array, ' d']
  clients: Float[Array, '']
  below: Float[Array, '']
  norm: Float[Array, '']
  loss: Float[Array, '']


def _sum_of_updates(
  train: clients_lib.LocalTraining,
  params: Params,
  cohort: Cohort,
  bound: Float[Array, ''],
  key: Key,
) -> _Total:
  """Sum of the clipped updates, holding chunk x d numbers at a time."""

  def client(
    batches: Batch, mask: Bool[Array, 'steps b'], index: Array, rows: Array
  ) -> _Total:
    # Keyed by the client and not by its slot: order changes nothing.
    update = train(params, batches, mask, rows, jax.random.fold_in(key, index))
    x, norm = clipping_lib.clip(ravel_pytree(update.delta)[0], bound)
    real = (index >= 0).astype(jnp.float32)
    below = (norm <= bound).astype(jnp.float32)
    return _Total(*(real * v for v in (x, 1.0, below, norm, update.loss)))

  def add_chunk(total: _Total, chunk: Cohort) -> tuple[_Total, None]:
    # As far as the longest client of the chunk goes, and no further.
    rows = clients_lib.rows_in_use(chunk.mask.any(axis=0))
    each = jax.vmap(client, in_axes=(0, 0, 0, None))(
      chunk.batches, chunk.mask, chunk.clients, rows
    )
    return jax.tree.map(lambda t, x: t + x.sum(axis=0), total, each), None

  dim = sum(leaf.size for leaf in jax.tree.leaves(params))
  scalar = jnp.zeros((), jnp.float32)
  zero = _Total(jnp.zeros(dim, jnp.float32), scalar, scalar, scalar, scalar)
  return jax.lax.scan(add_chunk, zero, cohort)[0]
