"""Audits any training loop, on the host and without JAX."""

import lazy_loader

from epe_jax import extras

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = extras.explain_missing()(__getattr__)
