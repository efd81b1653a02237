"""Matrix products in the precision that is asked for.

XLA:CPU ignores the precision of a product. Where the processor multiplies bfloat16
(avx512_bf16, amx_bf16), a product of rounded factors with float32 sums takes half the
time or less; without such instructions it takes longer.
"""

from typing import Any

import jax
import jax.numpy as jnp

from epe_jax.types import Array


def dot_general(a: Array, b: Array, dimension_numbers: Any) -> Array:
  """As `lax.dot_general`, of factors rounded to bfloat16 if these are the default."""
  dtype = jnp.result_type(a, b)
  if jax.config.jax_default_matmul_precision == 'bfloat16':
    a, b = a.astype(jnp.bfloat16), b.astype(jnp.bfloat16)
  return jax.lax.dot_general(
    a, b, dimension_numbers, preferred_element_type=dtype
  )
