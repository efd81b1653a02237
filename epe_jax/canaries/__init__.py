"""Canary sets: k unit vectors in R^d, held as the linear map C they form."""

from epe_jax import extras

with extras.explain_missing():
  from epe_jax.canaries.base import Canaries
  from epe_jax.canaries.dirac import dirac
  from epe_jax.canaries.given import from_matrix
  from epe_jax.canaries.hadamard import hadamard
  from epe_jax.canaries.hadamard2 import hadamard2
  from epe_jax.canaries.registry import (
    FAMILIES,
    ONE_BY_ONE,
    effective_dimension,
    family,
  )
  from epe_jax.canaries.sharded import hadamard_of_parts, padded_width
  from epe_jax.canaries.sign import sign
  from epe_jax.canaries.sphere import sphere
  from epe_jax.host_canaries.requirements import (
    min_effective_dimension,
    min_noise_multiplier,
  )

__all__ = [
  'FAMILIES',
  'ONE_BY_ONE',
  'Canaries',
  'dirac',
  'effective_dimension',
  'family',
  'from_matrix',
  'hadamard',
  'hadamard2',
  'hadamard_of_parts',
  'min_effective_dimension',
  'min_noise_multiplier',
  'padded_width',
  'sign',
  'sphere',
]
