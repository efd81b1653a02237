"""Canary sets: k unit vectors in R^d, held as the linear map C they form."""

from epe_jax.canaries.given import from_matrix
from epe_jax.canaries.types import Canaries
from epe_jax.canaries.uniform import sphere
from epe_jax.canaries.walsh import hadamard

__all__ = ['Canaries', 'from_matrix', 'hadamard', 'sphere']
