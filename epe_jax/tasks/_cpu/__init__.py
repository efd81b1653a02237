"""Kernels in forms that XLA:CPU runs well inside loops, such as local training.

They are there for speed alone. Their numbers, to rounding, and their gradients
are those of Flax's, Haiku's and Optax's own functions, which tests compare them
with. Nothing but `epe_jax.tasks.kernels` imports them.
"""
