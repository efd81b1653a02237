"""What one client does: train the model it was sent, return the difference."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int
import optax

from epe_jax.types import Array, Batch, Key, Params, Task, Weighted, weighted


class LocalUpdate(NamedTuple):
  """What a client sends back.

  Attributes:
    delta: trained minus received parameters, a pytree like params.
    loss: mean training loss over the examples it stepped through, as their
      weights have it.
  """

  delta: Params
  loss: Float[Array, '']


# (params, batches [steps, b, ...], mask [steps, b], rows of each step, key)
LocalTraining = Callable[
  [Params, Batch, Bool[Array, 'steps b'], Int[Array, ' steps'], Key],
  LocalUpdate,
]


PRECISIONS = ('float32', 'tensorfloat32', 'bfloat16')
"""In which numbers clients compute. Matrix products of float32 numbers that are
rounded no further, or to the 10 bits of tensorfloat32 where a device has it; or
forward and backward passes in bfloat16."""

_Carry: TypeAlias = tuple[Params, optax.OptState, Weighted]


def local_training(
  task: Task,
  optimizer: optax.GradientTransformation,
  *,
  precision: str = 'float32',
) -> LocalTraining:
  """One pass over a client's batches with its own optimizer.

  A step's loss is the mean over its real examples, as their weights have it. A
  step in which nothing weighs anything changes nothing, whatever the optimizer.

  The last batch of a client is rarely full. Of one with at most half of its
  rows in use only the first half is computed, or the first quarter.

  Args:
    task: gives the loss.
    optimizer: the client optimizer; its state starts anew each round.
    precision: one of `PRECISIONS`. Parameters, gradients and what is sent back
      are float32 in all of them.

  Returns:
    A function of (params, batches [steps, b, ...], mask [steps, b], rows
    [steps], key). rows are how many of a step's rows, from the first, may be
    real, as `rows_in_use` tells; it is shared by clients that are vmapped
    together.

  Source: McMahan et al. 2017, "Communication-Efficient Learning of Deep
  Networks from Decentralized Data", Algorithm 1, ClientUpdate.
  """
  if precision not in PRECISIONS:
    raise ValueError(f'precision={precision!r}; give one of {PRECISIONS}.')

  def lowered(tree: Any) -> Any:
    if precision != 'bfloat16':
      return tree
    floating = lambda x: jnp.issubdtype(x.dtype, jnp.floating)
    return jax.tree.map(
      lambda x: x.astype(jnp.bfloat16) if floating(x) else x, tree
    )

  def masked_loss(
    params: Params, batch: Batch, mask: Bool[Array, ' b'], key: Key
  ) -> tuple[Float[Array, ''], Weighted]:
    values = weighted(task.loss(lowered(params), lowered(batch), key))
    sums = jax.tree.map(
      lambda x: jnp.sum(jnp.where(mask, x, 0), dtype=jnp.float32), values
    )
    return _mean(sums), sums

  def train(
    params: Params,
    batches: Batch,
    mask: Bool[Array, 'steps b'],
    rows: Int[Array, ' steps'],
    key: Key,
  ) -> LocalUpdate:
    b = mask.shape[1]
    # A quarter and a half of a batch, where these are less than a batch.
    parts = sorted({-(-b // 4), -(-b // 2)} - {b})
    steps = jnp.max(jnp.where(rows > 0, jnp.arange(1, rows.size + 1), 0))

    def step(i: Int[Array, ''], size: int, carry: _Carry) -> _Carry:
      local, opt_state, seen = carry
      batch = jax.tree.map(lambda x: x[i, :size], batches)
      with jax.default_matmul_precision(precision):
        (_, sums), grads = jax.value_and_grad(masked_loss, has_aux=True)(
          local, batch, mask[i, :size], jax.random.fold_in(key, i)
        )
      updates, new_state = optimizer.update(grads, opt_state, local)
      # Momentum or weight decay would move the model in an empty step too.
      new = optax.apply_updates(local, updates), new_state
      local, opt_state = jax.tree.map(
        lambda a, b: jnp.where(sums.weight > 0, a, b), new, (local, opt_state)
      )
      return local, opt_state, jax.tree.map(jnp.add, seen, sums)

    def as_far_as_full(at: tuple[Int[Array, ''], _Carry]):
      return jax.lax.while_loop(
        lambda at: (at[0] < steps) & (rows[at[0]] > max(parts, default=0)),
        lambda at: (at[0] + 1, step(at[0], b, at[1])),
        at,
      )

    def then_partial(at: tuple[Int[Array, ''], _Carry]):
      i, carry = as_far_as_full(at)
      forms = [lambda carry, size=size: step(i, size, carry) for size in parts]
      which = sum((rows[i] > size for size in parts[:-1]), start=1)
      return i + 1, jax.lax.switch(
        jnp.where(i < steps, which, 0), [lambda carry: carry, *forms], carry
      )

    zero = jnp.zeros((), jnp.float32)
    start = (params, optimizer.init(params), Weighted(zero, zero))
    _, (trained, _, seen) = jax.lax.while_loop(
      lambda at: at[0] < steps, then_partial, (jnp.zeros((), jnp.int32), start)
    )
    return LocalUpdate(
      delta=jax.tree.map(jnp.subtract, trained, params), loss=_mean(seen)
    )

  return train


def rows_in_use(mask: Bool[Array, 'steps b']) -> Int[Array, ' steps']:
  """How far the real examples of each step reach.

  >>> rows_in_use(jnp.array([[True, True], [False, True], [False, False]]))
  Array([2, 2, 0], dtype=int32)
  """
  place = jnp.arange(1, mask.shape[1] + 1, dtype=jnp.int32)
  return jnp.max(jnp.where(mask, place, 0), axis=1)


def _mean(sums: Weighted) -> Float[Array, '']:
  return sums.total / jnp.where(sums.weight > 0, sums.weight, 1)
