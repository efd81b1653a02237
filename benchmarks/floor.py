"""The speed that the arithmetic of a benchmark is held against."""

import time

import jax
import jax.numpy as jnp


def matmul_flops_per_second() -> float:
  """Speed of a product of two large float32 matrices, the best of five."""
  n = 3000
  product = jax.jit(jnp.matmul)
  x = jnp.ones((n, n), jnp.float32)
  product(x, x).block_until_ready()
  seconds = []
  for _ in range(5):
    begun = time.perf_counter()
    product(x, x).block_until_ready()
    seconds.append(time.perf_counter() - begun)
  return 2 * n**3 / min(seconds)
