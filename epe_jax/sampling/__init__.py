"""Participation: which clients and canaries take part in which round."""

from epe_jax.sampling.canary_schedules import (
  as_clients,
  flip_coins,
  once_per_period,
  worst_case,
)
from epe_jax.sampling.client_schedules import (
  ClientSchedule,
  cyclic,
  fixed_size,
  limited,
  poisson,
  shuffled_epochs,
)

__all__ = [
  'ClientSchedule',
  'as_clients',
  'cyclic',
  'flip_coins',
  'fixed_size',
  'limited',
  'once_per_period',
  'poisson',
  'shuffled_epochs',
  'worst_case',
]
