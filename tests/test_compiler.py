"""The installed JAX does not have the faults that are known of other versions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest


# jaxlib 0.10.2 takes the last row for another one on a CPU, and gives 1,071,645,696 in
# float32 and 267,911,424 in float64 (github.com/jax-ml/jax/issues/39103).
@pytest.mark.parametrize(
  ('dtype', 'num'), [(np.float32, 2**15 + 1), (np.float64, 2**14 + 1)]
)
def test_a_vmapped_product_and_the_sum_of_its_squares_are_right(dtype, num):
  with jax.enable_x64(dtype == np.float64):
    identity = jnp.eye(3, dtype=dtype)
    rows = np.zeros((num, 3), dtype)
    rows[:, 0] = np.arange(num)

    @jax.jit
    def measure(rows):
      return jax.vmap(lambda row: jnp.sum((identity @ row) ** 2))(rows)

    squares = measure(rows)
    assert squares.dtype == dtype
    np.testing.assert_array_equal(squares, rows[:, 0] ** 2)
