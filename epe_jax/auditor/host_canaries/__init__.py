"""The canaries of `epe_jax.canaries` in NumPy, for training loops without JAX.

One key makes the same canaries here and there: those of Hadamard rows bit by bit,
those of the sphere to float32 rounding.
"""
