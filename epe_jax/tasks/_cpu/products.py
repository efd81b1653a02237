"""Matrix products in the precision that is asked for.

XLA:CPU ignores the precision of a product. Where the processor multiplies bfloat16
(avx512_bf16, amx_bf16), a product of rounded factors with float32 sums takes half the
time; without such instructions it takes longer.
"""

from typing import Any

import jax
import jax.numpy as jnp

from epe_jax.types import Array


def round_factor(x: Array) -> Array:
  """Returns a factor in bfloat16 if that is the default precision, or else as it is.

  Loops have the factors rounded that do not change in them.
  """
  precision = jax.config.jax_default_matmul_precision  # pyright: ignore
  return x.astype(jnp.bfloat16) if precision == 'bfloat16' else x


def dot_general(
  a: Array, b: Array, dimension_numbers: Any = (((1,), (0,)), ((), ()))
) -> Array:
  """As `lax.dot_general`, of factors that are rounded, with sums in float32.

  Both are bfloat16 where a whole model is; then so is the product.
  """
  dtype = jnp.result_type(a, b)
  return jax.lax.dot_general(
    round_factor(a),
    round_factor(b),
    dimension_numbers,
    preferred_element_type=dtype,
  )
