"""Audits of training loops that are not ours, one module for each framework.

Each is a thin use of `epe_jax.Auditor` and needs its framework alone.
"""
