"""The loop over padded batches is that over the real ones, and no longer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epe_jax.training import local_training


def by_the_book(numbers, mask, key):
  """A hash of the real numbers, in order, and of the keys of their steps."""
  state, count = 0.0, 0
  for i, (row, is_real) in enumerate(zip(numbers, mask)):
    if is_real.any():
      drawn = float(jax.random.uniform(jax.random.fold_in(key, i)))
      state, count = 0.5 * state + drawn * row[is_real].sum(), count + 1
  return state, count


@pytest.mark.parametrize(
  ('b', 'computed'),
  [(20, {5, 10, 20}), (16, {4, 8, 16}), (8, {4, 8}), (3, {3}), (1, {1})],
)
def test_batches_are_folded_as_by_a_python_loop_and_rows_left_out(b, computed):
  sizes = set()

  def step(state, batch, mask, key):
    value, count = state
    sizes.add(mask.size)
    total = jnp.sum(jnp.where(mask, batch, 0))
    new = 0.5 * value + jax.random.uniform(key) * total
    is_real = mask.any()
    return jnp.where(is_real, new, value), count + is_real

  @jax.jit
  def fold(numbers, mask, key):
    rows = local_training.count_rows_in_use(mask)
    start = jnp.float32(0), jnp.int32(0)
    return local_training.fold_batches(step, start, numbers, mask, rows, key)

  rng, key = np.random.default_rng(0), jax.random.key(3)
  steps = 6
  for n in (0, 1, b, b + 1, 2 * b + 1, 3 * b):
    # Two epochs of n examples: partial batches stand amid full ones too.
    epoch = np.arange(-(-n // b) * b).reshape(-1, b) < n
    mask = np.zeros((steps, b), bool)
    mask[: 2 * len(epoch)] = np.concatenate([epoch, epoch])
    # A number that is not real would show.
    numbers = np.where(mask, rng.normal(size=mask.shape), 1e6)
    numbers = numbers.astype(np.float32)
    value, count = fold(numbers, mask, key)
    expected = by_the_book(np.float64(numbers), mask, key)
    assert int(count) == expected[1]
    assert float(value) == pytest.approx(expected[0], rel=1e-4, abs=1e-5)
  assert sizes == computed


def test_steps_behind_the_last_rows_in_use_are_not_run():
  def step(state, batch, mask, key):
    del mask, key
    return state + batch.sum()

  ones = jnp.ones((5, 8))
  fold = jax.jit(
    lambda rows: local_training.fold_batches(
      step, jnp.float32(0), ones, ones > 0, rows, jax.random.key(0)
    )
  )
  # A full step, half a step, and then none, whatever the mask says.
  assert float(fold(jnp.array([8, 3, 0, 0, 0]))) == 8 + 4
  assert float(fold(jnp.array([0, 0, 0, 0, 0]))) == 0
