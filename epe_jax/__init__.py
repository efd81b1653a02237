"""One-shot empirical privacy estimation for federated learning, in JAX.

`estimate` audits two arrays of scores, `Auditor` any training loop. Each room is loaded
when it is first used, so that this, `epe_jax.epsilon` and score files work where JAX is
not installed.
"""

import lazy_loader

from epe_jax import extras

__version__ = '0.1.0'

_ROOMS = [
  'accounting',
  'audit',
  'auditor',
  'canaries',
  'configs',
  'conformance',
  'data',
  'dpsgd',
  'epsilon',
  'experiment',
  'parallel',
  'planning',
  'report',
  'sampling',
  'scores',
  'several_runs',
  'tasks',
  'training',
  'types',
  'watch',
]

__getattr__, _, __all__ = lazy_loader.attach(
  __name__,
  _ROOMS,
  {
    'auditor.audit_config': ['AuditConfig'],
    'auditor.auditor': ['Auditor'],
    'scores.score_audit': ['estimate'],
  },
)
__getattr__ = extras.explain_missing()(__getattr__)
__all__ += ['__version__']


def __dir__() -> list[str]:
  return sorted(__all__)
