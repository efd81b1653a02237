"""The audit step is one law, for arrays of JAX and of NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epe_jax import canaries
from epe_jax.audit import audit_step, audited_algorithm, observers

_ROUNDS = 6


def test_rows_are_the_matrix_in_fewer_numbers():
  rng = np.random.default_rng(0)
  matrix = rng.random((_ROUNDS, 8)) < 0.3
  most = int(matrix.sum(axis=1).max())
  for width in (None, most, most + 3):
    ids, weights = audit_step.canary_rows(matrix, width=width)
    assert ids.shape == weights.shape == (_ROUNDS, width or most)
    back = np.zeros(matrix.shape)
    for t in range(_ROUNDS):
      np.add.at(back[t], ids[t], weights[t])
    np.testing.assert_array_equal(back, matrix)
  with pytest.raises(ValueError, match=f'width={most - 1}.* {most} canaries'):
    audit_step.canary_rows(matrix, width=most - 1)


@pytest.mark.parametrize('xp', [np, jnp])
def test_a_vector_of_zeros_has_cosines_of_zero(xp):
  products = xp.asarray([[3.0, -4.0], [0.0, 0.0]])
  norms = xp.asarray([[5.0], [0.0]])
  cosines = audit_step.divide_by_norm(products, norms)
  np.testing.assert_allclose(cosines, [[0.6, -0.8], [0, 0]], rtol=1e-6)


def test_rows_of_canaries_are_injected_as_the_matrix_says():
  made = canaries.from_matrix(jnp.eye(4))
  matrix = np.array([[False, True, False, True], [False] * 4])
  rows = audit_step.canary_rows(matrix)
  for t, row in enumerate(matrix):
    injection = audited_algorithm.make_injection(made, rows, jnp.int32(t))
    np.testing.assert_array_equal(injection.direction(), row)
    assert injection.count == row.sum()
  # Units of S, so that a scored canary has the cosine 1 with itself alone.
  cosines = observers.compute_cosines(made, jax.nn.one_hot(1, 4))
  np.testing.assert_array_equal(cosines, [0, 1, 0, 0])
