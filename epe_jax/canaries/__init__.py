"""Canary sets: k unit vectors in R^d, held as the linear map C they form."""

from epe_jax.canaries.coordinates import dirac
from epe_jax.canaries.families import (
  FAMILIES,
  ONE_BY_ONE,
  effective_dimension,
  family,
  least_dimension,
  least_noise,
)
from epe_jax.canaries.given import from_matrix
from epe_jax.canaries.random_signs import sign
from epe_jax.canaries.sharded import hadamard_of_parts
from epe_jax.canaries.types import Canaries
from epe_jax.canaries.uniform import sphere
from epe_jax.canaries.walsh import hadamard
from epe_jax.canaries.walsh_twice import hadamard2

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
  'least_dimension',
  'least_noise',
  'sign',
  'sphere',
]
