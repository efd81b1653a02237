"""Who takes part in which round: clients and canaries."""

from epe_jax.sampling.canary_schedules import (
  as_clients,
  coin_flips,
  once_per_period,
)
from epe_jax.sampling.client_schedules import (
  ClientSchedule,
  fixed_size,
  limited,
  poisson,
  replayed,
  shuffled_epochs,
)

__all__ = [
  'ClientSchedule',
  'as_clients',
  'coin_flips',
  'fixed_size',
  'limited',
  'once_per_period',
  'poisson',
  'replayed',
  'shuffled_epochs',
]
