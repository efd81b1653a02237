"""How fast this machine multiplies and reads: what floors are made of."""

from collections.abc import Callable
import time

import jax
import jax.numpy as jnp

_REPETITIONS = 5


def matmul_flops_per_second(size: int = 3000) -> float:
  """Of a product of two large float32 matrices.

  Args:
    size: rows and columns of each, >= 1.
  """
  x = jnp.ones((size, size), jnp.float32)
  return 2 * size**3 / fastest(jax.jit(jnp.matmul), x, x)


def read_bytes_per_second(size: int = 50_000_000) -> float:
  """Bytes read while the sum of squares of a long vector is made.

  Args:
    size: float32 numbers of it, more than all caches hold.
  """
  x = jnp.ones(size, jnp.float32)
  return 4 * size / fastest(jax.jit(lambda x: jnp.sum(x * x)), x)


def fastest(
  function: Callable, *args, repetitions: int = _REPETITIONS
) -> float:
  """Seconds of the fastest call, of which the first is not counted."""
  jax.block_until_ready(function(*args))
  seconds = []
  for _ in range(repetitions):
    begun = time.perf_counter()
    jax.block_until_ready(function(*args))
    seconds.append(time.perf_counter() - begun)
  return min(seconds)
