"""From what attackers see of a run to estimates of ε.

Observers and `audited` need JAX; records, threat models and estimates do not, so
each is loaded when it is first used.
"""

import lazy_loader

from epe_jax import extras

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = extras.explain_missing()(__getattr__)
