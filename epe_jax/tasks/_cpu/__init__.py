"""Kernels in forms that XLA:CPU runs well inside loops, such as local training.

They exist only for speed. Up to rounding, their results and gradients are those of the
functions of Flax, Haiku and Optax, with which tests compare them. Only
`epe_jax.tasks.kernels` imports them.
"""
