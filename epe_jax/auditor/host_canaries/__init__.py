"""The canaries of `epe_jax.canaries` in NumPy, for training loops without JAX.

A key makes the same canaries in both: Hadamard rows bit by bit, those of the sphere
to float32 rounding. A family is a file here and a line in `registry`.
"""
