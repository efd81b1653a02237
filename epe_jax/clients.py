"""What one client does: train the model it was sent, return the difference."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int
import optax

from epe_jax.types import (
  Array,
  Batch,
  Key,
  Params,
  Task,
  Weighted,
  weighted,
)


class LocalUpdate(NamedTuple):
  """What a client sends back.

  Attributes:
    delta: trained minus received parameters, a pytree like params.
    loss: mean training loss over the examples it stepped through, as their
      weights have it.
  """

  delta: Params
  loss: Float[Array, '']


# (params, batches [steps, b, ...], mask [steps, b], steps to run, key)
LocalTraining = Callable[
  [Params, Batch, Bool[Array, 'steps b'], Int[Array, ''], Key], LocalUpdate
]


PRECISIONS = ('float32', 'tensorfloat32', 'bfloat16')
"""In which numbers clients compute. Matrix products of float32 numbers that are
rounded no further, or to the 10 bits of tensorfloat32 where a device has it; or
forward and backward passes in bfloat16."""


def local_training(
  task: Task,
  optimizer: optax.GradientTransformation,
  *,
  precision: str = 'float32',
) -> LocalTraining:
  """One pass over a client's batches with its own optimizer.

  A step's loss is the mean over its real examples, as their weights have it. A
  step in which nothing weighs anything changes nothing, whatever the optimizer.

  Args:
    task: gives the loss.
    optimizer: the client optimizer; its state starts anew each round.
    precision: one of `PRECISIONS`. Parameters, gradients and what is sent back
      are float32 in all of them.

  Returns:
    A function of (params, batches [steps, b, ...], mask [steps, b], number of
    steps to run, key). The number of steps is shared by clients that are
    vmapped together: give the largest that any of them needs.

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
    steps: Int[Array, ''],
    key: Key,
  ) -> LocalUpdate:
    def step(i: Int[Array, ''], carry: tuple[Params, optax.OptState, Weighted]):
      local, opt_state, seen = carry
      batch = jax.tree.map(lambda x: x[i], batches)
      with jax.default_matmul_precision(precision):
        (_, sums), grads = jax.value_and_grad(masked_loss, has_aux=True)(
          local, batch, mask[i], jax.random.fold_in(key, i)
        )
      updates, new_state = optimizer.update(grads, opt_state, local)
      # Momentum or weight decay would move the model in an empty step too.
      new = optax.apply_updates(local, updates), new_state
      local, opt_state = jax.tree.map(
        lambda a, b: jnp.where(sums.weight > 0, a, b), new, (local, opt_state)
      )
      return local, opt_state, jax.tree.map(jnp.add, seen, sums)

    zero = jnp.zeros((), jnp.float32)
    start = (params, optimizer.init(params), Weighted(zero, zero))
    trained, _, seen = jax.lax.fori_loop(0, steps, step, start)
    return LocalUpdate(
      delta=jax.tree.map(jnp.subtract, trained, params), loss=_mean(seen)
    )

  return train


def _mean(sums: Weighted) -> Float[Array, '']:
  return sums.total / jnp.where(sums.weight > 0, sums.weight, 1)
