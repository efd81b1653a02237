"""One-shot empirical privacy estimation for federated learning, in JAX.

The public names are loaded when they are first used, so that `epe_jax.epsilon`
works where JAX is not installed.
"""

import importlib
from typing import TYPE_CHECKING, Any

from epe_jax._version import __version__

if TYPE_CHECKING:
  from epe_jax import epsilon
  from epe_jax.audit import (
    Observer,
    all_iterates,
    audited,
    final_model,
  )
  from epe_jax.canaries import Canaries, from_matrix, sphere
  from epe_jax.canary_schedules import once_per_period
  from epe_jax.clipping import Clipping, adaptive, fixed
  from epe_jax.data.cohort import Plan, gather
  from epe_jax.data.federated import FederatedData, from_clients
  from epe_jax.fedavg import (
    Algorithm,
    Cohort,
    Injection,
    RoundInfo,
    TrainState,
    dp_fedavg,
  )
  from epe_jax.model_file import load_params
  from epe_jax.readings import (
    every_nth,
    last_n,
    lent,
    maximum,
    mixture,
    own_round,
  )
  from epe_jax.schedules import shuffled_epochs
  from epe_jax.types import Task, Weighted

_HOME = {
  'audit': (
    'Observer',
    'all_iterates',
    'audited',
    'final_model',
  ),
  'canaries': ('Canaries', 'from_matrix', 'sphere'),
  'canary_schedules': ('once_per_period',),
  'clipping': ('Clipping', 'adaptive', 'fixed'),
  'data.cohort': ('Plan', 'gather'),
  'data.federated': ('FederatedData', 'from_clients'),
  'fedavg': (
    'Algorithm',
    'Cohort',
    'Injection',
    'RoundInfo',
    'TrainState',
    'dp_fedavg',
  ),
  'model_file': ('load_params',),
  'readings': (
    'every_nth',
    'last_n',
    'lent',
    'maximum',
    'mixture',
    'own_round',
  ),
  'schedules': ('shuffled_epochs',),
  'types': ('Task', 'Weighted'),
}

__all__ = [
  '__version__',
  'epsilon',
  'Algorithm',
  'Canaries',
  'Clipping',
  'Cohort',
  'FederatedData',
  'Injection',
  'Observer',
  'Plan',
  'RoundInfo',
  'Task',
  'TrainState',
  'Weighted',
  'adaptive',
  'all_iterates',
  'audited',
  'dp_fedavg',
  'every_nth',
  'final_model',
  'fixed',
  'from_clients',
  'from_matrix',
  'gather',
  'last_n',
  'lent',
  'load_params',
  'maximum',
  'mixture',
  'once_per_period',
  'own_round',
  'shuffled_epochs',
  'sphere',
]


def __getattr__(name: str) -> Any:
  if name == 'epsilon':
    return importlib.import_module('epe_jax.epsilon')
  for module, names in _HOME.items():
    if name in names:
      return getattr(importlib.import_module(f'epe_jax.{module}'), name)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
