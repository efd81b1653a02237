"""DP-FedAvg and DP-SGD: training, clipping, and the round, without auditing."""

import importlib
from types import ModuleType

from epe_jax import extras

with extras.explain_missing():
  from epe_jax.training import clipping
  from epe_jax.training.fedavg import (
    Algorithm,
    Cohort,
    Injection,
    RoundInfo,
    TrainState,
    dp_fedavg,
  )

# They need the extra 'dpsgd', and are loaded when they are first used.
_OPTIONAL = ('dpsgd', 'poisson_batches')

__all__ = [
  'Algorithm',
  'Cohort',
  'Injection',
  'RoundInfo',
  'TrainState',
  'clipping',
  'dp_fedavg',
  'dpsgd',  # pyright: ignore[reportUnsupportedDunderAll]
  'poisson_batches',  # pyright: ignore[reportUnsupportedDunderAll]
]


def __getattr__(name: str) -> ModuleType:
  if name in _OPTIONAL:
    return importlib.import_module(f'{__name__}.{name}')
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
