"""The padding of cohorts, which is not computed.

Cohorts have one shape in all rounds, so that a run is one trace. Most clients
have fewer steps than the shape has room for, and the last batch of a client is
rarely full. The loop here goes as far as a client's batches do, and of a batch
that is at most half full it computes the first half or quarter alone.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Int

from epe_jax.types import Array, Batch, Key

State = TypeVar('State')

# The smallest part of a batch that is computed.
_MIN_ROWS = 4


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

  def step_at(i: Int[Array, ''], size: int, state: State) -> State:
    batch = jax.tree.map(lambda x: x[i, :size], batches)
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
