"""One-shot empirical privacy estimation for federated learning, in JAX.

Each room is loaded when it is first used, so that `epe_jax.epsilon` and score
files work where JAX is not installed.
"""

import lazy_loader

from epe_jax import extras
from epe_jax._version import __version__

_ROOMS = [
  'accounting',
  'audit',
  'canaries',
  'configs',
  'conformance',
  'data',
  'epsilon',
  'experiment',
  'host_canaries',
  'integrations',
  'parallel',
  'report',
  'sampling',
  'tasks',
  'text',
  'training',
  'types',
]

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, _ROOMS)
__getattr__ = extras.explain_missing()(__getattr__)
__all__ += ['__version__']
