"""DP-FedAvg: local training, clipping, and the round, without auditing."""

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

__all__ = [
  'Algorithm',
  'Cohort',
  'Injection',
  'RoundInfo',
  'TrainState',
  'clipping',
  'dp_fedavg',
]
