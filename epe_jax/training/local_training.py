"""ClientUpdate of FedAvg: a client trains the model and sends the difference."""

from collections.abc import Callable
import functools
import math
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int
import optax

from epe_jax.types import Array, Batch, Key, Params, Task, Weighted, weighted

PRECISIONS = ('float32', 'tensorfloat32', 'bfloat16')
"""The precisions in which clients may compute. 'float32' and 'tensorfloat32'
are those of matrix products between float32 arrays; tensorfloat32 keeps 10 bits
of each factor, on devices that have it. With 'bfloat16', forward and backward
passes are in bfloat16; on a CPU, which is slow at those, the factors of products that
`tasks._cpu` rounds."""

State = TypeVar('State')

# The smallest part of a batch that is computed.
_MIN_ROWS = 4


class ClientState(NamedTuple):
  """The state of a client between two of its steps.

  Attributes:
    params: the local model.
    opt_state: state of the client optimizer.
    loss: sums of the losses so far and of their weights, scalars.
  """

  params: Params
  opt_state: optax.OptState
  loss: Weighted


class LocalUpdate(NamedTuple):
  """What a client sends to the server.

  Attributes:
    client_update: trained minus received parameters, a pytree like params,
      float32.
    loss: the weighted mean of the training losses of all its examples, each in
      the step that used it; 0 if they weigh nothing.
  """

  client_update: Params
  loss: Float[Array, '']


# (params, batches [steps, b, ...], mask [steps, b], rows of each step, key)
LocalTraining = Callable[
  [Params, Batch, Bool[Array, 'steps b'], Int[Array, ' steps'], Key],
  LocalUpdate,
]


def local_training(
  task: Task,
  optimizer: optax.GradientTransformation,
  *,
  precision: str = 'float32',
) -> LocalTraining:
  """w <- optimizer(w, ∇ℓ(w; b)) for each batch b of a client; returns w - w_0.

  ℓ(w; b) is the weighted mean of the losses of the real examples of b. A batch
  that weighs nothing changes nothing, whatever the optimizer is.

  Args:
    task: gives the loss.
    optimizer: the client optimizer, initialized in each round.
    precision: one of `PRECISIONS`. Parameters, gradients and the update are
      float32 in all of them.

  Returns:
    A function (params, batches, mask, rows, key) -> `LocalUpdate`. `batches`
    holds arrays [steps, b, ...], and `mask` [steps, b] marks their real
    examples. `rows` [steps], from `count_rows_in_use`, says how many
    rows of each batch are computed; clients that are vmapped share it. `key` is
    for dropout and the like; each step folds its own index into it.

  Raises:
    ValueError: precision is unknown.

  References:
    McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from
    Decentralized Data", Algorithm 1, ClientUpdate.
  """
  if precision not in PRECISIONS:
    raise ValueError(f'precision={precision!r}; give one of {PRECISIONS}.')

  def mean_loss(
    params: Params, batch: Batch, mask: Bool[Array, ' b'], key: Key
  ) -> tuple[Float[Array, ''], Weighted]:
    losses = _sum_real(weighted(task.loss(params, batch, key)), mask)
    return _mean(losses), losses

  def rounded_loss(params: Params, batch: Batch, *args: Any):
    return mean_loss(_cast_to_bfloat16(params), _cast_to_bfloat16(batch), *args)

  compute_loss = mean_loss
  if precision == 'bfloat16':
    # On a CPU only products are faster, and kernels round their factors.
    compute_loss = functools.partial(
      jax.lax.platform_dependent, cpu=mean_loss, default=rounded_loss
    )

  def init(params: Params) -> ClientState:
    zero = jnp.zeros((), jnp.float32)
    return ClientState(params, optimizer.init(params), Weighted(zero, zero))

  def step(
    state: ClientState, batch: Batch, mask: Bool[Array, ' b'], key: Key
  ) -> ClientState:
    with jax.default_matmul_precision(precision):
      (_, loss), grads = jax.value_and_grad(compute_loss, has_aux=True)(
        state.params, batch, mask, key
      )
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    new = optax.apply_updates(state.params, updates), opt_state
    # Momentum or weight decay would move the model in an empty step too.
    params, opt_state = jax.tree.map(
      lambda new, old: jnp.where(loss.weight > 0, new, old), new, state[:2]
    )
    total = jax.tree.map(jnp.add, state.loss, loss)
    return ClientState(params, opt_state, total)

  def final(params: Params, state: ClientState) -> LocalUpdate:
    client_update = jax.tree.map(jnp.subtract, state.params, params)
    return LocalUpdate(client_update, _mean(state.loss))

  def train(
    params: Params,
    batches: Batch,
    mask: Bool[Array, 'steps b'],
    rows: Int[Array, ' steps'],
    key: Key,
  ) -> LocalUpdate:
    state = fold_batches(step, init(params), batches, mask, rows, key)
    return final(params, state)

  return train


def _cast_to_bfloat16(tree: Any) -> Any:
  is_floating = lambda x: jnp.issubdtype(x.dtype, jnp.floating)
  return jax.tree.map(
    lambda x: x.astype(jnp.bfloat16) if is_floating(x) else x, tree
  )


def _sum_real(values: Weighted, mask: Bool[Array, ' b']) -> Weighted:
  """Sums over the real examples of a batch, in float32."""
  return jax.tree.map(
    lambda x: jnp.sum(jnp.where(mask, x, 0), dtype=jnp.float32), values
  )


def _mean(sums: Weighted) -> Float[Array, '']:
  return sums.total / jnp.where(sums.weight > 0, sums.weight, 1)


# Cohorts have one shape in all rounds, so that a run is one trace. Most clients have
# fewer steps than the shape has room for, and the last batch of a client is rarely full.
# So the loop goes as far as a client's batches do, and of a batch that is at most half
# full it computes the first half or quarter alone.


def count_rows_in_use(mask: Bool[Array, 'steps b']) -> Int[Array, ' steps']:
  """Counts the rows of each step up to its last real example.

  >>> mask = jnp.array([[True, True], [False, True], [False, False]])
  >>> count_rows_in_use(mask)
  Array([2, 2, 0], dtype=int32)
  """
  place = jnp.arange(1, mask.shape[1] + 1, dtype=jnp.int32)
  return jnp.max(jnp.where(mask, place, 0), axis=1)


def fold_batches(
  step: Callable[[State, Batch, Bool[Array, ' b'], Key], State],
  state: State,
  batches: Batch,
  mask: Bool[Array, 'steps b'],
  rows: Int[Array, ' steps'],
  key: Key,
) -> State:
  """Folds `step` over batches, without the padding after the rows in use.

  Full batches are a loop of their own, so that a step has no branch in it. The
  partial one that follows them is computed to a quarter, a half or the whole,
  but never to fewer than four rows, as another size takes longer to compile.

  Args:
    step: (state, batch, mask, key) -> state. It is traced once for each of
      these sizes, and must not change the state where no example is real.
    state: the first state, arrays of fixed shapes.
    batches: arrays [steps, b, ...].
    mask: which examples are real.
    rows: rows in use of each step, in [0, b]; no real example follows them.
      Steps after the last one with any are left out.
    key: step i gets `fold_in(key, i)`.

  Returns:
    The last state.
  """
  b = mask.shape[1]
  parts = sorted({-(-b // 4), -(-b // 2)} - {b})
  parts = [size for size in parts if size >= _MIN_ROWS]
  steps = jnp.max(jnp.where(rows > 0, jnp.arange(1, rows.size + 1), 0))

  # An example is one row. On a TPU the last two axes of an array are tiles of 8 x 128,
  # and a copy of a cohort of images would be five times as large.
  rows_of = jax.tree.map(
    lambda x: x.reshape(*x.shape[:2], math.prod(x.shape[2:])), batches
  )

  def step_at(i: Int[Array, ''], size: int, state: State) -> State:
    batch = jax.tree.map(
      lambda x, like: x[i, :size].reshape(size, *like.shape[2:]),
      rows_of,
      batches,
    )
    return step(state, batch, mask[i, :size], jax.random.fold_in(key, i))

  def fold_full(at: tuple[Int[Array, ''], State]):
    return jax.lax.while_loop(
      lambda at: (at[0] < steps) & (rows[at[0]] > max(parts, default=0)),
      lambda at: (at[0] + 1, step_at(at[0], b, at[1])),
      at,
    )

  def fold_until_partial(at: tuple[Int[Array, ''], State]):
    i, state = fold_full(at)
    forms = [lambda state, size=size: step_at(i, size, state) for size in parts]
    which = sum((rows[i] > size for size in parts[:-1]), start=1)
    return i + 1, jax.lax.switch(
      jnp.where(i < steps, which, 0), [lambda state: state, *forms], state
    )

  _, state = jax.lax.while_loop(
    lambda at: at[0] < steps,
    fold_until_partial,
    (jnp.zeros((), jnp.int32), state),
  )
  return state
